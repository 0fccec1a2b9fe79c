//! Reduction of very sparse streams by merges, since most blocks of positions would be empty.
//!
//! ```text
//! while a source has an entry that all sources have reached:
//!     queue about 1,000 entries of each source;  limit = the least index that may follow a full queue
//!     sum = {};  for each source, in order:  sum = merge(sum, its entries below the limit)
//!     hand sum to the sink
//! ```
//!
//! The order of additions is that of `fold.rs`: from the identity on, source by source. Cost: each entry is merged once for
//! its own source and once for each later one, in the cache: O(entries · sources), for any size of the index space. That
//! is faster for few sources and few entries, see [`MergeFold::is_faster`].

use super::source::{FoldError, Sink, Source, of_source};
use crate::merge::{Entries, merge};
use skyphos_types::{Element, Error, ReduceOp};

/// Entries of each source that are queued for a batch.
const QUEUE: usize = 1024;

/// Largest number of positions that a batch covers, so that offsets fit 32 bits.
const MAX_SPAN: u64 = 1 << 32;

/// Merges per position below which merges are faster than blocks; an entry is merged once per later source. An empty position of a
/// block costs 0.1 ns, a merge 0.5 ns an entry (measured by `kernel_rates reduce`).
const MAX_MERGES_PER_POSITION: f64 = 0.35;

/// State of a reduction by merges.
pub(super) struct MergeFold<T> {
    queues: Vec<Queue<T>>,
    sum: Sum<T>,
    count: Sum<u32>,
    ones: Vec<u32>,
    offsets: Vec<u32>,
}

/// Entries of a source that were read and are not folded yet.
struct Queue<T> {
    indices: Vec<u64>,
    values: Vec<T>,
    used: usize,
}

/// Merged entries, and memory for the next merge.
struct Sum<T> {
    indices: Vec<u32>,
    values: Vec<T>,
    next_indices: Vec<u32>,
    next_values: Vec<T>,
}

impl<T: Element> Sum<T> {
    fn new() -> Sum<T> {
        let (indices, next_indices) = (Vec::new(), Vec::new());
        Sum { indices, values: Vec::new(), next_indices, next_values: Vec::new() }
    }

    fn clear(&mut self) {
        self.indices.clear();
        self.values.clear();
    }

    fn add(&mut self, op: &ReduceOp, indices: &[u32], values: &[T]) -> Result<(), Error> {
        let sum = Entries { indices: &self.indices, values: &self.values };
        merge(op, sum, Entries { indices, values }, &mut self.next_indices, &mut self.next_values)?;
        std::mem::swap(&mut self.indices, &mut self.next_indices);
        std::mem::swap(&mut self.values, &mut self.next_values);
        Ok(())
    }
}

impl<T: Element> MergeFold<T> {
    /// Whether merges are faster than blocks for streams with this mean `density`.
    pub(super) fn is_faster(op: &ReduceOp, sources: usize, width: usize, density: f64) -> bool {
        let (is_builtin, sources) = (!matches!(op, ReduceOp::Custom(_)), sources as f64);
        is_builtin && width == 1 && density * sources * (sources - 1.0).max(2.0) < MAX_MERGES_PER_POSITION
    }

    pub(super) fn new(sources: usize) -> MergeFold<T> {
        let queue = || Queue { indices: Vec::new(), values: Vec::new(), used: 0 };
        MergeFold {
            queues: (0..sources).map(|_| queue()).collect(),
            sum: Sum::new(),
            count: Sum::new(),
            ones: Vec::new(),
            offsets: Vec::new(),
        }
    }

    /// Folds all entries below `ready`, which every source has reached.
    pub(super) fn advance<B: AsRef<[u8]>>(
        &mut self,
        op: &ReduceOp,
        sources: &mut [Source<B>],
        (ready, hi): (u64, u64),
        sink: &mut impl Sink<T>,
    ) -> Result<(), FoldError> {
        loop {
            // The least queued index, and the least index that may follow a full queue.
            let (mut least, mut limit) = (ready, ready);
            for (number, (source, queue)) in sources.iter_mut().zip(&mut self.queues).enumerate() {
                let is_full = of_source(number, queue.fill(source, hi))?;
                if let (Some(first), Some(last)) = (queue.indices.first(), queue.indices.last()) {
                    least = least.min(*first);
                    limit = if is_full { limit.min(last + 1) } else { limit };
                }
            }
            if least >= limit {
                return Ok(());
            }
            self.fold(op, least, limit.min(least.saturating_add(MAX_SPAN)), sink)?;
        }
    }

    /// Folds the queued entries of `base..limit`.
    fn fold(
        &mut self,
        op: &ReduceOp,
        base: u64,
        limit: u64,
        sink: &mut impl Sink<T>,
    ) -> Result<(), FoldError> {
        let counted = matches!(op, ReduceOp::MeanPresent);
        self.sum.clear();
        self.count.clear();
        for queue in &mut self.queues {
            let taken = queue.indices.partition_point(|i| *i < limit);
            if taken == 0 {
                continue;
            }
            self.offsets.clear();
            self.offsets.extend(queue.indices[..taken].iter().map(|i| (i - base) as u32));
            self.sum.add(op, &self.offsets, &queue.values[..taken])?;
            if counted {
                self.ones.resize(taken, 1);
                self.count.add(&ReduceOp::Sum, &self.offsets, &self.ones)?;
            }
            queue.used = taken;
        }
        sink.entries(base, &self.sum.indices, &self.sum.values, &self.count.values);
        Ok(())
    }
}

impl<T: Element> Queue<T> {
    /// Reads entries until the queue is full or no more have arrived. Returns whether it is full.
    fn fill<B: AsRef<[u8]>>(&mut self, source: &mut Source<B>, hi: u64) -> Result<bool, &'static str> {
        self.indices.drain(..self.used);
        self.values.drain(..self.used);
        self.used = 0;
        while source.peek(size_of::<T>(), hi)?.is_some() {
            if self.indices.len() >= QUEUE {
                return Ok(true);
            }
            source.take_read(&mut self.indices, &mut self.values, hi)?;
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use crate::stream::testing::encode_all;
    use crate::stream::{Collector, EntryIndices, Fold, Form, Shape};
    use proptest::prelude::*;
    use skyphos_types::ReduceOp;

    /// Reduces the sources; returns indices, the bits of values, and counts.
    fn reduced(op: &ReduceOp, sources: &[Vec<(u64, f32)>], density: f64) -> (Vec<u64>, Vec<u32>, Vec<u32>) {
        let hi = 1 << 44;
        let mut fold = Fold::<f32, Vec<u8>>::new(op, sources.len(), 1, 0, hi, density).unwrap();
        assert_eq!(fold.merges.is_some(), density == 0.0);
        let shape = Shape { width: 1, wide: true, dense_above: 1.0, with_present: true };
        let mut collector = Collector::new(0, hi, shape, op.identity().unwrap(), 0);
        for (number, entries) in sources.iter().enumerate() {
            let (indices, values): (Vec<u64>, Vec<f32>) = entries.iter().copied().unzip();
            for bytes in encode_all(EntryIndices::Listed(&indices), &values, 1, hi, 8 << 10) {
                fold.push(number, bytes).unwrap();
                fold.advance(op, &mut collector).unwrap();
            }
        }
        assert!(fold.done());
        let counts = std::mem::take(&mut collector.counts);
        let Form::Sparse { indices, values } = collector.finish() else { panic!("a dense result") };
        (indices.to_vec(), values.iter().map(|v| v.to_bits()).collect(), counts)
    }

    fn source() -> impl Strategy<Value = Vec<(u64, f32)>> {
        let step = prop_oneof![20 => Just(1u64), 20 => 1u64..9, 4 => 1u64..1 << 20, 1 => 1u64 << 30..1 << 34];
        let value = prop_oneof![Just(-0.0f32), Just(0.0), Just(f32::INFINITY), -1.0f32..1.0, -1e9f32..1e9];
        prop::collection::vec((step, value), 0..3000).prop_map(|all| {
            let entry = |at: &mut u64, (step, value): (u64, f32)| {
                *at += step;
                Some((*at - 1, value))
            };
            all.into_iter().scan(0, entry).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn results_have_the_same_bits_as_by_blocks(sources in prop::collection::vec(source(), 1..7), op in 0usize..4) {
            let op = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::MeanPresent][op].clone();
            prop_assert_eq!(reduced(&op, &sources, 0.0), reduced(&op, &sources, 1.0));
        }
    }
}
