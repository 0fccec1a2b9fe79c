//! A reduced stretch of the index space that this rank holds, between the rounds of a collective.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::quantised::{Precision, open};
use crate::stream::wire::{encode, exchange};
use skyphos_kernels::stream::{Collector, Fold, FoldError, Form, Shape, View, entries, set_bits_between};
use skyphos_types::{Element, Error, ReduceOp, Result};

/// What all ranks agree on in a reduction of streams.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// The operation.
    pub op: &'a ReduceOp,
    /// Rows of the whole vector.
    pub n: u64,
    /// How parts and results are stored.
    pub shape: Shape,
    /// What is quantised, if anything.
    pub precision: Option<Precision<'a>>,
}

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
    pub fn encode(&self, ep: &Endpoint, width: usize, lo: u64, hi: u64) -> Vec<Payload> {
        encode(ep, self.view(), width, self.lo, lo, hi)
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
/// `sources` are the ranks in the order of the additions; this rank's own segments, if it is among them, are
/// `own`. `density` is a guess of entries per position of one source.
#[allow(clippy::too_many_arguments, reason = "one exchange and one fold")]
pub async fn exchange_and_fold<T: Element>(
    ep: &Endpoint,
    terms: Terms<'_>,
    round: u32,
    sends: &[(u32, &[Payload])],
    sources: &[u32],
    own: &[Payload],
    (lo, hi): (u64, u64),
    density: f64,
) -> Result<Part<T>> {
    let (Terms { op, shape, .. }, codec) = (terms, terms.codec());
    let identity = op.identity::<T>()?;
    let positions = (hi - lo) as f64;
    let expected = (density * positions * sources.len() as f64).min(positions) as usize;
    let mut collector = Collector::new(lo, hi, shape, identity, expected);
    let mut fold = Fold::<T, Payload>::new(op, sources.len(), shape.width, lo, hi, density)?;
    let failed = |error: FoldError| match error {
        FoldError::Op(error) => error,
        FoldError::Damaged { source, what } => ep.corrupt(sources[source], what),
    };
    let spend = |segment: &Payload| {
        let row_bytes = shape.width * size_of::<T>();
        ep.spend(Effort::Merge { entries: entries(segment.as_bytes()), row_bytes, sources: sources.len() });
    };
    if let Some(me) = sources.iter().position(|r| *r == ep.rank()) {
        for segment in own {
            spend(segment);
            fold.push(me, open(ep, codec, ep.rank(), segment.clone())?).map_err(failed)?;
        }
    }
    let others: Vec<u32> = sources.iter().copied().filter(|r| *r != ep.rank()).collect();
    let number_of = |k: usize| sources.iter().position(|r| *r == others[k]).expect("one of the sources");
    exchange(ep, round, sends, &others, |k, segment| {
        spend(&segment);
        fold.push(number_of(k), open(ep, codec, others[k], segment)?).map_err(failed)?;
        fold.advance(op, &mut collector).map_err(failed)?;
        Ok(())
    })
    .await?;
    fold.advance(op, &mut collector).map_err(failed)?;
    if !fold.done() {
        let late = fold.behind().map_or(ep.rank(), |k| sources[k]);
        return Err(ep.corrupt(late, "its stream ended before its range did"));
    }
    let counts = std::mem::take(&mut collector.counts);
    Ok(Part { lo, hi, form: collector.finish(), counts })
}
