//! Arrays of floats that are summed, in which −0.0 stands for what is no entry.
//!
//! A sum, rounded to nearest, is −0.0 only where every addend is (IEEE 754-2019, section 6.3): in any order, and without
//! underflow, as sums of floats are multiples of the least one. So the array itself says which rows are entries, and no
//! bitmap travels beside it. An entry that is −0.0 goes as 0.

use super::bits::set_marked;
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
        true => Cow::Owned(values.iter().map(|v| without_sign(*v)).collect()),
        false => Cow::Borrowed(values),
    }
}

/// Sets the bits of the rows that are entries, of those that begin among `numbers`, the first of which is number `first`
/// of all.
pub fn mark_entries<T: Element>(bits: &mut [u64], numbers: &[T], first: usize, width: usize) {
    #[inline(always)]
    fn mark<T: Element>(marks: &mut [u8], firsts: impl Iterator<Item = T>) {
        marks.iter_mut().zip(firsts).for_each(|(mark, number)| *mark = u8::from(!number.is_absent()));
    }
    #[inline(always)]
    fn mark_singles<T: Element>(marks: &mut [u8], numbers: &[T]) {
        mark(marks, numbers.iter().copied());
    }
    let mut marks = [0; BLOCK];
    let from = first.next_multiple_of(width);
    let Some(numbers) = numbers.get(from - first..) else { return };
    for (k, rows) in numbers.chunks(BLOCK * width).enumerate() {
        let marks = &mut marks[..rows.len().div_ceil(width)];
        match width {
            1 => simd::dispatch!(mark_singles(marks, rows)),
            _ => mark(marks, rows.iter().step_by(width).copied()),
        }
        set_marked(bits, from / width + k * BLOCK, marks);
    }
}

/// Turns an array into the values of a dense vector, in place, and says which rows are entries.
pub fn told_apart<T: Element>(values: &mut [T], width: usize) -> Vec<u64> {
    let mut bits = vec![0; (values.len() / width).div_ceil(64)];
    for (k, block) in values.chunks_mut(BLOCK).enumerate() {
        mark_entries(&mut bits, block, k * BLOCK, width);
        block.iter_mut().for_each(|number| *number = without_sign(*number));
    }
    bits
}

/// 0 for what is absent.
#[inline(always)]
pub fn without_sign<T: Element>(number: T) -> T {
    number.add(T::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
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
                cuts.windows(2).for_each(|cut| mark_entries(&mut bits, &sum[cut[0]..cut[1]], cut[0], width));
                prop_assert_eq!(&bits, &want);
                prop_assert_eq!(&told_apart(&mut sum, width), &want);
                prop_assert!(sum.iter().all(|v| !v.is_absent()));
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
