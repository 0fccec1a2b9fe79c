//! Reduction of several streams into one, as their segments come.
//!
//! ```text
//! for each block of positions that every source has reached:
//!     acc = identity;  marks = 0
//!     for each source, in order:  acc[i] ⊕= value, marks[i] = 1   for its entries in the block
//!     hand (marks, acc) to the sink
//! ```
//!
//! A block fits the L2 cache, each entry is read once and nothing is written but the block: P streams
//! cost one pass however many they are. Additions are in the order of the sources, so the result does
//! not depend on when segments came. Cost: O(entries) + O(positions / 64), where blocks in which no
//! source has an entry are skipped. Very sparse streams are merged instead ([`super::few`]).

use super::few::Few;
use super::segment::Segment;
use super::source::{FoldError, Sink, Source, of_source};
use super::words::{SLACK, mark_word, take_word};
use crate::simd;
use skyphos_types::{Element, Error, ReduceOp};

/// Bytes of a block's values: with its marks they stay in the L2 cache.
const BLOCK_BYTES: usize = 64 * 1024;

/// Entries per position below which blocks are small, since most positions of large ones would be empty: those of
/// wide rows and custom operations, which are not merged.
const SPARSE: f64 = 1.0 / 2048.0;

/// See the module's text. `B` is what holds a segment's bytes.
pub struct Fold<T, B> {
    sources: Vec<Source<B>>,
    width: usize,
    hi: u64,
    /// Everything below this has been handed over.
    at: u64,
    block: usize,
    identity: T,
    rows: Vec<T>,
    marks: Vec<u8>,
    counts: Vec<u32>,
    /// For streams so sparse that they are merged.
    pub(super) few: Option<Few<T>>,
}

impl<T: Element, B: AsRef<[u8]>> Fold<T, B> {
    /// A reduction by `op` of `sources` streams of the range `lo..hi` with rows of `width` values. `density`
    /// is a guess of entries per position, which only speed depends on.
    pub fn new(
        op: &ReduceOp,
        sources: usize,
        width: usize,
        lo: u64,
        hi: u64,
        density: f64,
    ) -> Result<Fold<T, B>, Error> {
        let most = (BLOCK_BYTES / (width * size_of::<T>())).next_power_of_two().max(64);
        let block = if density >= SPARSE { most } else { most.min(512) };
        let block = (block as u64).min((hi - lo).next_multiple_of(64).max(64)) as usize;
        let few = Few::<T>::worth(op, sources, width, density).then(|| Few::new(sources));
        let block = if few.is_some() { 64 } else { block };
        let identity = op.identity::<T>()?;
        let counted = matches!(op, ReduceOp::MeanPresent);
        let by_words = few.is_none() && width == 1 && !counted;
        let slack = if by_words { SLACK } else { 0 };
        let source = || Source::new(lo, by_words);
        Ok(Fold {
            sources: (0..sources).map(|_| source()).collect(),
            width,
            hi,
            at: lo,
            block,
            identity,
            rows: vec![identity; block * width + slack],
            marks: vec![0; block + slack],
            counts: vec![0; if counted { block } else { 0 }],
            few,
        })
    }

    /// Takes the next segment of a source.
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

    /// Whether everything has been handed over.
    pub fn done(&self) -> bool {
        self.at == self.hi
    }

    /// Whether a source's stream has come to its end.
    pub fn has_all(&self, number: usize) -> bool {
        self.sources[number].reached >= self.hi
    }

    /// Whether it can hand over no more before more of this source's stream comes.
    pub fn waits_for(&self, number: usize) -> bool {
        let reached = self.sources[number].reached;
        reached < self.hi && self.sources.iter().all(|source| reached <= source.reached)
    }

    /// The first source whose stream has not come to its end.
    pub fn behind(&self) -> Option<usize> {
        self.sources.iter().position(|s| s.reached < self.hi)
    }

    /// Folds all that every source has reached. Returns whether anything moved.
    pub fn advance(&mut self, op: &ReduceOp, sink: &mut impl Sink<T>) -> Result<bool, FoldError> {
        let ready = self.sources.iter().map(|s| s.reached).min().unwrap_or(self.hi);
        let start = self.at;
        if let Some(few) = &mut self.few {
            few.advance(op, &mut self.sources, (ready, self.hi), sink)?;
            self.at = ready;
        }
        while self.at < ready {
            // Nothing lies before the next entry of any source.
            let next = self.next_entry()?.unwrap_or(ready);
            let first = next.max(self.at) & !63;
            let end = first.saturating_add(self.block as u64).min(self.hi);
            if next >= ready {
                self.at = ready;
                break;
            }
            if end > ready {
                // A whole block is cheaper than its parts, and decided by what has come, not by when.
                self.at = first.max(self.at);
                break;
            }
            self.fold_block(op, first, end)?;
            let count = (end - first) as usize;
            sink.block(first, &self.marks[..count], &self.rows[..count * self.width], &self.counts);
            // A custom operation has been at all rows.
            let all = self.width == 1 || matches!(op, ReduceOp::Custom(_));
            let rows = &mut self.rows[..count * self.width];
            simd::dispatch!(clear(rows, (!all).then_some(&self.marks[..count]), self.width, self.identity));
            self.marks[..count].fill(0);
            self.counts.fill(0);
            self.at = end;
        }
        Ok(self.at > start)
    }

    /// The least index of any entry not yet folded.
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
            let folded = match op {
                ReduceOp::Sum | ReduceOp::Mean | ReduceOp::MeanPresent => {
                    simd::dispatch!(fold_source(source, &mut block, T::add, hi, identity))
                }
                ReduceOp::Prod => simd::dispatch!(fold_source(source, &mut block, T::mul, hi, identity)),
                ReduceOp::Min => simd::dispatch!(fold_source(source, &mut block, T::least, hi, identity)),
                ReduceOp::Max => simd::dispatch!(fold_source(source, &mut block, T::greatest, hi, identity)),
                ReduceOp::Or => simd::dispatch!(fold_source(source, &mut block, T::or, hi, identity)),
                ReduceOp::And => simd::dispatch!(fold_source(source, &mut block, T::and, hi, identity)),
                ReduceOp::Custom(custom) => {
                    // The caller's operation works on whole arrays: the source's own block, then both.
                    let mut theirs = vec![self.identity; block.rows.len()];
                    block.rows = &mut theirs;
                    let folded = fold_source(source, &mut block, |_, v| v, hi, identity);
                    let (mine, theirs) =
                        (bytemuck::cast_slice_mut(&mut self.rows), bytemuck::cast_slice(&theirs));
                    custom.combine(T::DTYPE, mine, theirs)?;
                    folded
                }
            };
            of_source(number, folded)?;
        }
        Ok(())
    }
}

/// Makes rows the identity: all, or those that have a mark. Wide rows are few of a block's, if it is not dense.
#[inline(always)]
fn clear<T: Copy>(rows: &mut [T], marks: Option<&[u8]>, width: usize, identity: T) {
    let Some(marks) = marks else { return rows.fill(identity) };
    for (row, mark) in rows.chunks_exact_mut(width).zip(marks) {
        if *mark != 0 {
            row.fill(identity);
        }
    }
}

/// The positions being folded.
struct Block<'a, T> {
    first: u64,
    end: u64,
    width: usize,
    rows: &'a mut [T],
    marks: &'a mut [u8],
    counts: &'a mut [u32],
}

/// Folds a source's entries in the block.
#[inline(always)]
fn fold_source<T: Element, B: AsRef<[u8]>>(
    source: &mut Source<B>,
    block: &mut Block<'_, T>,
    op: impl Fn(T, T) -> T + Copy,
    hi: u64,
    identity: T,
) -> Result<(), &'static str> {
    let (row, width, level) = (block.width * size_of::<T>(), block.width, simd::level());
    while let Some(index) = source.peek(row, hi)? {
        if index >= block.end {
            break;
        }
        let bytes = source.segments.front().expect("an entry was seen");
        let segment = Segment::parse(bytes.as_ref(), row, 0, hi)?;
        let (base, limit) = (segment.head.first, block.end - segment.head.first);
        let values = &segment.values::<T>()[source.entry * width..];
        let taken = if source.run.1 > 0 {
            let (start, count) = ((base + source.run.0 - block.first) as usize, source.run.1);
            let count = count.min((limit - source.run.0) as usize);
            fold_run(block, start, count, values, op);
            source.run = (source.run.0 + count as u64, source.run.1 - count);
            count
        } else if source.word.1 != 0 {
            let mut taken = 0;
            while source.word.0 < limit {
                let (at, bits) = source.word;
                // Words need not begin where blocks do.
                let here = if at + 64 <= limit { bits } else { bits & ((1 << (limit - at)) - 1) };
                let skip = block.first.saturating_sub(base + at);
                let start = (base + at + skip - block.first) as usize;
                take_word(level, here >> skip, &values[taken..], &mut block.rows[start..], identity, op);
                mark_word(level, here >> skip, &mut block.marks[start..]);
                taken += here.count_ones() as usize;
                source.word.1 = bits & !here;
                if source.word.1 != 0 {
                    break;
                }
                match source.reader.step_word(&segment)? {
                    Some(word) => source.word = word,
                    None => break,
                }
            }
            taken
        } else {
            let offsets = &source.offsets[source.used..source.listed];
            let all = offsets[offsets.len() - 1] < limit;
            let count = if all { offsets.len() } else { offsets.partition_point(|o| *o < limit) };
            fold_listed(block, base.wrapping_sub(block.first), &offsets[..count], values, op);
            source.used += count;
            count
        };
        source.entry += taken;
    }
    Ok(())
}

#[inline(always)]
fn fold_run<T: Element>(
    block: &mut Block<'_, T>,
    start: usize,
    count: usize,
    values: &[T],
    op: impl Fn(T, T) -> T + Copy,
) {
    let width = block.width;
    block.marks[start..start + count].fill(1);
    let rows = &mut block.rows[start * width..(start + count) * width];
    rows.iter_mut().zip(values).for_each(|(a, v)| *a = op(*a, *v));
    if !block.counts.is_empty() {
        block.counts[start..start + count].iter_mut().for_each(|c| *c += 1);
    }
}

/// Entries that are tested at once for being neighbours.
const STRETCH: usize = 16;

/// `shift` leads from a distance to a position in the block.
#[inline(always)]
fn fold_listed<T: Element>(
    block: &mut Block<'_, T>,
    shift: u64,
    offsets: &[u64],
    values: &[T],
    op: impl Fn(T, T) -> T + Copy,
) {
    let width = block.width;
    let rows = &mut *block.rows;
    if width == 1 {
        let mut at = 0;
        for offsets in offsets.chunks(STRETCH) {
            let (values, start) = (&values[at..at + offsets.len()], offsets[0].wrapping_add(shift) as usize);
            at += offsets.len();
            // Offsets ascend, so their ends tell whether they are neighbours.
            if offsets.len() == STRETCH && offsets[STRETCH - 1] - offsets[0] == STRETCH as u64 - 1 {
                block.marks[start..start + STRETCH].fill(1);
                let rows = &mut rows[start..start + STRETCH];
                rows.iter_mut().zip(values).for_each(|(a, v)| *a = op(*a, *v));
                continue;
            }
            for (offset, value) in offsets.iter().zip(values) {
                let at = offset.wrapping_add(shift) as usize;
                block.marks[at] = 1;
                rows[at] = op(rows[at], *value);
            }
        }
    } else {
        for (offset, values) in offsets.iter().zip(values.chunks_exact(width)) {
            let at = offset.wrapping_add(shift) as usize;
            block.marks[at] = 1;
            let row = &mut rows[at * width..(at + 1) * width];
            row.iter_mut().zip(values).for_each(|(a, v)| *a = op(*a, *v));
        }
    }
    if !block.counts.is_empty() {
        offsets.iter().for_each(|offset| block.counts[offset.wrapping_add(shift) as usize] += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::segment::{Encoder, Places};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Default)]
    struct Collect {
        entries: Vec<(u64, Vec<f64>)>,
        counts: Vec<u32>,
        width: usize,
    }

    impl Sink<f64> for Collect {
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
        let ascending = (0u64..5, steps).prop_map(|(first, s)| {
            s.iter()
                .scan(first, |at, s| {
                    *at += s;
                    Some(*at - 1)
                })
                .collect()
        });
        prop::collection::vec(ascending, 1..6)
    }

    impl Collect {
        fn entry(&mut self, index: u64, row: &[f64]) {
            assert!(self.entries.last().is_none_or(|(last, _)| *last < index));
            self.entries.push((index, row.to_vec()));
        }
    }

    proptest! {
        #[test]
        fn as_the_oracle(sources in sources(), width in prop_oneof![2 => Just(1usize), 1 => 2usize..4],
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
                let mut encoder = Encoder::new(Places::Listed(indices), &values, width, hi, size);
                let mut segments = Vec::new();
                while let Some(next) = encoder.plan() {
                    let mut bytes = vec![0; next.bytes()];
                    encoder.write(&next, &mut bytes);
                    segments.push(bytes);
                }
                segments.reverse();
                queues.push(segments);
            }
            let density = if dense { 1.0 } else { 0.0 };
            let mut fold = Fold::<f64, Vec<u8>>::new(&op, sources.len(), width, 0, hi, density).unwrap();
            let mut sink = Collect { width, ..Collect::default() };
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
