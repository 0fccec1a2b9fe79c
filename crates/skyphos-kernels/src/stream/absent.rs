//! Arrays of floats that are summed, in which −0.0 stands for what is no entry.
//!
//! A sum, rounded to nearest, is −0.0 only where every addend is (IEEE 754-2019, section 6.3): in any order, and without
//! underflow, as sums of floats are multiples of the least one. So the array itself says which rows are entries, and no
//! bitmap travels beside it. An entry that is −0.0 goes as 0.

use super::bits::{bits_of, set_word};
#[cfg(target_arch = "x86_64")]
use crate::lanes;
use crate::simd;
use skyphos_types::{Element, ReduceOp};
use std::borrow::Cow;

/// Numbers that stay in the L1 cache.
const BLOCK: usize = 4096;

/// What stands for no entry while arrays are reduced; `None` where no number can.
pub fn absent_number<T: Element>(op: &ReduceOp) -> Option<T> {
    T::ABSENT.filter(|_| matches!(op, ReduceOp::Sum | ReduceOp::Mean))
}

/// Entries' numbers, none of which looks absent.
pub fn as_entries<T: Element>(values: &[T]) -> Cow<'_, [T]> {
    #[inline(always)]
    fn some_absent<T: Element>(values: &[T]) -> bool {
        values.chunks(BLOCK).any(|block| block.iter().fold(false, |found, v| found | v.is_absent()))
    }
    match simd::dispatch!(some_absent(values)) {
        true => Cow::Owned(values.iter().map(|v| settled(*v)).collect()),
        false => Cow::Borrowed(values),
    }
}

/// Numbers that are absent become 0.
#[inline(always)]
fn settled<T: Element>(number: T) -> T {
    number.add(T::ZERO)
}

/// Turns an array into the values of a dense vector, in place, and says which rows are entries.
pub fn tell_apart<T: Element>(values: &mut [T], width: usize) -> Vec<u64> {
    let mut bits = vec![0; (values.len() / width).div_ceil(64)];
    let (numbers, count) = (values.as_mut_ptr(), values.len());
    // SAFETY: they are read and written in place.
    unsafe { read_off(numbers, numbers, count, &mut bits, 0, width) };
    bits
}

/// Copies numbers of an array, the first of which is number `first` of all; what is absent becomes 0. Sets the bits of the
/// rows that are entries, of those that begin here.
///
/// # Safety
/// `count` numbers must be there to be read, and there must be room for as many: the same, or apart. All are written.
#[allow(unused_unsafe, reason = "the macro has blocks of its own")]
pub(crate) unsafe fn read_off<T: Element>(
    from: *const T,
    to: *mut T,
    count: usize,
    bits: &mut [u64],
    first: usize,
    width: usize,
) {
    if width == 1 {
        let level = simd::level();
        // SAFETY: as the caller says.
        return unsafe { simd::dispatch!(level => read_off_singles(level, from, to, count, bits, first)) };
    }
    for k in 0..count {
        // SAFETY: as the caller says.
        let number = unsafe { from.add(k).read() };
        let (row, column) = ((first + k) / width, (first + k) % width);
        if column == 0 && !number.is_absent() {
            bits[row / 64] |= 1 << (row % 64);
        }
        // SAFETY: as the caller says.
        unsafe { to.add(k).write(settled(number)) };
    }
}

/// [`read_off`] of rows of one number.
#[inline(always)]
unsafe fn read_off_singles<T: Element>(
    level: simd::Level,
    from: *const T,
    to: *mut T,
    count: usize,
    bits: &mut [u64],
    first: usize,
) {
    for k in (0..count).step_by(64) {
        // SAFETY: what the caller's numbers have left.
        let (some, from, to) = unsafe { ((count - k).min(64), from.add(k), to.add(k)) };
        let word = match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `level` has seen that the processor has these instructions; there are 64 numbers.
            simd::Level::Avx512 if some == 64 && size_of::<T>() > 1 => unsafe { lanes::unsigned(from, to) },
            _ => {
                let mut marks = [0u8; 64];
                for (k, mark) in marks[..some].iter_mut().enumerate() {
                    // SAFETY: there are so many.
                    let number = unsafe { from.add(k).read() };
                    *mark = u8::from(!number.is_absent());
                    // SAFETY: and room for them.
                    unsafe { to.add(k).write(settled(number)) };
                }
                bits_of(&marks[..some])
            }
        };
        set_word(bits, first + k, word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pieces;
    use proptest::prelude::*;
    use skyphos_types::with_real;

    proptest! {
        #[test]
        fn entries_are_those_that_some_rank_has(
            ranks in prop::collection::vec(prop::collection::vec(prop::option::weighted(0.3, -2i8..3), 300), 1..5),
            cuts in prop::collection::vec(0usize..=300, 3), width in 1usize..5, kind in 0usize..4,
        ) {
            let dtype = [skyphos_types::DType::F32, skyphos_types::DType::F64, skyphos_types::DType::F16,
                         skyphos_types::DType::BF16][kind];
            with_real!(dtype, T => {
                // -2 stands for -0.0.
                let number = |k: i8| if k == -2 { T::ABSENT.unwrap() } else { <T as skyphos_types::Real>::from_f32(f32::from(k)) };
                let rows = 300 / width;
                let mut sum = vec![T::ABSENT.unwrap(); rows * width];
                let mut want = vec![0u64; rows.div_ceil(64)];
                for rank in &ranks {
                    for row in (0..rows).filter(|row| rank[*row].is_some()) {
                        let entry = vec![number(rank[row].unwrap()); width];
                        let values = sum[row * width..][..width].iter_mut().zip(&*as_entries(&entry)).map(|(a, b)| {
                            *a = a.add(*b);
                            *a
                        }).collect::<Vec<T>>();
                        prop_assert!(values.iter().all(|v| !v.is_absent()));
                        want[row / 64] |= 1 << (row % 64);
                    }
                }
                let mut cuts = cuts.iter().map(|cut| (*cut).min(sum.len())).chain([0, sum.len()]).collect::<Vec<_>>();
                cuts.sort_unstable();
                let mut bits = vec![0; want.len()];
                let mut pieces = Pieces::new(sum.len());
                for cut in cuts.windows(2) {
                    pieces.put_entries(cut[0], &sum[cut[0]..cut[1]], width, &mut bits);
                }
                prop_assert_eq!(&bits, &want);
                prop_assert_eq!(&tell_apart(&mut sum, width), &want);
                prop_assert!(sum.iter().all(|v| !v.is_absent()));
                prop_assert_eq!(pieces.finish(), Some(sum));
            }, else unreachable!("all are floats"));
        }
    }

    #[test]
    fn only_sums_of_floats() {
        assert!(absent_number::<f32>(&ReduceOp::Mean).is_some());
        assert!(absent_number::<i32>(&ReduceOp::Sum).is_none());
        assert!(absent_number::<f64>(&ReduceOp::Min).is_none());
        assert!(matches!(as_entries(&[1.0f32, 0.0]), Cow::Borrowed(_)));
        assert_eq!(as_entries(&[1.0f32, -0.0])[1].to_bits(), 0);
    }
}
