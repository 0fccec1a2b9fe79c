//! Predictions for `skyphos.planning`.

use crate::errors::to_py;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use skyphos::planner::{PlanWork, PowerLaw, Prediction, Profile, Sizes, Stage, Union, Work};
use skyphos::planner::{agreement, choose_degrees, factorisations};
use skyphos::{Algorithm, DenseThreshold, of_route};

/// A `skyphos.planning.Profile`: read by the names of its fields.
pub struct Numbers(pub Profile);

impl<'py> FromPyObject<'_, 'py> for Numbers {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Numbers> {
        let mut numbers = [0.0; Profile::LEN];
        for (number, name) in numbers.iter_mut().zip(Profile::NAMES) {
            *number = object.getattr(name)?.extract()?;
        }
        let profile = Profile::from_numbers(numbers);
        profile
            .map(Numbers)
            .ok_or_else(|| PyValueError::new_err("numbers of a profile are finite and positive"))
    }
}

/// Its numbers, by name.
pub fn named(profile: Profile) -> Vec<(&'static str, f64)> {
    Profile::NAMES.into_iter().zip(profile.numbers()).collect()
}

/// Defaults of a profile, by name.
#[pyfunction]
pub fn default_profile(ranks: u32, cores: f64, rate: Option<f64>) -> Vec<(&'static str, f64)> {
    named(rate.map_or_else(|| Profile::one_host(ranks, cores), Profile::network))
}

/// Kind, entries of one rank, exponent (power law), measured points.
type Model = (String, f64, f64, Vec<(f64, f64)>);

fn union_of(n: u64, (kind, entries, alpha, points): Model) -> PyResult<Union> {
    match kind.as_str() {
        "uniform" => Ok(Union::Uniform { n, entries }),
        "power_law" => Ok(Union::PowerLaw(PowerLaw::from_density(n, entries / n.max(1) as f64, alpha))),
        "measured" => Ok(Union::Measured(points)),
        other => Err(PyValueError::new_err(format!("no such model of unions: {other:?}"))),
    }
}

/// Bytes sent and received, messages, rounds, processor seconds, seconds.
pub(crate) type StageNumbers = (f64, f64, f64, f64, f64, f64);

pub(crate) fn stage_numbers(s: &Stage) -> StageNumbers {
    s.numbers().into()
}

/// Name, degrees and stages.
type RouteNumbers = (&'static str, Vec<u32>, Vec<StageNumbers>);

/// Entries of the union of each of these numbers of ranks.
#[pyfunction]
pub fn union_entries(n: u64, model: Model, ranks: Vec<f64>) -> PyResult<Vec<f64>> {
    let union = union_of(n, model)?;
    Ok(ranks.into_iter().map(|m| union.entries(m)).collect())
}

/// Name, degrees and stages of every route of an allreduce, or of a reduce-scatter, the fastest first.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
pub fn predict_reductions(
    py: Python<'_>,
    ranks: u32,
    n: u64,
    row_bytes: usize,
    model: Model,
    profile: Numbers,
    to_parts: bool,
) -> PyResult<Vec<RouteNumbers>> {
    let (union, Numbers(profile)) = (union_of(n, model)?, profile);
    let all = py.detach(|| {
        let curve = |m: f64| union.entries(m);
        let dense_above = DenseThreshold::Auto.density(n, row_bytes, n > 1 << 32);
        let work = Work { ranks, n, row_bytes, union: &curve, dense_above, ranks_per_host: 1 };
        let degrees = factorisations(ranks);
        if to_parts { work.all_reduce_scatters(&profile, &degrees) } else { work.all(&profile, &degrees) }
    });
    let route = |prediction: Prediction| {
        let (algorithm, degrees) = of_route(&prediction.route);
        let name = if to_parts { Algorithm::Butterfly } else { algorithm }.name();
        (name, degrees, prediction.stages.iter().map(stage_numbers).collect())
    };
    Ok(all.into_iter().map(route).collect())
}

/// Whether `auto` would ever allreduce by this algorithm where a rank has so many entries.
#[pyfunction]
pub fn auto_may_take(
    py: Python<'_>,
    algorithm: &str,
    ranks: u32,
    entries: f64,
    row_bytes: usize,
) -> PyResult<bool> {
    let algorithm = Algorithm::from_name(algorithm).map_err(|e| to_py(py, e))?;
    Ok(skyphos::auto_may_take(algorithm, ranks, entries, row_bytes))
}

/// What it takes to ask all ranks what they hold.
#[pyfunction]
pub fn predict_agreement(ranks: u32, profile: Numbers) -> StageNumbers {
    stage_numbers(&agreement(ranks, &profile.0))
}

/// Degrees, and stages of the configuration and of a reduction.
pub(crate) type PlanNumbers = (Vec<u32>, Vec<StageNumbers>, Vec<StageNumbers>);

/// Every ordered factorisation as layers of a plan in which all want what they contribute, the fastest reduction first.
#[pyfunction]
pub fn predict_plans(
    py: Python<'_>,
    ranks: u32,
    n: u64,
    row_bytes: usize,
    model: Model,
    profile: Numbers,
) -> PyResult<Vec<PlanNumbers>> {
    let (union, Numbers(profile)) = (union_of(n, model)?.at_divisors(ranks), profile);
    let all = py.detach(|| {
        let curve = |m: f64| union.entries(m);
        let work = PlanWork { ranks, n, row_bytes, out: &curve, want: &curve, same: true, ranks_per_host: 1 };
        work.all(&profile, &factorisations(ranks))
    });
    let numbers = |stages: &[Stage]| stages.iter().map(stage_numbers).collect();
    Ok(all.iter().map(|p| (p.degrees.clone(), numbers(&p.configure), numbers(&p.reduce))).collect())
}

/// The papers' degrees: at each layer the largest whose messages are worth sending.
#[pyfunction]
pub fn greedy_degrees(
    ranks: u32,
    n: u64,
    entries: f64,
    row_bytes: f64,
    alpha: f64,
    min_packet_bytes: f64,
) -> Vec<u32> {
    choose_degrees(
        &Sizes { ranks, n, contribute: entries, want: entries, row_bytes, alpha },
        min_packet_bytes,
    )
}
