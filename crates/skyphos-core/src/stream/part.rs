//! A reduced stretch of the index space that this rank holds, between the rounds of a collective.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::exchange::{Receiver, Stream, exchange_streams};
use crate::stream::quantised::{Precision, RESULT_BUCKETS, open, quantised, refused};
use crate::stream::segments::{SEGMENT_BYTES, Segments, segments_of};
use crate::stream::terms::Terms;
use skyphos_kernels::stream::{
    Collector, Fold, FoldError, Form, View, entries, set_bits_between, stream_entries,
};
use skyphos_types::{Element, Error, ReduceOp, Result};

/// The entries of `lo..hi`.
pub struct Part<T> {
    /// First index.
    pub lo: u64,
    /// Index after the last.
    pub hi: u64,
    /// The entries; a dense form's first row belongs to `lo`.
    pub form: Form<T>,
    /// How many sources had each entry, where the operation needs to know.
    pub counts: Vec<u32>,
}

impl<T: Element> Part<T> {
    /// Borrows the entries.
    pub fn view(&self) -> View<'_, T> {
        match &self.form {
            Form::Sparse { indices, values } => View::Sparse { indices: indices.view(), values },
            Form::Dense { values, present } => View::Dense { values, present: present.as_deref() },
        }
    }

    /// The segments of the entries of `lo..hi`.
    pub fn encode<'a>(&'a self, ep: &'a Endpoint, width: usize, lo: u64, hi: u64) -> Segments<'a> {
        segments_of(ep, self.view(), width, self.lo, lo, hi, SEGMENT_BYTES)
    }

    /// The segments of this part once it is reduced, as every rank receives them: quantised if results are.
    pub fn encode_result<'a>(&'a self, ep: &'a Endpoint, terms: &Terms<'_>) -> Result<Segments<'a>> {
        match terms.precision.filter(|precision| precision.result) {
            Some(Precision { codec, .. }) => {
                quantised(ep, codec, self.view(), self.lo, (self.lo, self.hi), RESULT_BUCKETS)
                    .map(Segments::from)
                    .map_err(|bad| refused("the result", &bad))
            }
            None => Ok(self.encode(ep, terms.shape.width, self.lo, self.hi)),
        }
    }

    /// Turns sums into means: by the group's size, or by how many ranks had each entry.
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
                        return Err(Error::bad_input("mean_present needs to know which rows are entries"));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Exchanges streams of the range `lo..hi` and reduces what comes with what this rank has, as it comes.
///
/// `sources` are the ranks in the order of the additions; this rank is among them if one of its `streams` goes to
/// itself. `density` is a guess of entries per position of one source.
pub async fn exchange_and_fold<T: Element>(
    ep: &Endpoint,
    terms: Terms<'_>,
    round: u32,
    streams: Vec<Stream<'_>>,
    sources: &[u32],
    (lo, hi): (u64, u64),
    density: f64,
) -> Result<Part<T>> {
    let (op, shape, positions) = (terms.op, terms.shape, (hi - lo) as f64);
    let expected = (density * positions * sources.len() as f64).min(positions) as usize;
    let mut folding = Folding {
        ep,
        terms,
        sources,
        fold: Fold::new(op, sources.len(), shape.width, lo, hi, density)?,
        collector: Collector::new(lo, hi, shape, op.identity::<T>()?, expected),
        entries: 0,
        unknown: vec![true; sources.len()],
        own: sources.iter().position(|rank| *rank == ep.rank()),
    };
    exchange_streams(ep, round, streams, sources, &mut folding).await?;
    let Folding { fold, mut collector, .. } = folding;
    if !fold.done() {
        let late = fold.behind().map_or(ep.rank(), |k| sources[k]);
        return Err(ep.corrupt(late, "its stream ended before its range did"));
    }
    let counts = std::mem::take(&mut collector.counts);
    Ok(Part { lo, hi, form: collector.finish(), counts })
}

/// A reduction of streams as they come.
struct Folding<'a, T> {
    ep: &'a Endpoint,
    terms: Terms<'a>,
    sources: &'a [u32],
    fold: Fold<T, Payload>,
    collector: Collector<T>,
    /// Entries of the sources of which anything has come, and which have not begun. All have before the first
    /// entries are reduced.
    entries: usize,
    unknown: Vec<bool>,
    /// This rank's place among the sources.
    own: Option<usize>,
}

/// What a reduction of these ranks' streams failed for.
pub fn fold_failed(ep: &Endpoint, sources: &[u32], error: FoldError) -> Error {
    match error {
        FoldError::Op(error) => error,
        FoldError::Damaged { source, what } => ep.corrupt(sources[source], what),
    }
}

/// Hands a reduction of these ranks' streams the next segment of one of them.
pub fn fold_segment<T: Element>(
    ep: &Endpoint,
    terms: Terms<'_>,
    sources: &[u32],
    fold: &mut Fold<T, Payload>,
    source: usize,
    segment: Payload,
) -> Result<()> {
    let row_bytes = terms.shape.width * size_of::<T>();
    ep.spend(Effort::Merge { entries: entries(segment.as_bytes()), row_bytes, sources: sources.len() });
    let plain = open(ep, terms.codec(), sources[source], segment)?;
    fold.push(source, plain).map_err(|error| fold_failed(ep, sources, error))
}

impl<T: Element> Receiver for Folding<'_, T> {
    fn take(&mut self, source: usize, segment: Payload) -> Result<bool> {
        let Folding { ep, terms, sources, .. } = *self;
        if std::mem::take(&mut self.unknown[source]) {
            self.entries += stream_entries(segment.as_bytes());
            if !self.unknown.contains(&true) {
                self.collector.make_room(self.entries);
            }
        }
        fold_segment(ep, terms, sources, &mut self.fold, source, segment)?;
        let advanced = self.fold.advance(terms.op, &mut self.collector);
        advanced.map_err(|error| fold_failed(ep, sources, error))?;
        Ok(self.fold.has_all(source))
    }

    fn waits_for_own(&self) -> bool {
        // A stream without entries still has a segment.
        self.own.is_some_and(|own| self.fold.waits_for(own) || self.fold.has_all(own))
    }
}
