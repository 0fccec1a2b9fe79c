//! Reduce-scatter of sparse vectors, with the layers of the least predicted time.

use crate::Comm;
use crate::allreduce::params;
use crate::allreduce_options::AllreduceOptions;
use crate::call_builder::{Body, CallBuilder};
use crate::decide::{Decided, Undecided, check_algorithm, decide};
use crate::explain::Explanation;
use crate::input_checksum;
use crate::quantize::refuse;
use crate::tuning::Basis;
use crate::vector_input::VectorInput;
use skyphos_core::butterfly::{check_degrees, layers_by_rank};
use skyphos_core::collectives::allreduce::butterfly::{
    RangeForm, reduce_scatter, reduce_scatter_by_topology,
};
use skyphos_core::collectives::{Split, bounds};
use skyphos_core::frame::CallKind;
use skyphos_core::{CallRequest, Endpoint};
use skyphos_kernels::stream::{SparseVec, View};
use skyphos_tune::{Algorithm, CallReport, Reduction, ResultSize, Variant};
use skyphos_types::{Element, Error, ReduceOp, Result};
use std::marker::PhantomData;
use std::ops::Range;

/// The result of [`Comm::reduce_scatter`].
#[derive(Clone, Debug)]
pub struct Scattered<T> {
    /// The entries of this rank's range, sparse.
    pub part: SparseVec<T>,
    /// The range.
    pub owned: Range<u64>,
    /// The layers, their prediction and the bytes that moved.
    pub explanation: Explanation,
}

/// See [`Comm::reduce_scatter`].
pub struct ReduceScatter<T, X> {
    x: X,
    /// The results of earlier calls, once the call has its number.
    basis: Basis,
    element: PhantomData<T>,
}

impl<T: Element, X: VectorInput<T>> Body for ReduceScatter<T, X> {
    type Output = Scattered<T>;
    type Op = ReduceOp;
    type Options = AllreduceOptions;

    fn request(&mut self, comm: &Comm, op: &ReduceOp, options: &AllreduceOptions) -> CallRequest {
        let call_sig = options.sig::<T>(CallKind::ReduceScatter, op, self.x.n(), self.x.width());
        let (basis, sig) = comm.basis(call_sig);
        self.basis = basis;
        (sig, options.arguments()).into()
    }

    async fn perform(self, ep: &Endpoint, op: &ReduceOp, options: &AllreduceOptions) -> Result<Scattered<T>> {
        let (dims, view) = ((self.x.n(), self.x.width()), self.x.view());
        reduce_scatter_on(ep, dims, view, op, options, self.basis).await.map(|(done, _)| done)
    }

    fn run(self, comm: &Comm, op: &ReduceOp, options: &AllreduceOptions) -> Result<Scattered<T>> {
        let (dims, view) = ((self.x.n(), self.x.width()), self.x.view());
        let call_sig = options.sig::<T>(CallKind::ReduceScatter, op, dims.0, dims.1);
        let bytes = view.nnz(dims.1) * size_of::<T>();
        let body = async |ep: &Endpoint, basis| reduce_scatter_on(ep, dims, view, op, options, basis).await;
        // Timings of reduce-scatters do not correct predictions of allreduces.
        comm.tuned((call_sig, options.arguments()), bytes, body, |done| (done.explanation.traffic, None))
    }
}

impl Comm {
    /// The reduction of all ranks' vectors. Rank r gets the entries of the r-th range; `options.split` defines the ranges.
    ///
    /// Collective. The result has the sparse entries and the range. Layers are those of `options.degrees`, or those with the
    /// least predicted time. If hosts have several ranks each, the first layers join the ranks of a host, and a last message
    /// brings each range to its rank.
    ///
    /// ```
    /// use skyphos::{Comm, IndexList, SparseVec};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// let parts = ranks.map_ranks(|comm| {
    ///     let x = SparseVec::new(10, 1, IndexList::Narrow(vec![comm.rank(), 5]), vec![1.0, 2.0]).unwrap();
    ///     let done = comm.reduce_scatter(&x).run().unwrap();
    ///     (done.owned.contains(&5), done.part.nnz())
    /// });
    /// assert_eq!(parts.iter().map(|part| part.1).sum::<usize>(), 3);
    /// assert!(parts[0].0 != parts[1].0);
    /// ```
    pub fn reduce_scatter<T: Element, X: VectorInput<T>>(
        &self,
        x: X,
    ) -> CallBuilder<'_, ReduceScatter<T, X>> {
        CallBuilder::new(self, ReduceScatter { x, basis: Basis::default(), element: PhantomData })
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
    input_checksum::views(ep, width, &[view]);
    let params = params::<T>(n, width, &view, op, options);
    let Decided { variant, survey, entries } = match options.degrees.clone().or_else(|| one_layer(ep, op)) {
        Some(degrees) => {
            let bounds = bounds(ep, options.split, view, width, n, ep.size()).await?;
            let variant = Variant { algorithm: Algorithm::Butterfly, degrees, bounds, choice: None };
            Decided { variant, survey: None, entries: None }
        }
        None => {
            let (reduction, dense_above) = (Reduction::ReduceScatter, params.shape.dense_above);
            let call = Undecided { reduction, n, width, view, dense_above, op, options };
            decide(ep, call, basis).await?
        }
    };
    let Variant { algorithm, degrees, bounds, choice } = variant;
    let params = RangeForm::Sparse.params(params);
    let part = if degrees.len() > 1 && ep.topology().ranks_per_host() > 1 {
        reduce_scatter_by_topology(ep, view, params, &degrees, bounds).await?
    } else {
        let groups = layers_by_rank(&degrees, ep.rank().0);
        reduce_scatter(ep, view, params, &groups, bounds).await?.part
    };
    let traffic = ep.traffic();
    let explanation = Explanation { algorithm, degrees, dense_threshold: 0.0, traffic, choice };
    let (owned, part) = (part.lo..part.hi, SparseVec { n, width, form: part.form });
    // No rank has the whole result, so its size is the survey's estimate, which only the next survey can confirm.
    let size = entries.map(|entries| ResultSize { entries: entries as usize, largest_range: 0 });
    Ok((Scattered { part, owned, explanation }, CallReport { survey, size }))
}

/// The degrees of a single layer, if no others are possible.
fn one_layer(ep: &Endpoint, op: &ReduceOp) -> Option<Vec<u32>> {
    let size = ep.size();
    let is_prime = (2..).take_while(|d| d * d <= size).all(|d| !size.is_multiple_of(d));
    let has_one = matches!(op, ReduceOp::MeanPresent) || is_prime;
    has_one.then(|| vec![size])
}
