//! Predictions for `skyphos.planner`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use skyphos::planner::{Kernels, PowerLaw, Profile, Union, Work, choose_degrees, factorisations};
use skyphos::planner::{Sizes, Stage};
use skyphos::{DenseThreshold, of_route};

/// A profile's numbers, in the order of the fields of `skyphos.planner.Profile`.
#[derive(FromPyObject)]
pub struct Numbers {
    latency_s: f64,
    rate: f64,
    incast: f64,
    cores: f64,
    frame_s: f64,
    byte_s: f64,
    array_byte_s: f64,
    encode_s: f64,
    place_s: f64,
    merge_s: f64,
    merge_more_s: f64,
    block_s: f64,
    position_s: f64,
    dense_byte_s: f64,
    fresh_byte_s: f64,
    bitmap_s: f64,
}

impl From<Numbers> for Profile {
    fn from(p: Numbers) -> Profile {
        let kernels = Kernels {
            encode_s: p.encode_s,
            place_s: p.place_s,
            merge_s: p.merge_s,
            merge_more_s: p.merge_more_s,
            block_s: p.block_s,
            position_s: p.position_s,
            dense_byte_s: p.dense_byte_s,
            fresh_byte_s: p.fresh_byte_s,
            bitmap_s: p.bitmap_s,
        };
        let Numbers { latency_s, rate, incast, cores, frame_s, byte_s, array_byte_s, .. } = p;
        Profile { latency_s, rate, incast, cores, frame_s, byte_s, array_byte_s, kernels }
    }
}

/// Defaults of a profile, by name.
#[pyfunction]
pub fn default_profile(ranks: u32, cores: f64, rate: Option<f64>) -> Vec<(&'static str, f64)> {
    let p = rate.map_or_else(|| Profile::one_host(ranks, cores), Profile::network);
    let k = p.kernels;
    vec![
        ("latency_s", p.latency_s),
        ("rate", p.rate),
        ("incast", p.incast),
        ("cores", p.cores),
        ("frame_s", p.frame_s),
        ("byte_s", p.byte_s),
        ("array_byte_s", p.array_byte_s),
        ("encode_s", k.encode_s),
        ("place_s", k.place_s),
        ("merge_s", k.merge_s),
        ("merge_more_s", k.merge_more_s),
        ("block_s", k.block_s),
        ("position_s", k.position_s),
        ("dense_byte_s", k.dense_byte_s),
        ("fresh_byte_s", k.fresh_byte_s),
        ("bitmap_s", k.bitmap_s),
    ]
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
    (s.sent, s.received, s.messages, s.rounds, s.compute_s, s.seconds)
}

/// Name, degrees and stages.
type RouteNumbers = (&'static str, Vec<u32>, Vec<StageNumbers>);

/// Entries of the union of each of these numbers of ranks.
#[pyfunction]
pub fn union_entries(n: u64, model: Model, ranks: Vec<f64>) -> PyResult<Vec<f64>> {
    let union = union_of(n, model)?;
    Ok(ranks.into_iter().map(|m| union.entries(m)).collect())
}

/// Name, degrees and stages of every route, the fastest first.
#[pyfunction]
pub fn predict_allreduce(
    py: Python<'_>,
    ranks: u32,
    n: u64,
    row_bytes: usize,
    model: Model,
    profile: Numbers,
) -> PyResult<Vec<RouteNumbers>> {
    let (union, profile) = (union_of(n, model)?, Profile::from(profile));
    let all = py.detach(|| {
        let curve = |m: f64| union.entries(m);
        let dense_above = DenseThreshold::Auto.density(n, row_bytes, n > 1 << 32);
        Work { ranks, n, row_bytes, union: &curve, dense_above }.all(&profile, &factorisations(ranks))
    });
    Ok(all
        .into_iter()
        .map(|prediction| {
            let (algorithm, degrees) = of_route(&prediction.route);
            (algorithm.name(), degrees, prediction.stages.iter().map(stage_numbers).collect())
        })
        .collect())
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
