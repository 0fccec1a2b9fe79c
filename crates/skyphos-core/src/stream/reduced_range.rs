//! Partial results: the reduction of one range of the index space, between the rounds of a collective.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::exchange::{Consumer, Stream, exchange_streams};
use crate::stream::quantised::{Precision, RESULT_BUCKETS, not_quantisable, plain, quantise};
use crate::stream::reduction_params::ReductionParams;
use crate::stream::segments::{SEGMENT_BYTES, Segments, segments_of};
use skyphos_kernels::stream::{
    Collector, Fold, FoldError, Form, View, entries, set_bits_between, stream_entries,
};
use skyphos_types::{Element, Error, GroupRank, ReduceOp, Result, Round};

/// The reduction of the entries in `lo..hi`.
pub struct ReducedRange<T> {
    /// First index.
    pub lo: u64,
    /// Index after the last.
    pub hi: u64,
    /// The entries; the first row of a dense form has index `lo`.
    pub form: Form<T>,
    /// The number of sources with each entry, if the operation is `mean_present`; else empty.
    pub counts: Vec<u32>,
}

impl<T: Element> ReducedRange<T> {
    /// Borrows the entries.
    pub fn view(&self) -> View<'_, T> {
        match &self.form {
            Form::Sparse { indices, values } => View::Sparse { indices: indices.view(), values },
            Form::Dense { values, present } => View::Dense { values, present: present.as_deref() },
        }
    }

    /// The segments of the entries in `lo..hi`.
    pub fn encode<'a>(&'a self, ep: &'a Endpoint, width: usize, lo: u64, hi: u64) -> Segments<'a> {
        segments_of(ep, self.view(), width, self.lo, lo, hi, SEGMENT_BYTES)
    }

    /// The segments of a final result, as every rank receives them: quantised, if results are.
    pub fn encode_result<'a>(
        &'a self,
        ep: &'a Endpoint,
        params: &ReductionParams<'_>,
    ) -> Result<Segments<'a>> {
        match params.precision.filter(|precision| precision.result) {
            Some(Precision { codec, .. }) => {
                quantise(ep, codec, self.view(), self.lo, (self.lo, self.hi), RESULT_BUCKETS)
                    .map(Segments::from)
                    .map_err(|bad| not_quantisable("the result", &bad))
            }
            None => Ok(self.encode(ep, params.shape.width, self.lo, self.hi)),
        }
    }

    /// Turns sums into means: divides by the group's size, or by the number of ranks with the entry.
    pub fn finish(&mut self, op: &ReduceOp, size: u32, width: usize) -> Result<()> {
        let (Form::Sparse { values, .. } | Form::Dense { values, .. }) = &mut self.form;
        match op {
            ReduceOp::Mean => values.iter_mut().for_each(|v| *v = v.divide(u64::from(size))),
            ReduceOp::MeanPresent => {
                let divide = |row: &mut [T], count: &u32| {
                    row.iter_mut().for_each(|v| *v = v.divide(u64::from(*count)));
                };
                match &mut self.form {
                    Form::Dense { values, present: Some(bits) } => {
                        let rows = set_bits_between(bits, 0, (self.hi - self.lo) as usize);
                        let counted = rows.iter().zip(&self.counts);
                        counted.for_each(|(k, count)| divide(&mut values[k * width..][..width], count));
                    }
                    Form::Sparse { values, .. } => {
                        values.chunks_exact_mut(width).zip(&self.counts).for_each(|(row, c)| divide(row, c));
                    }
                    Form::Dense { present: None, .. } => {
                        return Err(Error::bad_input(
                            "mean_present needs a bitmap of the rows that are entries",
                        ));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Exchanges streams of the range `lo..hi`, and reduces those received, as they arrive.
///
/// `sources` are the ranks whose streams are received, in the order of the additions. This rank is among them if one of its
/// `streams` goes to itself. `density` is an estimate of one source's entries per position.
pub async fn exchange_and_fold<T: Element>(
    ep: &Endpoint,
    params: ReductionParams<'_>,
    round: Round,
    streams: Vec<Stream<'_>>,
    sources: &[u32],
    (lo, hi): (u64, u64),
    density: f64,
) -> Result<ReducedRange<T>> {
    let (op, shape, positions) = (params.op, params.shape, (hi - lo) as f64);
    let expected = (density * positions * sources.len() as f64).min(positions) as usize;
    let mut folding = Folding {
        ep,
        params,
        sources,
        fold: Fold::new(op, sources.len(), shape.width, lo, hi, density)?,
        collector: Collector::new(lo, hi, shape, op.identity::<T>()?, expected),
        entries: 0,
        not_begun: vec![true; sources.len()],
        own: sources.iter().position(|rank| *rank == ep.rank().0),
    };
    exchange_streams(ep, round, streams, sources, &mut folding).await?;
    let Folding { fold, mut collector, .. } = folding;
    if !fold.done() {
        let short = fold.first_incomplete().map_or(ep.rank().0, |k| GroupRank(sources[k]).0);
        return Err(ep.corrupt(GroupRank(short), "its stream ended before its range did"));
    }
    let counts = std::mem::take(&mut collector.counts);
    Ok(ReducedRange { lo, hi, form: collector.finish(), counts })
}

/// A running reduction of streams.
struct Folding<'a, T> {
    ep: &'a Endpoint,
    params: ReductionParams<'a>,
    sources: &'a [u32],
    fold: Fold<T, Payload>,
    collector: Collector<T>,
    /// Total entries of the sources that have begun. All sources begin before the first entries are reduced.
    entries: usize,
    /// By source: whether its stream has not begun.
    not_begun: Vec<bool>,
    /// This rank's index among the sources.
    own: Option<usize>,
}

/// The error of a failed fold of streams from `sources`.
pub fn fold_failed(ep: &Endpoint, sources: &[u32], error: FoldError) -> Error {
    match error {
        FoldError::Op(error) => error,
        FoldError::Damaged { source, damage } => ep.corrupt(GroupRank(sources[source]), damage),
    }
}

/// Pushes the next segment of a source into a fold of streams from `sources`.
pub fn fold_segment<T: Element>(
    ep: &Endpoint,
    params: ReductionParams<'_>,
    sources: &[u32],
    fold: &mut Fold<T, Payload>,
    source: usize,
    segment: Payload,
) -> Result<()> {
    let row_bytes = params.shape.width * size_of::<T>();
    ep.spend(Effort::Merge { entries: entries(segment.as_bytes()), row_bytes, sources: sources.len() });
    let segment = plain(ep, params.codec(), sources[source], segment)?;
    fold.push(source, segment).map_err(|error| fold_failed(ep, sources, error))
}

impl<T: Element> Consumer for Folding<'_, T> {
    fn take(&mut self, source: usize, segment: Payload) -> Result<bool> {
        let Folding { ep, params, sources, .. } = *self;
        if std::mem::take(&mut self.not_begun[source]) {
            self.entries += stream_entries(segment.as_bytes());
            if !self.not_begun.contains(&true) {
                self.collector.reserve(self.entries);
            }
        }
        fold_segment(ep, params, sources, &mut self.fold, source, segment)?;
        let advanced = self.fold.advance(params.op, &mut self.collector);
        advanced.map_err(|error| fold_failed(ep, sources, error))?;
        Ok(self.fold.is_complete(source))
    }

    fn waits_for_own(&self) -> bool {
        // A stream without entries has one segment, which the fold does not wait for.
        self.own.is_some_and(|own| self.fold.waits_for(own) || self.fold.is_complete(own))
    }
}
