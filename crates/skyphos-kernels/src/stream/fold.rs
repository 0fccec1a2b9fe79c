//! Reduction of several streams into one, as their segments arrive.
//!
//! ```text
//! for each block of positions that every source has reached:
//!     acc = identity;  marks = 0
//!     for each source, in order:  acc[i] ⊕= value, marks[i] = 1   for its entries in the block
//!     hand (marks, acc) to the sink
//! ```
//!
//! A block fits the L2 cache, each entry is read once, and only the block is written, so any number of streams costs
//! one pass. Additions are in the order of the sources, so the result does not depend on when
//! segments arrive. Cost: O(entries) + O(positions / 64); blocks without entries are skipped. Very sparse
//! streams are merged instead ([`super::merge_fold`]).

use super::bitmap::ROW_OVERRUN;
use super::fold_block::{Block, clear, fold_source};
use super::merge_fold::MergeFold;
use super::segment::Segment;
use super::source::{FoldError, Sink, Source, of_source};
use crate::fold::with_op;
use crate::simd;
use skyphos_types::{Element, Error, ReduceOp};

/// Bytes of a block's values: with its marks they stay in the L2 cache.
const BLOCK_BYTES: usize = 64 * 1024;

/// Entries per position below which blocks are small, since most positions of large ones would be empty. It applies to wide rows
/// and custom operations, which are not merged.
const SPARSE: f64 = 1.0 / 2048.0;

/// A reduction of several streams. `B` is the buffer of a segment.
pub struct Fold<T, B> {
    sources: Vec<Source<B>>,
    width: usize,
    hi: u64,
    /// The sink has all entries below this index.
    at: u64,
    block: usize,
    identity: T,
    rows: Vec<T>,
    marks: Vec<u8>,
    counts: Vec<u32>,
    /// State of the merges, for very sparse streams.
    pub(super) merges: Option<MergeFold<T>>,
}

impl<T: Element, B: AsRef<[u8]>> Fold<T, B> {
    /// A reduction by `op` of `sources` streams of the range `lo..hi` with rows of `width` values. `density`, the expected entries
    /// per position, affects only the speed.
    pub fn new(
        op: &ReduceOp,
        sources: usize,
        width: usize,
        lo: u64,
        hi: u64,
        density: f64,
    ) -> Result<Fold<T, B>, Error> {
        let large = (BLOCK_BYTES / (width * size_of::<T>())).next_power_of_two().max(64);
        let block = if density >= SPARSE { large } else { large.min(512) };
        let block = (block as u64).min((hi - lo).next_multiple_of(64).max(64)) as usize;
        let merges = MergeFold::<T>::is_faster(op, sources, width, density).then(|| MergeFold::new(sources));
        let block = if merges.is_some() { 64 } else { block };
        let identity = op.identity::<T>()?;
        let counted = matches!(op, ReduceOp::MeanPresent);
        let by_words = merges.is_none() && width == 1 && !counted;
        let slack = if by_words { ROW_OVERRUN } else { 0 };
        Ok(Fold {
            sources: (0..sources).map(|_| Source::new(lo, by_words)).collect(),
            width,
            hi,
            at: lo,
            block,
            identity,
            rows: vec![identity; block * width + slack],
            marks: vec![0; block + slack],
            counts: vec![0; if counted { block } else { 0 }],
            merges,
        })
    }

    /// Adds the next segment of a source.
    pub fn push(&mut self, number: usize, bytes: B) -> Result<(), FoldError> {
        let source = &mut self.sources[number];
        let row = self.width * size_of::<T>();
        let segment = of_source(number, Segment::parse(bytes.as_ref(), row, source.reached, self.hi))?;
        source.reached = segment.head.end;
        if segment.head.count > 0 {
            source.segments.push_back(bytes);
        }
        Ok(())
    }

    /// Whether the sink has all entries.
    pub fn done(&self) -> bool {
        self.at == self.hi
    }

    /// Whether a source's stream is complete.
    pub fn is_complete(&self, number: usize) -> bool {
        self.sources[number].reached >= self.hi
    }

    /// Whether the reduction cannot advance before the next segment of this source arrives.
    pub fn waits_for(&self, number: usize) -> bool {
        let reached = self.sources[number].reached;
        reached < self.hi && self.sources.iter().all(|source| reached <= source.reached)
    }

    /// The first source whose stream is not complete.
    pub fn first_incomplete(&self) -> Option<usize> {
        self.sources.iter().position(|s| s.reached < self.hi)
    }

    /// Folds all entries below the index that every source has reached. Returns whether there was progress.
    pub fn advance(&mut self, op: &ReduceOp, sink: &mut impl Sink<T>) -> Result<bool, FoldError> {
        let ready = self.sources.iter().map(|s| s.reached).min().unwrap_or(self.hi);
        let start = self.at;
        if let Some(merges) = &mut self.merges {
            merges.advance(op, &mut self.sources, (ready, self.hi), sink)?;
            self.at = ready;
        }
        while self.at < ready {
            // Positions before the next entry of any source are skipped.
            let next = self.next_entry()?.unwrap_or(ready);
            let first = next.max(self.at) & !63;
            let end = first.saturating_add(self.block as u64).min(self.hi);
            if next >= ready {
                self.at = ready;
                break;
            }
            if end > ready {
                // Folding the block at once, later, is cheaper than folding it in parts.
                self.at = first.max(self.at);
                break;
            }
            self.fold_block(op, first, end)?;
            let count = (end - first) as usize;
            sink.block(first, &self.marks[..count], &self.rows[..count * self.width], &self.counts);
            // A custom operation may have written all rows.
            let all = self.width == 1 || matches!(op, ReduceOp::Custom(_));
            let rows = &mut self.rows[..count * self.width];
            simd::dispatch!(clear(rows, (!all).then_some(&self.marks[..count]), self.width, self.identity));
            self.marks[..count].fill(0);
            self.counts.fill(0);
            self.at = end;
        }
        Ok(self.at > start)
    }

    /// The least index of an entry that is not folded yet.
    fn next_entry(&mut self) -> Result<Option<u64>, FoldError> {
        let (mut least, row) = (None, self.width * size_of::<T>());
        for (number, source) in self.sources.iter_mut().enumerate() {
            if let Some(index) = of_source(number, source.peek(row, self.hi))? {
                least = Some(least.map_or(index, |l: u64| l.min(index)));
            }
        }
        Ok(least)
    }

    fn fold_block(&mut self, op: &ReduceOp, first: u64, end: u64) -> Result<(), FoldError> {
        let (width, hi, identity) = (self.width, self.hi, self.identity);
        for (number, source) in self.sources.iter_mut().enumerate() {
            let (marks, counts) = (&mut self.marks[..], &mut self.counts[..]);
            let mut block = Block { first, end, width, rows: &mut self.rows, marks, counts };
            let folded = with_op!(
                op, T,
                f => simd::dispatch!(fold_source(source, &mut block, f, hi, identity)),
                custom => {
                    // A custom operation works on whole arrays, so the source's entries are expanded to a block first.
                    let mut addend = vec![self.identity; block.rows.len()];
                    block.rows = &mut addend;
                    let folded = fold_source(source, &mut block, |_, v| v, hi, identity);
                    let acc = bytemuck::cast_slice_mut(&mut self.rows);
                    custom.combine(T::DTYPE, acc, bytemuck::cast_slice(&addend))?;
                    folded
                }
            );
            of_source(number, folded)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::EntryIndices;
    use crate::stream::testing::{ascending, encode_all};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Default)]
    struct Entries {
        entries: Vec<(u64, Vec<f64>)>,
        counts: Vec<u32>,
        width: usize,
    }

    impl Sink<f64> for Entries {
        fn block(&mut self, first: u64, marks: &[u8], rows: &[f64], counts: &[u32]) {
            for (k, row) in rows.chunks(self.width).enumerate() {
                if marks[k] == 1 {
                    self.entry(first + k as u64, row);
                    self.counts.extend(counts.get(k));
                } else {
                    assert!(row.iter().all(|v| *v == 0.0));
                }
            }
        }

        fn entries(&mut self, base: u64, offsets: &[u32], rows: &[f64], counts: &[u32]) {
            for (offset, row) in offsets.iter().zip(rows.chunks(self.width)) {
                self.entry(base + u64::from(*offset), row);
            }
            self.counts.extend(counts);
        }
    }

    fn sources() -> impl Strategy<Value = Vec<Vec<u64>>> {
        let step = prop_oneof![8 => Just(1u64), 4 => 1u64..4, 2 => 1u64..600, 1 => 1u64..1 << 20];
        let steps = prop::collection::vec(step, 0..700);
        prop::collection::vec((0u64..5, steps).prop_map(|(first, steps)| ascending(first, &steps)), 1..6)
    }

    impl Entries {
        fn entry(&mut self, index: u64, row: &[f64]) {
            assert!(self.entries.last().is_none_or(|(last, _)| *last < index));
            self.entries.push((index, row.to_vec()));
        }
    }

    proptest! {
        #[test]
        fn reductions_match_the_oracle(sources in sources(), width in prop_oneof![2 => Just(1usize), 1 => 2usize..4],
                         size in 100usize..4000, order in any::<u64>(), dense: bool) {
            let hi = sources.iter().flatten().max().map_or(9, |i| i + 9);
            let op = ReduceOp::MeanPresent;
            let mut want: BTreeMap<u64, (Vec<f64>, u32)> = BTreeMap::new();
            let mut queues: Vec<Vec<Vec<u8>>> = Vec::new();
            for (j, indices) in sources.iter().enumerate() {
                let values: Vec<f64> = (0..indices.len() * width).map(|k| (k * 7 + j) as f64 * 0.3).collect();
                for (i, row) in indices.iter().zip(values.chunks(width)) {
                    let (sum, count) = want.entry(*i).or_insert((vec![0.0; width], 0));
                    sum.iter_mut().zip(row).for_each(|(s, v)| *s += v);
                    *count += 1;
                }
                let mut segments = encode_all(EntryIndices::Listed(indices), &values, width, hi, size);
                segments.reverse();
                queues.push(segments);
            }
            let density = if dense { 1.0 } else { 0.0 };
            let mut fold = Fold::<f64, Vec<u8>>::new(&op, sources.len(), width, 0, hi, density).unwrap();
            let mut sink = Entries { width, ..Entries::default() };
            let mut state = order | 1;
            while !fold.done() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                let j = (state >> 33) as usize % queues.len();
                if let Some(bytes) = queues[j].pop() {
                    fold.push(j, bytes).unwrap();
                }
                fold.advance(&op, &mut sink).unwrap();
            }
            prop_assert!(queues.iter().all(Vec::is_empty));
            let rows: Vec<_> = want.iter().map(|(i, (row, _))| (*i, row.clone())).collect();
            prop_assert_eq!(sink.entries, rows);
            prop_assert_eq!(sink.counts, want.values().map(|(_, c)| *c).collect::<Vec<_>>());
        }
    }
}
