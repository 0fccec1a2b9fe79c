//! Addend: a vector that is folded into an array range by range. Cost: a step for each entry in a range.

use super::bits::set_bits_between;
use super::vector::View;
use crate::fold::{fold_all, with_op};
use crate::index::Index;
use skyphos_types::{Element, ReduceOp, Result};

/// A vector to be folded into ranges of an array.
pub struct Addend<'a, T> {
    view: View<'a, T>,
    width: usize,
    identity: T,
}

impl<'a, T: Element> Addend<'a, T> {
    /// A vector of rows of `width` numbers, for an operation with this identity.
    pub fn new(view: View<'a, T>, width: usize, identity: T) -> Addend<'a, T> {
        Addend { view, width, identity }
    }

    /// The operation's identity, with which an array is filled before the first fold.
    pub fn identity(&self) -> T {
        self.identity
    }

    /// Folds the numbers of entries at positions `first..first + acc.len()` of the array of all rows into `acc`. The range may begin
    /// and end within a row.
    pub fn fold_onto(&self, op: &ReduceOp, acc: &mut [T], first: usize) -> Result<()> {
        if acc.is_empty() {
            return Ok(());
        }
        if let View::Dense { values, present: None } = self.view {
            return fold_all(op, acc, &values[first..first + acc.len()]);
        }
        with_op!(op, T, f => self.fold(f, acc, first), _ => {
            // A custom operation works on whole arrays.
            let mut addend = vec![self.identity; acc.len()];
            self.fold(|_, number| number, &mut addend, first);
            fold_all(op, acc, &addend)?;
        });
        Ok(())
    }

    fn fold(&self, op: impl Fn(T, T) -> T + Copy, acc: &mut [T], first: usize) {
        match self.view {
            View::Sparse { indices, values } if self.width == 1 => {
                crate::with_indices!(indices, list => fold_singles(op, acc, first, list, values));
            }
            _ => self.fold_rows(op, acc, first),
        }
    }

    /// Folds row by row.
    fn fold_rows(&self, op: impl Fn(T, T) -> T + Copy, acc: &mut [T], first: usize) {
        let width = self.width;
        let rows = first / width..(first + acc.len()).div_ceil(width);
        match self.view {
            View::Sparse { indices, values } => crate::with_indices!(indices, list => {
                let below = |row: usize| list.partition_point(|index| (index.number() as usize) < row);
                let inside = below(rows.start)..below(rows.end);
                let starts = list[inside.clone()].iter().map(|index| index.number() as usize * width);
                let numbers = values[inside.start * width..].chunks_exact(width);
                starts.zip(numbers).for_each(|(at, row)| fold_row(op, acc, first, at, row));
            }),
            View::Dense { values, present } => {
                let bits = present.expect("fold_onto handles dense vectors without a bitmap");
                for row in set_bits_between(bits, rows.start, rows.end) {
                    fold_row(op, acc, first, row * width, &values[row * width..][..width]);
                }
            }
        }
    }
}

/// Folds the entries that lie in the range, for rows of one number.
fn fold_singles<T: Element, I: Index>(
    op: impl Fn(T, T) -> T,
    acc: &mut [T],
    first: usize,
    list: &[I],
    values: &[T],
) {
    let below = |row: usize| list.partition_point(|index| (index.number() as usize) < row);
    let inside = below(first)..below(first + acc.len());
    for (index, value) in list[inside.clone()].iter().zip(&values[inside]) {
        let slot = &mut acc[index.number() as usize - first];
        *slot = op(*slot, *value);
    }
}

/// Folds the part of a row, which begins at position `at`, that lies in the range.
#[inline(always)]
fn fold_row<T: Element>(op: impl Fn(T, T) -> T, acc: &mut [T], first: usize, at: usize, row: &[T]) {
    let (from, to) = (at.max(first), (at + row.len()).min(first + acc.len()));
    let numbers = acc[from - first..to - first].iter_mut().zip(&row[from - at..to - at]);
    numbers.for_each(|(number, value)| *number = op(*number, *value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Indices;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn folds_match_the_oracle(present in prop::collection::vec(prop::bool::weighted(0.4), 1..1500), width in 1usize..4,
                         cuts in prop::collection::vec(0.0f64..1.0, 4), op in 0usize..6, form in 0usize..3) {
            let (n, op) = (present.len(), &ReduceOp::NAMED[op]);
            let rows_present: Vec<u64> = (0..n as u64).filter(|row| form == 2 || present[*row as usize]).collect();
            let number = |k: usize| (k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| (cut * (n * width) as f64) as usize).collect();
            cuts.extend([0, n * width]);
            cuts.sort_unstable();
            let numbers = |row: &u64| (0..width).map(|w| number(*row as usize * width + w)).collect::<Vec<u64>>();
            let rows: Vec<u64> = rows_present.iter().flat_map(numbers).collect();
            let dense: Vec<u64> = (0..n * width).map(number).collect();
            let mut bits = vec![0u64; n.div_ceil(64)];
            rows_present.iter().for_each(|row| bits[*row as usize / 64] |= 1 << (row % 64));
            let view = match form {
                0 => View::Sparse { indices: Indices::U64(&rows_present), values: &rows },
                1 => View::Dense { values: &dense, present: Some(&bits) },
                _ => View::Dense { values: &dense, present: None },
            };
            prop_assert_eq!(view.bitmap(n as u64, width), bits.clone());
            let addend = Addend::new(view, width, op.identity().unwrap());
            for cut in cuts.windows(2) {
                let first = cut[0];
                let start: Vec<u64> = (first..cut[1]).map(|k| number(k + 5)).collect();
                let (mut got, mut want) = (start.clone(), start);
                addend.fold_onto(op, &mut got, first).unwrap();
                for k in first..cut[1] {
                    if rows_present.contains(&((k / width) as u64)) {
                        fold_all(op, &mut want[k - first..=k - first], &[number(k)]).unwrap();
                    }
                }
                prop_assert_eq!(got, want);
            }
        }
    }
}
