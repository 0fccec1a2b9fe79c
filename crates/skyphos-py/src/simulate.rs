//! Simulations of collectives, for `skyphos.simulate`.

use crate::broadcast::route_of;
use crate::errors::to_py;
use crate::planner::ProfileFields;
use pyo3::prelude::*;
use skyphos::sim::trace::trace;
use skyphos::sim::{Costs, Network, Stragglers};
use skyphos::simulate::{Collective, Law, Phase, Scenario, name_of, simulate as run};
use skyphos::{Algorithm, Error, OuterAlgorithm, Route};
use std::collections::BTreeMap;

/// The fields of `skyphos.simulate.Network`.
#[derive(FromPyObject)]
pub struct NetworkFields {
    ranks: u32,
    ranks_per_host: u32,
    dealt: bool,
    scattered: bool,
    topology_known: bool,
    cores: f64,
    hosts_per_rack: u32,
    rate_out: f64,
    rate_in: f64,
    uplink_rate: f64,
    latency_s: f64,
    message_s: f64,
    mtu: u32,
    packet_floor: f64,
    incast: f64,
    host_rate: f64,
    host_latency_s: f64,
    jitter: String,
    straggler_share: f64,
    straggler_slowness: String,
    start: String,
    clock: String,
    machine: ProfileFields,
}

impl NetworkFields {
    fn network(self, seed: u64) -> Result<Network, Error> {
        let ProfileFields(machine) = self.machine;
        Ok(Network {
            ranks: self.ranks,
            ranks_per_host: self.ranks_per_host,
            dealt: self.dealt,
            scattered: self.scattered.then_some(seed),
            topology_known: self.topology_known,
            cores: self.cores,
            hosts_per_rack: self.hosts_per_rack,
            rate_out: self.rate_out,
            rate_in: self.rate_in,
            uplink_rate: self.uplink_rate,
            latency_s: self.latency_s,
            message_s: self.message_s,
            mtu: self.mtu,
            packet_floor: self.packet_floor,
            incast: self.incast,
            host_rate: self.host_rate,
            host_latency_s: self.host_latency_s,
            jitter: self.jitter.parse()?,
            stragglers: Stragglers {
                share: self.straggler_share,
                slowness: self.straggler_slowness.parse()?,
            },
            start: self.start.parse()?,
            clock: self.clock.parse()?,
            costs: Costs::of(&machine),
        })
    }
}

/// The fields of a scenario except for its network.
#[derive(FromPyObject)]
pub struct ScenarioFields {
    collective: String,
    algorithm: String,
    chunk_bytes: Option<usize>,
    degrees: Option<Vec<u32>>,
    n: u64,
    cols: u64,
    entries: f64,
    alpha: Option<f64>,
    row_bytes: usize,
    sized: bool,
    repeats: usize,
    seed: u64,
    watched: Vec<u32>,
}

/// A round or layer of all ranks.
#[pyclass(frozen, get_all, module = "skyphos._skyphos")]
pub struct SimulatedRound {
    name: String,
    /// Times of its first and its last frame, in seconds since the phase began.
    first_s: f64,
    last_s: f64,
    messages: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

/// The events of each watched rank.
type ByRank<E> = Vec<(u32, Vec<E>)>;

/// A simulated phase.
#[pyclass(frozen, get_all, module = "skyphos._skyphos")]
pub struct SimulatedPhase {
    name: &'static str,
    algorithm: &'static str,
    chunk_bytes: Option<usize>,
    degrees: Vec<u32>,
    seconds: Vec<f64>,
    rounds: Vec<Py<SimulatedRound>>,
    /// For each watched rank: its rounds (name, begin, end), and the intervals in which it computed (begin, end), in seconds.
    timeline: ByRank<(String, f64, f64)>,
    busy: ByRank<(f64, f64)>,
    trace: String,
}

/// Totals of all rounds with the same name, in the order in which they begin, without the round of announcements, which no rank waits for.
fn rounds_by_name(phase: &Phase) -> Vec<SimulatedRound> {
    let mut all: BTreeMap<String, SimulatedRound> = BTreeMap::new();
    for (number, round) in phase.ran.record.by_round() {
        let name = name_of(phase.name, phase.algorithm, number);
        let at = |time: u64| time.saturating_sub(phase.ran.begin) as f64 / 1e9;
        let (first_s, last_s) = (at(round.first), at(round.last));
        let total = all.entry(name.clone()).or_insert(SimulatedRound {
            name,
            first_s,
            last_s,
            messages: 0,
            sent_bytes: 0,
            received_bytes: 0,
        });
        (total.first_s, total.last_s) = (total.first_s.min(first_s), total.last_s.max(last_s));
        total.messages += round.messages;
        total.sent_bytes += round.sent;
        total.received_bytes += round.received;
    }
    let mut all: Vec<_> = all.into_values().filter(|round| round.name != "announce").collect();
    all.sort_by(|a, b| a.first_s.total_cmp(&b.first_s).then(a.last_s.total_cmp(&b.last_s)));
    all
}

fn simulated(py: Python<'_>, network: &Network, phase: Phase, traced: bool) -> PyResult<SimulatedPhase> {
    let (name, algorithm) = (phase.name, phase.algorithm);
    let at = |time: u64| time.saturating_sub(phase.ran.begin) as f64 / 1e9;
    let record = &phase.ran.record;
    let rounds_of = |rank: u32| {
        let rounds = record.rounds[rank as usize].iter();
        rounds.map(|(number, r)| (name_of(name, algorithm, *number), at(r.first), at(r.last))).collect()
    };
    let busy_of = |rank: u32| {
        let busy = record.busy.iter().filter(|busy| busy.rank == rank);
        busy.map(|busy| (at(busy.from), at(busy.to))).collect()
    };
    let trace = match traced {
        true => trace(network, &phase.ran, |round| name_of(name, algorithm, round)),
        false => String::new(),
    };
    let rounds =
        rounds_by_name(&phase).into_iter().map(|round| Py::new(py, round)).collect::<PyResult<_>>()?;
    Ok(SimulatedPhase {
        name,
        algorithm: match (phase.route, &phase.outer) {
            (Some(choice), _) => choice.route.name(),
            (None, Some(outer)) => outer.algorithm.name(),
            (None, None) => algorithm.name(),
        },
        chunk_bytes: phase.route.map(|choice| choice.chunk_bytes),
        rounds,
        timeline: record.watched.iter().map(|rank| (*rank, rounds_of(*rank))).collect(),
        busy: record.watched.iter().map(|rank| (*rank, busy_of(*rank))).collect(),
        trace,
        degrees: phase.degrees,
        seconds: phase.ran.seconds,
    })
}

/// The algorithm that a name stands for: of a reduction, of a broadcast (a route) or of an outer product, depending on the
/// collective.
fn algorithm_of_name(
    collective: Collective,
    algorithm: &str,
) -> Result<(Algorithm, Option<Route>, OuterAlgorithm), Error> {
    let (auto, outer) = (Algorithm::Auto, OuterAlgorithm::Auto);
    match collective {
        Collective::Broadcast => Ok((auto, route_of(algorithm)?, outer)),
        Collective::OuterProductSum => Ok((auto, None, OuterAlgorithm::from_name(algorithm)?)),
        _ => Ok((Algorithm::from_name(algorithm)?, None, outer)),
    }
}

/// Runs a scenario. Calls `progress(phase, ranks, seconds)` from time to time, with the number of ranks that have finished and the
/// virtual time.
#[pyfunction]
pub fn simulate(
    py: Python<'_>,
    network: NetworkFields,
    fields: ScenarioFields,
    traced: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<SimulatedPhase>> {
    let network = network.network(fields.seed).map_err(|error| to_py(py, error))?;
    let collective = Collective::from_name(&fields.collective).map_err(|error| to_py(py, error))?;
    let (algorithm, route, outer) =
        algorithm_of_name(collective, &fields.algorithm).map_err(|error| to_py(py, error))?;
    let scenario = Scenario {
        network: network.clone(),
        seed: fields.seed,
        collective,
        algorithm,
        route,
        chunk_bytes: fields.chunk_bytes,
        outer,
        cols: fields.cols,
        degrees: fields.degrees,
        n: fields.n,
        entries: fields.entries,
        law: fields.alpha.map_or(Law::Uniform, |alpha| Law::PowerLaw { alpha }),
        row_bytes: fields.row_bytes,
        sized: fields.sized,
        repeats: fields.repeats,
        watched: fields.watched,
    };
    let mut stopped = None;
    let phases = py.detach(|| {
        run(&scenario, |phase, ranks, seconds| {
            Python::attach(|py| {
                let reported = progress
                    .as_ref()
                    .map_or(Ok(()), |progress| progress.call1(py, (phase, ranks, seconds)).map(drop));
                stopped = reported.and_then(|()| py.check_signals()).err();
                stopped.is_none()
            })
        })
    });
    match stopped {
        Some(error) => Err(error),
        None => {
            let phases = phases.map_err(|error| to_py(py, error))?.into_iter();
            phases.map(|phase| simulated(py, &network, phase, traced)).collect()
        }
    }
}

/// The host of each rank of a network. `seed` determines the placement of scattered ranks.
#[pyfunction]
pub fn simulated_hosts(py: Python<'_>, network: NetworkFields, seed: u64) -> PyResult<Vec<u32>> {
    let network = network.network(seed).map_err(|error| to_py(py, error))?;
    network.check().map_err(|error| to_py(py, error))?;
    Ok(network.hosts_of_ranks())
}

/// Names of the collectives that can be simulated.
#[pyfunction]
pub fn simulated_collectives() -> Vec<&'static str> {
    Collective::ALL.map(Collective::name).into()
}
