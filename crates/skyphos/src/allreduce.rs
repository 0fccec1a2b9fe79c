//! Allreduce of sparse vectors and dense arrays.

use crate::Comm;
use crate::allreduce_options::AllreduceOptions;
use crate::as_dense::{reduce_array, reduce_as_dense};
use crate::call_builder::{Body, CallBuilder};
use crate::decide::{Decided, Undecided, decide};
use crate::explain::Explanation;
use crate::input_checksum;
use crate::tuning::Basis;
use crate::vector_input::{VectorInput, is_wide};
use skyphos_core::butterfly::check_degrees;
use skyphos_core::collectives::Split;
use skyphos_core::collectives::allreduce::butterfly::{RangeForm, butterfly};
use skyphos_core::collectives::allreduce::gather_and_sum::gather_and_sum;
use skyphos_core::collectives::allreduce::recursive_doubling::recursive_doubling;
use skyphos_core::collectives::allreduce::ring;
use skyphos_core::frame::CallKind;
use skyphos_core::stream::ReductionParams;
use skyphos_core::{CallRequest, Endpoint};
use skyphos_kernels::BlockHash;
use skyphos_kernels::stream::{Form, Shape, SparseVec, View, shuffle, unshuffle};
use skyphos_tune::{Algorithm, CallReport, DenseThreshold, Reduction, ResultSize, SurveyResult, Variant};
use skyphos_types::{Element, Error, ReduceOp, Result};
use std::marker::PhantomData;

/// The result of [`Comm::allreduce`].
#[derive(Clone, Debug)]
pub struct Allreduced<T> {
    /// The reduced vector.
    pub sum: SparseVec<T>,
    /// The algorithm, its prediction and the bytes that it moved.
    pub explanation: Explanation,
    /// The quantised values of this rank's entries, if inputs are quantised and the options ask for them; else empty.
    pub sent: Vec<T>,
}

/// The result of [`Comm::allreduce_dense`].
#[derive(Clone, Debug)]
pub struct ReducedArray<Out> {
    /// The array with the reduction.
    pub out: Out,
    /// The schedule, and the bytes that moved.
    pub explanation: Explanation,
}

/// See [`Comm::allreduce`].
pub struct Allreduce<T, X> {
    x: X,
    /// The results of earlier calls, once the call has its number.
    basis: Basis,
    element: PhantomData<T>,
}

impl<T: Element, X: VectorInput<T>> Body for Allreduce<T, X> {
    type Output = Allreduced<T>;
    type Op = ReduceOp;
    type Options = AllreduceOptions;

    fn request(&mut self, comm: &Comm, op: &ReduceOp, options: &AllreduceOptions) -> CallRequest {
        let call_sig = options.sig::<T>(CallKind::Allreduce, op, self.x.n(), self.x.width());
        let (basis, sig) = comm.basis(call_sig);
        self.basis = basis;
        (sig, options.arguments()).into()
    }

    async fn perform(
        self,
        ep: &Endpoint,
        op: &ReduceOp,
        options: &AllreduceOptions,
    ) -> Result<Allreduced<T>> {
        let (dims, view) = ((self.x.n(), self.x.width()), self.x.view());
        allreduce_on(ep, dims, view, op, options, self.basis).await.map(|(done, _)| done)
    }

    fn run(self, comm: &Comm, op: &ReduceOp, options: &AllreduceOptions) -> Result<Allreduced<T>> {
        let (dims, view) = ((self.x.n(), self.x.width()), self.x.view());
        let call_sig = options.sig::<T>(CallKind::Allreduce, op, dims.0, dims.1);
        let bytes = view.nnz(dims.1) * size_of::<T>();
        let body = async |ep: &Endpoint, basis| allreduce_on(ep, dims, view, op, options, basis).await;
        comm.tuned((call_sig, options.arguments()), bytes, body, |done| {
            (done.explanation.traffic, done.explanation.choice.as_deref())
        })
    }
}

/// See [`Comm::allreduce_dense`].
pub struct AllreduceDense<T, V, Out> {
    values: V,
    out: Out,
    element: PhantomData<T>,
}

impl<T: Element, V: AsRef<[T]> + Send, Out: AsMut<[T]> + Send> Body for AllreduceDense<T, V, Out> {
    type Output = ReducedArray<Out>;
    type Op = ReduceOp;
    type Options = AllreduceOptions;

    fn request(&mut self, _: &Comm, op: &ReduceOp, options: &AllreduceOptions) -> CallRequest {
        let n = self.values.as_ref().len() as u64;
        (options.sig::<T>(CallKind::AllreduceDense, op, n, 1), options.arguments()).into()
    }

    async fn perform(
        mut self,
        ep: &Endpoint,
        op: &ReduceOp,
        options: &AllreduceOptions,
    ) -> Result<ReducedArray<Out>> {
        let algorithm = allreduce_dense_on(ep, self.values.as_ref(), self.out.as_mut(), op, options).await?;
        let (degrees, dense_threshold) = (Vec::new(), 0.0);
        let explanation =
            Explanation { algorithm, degrees, dense_threshold, traffic: ep.traffic(), choice: None };
        Ok(ReducedArray { out: self.out, explanation })
    }
}

impl Comm {
    /// The reduction of all ranks' vectors, on every rank.
    ///
    /// Collective. The result is sparse or dense, depending on its density and the algorithm; an index without an entry on any
    /// rank is absent. Blocking calls are timed, and later calls of the same kind choose by these times.
    ///
    /// ```
    /// use skyphos::{Algorithm, AllreduceOptions, Comm, IndexList, SparseVec};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// let sums = ranks.map_ranks(|comm| {
    ///     let x = SparseVec::new(10, 1, IndexList::Narrow(vec![comm.rank(), 5]), vec![1.0, 2.0]).unwrap();
    ///     let options = AllreduceOptions { algorithm: Algorithm::Ring, ..Default::default() };
    ///     let done = comm.allreduce(&x).options(options).run().unwrap();
    ///     assert_eq!(done.explanation.algorithm, Algorithm::Ring);
    ///     done.sum.entries()
    /// });
    /// assert_eq!(sums[0], (vec![0, 1, 5], vec![1.0, 1.0, 4.0]));
    /// ```
    pub fn allreduce<T: Element, X: VectorInput<T>>(&self, x: X) -> CallBuilder<'_, Allreduce<T, X>> {
        CallBuilder::new(self, Allreduce { x, basis: Basis::default(), element: PhantomData })
    }

    /// Reduces the dense arrays of all ranks into `out`, which is returned in the result. All arrays have the same length. Collective.
    ///
    /// ```
    /// use skyphos::{Comm, ReduceOp};
    ///
    /// let ranks = Comm::local(3, &Default::default()).unwrap();
    /// ranks.map_ranks(|comm| {
    ///     let (values, mut out) = ([comm.rank(), 7], [0; 2]);
    ///     comm.allreduce_dense(&values, &mut out).op(ReduceOp::Max).run().unwrap();
    ///     assert_eq!(out, [2, 7]);
    /// });
    /// ```
    pub fn allreduce_dense<T: Element, V: AsRef<[T]> + Send, Out: AsMut<[T]> + Send>(
        &self,
        values: V,
        out: Out,
    ) -> CallBuilder<'_, AllreduceDense<T, V, Out>> {
        CallBuilder::new(self, AllreduceDense { values, out, element: PhantomData })
    }
}

pub(crate) async fn allreduce_on<T: Element>(
    ep: &Endpoint,
    (n, width): (u64, usize),
    view: View<'_, T>,
    op: &ReduceOp,
    options: &AllreduceOptions,
    basis: Basis,
) -> Result<(Allreduced<T>, CallReport)> {
    op.check(T::DTYPE)?;
    view.check(n, width)?;
    if let Some(degrees) = &options.degrees {
        check_degrees(degrees, ep.size())?;
    }
    input_checksum::views(ep, width, &[view]);
    let mut sent = Vec::new();
    let Reduced { form, variant, survey, size } = if options.split == Split::Hash {
        if options.quantize.is_some() {
            return Err(Error::bad_input(
                "split=\"hash\" moves values to other buckets, so it cannot be combined with quantize=",
            ));
        }
        let hash = BlockHash::new(n, ep.size());
        let shuffled = shuffle(view, width, hash);
        let ran = run(ep, (shuffled.n, width), shuffled.view(), op, options, None, basis).await?;
        drop(shuffled);
        let form = unshuffle(ran.form, n, width, is_wide(n, &view), hash);
        let form =
            form.ok_or_else(|| Error::bad_input(format!("a rank has entries beyond the n = {n} rows")))?;
        Reduced { form, ..ran }
    } else {
        run(ep, (n, width), view, op, options, options.tell_sent.then_some(&mut sent), basis).await?
    };
    let Variant { algorithm, degrees, choice, .. } = variant;
    let degrees = if degrees.is_empty() { vec![ep.size()] } else { degrees };
    let dense_threshold = params::<T>(n, width, &view, op, options).shape.dense_above * n as f64;
    let explanation = Explanation { algorithm, degrees, dense_threshold, traffic: ep.traffic(), choice };
    let sum = SparseVec { n, width, form };
    Ok((Allreduced { sum, explanation, sent }, CallReport { survey, size }))
}

/// Reduces arrays. Returns the schedule that was used.
async fn allreduce_dense_on<T: Element>(
    ep: &Endpoint,
    values: &[T],
    out: &mut [T],
    op: &ReduceOp,
    options: &AllreduceOptions,
) -> Result<Algorithm> {
    op.check(T::DTYPE)?;
    if values.len() != out.len() {
        let message = format!("out holds {} numbers, the array {}", out.len(), values.len());
        return Err(Error::bad_input(message));
    }
    input_checksum::values(ep, values);
    if options.quantize.is_some() {
        return quantised_dense(ep, values, out, op, options).await;
    }
    let done = reduce_array(ep, options.algorithm, op, values, out).await?;
    done.ok_or_else(|| needs_sparse_vectors(options.algorithm))
}

/// The form of partial sums and of the result.
pub(crate) fn params<'a, T: Element>(
    n: u64,
    width: usize,
    view: &View<'_, T>,
    op: &'a ReduceOp,
    options: &AllreduceOptions,
) -> ReductionParams<'a> {
    let wide = is_wide(n, view);
    let dense_above = options.dense_threshold.density(n, width * size_of::<T>(), wide);
    ReductionParams { op, n, shape: Shape { width, wide, dense_above, with_present: true }, precision: None }
}

/// Refuses a dense vector that this machine cannot hold.
fn check_dense_memory<T>(n: u64, width: usize) -> Result<()> {
    let bytes = usize::try_from(n).ok().and_then(|n| n.checked_mul(width * size_of::<T>()));
    match bytes.map(|bytes| Vec::<u8>::new().try_reserve_exact(bytes)) {
        Some(Ok(())) => Ok(()),
        _ => Err(Error::bad_input(format!(
            "a dense vector of n = {n} rows of width {width} does not fit the memory: use a sparse algorithm"
        ))),
    }
}

fn needs_sparse_vectors(algorithm: Algorithm) -> Error {
    Error::bad_input(format!("algorithm={:?} is for sparse vectors", algorithm.name()))
}

/// An allreduce of dense arrays whose reduced ranges, or inputs, are quantised: DSAR.
async fn quantised_dense<T: Element>(
    ep: &Endpoint,
    values: &[T],
    out: &mut [T],
    op: &ReduceOp,
    options: &AllreduceOptions,
) -> Result<Algorithm> {
    let algorithm = match options.algorithm {
        Algorithm::Auto | Algorithm::Dense => Algorithm::SplitAllgatherDense,
        other if !other.is_dense() => return Err(needs_sparse_vectors(other)),
        other => other, // `decide` refuses these
    };
    let options = AllreduceOptions { algorithm, ..options.clone() };
    let view = View::Dense { values, present: None };
    let Reduced { form, variant, .. } =
        run(ep, (values.len() as u64, 1), view, op, &options, None, Basis::default()).await?;
    let (Form::Sparse { values, .. } | Form::Dense { values, .. }) = form;
    out.copy_from_slice(&values);
    Ok(variant.algorithm)
}

/// A reduced vector.
struct Reduced<T> {
    form: Form<T>,
    /// How the call ran.
    variant: Variant,
    /// The survey's result, if there was one.
    survey: Option<SurveyResult>,
    /// The result's size; `None` if the result does not tell which of its rows are entries.
    size: Option<ResultSize>,
}

async fn run<T: Element>(
    ep: &Endpoint,
    (n, width): (u64, usize),
    view: View<'_, T>,
    op: &ReduceOp,
    options: &AllreduceOptions,
    sent: Option<&mut Vec<T>>,
    basis: Basis,
) -> Result<Reduced<T>> {
    let mut params = params::<T>(n, width, &view, op, options);
    let codec = options.quantize.map(|q| q.check(op, T::DTYPE, width)).transpose()?;
    // A threshold below SparCML's crossover turns vectors dense that take less memory as sparse ones: the caller wants that.
    let wants_dense = matches!(options.dense_threshold, DenseThreshold::Entries(_))
        && params.shape.dense_above < DenseThreshold::Paper.density(n, width * size_of::<T>(), false);
    let dense = options.algorithm.is_dense() || options.algorithm == Algorithm::SplitAllgatherDense;
    if dense || wants_dense {
        check_dense_memory::<T>(n, width)?;
    }
    let dense_above = params.shape.dense_above;
    let call = Undecided { reduction: Reduction::Allreduce, n, width, view, dense_above, op, options };
    let Decided { variant, survey, .. } = decide(ep, call, basis).await?;
    let (algorithm, bounds) = (variant.algorithm, variant.bounds.clone());
    if algorithm.is_dense() && !dense {
        check_dense_memory::<T>(n, width)?;
    }
    let one_layer = [ep.size()];
    let degrees = if variant.degrees.is_empty() { &one_layer[..] } else { &variant.degrees };
    let input;
    if let (Some(quantize), Some(codec)) = (&options.quantize, codec) {
        let parts = if bounds.is_empty() { &[0, n] } else { &bounds[..] };
        input = quantize.input_of(ep, view, codec, parts, sent)?;
        params.precision = Some(quantize.precision(codec, &input));
    }
    let form = match algorithm {
        Algorithm::RecursiveDoubling => recursive_doubling(ep, view, params).await,
        Algorithm::Allgather => gather_and_sum(ep, view, params).await,
        Algorithm::Ring => ring::ring(ep, view, params, bounds).await,
        Algorithm::SplitAllgather => butterfly(ep, view, params, &one_layer, bounds, RangeForm::Sparse).await,
        Algorithm::SplitAllgatherDense => {
            butterfly(ep, view, params, &one_layer, bounds, RangeForm::Dense).await
        }
        Algorithm::Butterfly => butterfly(ep, view, params, degrees, bounds, RangeForm::Auto).await,
        dense => reduce_as_dense(ep, dense, view, params).await,
    };
    let sum = SparseVec { n, width, form: form? };
    let marks_entries = !matches!(sum.form, Form::Dense { present: None, .. });
    let largest =
        || variant.bounds.windows(2).map(|part| sum.nnz_between(part[0], part[1])).max().unwrap_or(0);
    let size = marks_entries.then(|| ResultSize { entries: sum.nnz(), largest_range: largest() });
    Ok(Reduced { form: sum.form, variant, survey, size })
}
