//! Predictions for `skyphos.planning`.

use crate::errors::to_py;
use crate::report::{PlanPrediction, RoutePrediction, Stage, stages_of};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use skyphos::planner::{PlanWork, PowerLaw, Prediction, Profile, Sizes, Union, Work};
use skyphos::planner::{choose_degrees, factorisations, survey_stage};
use skyphos::{Algorithm, DenseThreshold, algorithm_of_route};

/// A `skyphos.planning.Profile`, read by the names of its fields.
pub struct ProfileFields(pub Profile);

impl<'py> FromPyObject<'_, 'py> for ProfileFields {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<ProfileFields> {
        let mut numbers = [0.0; Profile::LEN];
        for (number, name) in numbers.iter_mut().zip(Profile::NAMES) {
            *number = object.getattr(name)?.extract()?;
        }
        let refused = || PyValueError::new_err("the numbers of a profile must be finite and positive");
        Profile::from_numbers(numbers).map(ProfileFields).ok_or_else(refused)
    }
}

/// The numbers of a profile with their names.
pub fn numbers_by_name(profile: Profile) -> Vec<(&'static str, f64)> {
    Profile::NAMES.into_iter().zip(profile.numbers()).collect()
}

/// Defaults of a profile, by name.
#[pyfunction]
pub fn default_profile(ranks: u32, cores: f64, rate: Option<f64>) -> Vec<(&'static str, f64)> {
    numbers_by_name(rate.map_or_else(|| Profile::one_host(ranks, cores), Profile::network))
}

/// A model of the entries in the union of several ranks' index sets.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct UnionModel(Union);

#[pymethods]
impl UnionModel {
    /// `entries`: entries of one rank.
    #[staticmethod]
    fn uniform(n: u64, entries: f64) -> UnionModel {
        UnionModel(Union::Uniform { n, entries })
    }

    #[staticmethod]
    fn power_law(n: u64, entries: f64, alpha: f64) -> UnionModel {
        UnionModel(Union::PowerLaw(PowerLaw::from_density(n, entries / n.max(1) as f64, alpha)))
    }

    /// `points`: numbers of ranks, and entries of their union.
    #[staticmethod]
    fn measured(points: Vec<(f64, f64)>) -> UnionModel {
        UnionModel(Union::Measured(points))
    }
}

/// For each number of ranks, the entries of the union of their sets.
#[pyfunction]
pub fn union_entries(model: &UnionModel, ranks: Vec<f64>) -> Vec<f64> {
    ranks.into_iter().map(|m| model.0.entries(m)).collect()
}

/// The predictions of all routes of an allreduce, or of a reduce-scatter, the fastest first.
#[pyfunction]
pub fn predict_reductions(
    py: Python<'_>,
    ranks: u32,
    n: u64,
    row_bytes: usize,
    model: &UnionModel,
    profile: ProfileFields,
    to_parts: bool,
) -> PyResult<Vec<RoutePrediction>> {
    let (union, ProfileFields(profile)) = (&model.0, profile);
    let all = py.detach(|| {
        let curve = |m: f64| union.entries(m);
        let dense_above = DenseThreshold::Auto.density(n, row_bytes, n > 1 << 32);
        let work = Work { ranks, n, row_bytes, union: &curve, dense_above, ranks_per_host: 1 };
        let degrees = factorisations(ranks);
        if to_parts { work.all_reduce_scatters(&profile, &degrees) } else { work.all(&profile, &degrees) }
    });
    let route = |prediction: Prediction| {
        let (algorithm, degrees) = algorithm_of_route(&prediction.route);
        let algorithm = if to_parts { Algorithm::Butterfly } else { algorithm }.name();
        Ok(RoutePrediction { algorithm, degrees, stages: stages_of(py, &prediction.stages)? })
    };
    all.into_iter().map(route).collect()
}

/// Whether `auto` considers this algorithm for vectors of this many entries per rank.
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

/// The cost of surveying all ranks.
#[pyfunction]
pub fn predict_agreement(ranks: u32, profile: ProfileFields) -> Stage {
    (&survey_stage(ranks, &profile.0)).into()
}

/// The predictions of plans whose in-sets equal their out-sets, one for each ordered factorisation of `ranks` as degrees of the layers. The
/// plan with the fastest reduction is first.
#[pyfunction]
pub fn predict_plans(
    py: Python<'_>,
    ranks: u32,
    n: u64,
    row_bytes: usize,
    model: &UnionModel,
    profile: ProfileFields,
) -> PyResult<Vec<PlanPrediction>> {
    let (union, ProfileFields(profile)) = (model.0.at_divisors(ranks), profile);
    let all = py.detach(|| {
        let curve = |m: f64| union.entries(m);
        let work = PlanWork { ranks, n, row_bytes, out: &curve, want: &curve, same: true, ranks_per_host: 1 };
        work.all(&profile, &factorisations(ranks))
    });
    let plan = |p: skyphos::planner::PlanPrediction| {
        let (configure, reduce) = (stages_of(py, &p.configure)?, stages_of(py, &p.reduce)?);
        Ok(PlanPrediction { degrees: p.degrees, configure, reduce })
    };
    all.into_iter().map(plan).collect()
}

/// The degrees by Kylix's rule (§IV): in each layer the largest degree whose messages have at least `min_packet_bytes` bytes.
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
