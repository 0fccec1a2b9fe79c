//! Collector of reduced blocks into a vector: a list of entries, or all rows once there are too many entries.

use super::append::{Marked, append};
use super::bits::{set_bits_between, set_marked};
use super::source::Sink;
use super::vector::{Form, IndexList, put_entries, try_with_capacity};
use crate::simd;
use skyphos_types::Element;

/// Collector of the entries of a range `lo..hi`.
pub struct Collector<T> {
    lo: u64,
    hi: u64,
    shape: Shape,
    identity: T,
    /// Number of entries above which the vector turns dense.
    max_sparse: u64,
    form: Form<T>,
    /// For each entry, the number of sources that have it; empty unless the reduction counts them.
    pub counts: Vec<u32>,
}

/// Layout of a collected vector.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Numbers per row.
    pub width: usize,
    /// Whether indices take 8 bytes.
    pub wide: bool,
    /// Entries per position above which a vector turns dense.
    pub dense_above: f64,
    /// Whether a dense vector has a bitmap of the rows that are entries.
    pub with_present: bool,
}

/// A dense vector of `rows` rows without entries.
pub fn dense_form<T: Element>(shape: Shape, rows: u64, identity: T) -> Form<T> {
    let rows = rows as usize;
    let present = shape.with_present.then(|| vec![0; rows.div_ceil(64)]);
    Form::Dense { values: vec![identity; rows * shape.width], present }
}

impl<T: Element> Collector<T> {
    /// A collector for about `expected` entries of `lo..hi`.
    pub fn new(lo: u64, hi: u64, shape: Shape, identity: T, expected: usize) -> Collector<T> {
        let max_sparse = (shape.dense_above * (hi - lo) as f64) as u64;
        let indices = if shape.wide { IndexList::Wide(Vec::new()) } else { IndexList::Narrow(Vec::new()) };
        let form = Form::Sparse { indices, values: Vec::new() };
        let mut collector = Collector { lo, hi, shape, identity, max_sparse, form, counts: Vec::new() };
        if expected as u64 > max_sparse {
            collector.form = collector.empty_dense();
        } else {
            collector.reserve(expected + expected / 8);
        }
        collector
    }

    /// Reserves memory for up to `entries` entries, if there are none yet. Pages that stay unused take no memory; if the system
    /// refuses, the lists grow as entries arrive.
    pub fn reserve(&mut self, entries: usize) {
        let Form::Sparse { indices, values } = &mut self.form else { return };
        let capacity =
            (entries as u64).min(self.max_sparse.saturating_add(1)).min(self.hi - self.lo) as usize + OVERRUN;
        let numbers = capacity.saturating_mul(self.shape.width);
        if !indices.is_empty() || numbers <= values.capacity() {
            return;
        }
        // New lists, since growing the old ones would copy them.
        if let (Ok(list), Ok(rows)) =
            (IndexList::try_with_capacity(self.shape.wide, capacity), try_with_capacity(numbers))
        {
            (*indices, *values) = (list, rows);
        }
    }

    fn empty_dense(&self) -> Form<T> {
        dense_form(self.shape, self.hi - self.lo, self.identity)
    }

    /// Number of entries collected so far, while the vector is sparse.
    pub fn len(&self) -> usize {
        match &self.form {
            Form::Sparse { indices, .. } => indices.len(),
            Form::Dense { .. } => 0,
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the first entries out, at most `max`, while the vector is sparse.
    pub fn take(&mut self, max: usize) -> Form<T> {
        let rest = match &mut self.form {
            Form::Sparse { indices, values } if indices.len() > max => {
                let indices = match indices {
                    IndexList::Wide(list) => IndexList::Wide(list.split_off(max)),
                    IndexList::Narrow(list) => IndexList::Narrow(list.split_off(max)),
                };
                Form::Sparse { indices, values: values.split_off(max * self.shape.width) }
            }
            _ if self.shape.wide => Form::Sparse { indices: IndexList::Wide(Vec::new()), values: Vec::new() },
            _ => Form::Sparse { indices: IndexList::Narrow(Vec::new()), values: Vec::new() },
        };
        std::mem::replace(&mut self.form, rest)
    }

    /// The collected vector; rows of a dense form count from `lo`. Its form depends on the entries alone, not on the expected number.
    pub fn finish(mut self) -> Form<T> {
        if let Form::Dense { values, present: Some(bits) } = &self.form
            && self.shape.dense_above >= 0.0
            && bits.iter().map(|word| u64::from(word.count_ones())).sum::<u64>() <= self.max_sparse
        {
            let positions = set_bits_between(bits, 0, (self.hi - self.lo) as usize);
            let width = self.shape.width;
            let rows = positions.iter().flat_map(|p| &values[p * width..][..width]).copied().collect();
            let mut indices = positions.iter().map(|p| self.lo + *p as u64);
            let indices = match self.shape.wide {
                true => IndexList::Wide(indices.collect()),
                false => IndexList::Narrow(indices.by_ref().map(|i| i as u32).collect()),
            };
            self.form = Form::Sparse { indices, values: rows };
        }
        self.form
    }

    /// Turns the vector dense.
    fn turn_dense(&mut self) {
        let mut dense = self.empty_dense();
        let Form::Dense { values, present } = &mut dense else { unreachable!("empty_dense is dense") };
        if let Form::Sparse { indices, values: rows } = &self.form {
            let positions: Vec<usize> =
                indices.to_vec().into_iter().map(|index| (index - self.lo) as usize).collect();
            put_entries(values, present.as_deref_mut(), self.shape.width, positions.iter().copied(), rows);
        }
        self.form = dense;
    }
}

/// Rows that vector stores may write beyond the last one.
const OVERRUN: usize = 128;

impl<T: Element> Sink<T> for Collector<T> {
    fn block(&mut self, first: u64, marks: &[u8], rows: &[T], counts: &[u32]) {
        if !counts.is_empty() {
            self.counts.extend(counts.iter().filter(|c| **c > 0));
        }
        let width = self.shape.width;
        match &mut self.form {
            Form::Sparse { indices, values } => {
                append(simd::detected(), Marked { first, marks, rows, width }, indices, values);
                if indices.len() as u64 > self.max_sparse {
                    self.turn_dense();
                }
            }
            Form::Dense { values, present } => {
                // A block may begin below the range, where there is no entry.
                let skip = self.lo.saturating_sub(first) as usize;
                let at = (first + skip as u64 - self.lo) as usize;
                let rows = &rows[skip * width..];
                values[at * width..][..rows.len()].copy_from_slice(rows);
                if let Some(bits) = present {
                    set_marked(bits, at, &marks[skip..]);
                }
            }
        }
    }

    fn entries(&mut self, base: u64, offsets: &[u32], rows: &[T], counts: &[u32]) {
        self.counts.extend(counts);
        let width = self.shape.width;
        match &mut self.form {
            Form::Sparse { indices, values } => {
                match indices {
                    IndexList::Narrow(list) => list.extend(offsets.iter().map(|o| base as u32 + o)),
                    IndexList::Wide(list) => list.extend(offsets.iter().map(|o| base + u64::from(*o))),
                }
                values.extend_from_slice(rows);
                if indices.len() as u64 > self.max_sparse {
                    self.turn_dense();
                }
            }
            Form::Dense { values, present } => {
                let positions = offsets.iter().map(|offset| (base + u64::from(*offset) - self.lo) as usize);
                put_entries(values, present.as_deref_mut(), width, positions, rows);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_failed_reservation_is_no_error() {
        let shape = Shape { width: 1 << 20, wide: true, dense_above: f64::INFINITY, with_present: false };
        let mut collector = Collector::new(0, 1 << 60, shape, 0f32, 0);
        collector.reserve(usize::MAX);
        assert!(collector.is_empty());
    }

    proptest! {
        #[test]
        fn collected_vectors_match_the_oracle(present in prop::collection::vec(prop::bool::weighted(0.3), 1..700), lo in 0u64..70,
                         width in 1usize..3, above in prop_oneof![Just(0.0), Just(0.2), Just(2.0)], wide: bool,
                         with_present: bool, capacity in prop_oneof![Just(0), 1usize..900, Just(usize::MAX)]) {
            let hi = lo + present.len() as u64;
            let shape = Shape { width, wide, dense_above: above, with_present };
            let mut collector = Collector::new(lo, hi, shape, -1.0f32, 0);
            collector.reserve(capacity);
            let row = |index: u64| (0..width).map(move |w| index as f32 + w as f32 * 0.25);
            // In two blocks, the first from a multiple of 64.
            for (from, to) in [(0, hi.min(128)), (128, hi)] {
                if from >= to { continue }
                let is_entry = |i: u64| i >= lo && present[(i - lo) as usize];
                let marks: Vec<u8> = (from..to).map(|i| u8::from(is_entry(i))).collect();
                let rows: Vec<f32> = (from..to)
                    .flat_map(|i| if is_entry(i) { row(i).collect() } else { vec![-1.0; width] }).collect();
                collector.block(from, &marks, &rows, &[]);
            }
            let want: Vec<u64> = (lo..hi).filter(|i| present[(i - lo) as usize]).collect();
            let rows: Vec<f32> = want.iter().flat_map(|i| row(*i)).collect();
            match collector.finish() {
                Form::Sparse { indices, values } => {
                    prop_assert!(want.len() as f64 <= above * (hi - lo) as f64);
                    prop_assert_eq!(indices.to_vec(), want);
                    prop_assert_eq!(values, rows);
                }
                Form::Dense { values, present: bits } => {
                    prop_assert!(want.len() as f64 >= (above * (hi - lo) as f64).floor());
                    prop_assert_eq!(bits.is_some(), with_present);
                    if let Some(bits) = bits {
                        let found: Vec<u64> =
                            (lo..hi).filter(|i| bits[(i - lo) as usize / 64] >> ((i - lo) % 64) & 1 == 1).collect();
                        prop_assert_eq!(found, want.clone());
                    }
                    for i in lo..hi {
                        let got = &values[(i - lo) as usize * width..][..width];
                        let want: Vec<f32> =
                            if want.contains(&i) { row(i).collect() } else { vec![-1.0; width] };
                        prop_assert_eq!(got, want);
                    }
                }
            }
        }
    }
}
