//! Absent rows as −0.0 in arrays of floats that are summed.
//!
//! A sum, rounded to nearest, is −0.0 only if every addend is (IEEE 754-2019, section 6.3), in any order. Underflow cannot break
//! this, since sums of floats are multiples of the least float. So the array itself says which rows are entries, and no bitmap
//! is sent beside it. An entry of −0.0 is sent as 0.

use super::bits::{bits_of, set_word};
use crate::simd;
use skyphos_types::{Element, ReduceOp};
use std::borrow::Cow;

/// Numbers that are searched together.
const BLOCK: usize = 4096;

/// The number that stands for an absent row while arrays are reduced; `None` if the operation or type has none.
pub fn absent_number<T: Element>(op: &ReduceOp) -> Option<T> {
    T::ABSENT.filter(|_| matches!(op, ReduceOp::Sum | ReduceOp::Mean))
}

/// The numbers of entries, with −0.0 replaced by 0, so that none looks absent.
pub fn as_entries<T: Element>(values: &[T]) -> Cow<'_, [T]> {
    #[inline(always)]
    fn some_absent<T: Element>(values: &[T]) -> bool {
        values.chunks(BLOCK).any(|block| block.iter().fold(false, |found, v| found | v.is_absent()))
    }
    match simd::dispatch!(some_absent(values)) {
        true => Cow::Owned(values.iter().map(|v| zero_if_absent(*v)).collect()),
        false => Cow::Borrowed(values),
    }
}

/// The number, or 0 for −0.0.
#[inline(always)]
fn zero_if_absent<T: Element>(number: T) -> T {
    number.add(T::ZERO)
}

/// Turns an array into the values of a dense vector, in place, and returns a bitmap of the rows that are entries.
pub fn bitmap_of_entries<T: Element>(values: &mut [T], width: usize) -> Vec<u64> {
    let mut bits = vec![0; (values.len() / width).div_ceil(64)];
    let (numbers, count) = (values.as_mut_ptr(), values.len());
    // SAFETY: all numbers of the slice are read and written in place.
    unsafe { copy_marking_absent(numbers, numbers, count, &mut bits, 0, width) };
    bits
}

/// Copies numbers, the first of which has position `first` in the whole array; −0.0 becomes 0. Sets the bit of each row that
/// begins among them and is an entry. All `count` numbers of `to` are written.
///
/// # Safety
/// `count` numbers must be readable at `from` and writable at `to`, which must be equal or not overlap.
pub(crate) unsafe fn copy_marking_absent<T: Element>(
    from: *const T,
    to: *mut T,
    count: usize,
    bits: &mut [u64],
    first: usize,
    width: usize,
) {
    if width == 1 {
        let isa = simd::detected();
        // SAFETY: as the caller promises.
        return unsafe {
            simd::dispatch!(isa => copy_marking_absent_singles(isa, from, to, count, bits, first))
        };
    }
    for k in 0..count {
        // SAFETY: as the caller promises.
        let number = unsafe { from.add(k).read() };
        let (row, column) = ((first + k) / width, (first + k) % width);
        if column == 0 && !number.is_absent() {
            bits[row / 64] |= 1 << (row % 64);
        }
        // SAFETY: as the caller promises.
        unsafe { to.add(k).write(zero_if_absent(number)) };
    }
}

/// [`copy_marking_absent`] for rows of one number.
///
/// # Safety
/// As for [`copy_marking_absent`].
#[inline(always)]
unsafe fn copy_marking_absent_singles<T: Element>(
    isa: simd::InstructionSet,
    from: *const T,
    to: *mut T,
    count: usize,
    bits: &mut [u64],
    first: usize,
) {
    for k in (0..count).step_by(64) {
        // SAFETY: `left` of the caller's numbers remain.
        let (left, from, to) = unsafe { ((count - k).min(64), from.add(k), to.add(k)) };
        let word = match isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: 64 numbers remain to be read and written.
            simd::InstructionSet::Avx512(avx512) if left == 64 && size_of::<T>() > 1 => unsafe {
                avx512.clear_negative_zeros(from, to)
            },
            _ => {
                let mut marks = [0u8; 64];
                for (k, mark) in marks[..left].iter_mut().enumerate() {
                    // SAFETY: `k` is below `left`.
                    let number = unsafe { from.add(k).read() };
                    *mark = u8::from(!number.is_absent());
                    // SAFETY: as above.
                    unsafe { to.add(k).write(zero_if_absent(number)) };
                }
                bits_of(&marks[..left])
            }
        };
        set_word(bits, first + k, word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ArrayBuilder;
    use proptest::prelude::*;
    use skyphos_types::with_real;

    proptest! {
        #[test]
        fn rows_that_a_rank_has_are_entries(
            ranks in prop::collection::vec(prop::collection::vec(prop::option::weighted(0.3, -2i8..3), 300), 1..5),
            cuts in prop::collection::vec(0usize..=300, 3), width in 1usize..5, kind in 0usize..4,
        ) {
            let dtype = [skyphos_types::DType::F32, skyphos_types::DType::F64, skyphos_types::DType::F16,
                         skyphos_types::DType::BF16][kind];
            with_real!(dtype, T => {
                // A drawn -2 becomes -0.0.
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
                let mut builder = ArrayBuilder::new(sum.len());
                for cut in cuts.windows(2) {
                    builder.put_entries(cut[0], &sum[cut[0]..cut[1]], width, &mut bits);
                }
                prop_assert_eq!(&bits, &want);
                prop_assert_eq!(&bitmap_of_entries(&mut sum, width), &want);
                prop_assert!(sum.iter().all(|v| !v.is_absent()));
                prop_assert_eq!(builder.finish(), Some(sum));
            }, else unreachable!("all are floats"));
        }
    }

    #[test]
    fn only_sums_of_floats_have_an_absent_number() {
        assert!(absent_number::<f32>(&ReduceOp::Mean).is_some());
        assert!(absent_number::<i32>(&ReduceOp::Sum).is_none());
        assert!(absent_number::<f64>(&ReduceOp::Min).is_none());
        assert!(matches!(as_entries(&[1.0f32, 0.0]), Cow::Borrowed(_)));
        assert_eq!(as_entries(&[1.0f32, -0.0])[1].to_bits(), 0);
    }
}
