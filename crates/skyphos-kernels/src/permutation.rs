//! Permutation from positions in hash order to offsets in the caller's array (in rows).
//!
//! Sorted indices stay in order inside a granule, so the permutation consists of runs, and a gather or scatter consists of
//! copies. For unsorted indices every offset is stored.

use crate::copy::copy_all;
use crate::fold::{fold_rows, gather_rows, scatter_rows};
use bytemuck::Pod;
use skyphos_types::{Element, ReduceOp, Result};

/// Mean run length from which runs are faster than single offsets.
const MIN_MEAN_RUN: usize = 4;

/// Mean run length from which a kernel is called for each run; shorter ones go through a buffer that stays in the L1 cache.
const LONG_RUN: usize = 64;

/// Numbers in the buffer for short runs.
const BUFFER_LEN: usize = 1024;

/// Offset in an array of each position of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permutation {
    /// The offset of every position.
    Each(Vec<u32>),
    /// Runs of consecutive offsets.
    Runs {
        /// First position of each run; the last number is the number of all positions.
        starts: Vec<u32>,
        /// Offset of each run's first position.
        offsets: Vec<u32>,
    },
}

impl Default for Permutation {
    fn default() -> Permutation {
        Permutation::Each(Vec::new())
    }
}

/// Builds a permutation from runs in the order of positions.
pub(crate) struct Builder {
    starts: Vec<u32>,
    offsets: Vec<u32>,
    runs: usize,
    len: u32,
    next_offset: u32,
}

impl Builder {
    /// A builder with capacity for `runs` runs.
    pub(crate) fn with_capacity(runs: usize) -> Builder {
        Builder {
            starts: vec![0; runs + 1],
            offsets: vec![0; runs + 1],
            runs: 0,
            len: 0,
            next_offset: u32::MAX,
        }
    }

    /// Appends `count` positions with offsets from `offset` on. It has no branch, so that calls with `count` 0 cost little.
    #[inline(always)]
    pub(crate) fn push(&mut self, offset: u32, count: u32) {
        let counts = count != 0;
        (self.starts[self.runs], self.offsets[self.runs]) = (self.len, offset);
        self.runs += usize::from(counts & (offset != self.next_offset));
        self.len += count;
        self.next_offset = if counts { offset + count } else { self.next_offset };
    }

    pub(crate) fn finish(mut self) -> Permutation {
        self.starts[self.runs] = self.len;
        self.starts.truncate(self.runs + 1);
        self.offsets.truncate(self.runs);
        let runs = Permutation::Runs { starts: self.starts, offsets: self.offsets };
        if runs.run_count() * MIN_MEAN_RUN <= runs.len() { runs } else { Permutation::Each(runs.to_vec()) }
    }
}

impl Permutation {
    /// Number of positions.
    pub fn len(&self) -> usize {
        match self {
            Permutation::Each(offsets) => offsets.len(),
            Permutation::Runs { starts, .. } => *starts.last().unwrap_or(&0) as usize,
        }
    }

    /// Whether there are no positions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn run_count(&self) -> usize {
        match self {
            Permutation::Each(offsets) => offsets.len(),
            Permutation::Runs { offsets, .. } => offsets.len(),
        }
    }

    /// The offset of every position.
    pub fn to_vec(&self) -> Vec<u32> {
        let mut all = Vec::with_capacity(self.len());
        match self {
            Permutation::Each(offsets) => all.extend(offsets),
            Permutation::Runs { .. } => {
                self.for_each_run(0, self.len(), |_, offset, count| {
                    all.extend(offset as u32..(offset + count) as u32)
                });
            }
        }
        all
    }

    /// Calls `f(position - start, offset, count)` for each run of the positions `start .. start + rows`.
    #[inline(always)]
    fn for_each_run(&self, start: usize, rows: usize, mut f: impl FnMut(usize, usize, usize)) {
        let Permutation::Runs { starts, offsets } = self else { return };
        let end = start + rows;
        let mut k = starts.partition_point(|s| *s as usize <= start).saturating_sub(1);
        let mut at = start;
        while at < end {
            let stop = (starts[k + 1] as usize).min(end);
            f(at - start, offsets[k] as usize + at - starts[k] as usize, stop - at);
            (at, k) = (stop, k + 1);
        }
    }

    /// `to[k] = from[offset of start + k]`, row by row.
    pub fn gather<T: Pod>(&self, start: usize, rows: usize, width: usize, from: &[T], to: &mut [T]) {
        match self {
            Permutation::Each(offsets) => gather_rows(from, &offsets[start..start + rows], width, to),
            Permutation::Runs { .. } => {
                copy_all!(|copy| self.for_each_run(start, rows, |at, offset, count| {
                    copy(
                        &from[offset * width..(offset + count) * width],
                        &mut to[at * width..(at + count) * width],
                    );
                }))
            }
        }
    }

    /// `to[offset of start + k] = from[k]`, row by row.
    pub fn scatter<T: Pod>(&self, start: usize, from: &[T], width: usize, to: &mut [T]) {
        let rows = from.len() / width;
        match self {
            Permutation::Each(offsets) => scatter_rows(from, &offsets[start..start + rows], width, to),
            Permutation::Runs { .. } => {
                copy_all!(|copy| self.for_each_run(start, rows, |at, offset, count| {
                    copy(
                        &from[at * width..(at + count) * width],
                        &mut to[offset * width..(offset + count) * width],
                    );
                }))
            }
        }
    }

    /// Whether runs are long enough to call a kernel for each.
    fn has_long_runs(&self) -> bool {
        self.len() >= LONG_RUN * self.run_count()
    }

    /// `to[offset of start + k] = from[map[k]]`, row by row.
    pub fn scatter_gathered<T: Element>(
        &self,
        start: usize,
        from: &[T],
        map: &[u32],
        width: usize,
        to: &mut [T],
    ) {
        match self {
            Permutation::Runs { .. } if width > 1 || self.has_long_runs() => {
                self.for_each_run(start, map.len(), |at, offset, count| {
                    gather_rows(
                        from,
                        &map[at..at + count],
                        width,
                        &mut to[offset * width..(offset + count) * width],
                    );
                });
            }
            Permutation::Each(offsets) if width > 1 => {
                for (p, q) in map.iter().zip(&offsets[start..start + map.len()]) {
                    let (p, q) = (*p as usize * width, *q as usize * width);
                    to[q..q + width].copy_from_slice(&from[p..p + width]);
                }
            }
            _ => {
                let mut buffer = [T::ZERO; BUFFER_LEN];
                for (k, m) in map.chunks(BUFFER_LEN).enumerate() {
                    gather_rows(from, m, 1, &mut buffer[..m.len()]);
                    self.scatter(start + k * BUFFER_LEN, &buffer[..m.len()], 1, to);
                }
            }
        }
    }

    /// `acc[map[k] - first] ⊕= from[offset of start + k]`, row by row: folds a rank's own share straight from the caller's array,
    /// without a copy of the whole share.
    #[allow(clippy::too_many_arguments, reason = "a kernel")]
    pub fn fold<T: Element>(
        &self,
        op: &ReduceOp,
        acc: &mut [T],
        first: u32,
        map: &[u32],
        from: &[T],
        start: usize,
        width: usize,
    ) -> Result<()> {
        if let ReduceOp::Custom(_) = op {
            // A call of a custom operation is expensive, so it gets all rows at once.
            let mut rows = vec![T::ZERO; map.len() * width];
            self.gather(start, map.len(), width, from, &mut rows);
            return fold_rows(op, acc, first, map, &rows, width);
        }
        let mut result = Ok(());
        match self {
            Permutation::Runs { .. } if width > 1 || self.has_long_runs() => {
                self.for_each_run(start, map.len(), |at, offset, count| {
                    if result.is_ok() {
                        let rows = &from[offset * width..(offset + count) * width];
                        result = fold_rows(op, acc, first, &map[at..at + count], rows, width);
                    }
                });
            }
            Permutation::Each(offsets) if width > 1 => {
                for (m, offset) in map.iter().zip(&offsets[start..start + map.len()]) {
                    let row = &from[*offset as usize * width..][..width];
                    fold_rows(op, acc, first, std::slice::from_ref(m), row, width)?;
                }
            }
            _ => {
                let mut buffer = [T::ZERO; BUFFER_LEN];
                for (k, m) in map.chunks(BUFFER_LEN).enumerate() {
                    self.gather(start + k * BUFFER_LEN, m.len(), 1, from, &mut buffer[..m.len()]);
                    fold_rows(op, acc, first, m, &buffer[..m.len()], 1)?;
                }
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs of random lengths, shuffled: a permutation of 0..len.
    fn permutation() -> impl Strategy<Value = (Permutation, Vec<u32>)> {
        (prop::collection::vec(1u32..40, 1..40), any::<u64>()).prop_map(|(lengths, seed)| {
            let mut runs: Vec<(u32, u32)> = lengths
                .iter()
                .scan(0, |at, n| {
                    *at += n;
                    Some((*at - n, *n))
                })
                .collect();
            let mut state = seed | 1;
            for k in (1..runs.len()).rev() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                runs.swap(k, (state >> 33) as usize % (k + 1));
            }
            let mut builder = Builder::with_capacity(runs.len());
            runs.iter().for_each(|(offset, n)| builder.push(*offset, *n));
            (builder.finish(), runs.iter().flat_map(|(offset, n)| *offset..offset + n).collect())
        })
    }

    proptest! {
        #[test]
        fn both_forms_match_single_offsets((runs, each) in permutation(), width in 1usize..4, cut in 0.0f64..1.0) {
            prop_assert_eq!(&runs.to_vec(), &each);
            let each_form = Permutation::Each(each.clone());
            let (start, rows) = ((each.len() as f64 * cut) as usize, each.len() - (each.len() as f64 * cut) as usize);
            let values: Vec<f64> = (0..each.len() * width).map(|k| k as f64).collect();
            let offsets = &each[start..];
            let want: Vec<f64> =
                offsets.iter().flat_map(|p| values[*p as usize * width..][..width].to_vec()).collect();
            let map: Vec<u32> = (0..rows as u32).map(|k| 10 + 2 * k).collect();
            for form in [&runs, &each_form] {
                let mut got = vec![0.0; rows * width];
                form.gather(start, rows, width, &values, &mut got);
                prop_assert_eq!(&got, &want);
                let mut back = values.clone();
                form.scatter(start, &got, width, &mut back);
                prop_assert_eq!(&back, &values);
                let mut acc = vec![1.0; (2 * rows + 10) * width];
                form.fold(&ReduceOp::Sum, &mut acc, 5, &map, &values, start, width).unwrap();
                let mut plain = vec![1.0; (2 * rows + 10) * width];
                for (k, row) in want.chunks(width).enumerate() {
                    (0..width).for_each(|w| plain[(5 + 2 * k) * width + w] += row[w]);
                }
                prop_assert_eq!(&acc, &plain);
                let mut scattered = values.clone();
                let small: Vec<u32> = map.iter().map(|m| m - 10).collect();
                form.scatter_gathered(start, &acc, &small, width, &mut scattered);
                let mut plain = values.clone();
                for (p, m) in offsets.iter().zip(&small) {
                    (0..width).for_each(|w| plain[*p as usize * width + w] = acc[*m as usize * width + w]);
                }
                prop_assert_eq!(&scattered, &plain);
            }
        }
    }
}
