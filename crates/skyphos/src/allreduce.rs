//! Allreduce of sparse vectors and dense arrays.

use crate::Comm;
use crate::algorithm::{Algorithm, AllreduceOptions, DenseThreshold};
use crate::as_dense::{reduce_array, reduce_as_dense};
use crate::choose::{Data, choose, predict};
use crate::explain::Explanation;
use crate::memory::{Known, Size, Told};
use crate::observe::{Observed, Stopwatch, agreed};
use crate::vectors::{Source, is_wide};
use skyphos_core::butterfly::check_degrees;
use skyphos_core::collectives::allreduce::butterfly::{Parts, butterfly};
use skyphos_core::collectives::allreduce::gather_and_sum::gather_and_sum;
use skyphos_core::collectives::allreduce::recursive_doubling::recursive_doubling;
use skyphos_core::collectives::allreduce::ring;
use skyphos_core::frame::CallKind;
use skyphos_core::stream::{Split, Survey, Terms, survey};
use skyphos_core::{Call, Endpoint, Traffic};
use skyphos_kernels::BlockHash;
use skyphos_kernels::stream::{Form, Shape, SparseVec, View, shuffle, unshuffle};
use skyphos_plan::Union;
use skyphos_types::{Element, Error, ReduceOp, Result};
use std::sync::Arc;

/// Calls of less are not watched closely: that would take longer than they tell.
const WATCHED_BYTES: usize = 64 * 1024;

/// A reduced vector, and how it came about.
#[derive(Clone, Debug)]
pub struct Allreduced<T> {
    /// The reduction.
    pub sum: SparseVec<T>,
    /// What was done.
    pub explanation: Explanation,
    /// What the values of this rank's entries became, where inputs are quantised and the options ask for it; else empty.
    pub sent: Vec<T>,
}

impl Comm {
    /// The reduction of all ranks' vectors of `n` rows of `width` numbers, on every rank.
    ///
    /// Collective. The result is sparse or dense, as its density and the algorithm make it; an index that no rank
    /// holds is absent.
    pub fn allreduce<T: Element>(
        &self,
        n: u64,
        width: usize,
        view: View<'_, T>,
        op: &ReduceOp,
        options: &AllreduceOptions,
    ) -> Result<SparseVec<T>> {
        self.allreduce_and_tell(n, width, view, op, options).map(|done| done.sum)
    }

    /// [`Comm::allreduce`], and what it did.
    pub fn allreduce_and_tell<T: Element>(
        &self,
        n: u64,
        width: usize,
        view: View<'_, T>,
        op: &ReduceOp,
        options: &AllreduceOptions,
    ) -> Result<Allreduced<T>> {
        let asked = options.sig::<T>(CallKind::Allreduce, op, n, width);
        let (known, sig) = self.memory.recall(asked);
        let seen = *self.observed();
        let watch = Stopwatch::start(view.nnz(width) * size_of::<T>() >= WATCHED_BYTES);
        let body = async |ep: &Endpoint| allreduce_on(ep, (n, width), view, op, options, known, seen).await;
        let done = self.memory.after(asked, self.call(sig, body))?;
        let Traffic { sent_bytes, received_bytes, .. } = done.explanation.traffic;
        self.observed().note(&watch.stop(sent_bytes.max(received_bytes)), done.explanation.choice.as_deref());
        Ok(done)
    }

    /// [`Comm::allreduce_and_tell`] that can go on by itself.
    pub fn allreduce_call<T: Element>(
        &self,
        n: u64,
        width: usize,
        x: impl Source<T>,
        op: ReduceOp,
        options: AllreduceOptions,
    ) -> Result<Call<Allreduced<T>>> {
        let asked = options.sig::<T>(CallKind::Allreduce, &op, n, width);
        let (known, sig) = self.memory.recall(asked);
        let seen = *self.observed();
        self.prepare(sig, Some(&op.clone()), move |ep| async move {
            allreduce_on(&ep, (n, width), x.view(), &op, &options, known, seen).await.map(|(done, _)| done)
        })
    }

    /// Reduces the dense arrays of all ranks into `out`; all have the same length. Collective.
    pub fn allreduce_dense<T: Element>(
        &self,
        values: &[T],
        out: &mut [T],
        op: &ReduceOp,
        options: &AllreduceOptions,
    ) -> Result<()> {
        let sig = options.sig::<T>(CallKind::AllreduceDense, op, values.len() as u64, 1);
        self.call(sig, async |ep| allreduce_dense_on(ep, values, out, op, options).await.map(drop))
    }

    /// [`Comm::allreduce_dense`] that can go on by itself; gives `out` back, and what it did.
    pub fn allreduce_dense_call<T: Element, Out: AsMut<[T]> + Send + 'static>(
        &self,
        values: impl AsRef<[T]> + Send + 'static,
        mut out: Out,
        op: ReduceOp,
        options: AllreduceOptions,
    ) -> Result<Call<(Out, Explanation)>> {
        let sig = options.sig::<T>(CallKind::AllreduceDense, &op, values.as_ref().len() as u64, 1);
        self.prepare(sig, Some(&op.clone()), move |ep| async move {
            let algorithm = allreduce_dense_on(&ep, values.as_ref(), out.as_mut(), &op, &options).await?;
            let (degrees, dense_threshold) = (Vec::new(), 0.0);
            let explanation =
                Explanation { algorithm, degrees, dense_threshold, traffic: ep.traffic(), choice: None };
            Ok((out, explanation))
        })
    }
}

async fn allreduce_on<T: Element>(
    ep: &Endpoint,
    (n, width): (u64, usize),
    view: View<'_, T>,
    op: &ReduceOp,
    options: &AllreduceOptions,
    known: Option<Known>,
    seen: Observed,
) -> Result<(Allreduced<T>, Told)> {
    op.check(T::DTYPE)?;
    view.check(n, width)?;
    if let Some(degrees) = &options.degrees {
        check_degrees(degrees, ep.size())?;
    }
    let mut sent = Vec::new();
    let Ran { form, known, sampled, size } = if options.split == Split::Hash {
        if options.quantize.is_some() {
            return Err(Error::bad_input(
                "split=\"hash\" moves values out of their buckets: not with quantize=",
            ));
        }
        let hash = BlockHash::new(n, ep.size());
        let shuffled = shuffle(view, width, hash);
        let of = (shuffled.n, width);
        let ran = run(ep, of, shuffled.view(), op, options, None, known, seen).await?;
        Ran { form: unshuffle(ran.form, n, width, is_wide(n, &view), hash), ..ran }
    } else {
        run(ep, (n, width), view, op, options, options.tell_sent.then_some(&mut sent), known, seen).await?
    };
    let learned = sampled.then(|| known.clone());
    let Known { algorithm, degrees, choice, .. } = known;
    let degrees = if degrees.is_empty() { vec![ep.size()] } else { degrees };
    let dense_threshold = terms::<T>(n, width, &view, op, options).shape.dense_above * n as f64;
    let explanation = Explanation { algorithm, degrees, dense_threshold, traffic: ep.traffic(), choice };
    let sum = SparseVec { n, width, form };
    Ok((Allreduced { sum, explanation, sent }, Told { learned, size }))
}

/// Returns the schedule that was used.
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
    if options.quantize.is_some() {
        return quantised_dense(ep, values, out, op, options).await;
    }
    let done = reduce_array(ep, options.algorithm, op, values, out).await?;
    done.ok_or_else(|| for_sparse_vectors(options.algorithm))
}

/// How vectors are stored on the way, and the result.
pub(crate) fn terms<'a, T: Element>(
    n: u64,
    width: usize,
    view: &View<'_, T>,
    op: &'a ReduceOp,
    options: &AllreduceOptions,
) -> Terms<'a> {
    let wide = is_wide(n, view);
    let dense_above = options.dense_threshold.density(n, width * size_of::<T>(), wide);
    Terms { op, n, shape: Shape { width, wide, dense_above, with_present: true }, precision: None }
}

/// Refuses a dense vector that this machine cannot hold.
fn check_room<T>(n: u64, width: usize) -> Result<()> {
    let bytes = usize::try_from(n).ok().and_then(|n| n.checked_mul(width * size_of::<T>()));
    match bytes.map(|bytes| Vec::<u8>::new().try_reserve_exact(bytes)) {
        Some(Ok(())) => Ok(()),
        _ => Err(Error::bad_input(format!(
            "a dense vector of n = {n} rows of width {width} does not fit the memory: use a sparse algorithm"
        ))),
    }
}

fn for_sparse_vectors(algorithm: Algorithm) -> Error {
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
        other if !other.is_dense() => return Err(for_sparse_vectors(other)),
        other => other, // to be refused
    };
    let options = AllreduceOptions { algorithm, ..options.clone() };
    let view = View::Dense { values, present: None };
    let Ran { form, known, .. } =
        run(ep, (values.len() as u64, 1), view, op, &options, None, None, Observed::default()).await?;
    let (Form::Sparse { values, .. } | Form::Dense { values, .. }) = form;
    out.copy_from_slice(&values);
    Ok(known.algorithm)
}

/// Which algorithm, and where ranges are cut: as `known`, as asked, or by a sample; whether a sample was taken.
async fn decide<T: Element>(
    ep: &Endpoint,
    (n, width): (u64, usize),
    view: View<'_, T>,
    op: &ReduceOp,
    options: &AllreduceOptions,
    known: Option<Known>,
    seen: Observed,
) -> Result<(Known, bool)> {
    if let Some(known) = known {
        return Ok((known, false));
    }
    let mut algorithm = options.algorithm;
    let mut degrees =
        options.degrees.clone().filter(|_| algorithm == Algorithm::Butterfly).unwrap_or_default();
    let (mut sample, mut choice) = (None, None);
    if algorithm == Algorithm::Auto {
        let default = seen.start(ep.size(), ep.node().on_one_host());
        let survey = survey(ep, view, width, n, &seen.words(default)).await?;
        let curve = union_curve(&survey, ep.size());
        let (profile, bias) = agreed(default, |k| survey.median(k));
        let data = Data {
            ranks: ep.size(),
            n,
            row_bytes: width * size_of::<T>(),
            union: &|m| curve.entries(m),
            dense_above: terms::<T>(n, width, &view, op, options).shape.dense_above,
            ranks_per_host: ep.topology().ranks_per_host(),
            profile,
            bias,
        };
        let mut chosen = choose(&data);
        let able = match op {
            ReduceOp::MeanPresent => Algorithm::SplitAllgather,
            _ => options.quantize.map_or(chosen.algorithm, |q| q.or_one_that_can(chosen.algorithm)),
        };
        if let Some(layers) = options.degrees.as_ref().filter(|_| able == Algorithm::Butterfly) {
            chosen = predict(&data, able, layers);
        } else if able != chosen.algorithm {
            chosen = predict(&data, able, &[ep.size()]);
        }
        (algorithm, degrees) = (able, chosen.degrees.clone());
        (sample, choice) = (Some(survey), Some(Arc::new(chosen)));
    }
    check_algorithm(algorithm, op, options)?;
    // Dense parts are as large as their ranges, whatever is in them.
    let split = if algorithm == Algorithm::SplitAllgatherDense { Split::Even } else { options.split };
    let whole =
        matches!(algorithm, Algorithm::RecursiveDoubling | Algorithm::Allgather) || algorithm.is_dense();
    let sampled = sample.is_some() || !whole && split == Split::Quantiles && ep.size() > 1;
    let bounds = match sample {
        _ if whole => Vec::new(),
        Some(survey) if split == Split::Quantiles => survey.bounds(ep.size()),
        _ => skyphos_core::stream::bounds(ep, split, view, width, n, ep.size()).await?,
    };
    Ok((Known { algorithm, degrees, bounds, choice }, sampled))
}

/// Entries of unions as a survey says, at powers of two and at all ranks.
fn union_curve(survey: &Survey, ranks: u32) -> Union {
    let powers = (0..=ranks.ilog2()).map(|k| 1u32 << k).chain(Some(ranks).filter(|p| !p.is_power_of_two()));
    Union::Measured(powers.map(|m| (f64::from(m), survey.union(m))).collect())
}

/// Refuses an algorithm that cannot do what is asked.
fn check_algorithm(algorithm: Algorithm, op: &ReduceOp, options: &AllreduceOptions) -> Result<()> {
    if matches!(op, ReduceOp::MeanPresent) {
        let one_layer = options.degrees.as_ref().is_none_or(|degrees| degrees.len() == 1);
        match algorithm {
            Algorithm::SplitAllgather | Algorithm::Allgather => {}
            Algorithm::Butterfly if one_layer => {}
            other => {
                return Err(Error::bad_input(format!(
                    "op=\"mean_present\" counts the ranks that had an entry, which algorithm={:?} loses on the way: use \
                     split_allgather or allgather",
                    other.name()
                )));
            }
        }
    }
    options.quantize.map_or(Ok(()), |q| q.check_algorithm(algorithm))
}

struct Ran<T> {
    form: Form<T>,
    /// What it relied on, and whether that was learned from a sample just now.
    known: Known,
    sampled: bool,
    /// Of the result, if it says.
    size: Option<Size>,
}

#[allow(clippy::too_many_arguments, reason = "one call and what it relies on")]
async fn run<T: Element>(
    ep: &Endpoint,
    (n, width): (u64, usize),
    view: View<'_, T>,
    op: &ReduceOp,
    options: &AllreduceOptions,
    sent: Option<&mut Vec<T>>,
    known: Option<Known>,
    seen: Observed,
) -> Result<Ran<T>> {
    let mut terms = terms::<T>(n, width, &view, op, options);
    let codec = options.quantize.map(|q| q.check(op, T::DTYPE, width)).transpose()?;
    // Below the paper's crossover a dense vector is the larger one.
    let asked_for = matches!(options.dense_threshold, DenseThreshold::Entries(_))
        && terms.shape.dense_above < DenseThreshold::Paper.density(n, width * size_of::<T>(), false);
    let dense = options.algorithm.is_dense() || options.algorithm == Algorithm::SplitAllgatherDense;
    if dense || asked_for {
        check_room::<T>(n, width)?;
    }
    let (known, sampled) = decide(ep, (n, width), view, op, options, known, seen).await?;
    let (algorithm, bounds) = (known.algorithm, known.bounds.clone());
    let one_layer = [ep.size()];
    let degrees = if known.degrees.is_empty() { &one_layer[..] } else { &known.degrees };
    let input;
    if let (Some(quantize), Some(codec)) = (&options.quantize, codec) {
        let parts = if bounds.is_empty() { &[0, n] } else { &bounds[..] };
        input = quantize.input_of(ep, view, codec, parts, sent)?;
        terms.precision = Some(quantize.precision(codec, &input));
    }
    let form = match algorithm {
        Algorithm::RecursiveDoubling => recursive_doubling(ep, view, terms).await,
        Algorithm::Allgather => gather_and_sum(ep, view, terms).await,
        Algorithm::Ring => ring::ring(ep, view, terms, bounds).await,
        Algorithm::SplitAllgather => butterfly(ep, view, terms, &one_layer, bounds, Parts::Sparse).await,
        Algorithm::SplitAllgatherDense => butterfly(ep, view, terms, &one_layer, bounds, Parts::Dense).await,
        Algorithm::Butterfly => butterfly(ep, view, terms, degrees, bounds, Parts::Auto).await,
        dense => reduce_as_dense(ep, dense, view, terms).await,
    };
    let sum = SparseVec { n, width, form: form? };
    let says = !matches!(sum.form, Form::Dense { present: None, .. });
    let largest = || known.bounds.windows(2).map(|part| sum.nnz_between(part[0], part[1])).max().unwrap_or(0);
    let size = says.then(|| Size { entries: sum.nnz(), largest: largest() });
    Ok(Ran { form: sum.form, known, sampled, size })
}
