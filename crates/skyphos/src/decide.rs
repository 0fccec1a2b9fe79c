//! Chooses how a reduction of sparse vectors runs: by the variant of earlier calls, by the algorithm that the caller named, or by
//! the tuner's choice after a survey of all ranks.

use crate::allreduce_options::AllreduceOptions;
use crate::native_allreduce::{check_native, native_may_be_faster};
use crate::tuning::{Basis, start_profile};
use skyphos_core::Endpoint;
use skyphos_core::collectives::{Split, Survey, bounds, survey};
use skyphos_kernels::stream::View;
use skyphos_plan::Union;
use skyphos_tune::{
    Algorithm, Facts, Limits, NextRound, Recalled, Reduction, SurveyResult, Trials, TuningParameters,
    Variant, Workload, next_round,
};
use skyphos_types::{Element, Error, ReduceOp, Result};

/// The tuner's constants.
const PARAMETERS: TuningParameters = TuningParameters::DEFAULT;

/// How a call runs.
pub(crate) struct Decided {
    pub(crate) variant: Variant,
    /// The survey's result, if there was one.
    pub(crate) survey: Option<SurveyResult>,
    /// Expected entries of the reduction, if the ranks were surveyed.
    pub(crate) entries: Option<u64>,
}

impl Decided {
    fn new(variant: Variant, survey: Option<SurveyResult>) -> Decided {
        Decided { variant, survey, entries: None }
    }
}

/// A reduction of sparse vectors of `n` rows of `width` numbers, of which this rank has `view`.
pub(crate) struct Undecided<'a, T> {
    pub(crate) reduction: Reduction,
    pub(crate) n: u64,
    pub(crate) width: usize,
    pub(crate) view: View<'a, T>,
    /// Density above which parts turn dense.
    pub(crate) dense_above: f64,
    pub(crate) op: &'a ReduceOp,
    pub(crate) options: &'a AllreduceOptions,
}

/// Decides how a call runs.
pub(crate) async fn decide<T: Element>(
    ep: &Endpoint,
    call: Undecided<'_, T>,
    basis: Basis,
) -> Result<Decided> {
    let Undecided { reduction, n, width, view, dense_above, op, options } = call;
    check_hint(n, options.expected_nnz)?;
    let Basis { recalled, observed } = basis;
    let trials = match recalled {
        Recalled::Run(variant) => return Ok(Decided::new(variant, None)),
        Recalled::Survey(trials) => trials,
    };
    if options.algorithm != Algorithm::Auto {
        return named(ep, view, (n, width), op, options).await;
    }
    // A group that does not adapt must not survey timings either, because replicas measure different ones.
    let (surveyed_before, adapts) = (trials.is_some(), !observed.fixed);
    let trials = trials.filter(|_| adapts);
    let substitute = |algorithm| match op {
        ReduceOp::MeanPresent => Algorithm::SplitAllgather,
        _ => options.quantize.map_or(algorithm, |q| q.supported_or_substitute(algorithm)),
    };
    let limits = Limits { degrees: options.degrees.as_deref(), substitute: &substitute };
    let row_bytes = width * size_of::<T>();
    let plan_round = |facts: &Facts, trials: Option<Trials>| {
        let workload = Workload {
            reduction,
            ranks: ep.size(),
            n,
            row_bytes,
            union: &|m| facts.union.entries(m),
            dense_above,
            ranks_per_host: ep.topology().ranks_per_host(),
            has_native: native_may_be_faster(ep, op, T::DTYPE),
            profile: facts.profile,
            corrections: facts.corrections,
            parameters: &PARAMETERS,
        };
        next_round(&workload, &limits, trials, &facts.round, adapts)
    };
    let default = start_profile(&observed, ep);
    let hint = options.expected_nnz.filter(|_| !surveyed_before && observed.has_common_start());
    let by_hint = hint.and_then(|entries| {
        let facts = Facts::hinted(n, entries, ep.size(), default);
        let next = plan_round(&facts, None);
        let fits = n.saturating_mul(row_bytes as u64) <= PARAMETERS.max_hinted_bytes;
        (fits || next.choices.iter().all(|choice| !choice.algorithm.is_dense())).then_some(next)
    });
    let is_hinted = by_hint.is_some();
    let (next, survey, entries) = match by_hint {
        Some(next) => (next, None, None),
        None => {
            let words = Facts::words(&PARAMETERS, &observed, default, trials.as_ref());
            let survey = survey(ep, view, width, n, &words).await?;
            let union = union_curve(&survey, ep.size());
            let entries = union.entries(f64::from(ep.size())) as u64;
            let facts = Facts::agreed(&PARAMETERS, union, default, |k| survey.numbers(k));
            (plan_round(&facts, trials), Some(survey), Some(entries))
        }
    };
    check_algorithm(next.choices[0].algorithm, op, options)?;
    let trials = with_ranges(ep, next, survey, view, (n, width), options.split).await?;
    let variant = trials.variants[0].clone();
    let survey = SurveyResult { trials, hint: hint.filter(|_| is_hinted) };
    Ok(Decided { variant, survey: Some(survey), entries })
}

/// The algorithm that the caller named. Where its ranges are cut by quantiles, later calls reuse the bounds.
async fn named<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    (n, width): (u64, usize),
    op: &ReduceOp,
    options: &AllreduceOptions,
) -> Result<Decided> {
    let algorithm = options.algorithm;
    check_algorithm(algorithm, op, options)?;
    check_native(algorithm, ep, op, T::DTYPE)?;
    check_layers(options)?;
    let split = split_for(algorithm, options.split);
    let bounds = match algorithm.has_ranges() {
        true => bounds(ep, split, view, width, n, ep.size()).await?,
        false => Vec::new(),
    };
    let degrees = options.degrees.clone().filter(|_| algorithm == Algorithm::Butterfly);
    let variant = Variant { algorithm, degrees: degrees.unwrap_or_default(), bounds, choice: None };
    let sampled = algorithm.has_ranges() && split == Split::Quantiles && ep.size() > 1;
    let trials = sampled.then(|| Trials::begin(&PARAMETERS, vec![variant.clone()]));
    Ok(Decided::new(variant, trials.map(|trials| SurveyResult { trials, hint: None })))
}

/// Adds the bounds of the ranks' ranges to the variants of a round.
async fn with_ranges<T: Element>(
    ep: &Endpoint,
    next: NextRound,
    survey: Option<Survey>,
    view: View<'_, T>,
    (n, width): (u64, usize),
    split: Split,
) -> Result<Trials> {
    let has_ranges = next.choices.iter().any(|choice| choice.algorithm.has_ranges());
    let ranges = match (split, survey) {
        _ if !has_ranges => Vec::new(),
        (Split::Quantiles, Some(survey)) => survey.bounds(ep.size()),
        (split, _) => bounds(ep, split, view, width, n, ep.size()).await?,
    };
    let even = bounds(ep, Split::Even, view, width, n, ep.size()).await?;
    Ok(next.into_trials(&PARAMETERS, |algorithm| match split_for(algorithm, split) {
        _ if !algorithm.has_ranges() => Vec::new(),
        Split::Even => even.clone(),
        _ => ranges.clone(),
    }))
}

/// Refuses a hint of more entries than the index space has.
pub(crate) fn check_hint(n: u64, expected_nnz: Option<u64>) -> Result<()> {
    match expected_nnz.filter(|entries| *entries > n) {
        Some(entries) => {
            Err(Error::bad_input(format!("expected_nnz={entries} entries, in an index space of n={n}")))
        }
        None => Ok(()),
    }
}

/// The split for an algorithm. The size of a dense part depends only on its range, so dense parts have even ranges.
fn split_for(algorithm: Algorithm, split: Split) -> Split {
    if algorithm == Algorithm::SplitAllgatherDense { Split::Even } else { split }
}

/// Entries of unions according to a survey, at powers of two and at all ranks.
fn union_curve(survey: &Survey, ranks: u32) -> Union {
    let powers = (0..=ranks.ilog2()).map(|k| 1u32 << k).chain(Some(ranks).filter(|p| !p.is_power_of_two()));
    Union::Measured(powers.map(|m| (f64::from(m), survey.union(m))).collect())
}

/// Refuses degrees for an algorithm without layers.
fn check_layers(options: &AllreduceOptions) -> Result<()> {
    match options.algorithm {
        Algorithm::Butterfly => Ok(()),
        _ if options.degrees.is_none() => Ok(()),
        other => Err(Error::bad_input(format!(
            "degrees= are the layers of algorithm=\"butterfly\"; {:?} has none",
            other.name()
        ))),
    }
}

/// Refuses an algorithm that cannot run this call.
pub(crate) fn check_algorithm(algorithm: Algorithm, op: &ReduceOp, options: &AllreduceOptions) -> Result<()> {
    if matches!(op, ReduceOp::MeanPresent) {
        let one_layer = options.degrees.as_ref().is_none_or(|degrees| degrees.len() == 1);
        match algorithm {
            Algorithm::SplitAllgather | Algorithm::Allgather => {}
            Algorithm::Butterfly if one_layer => {}
            other => {
                return Err(Error::bad_input(format!(
                    "op=\"mean_present\" counts the ranks with an entry, and algorithm={:?} does not send these counts: use \
                     split_allgather or allgather",
                    other.name()
                )));
            }
        }
    }
    options.quantize.map_or(Ok(()), |q| q.check_algorithm(algorithm))
}
