//! Reduce-scatter of sparse vectors, through the layers that should take the least time.

use crate::Comm;
use crate::algorithm::{Algorithm, AllreduceOptions};
use crate::allreduce::terms;
use crate::decide::{Decided, check_algorithm, decide};
use crate::explain::Explanation;
use crate::quantize::refuse;
use crate::tuning::Basis;
use crate::vectors::Source;
use crate::vouch;
use skyphos_core::butterfly::{check_degrees, layers_by_rank};
use skyphos_core::collectives::allreduce::butterfly::{Parts, reduce_scatter, reduce_scatter_by_topology};
use skyphos_core::collectives::{Split, bounds};
use skyphos_core::frame::CallKind;
use skyphos_core::{Call, Endpoint};
use skyphos_kernels::stream::{SparseVec, View};
use skyphos_tune::{CallReport, Reduction, ResultSize, Variant};
use skyphos_types::{Element, Error, ReduceOp, Result};
use std::ops::Range;

/// A rank's part of a reduction, and how it came about.
#[derive(Clone, Debug)]
pub struct Scattered<T> {
    /// The entries of this rank's range, sparse.
    pub part: SparseVec<T>,
    /// The range.
    pub owned: Range<u64>,
    /// What was done.
    pub explanation: Explanation,
}

impl Comm {
    /// The reduction of all ranks' vectors, of which rank r gets the entries of the r-th range; ranges are as
    /// `options.split` has them.
    ///
    /// Collective. Returns the entries, sparse, and the range. Layers are those of `options.degrees`; if there are none,
    /// those that should take the least time. Where hosts have several ranks each, the first layers join those, and ranges go
    /// to their ranks in the end.
    pub fn reduce_scatter<T: Element>(
        &self,
        n: u64,
        width: usize,
        view: View<'_, T>,
        op: &ReduceOp,
        options: &AllreduceOptions,
    ) -> Result<(SparseVec<T>, Range<u64>)> {
        self.reduce_scatter_and_tell(n, width, view, op, options).map(|done| (done.part, done.owned))
    }

    /// [`Comm::reduce_scatter`], and what it did.
    pub fn reduce_scatter_and_tell<T: Element>(
        &self,
        n: u64,
        width: usize,
        view: View<'_, T>,
        op: &ReduceOp,
        options: &AllreduceOptions,
    ) -> Result<Scattered<T>> {
        let asked = options.sig::<T>(CallKind::ReduceScatter, op, n, width);
        let bytes = view.nnz(width) * size_of::<T>();
        let body =
            async |ep: &Endpoint, basis| reduce_scatter_on(ep, (n, width), view, op, options, basis).await;
        // Predictions of parts say nothing of those of whole vectors.
        self.tuned((asked, options.arguments()), bytes, body, |done| (done.explanation.traffic, None))
    }

    /// [`Comm::reduce_scatter_and_tell`] that can go on by itself.
    pub fn reduce_scatter_call<T: Element>(
        &self,
        n: u64,
        width: usize,
        x: impl Source<T>,
        op: ReduceOp,
        options: AllreduceOptions,
    ) -> Result<Call<Scattered<T>>> {
        let (basis, sig) = self.basis(options.sig::<T>(CallKind::ReduceScatter, &op, n, width));
        self.prepare((sig, options.arguments()), Some(&op.clone()), move |ep| async move {
            reduce_scatter_on(&ep, (n, width), x.view(), &op, &options, basis).await.map(|(done, _)| done)
        })
    }
}

async fn reduce_scatter_on<T: Element>(
    ep: &Endpoint,
    (n, width): (u64, usize),
    view: View<'_, T>,
    op: &ReduceOp,
    options: &AllreduceOptions,
    basis: Basis,
) -> Result<(Scattered<T>, CallReport)> {
    refuse(&options.quantize, "reduce_scatter")?;
    op.check(T::DTYPE)?;
    view.check(n, width)?;
    if options.split == Split::Hash {
        return Err(Error::bad_input(
            "reduce_scatter gives each rank a range of indices: split by \"even\" or \"quantiles\"",
        ));
    }
    if let Some(degrees) = &options.degrees {
        check_degrees(degrees, ep.size())?;
        check_algorithm(Algorithm::Butterfly, op, options)?;
    }
    vouch::views(ep, width, &[view]);
    let terms = terms::<T>(n, width, &view, op, options);
    let Decided { variant, survey, entries } = match options.degrees.clone().or_else(|| one_layer(ep, op)) {
        Some(degrees) => {
            let bounds = bounds(ep, options.split, view, width, n, ep.size()).await?;
            let variant = Variant { algorithm: Algorithm::Butterfly, degrees, bounds, choice: None };
            Decided { variant, survey: None, entries: None }
        }
        None => {
            let above = terms.shape.dense_above;
            decide(ep, Reduction::ReduceScatter, (n, width), view, above, op, options, basis).await?
        }
    };
    let Variant { algorithm, degrees, bounds, choice } = variant;
    let terms = Parts::Sparse.terms(terms);
    let part = if degrees.len() > 1 && ep.topology().ranks_per_host() > 1 {
        reduce_scatter_by_topology(ep, view, terms, &degrees, bounds).await?
    } else {
        let groups = layers_by_rank(&degrees, ep.rank());
        reduce_scatter(ep, view, terms, &groups, bounds).await?.part
    };
    let traffic = ep.traffic();
    let explanation = Explanation { algorithm, degrees, dense_threshold: 0.0, traffic, choice };
    let (owned, part) = (part.lo..part.hi, SparseVec { n, width, form: part.form });
    // No rank sees the whole result: a sample is confirmed by the next one.
    let size = entries.map(|entries| ResultSize { entries: entries as usize, largest_range: 0 });
    Ok((Scattered { part, owned, explanation }, CallReport { survey, size }))
}

/// Where there is but one choice.
fn one_layer(ep: &Endpoint, op: &ReduceOp) -> Option<Vec<u32>> {
    let size = ep.size();
    let is_prime = (2..).take_while(|d| d * d <= size).all(|d| !size.is_multiple_of(d));
    let one = matches!(op, ReduceOp::MeanPresent) || is_prime;
    one.then(|| vec![size])
}
