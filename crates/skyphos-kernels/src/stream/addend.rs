//! A vector that is added to stretches of an array, one after the other.
//!
//! Cost: for indices in a list one pass over them to make a bitmap; then a step for 64 positions and one for each entry
//! or each 16 positions.

use super::bits::{count_between, set_bits_between};
use super::vector::View;
use super::words::take_word;
use crate::fold::fold_all;
use crate::prepare::Index;
use crate::simd;
use skyphos_types::{Element, ReduceOp, Result};

/// See the module's text.
pub struct Addend<'a, T> {
    view: View<'a, T>,
    width: usize,
    /// Changes nothing that it is added to.
    blank: T,
    /// A bit for each row: whether it is an entry.
    bits: Vec<u64>,
    /// Entries before every so many words.
    before: Vec<usize>,
}

/// Words after which entries are counted.
const COUNTED: usize = 64;

impl<'a, T: Element> Addend<'a, T> {
    /// A vector of `n` rows of `width` numbers, for an operation that `blank` changes nothing in.
    pub fn new(view: View<'a, T>, n: u64, width: usize, blank: T) -> Addend<'a, T> {
        let bits = view.bitmap(n, width);
        let mut count = 0;
        let count_on = |words: &[u64]| {
            let before = count;
            count += words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            before
        };
        let before = bits.chunks(COUNTED).map(count_on).collect();
        Addend { view, width, blank, bits, before }
    }

    /// What an array is full of before anything is added.
    pub fn blank(&self) -> T {
        self.blank
    }

    /// A bit for each row: whether it is an entry.
    pub fn bitmap(&self) -> &[u64] {
        &self.bits
    }

    /// `acc ⊕=` the entries' numbers that lie in `first..first + acc.len()` of all rows side by side. A row may lie in it
    /// in part.
    pub fn fold_onto(&self, op: &ReduceOp, acc: &mut [T], first: usize) -> Result<()> {
        match op {
            _ if acc.is_empty() => {}
            _ if matches!(self.view, View::Dense { present: None, .. }) => {
                let View::Dense { values, .. } = self.view else { unreachable!("just seen") };
                fold_all(op, acc, &values[first..first + acc.len()])?;
            }
            ReduceOp::Sum | ReduceOp::Mean | ReduceOp::MeanPresent => self.fold(T::add, acc, first),
            ReduceOp::Prod => self.fold(T::mul, acc, first),
            ReduceOp::Min => self.fold(T::least, acc, first),
            ReduceOp::Max => self.fold(T::greatest, acc, first),
            ReduceOp::Or => self.fold(T::or, acc, first),
            ReduceOp::And => self.fold(T::and, acc, first),
            ReduceOp::Custom(_) => {
                // The caller's operation works on whole arrays.
                let mut others = vec![self.blank; acc.len()];
                self.fold(|_, number| number, &mut others, first);
                fold_all(op, acc, &others)?;
            }
        }
        Ok(())
    }

    fn fold(&self, op: impl Fn(T, T) -> T + Copy, acc: &mut [T], first: usize) {
        match self.view {
            View::Sparse { values, .. } if self.width == 1 => {
                let values = &values[self.entries_before(first)..];
                simd::dispatch!(fold_words(&self.bits, values, acc, first, self.blank, op));
            }
            _ => self.fold_rows(op, acc, first),
        }
    }

    fn entries_before(&self, row: usize) -> usize {
        match self.before.get(row / 64 / COUNTED) {
            Some(before) => before + count_between(&self.bits, row / 64 / COUNTED * COUNTED * 64, row),
            None => 0, // there are none after it
        }
    }

    /// Row by row.
    fn fold_rows(&self, op: impl Fn(T, T) -> T + Copy, acc: &mut [T], first: usize) {
        let width = self.width;
        let rows = first / width..(first + acc.len()).div_ceil(width);
        match self.view {
            View::Sparse { indices, values } => crate::with_indices!(indices, list => {
                let below = |row: usize| list.partition_point(|index| (index.number() as usize) < row);
                let held = below(rows.start)..below(rows.end);
                let places = list[held.clone()].iter().map(|index| index.number() as usize * width);
                let numbers = values[held.start * width..].chunks_exact(width);
                places.zip(numbers).for_each(|(at, row)| fold_row(op, acc, first, at, row));
            }),
            View::Dense { values, .. } => {
                for row in set_bits_between(&self.bits, rows.start, rows.end) {
                    fold_row(op, acc, first, row * width, &values[row * width..][..width]);
                }
            }
        }
    }
}

/// Adds the first of `values`, one for each bit from `first` on, to their places.
#[inline(always)]
fn fold_words<T: Element>(
    bits: &[u64],
    mut values: &[T],
    acc: &mut [T],
    first: usize,
    identity: T,
    op: impl Fn(T, T) -> T + Copy,
) {
    let (end, level) = (first + acc.len(), simd::level());
    for (place, word) in (first / 64..end.div_ceil(64)).zip(&bits[first / 64..]) {
        let at = (place * 64).max(first);
        let mut word = word >> (at - place * 64);
        let rows = &mut acc[at - first..];
        let level = if rows.len() < 64 {
            word &= u64::MAX >> (64 - rows.len());
            simd::Level::Baseline
        } else {
            level
        };
        take_word(level, word, values, rows, identity, op);
        values = &values[word.count_ones() as usize..];
    }
}

/// Adds what is inside of a row that begins at number `at`.
#[inline(always)]
fn fold_row<T: Element>(op: impl Fn(T, T) -> T, acc: &mut [T], first: usize, at: usize, row: &[T]) {
    let (from, to) = (at.max(first), (at + row.len()).min(first + acc.len()));
    let numbers = acc[from - first..to - first].iter_mut().zip(&row[from - at..to - at]);
    numbers.for_each(|(number, value)| *number = op(*number, *value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepare::Indices;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_the_oracle(present in prop::collection::vec(prop::bool::weighted(0.4), 1..1500), width in 1usize..4,
                         cuts in prop::collection::vec(0.0f64..1.0, 4), op in 0usize..6, form in 0usize..3) {
            let (n, op) = (present.len(), &ReduceOp::NAMED[op]);
            let held: Vec<u64> = (0..n as u64).filter(|row| form == 2 || present[*row as usize]).collect();
            let number = |k: usize| (k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| (cut * (n * width) as f64) as usize).collect();
            cuts.extend([0, n * width]);
            cuts.sort_unstable();
            let numbers = |row: &u64| (0..width).map(|w| number(*row as usize * width + w)).collect::<Vec<u64>>();
            let rows: Vec<u64> = held.iter().flat_map(numbers).collect();
            let dense: Vec<u64> = (0..n * width).map(number).collect();
            let mut bits = vec![0u64; n.div_ceil(64)];
            held.iter().for_each(|row| bits[*row as usize / 64] |= 1 << (row % 64));
            let view = match form {
                0 => View::Sparse { indices: Indices::U64(&held), values: &rows },
                1 => View::Dense { values: &dense, present: Some(&bits) },
                _ => View::Dense { values: &dense, present: None },
            };
            let addend = Addend::new(view, n as u64, width, op.identity().unwrap());
            prop_assert_eq!(addend.bitmap(), &bits[..]);
            for stretch in cuts.windows(2) {
                let first = stretch[0];
                let start: Vec<u64> = (first..stretch[1]).map(|k| number(k + 5)).collect();
                let (mut got, mut want) = (start.clone(), start);
                addend.fold_onto(op, &mut got, first).unwrap();
                for k in first..stretch[1] {
                    if held.contains(&((k / width) as u64)) {
                        fold_all(op, &mut want[k - first..=k - first], &[number(k)]).unwrap();
                    }
                }
                prop_assert_eq!(got, want);
            }
        }
    }
}
