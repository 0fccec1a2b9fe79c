//! Collectives on simulated clusters: which one, with what data, on which network, and what came of it.
//!
//! Data is real (indices are drawn, values are ones) or, for plans and where bytes only move, sized: the same code with
//! lengths in place of data, for runs that no memory holds. See [`skyphos_sim`] for how time passes.

mod calls;
mod data;
mod moved;
mod outer;
mod probed;
mod rounds;

pub use calls::Collective;
pub use data::Law;
pub use probed::probe;
pub use rounds::name_of;

use crate::algorithm::Algorithm;
use crate::{OuterAlgorithm, OuterTold};
use calls::{Ranks, Settled};
use skyphos_core::collectives::broadcast::{Route, RouteChoice};
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_plan::{PlanWork, Profile, Stage, Union, factorisations};
use skyphos_sim::{Cluster, Network, Ran};
use skyphos_types::{Error, Result};

/// Limit on the numbers in all ranks' vectors, if data is real.
const MOST_NUMBERS: f64 = 2e9;

/// Limit on the frames of a run without data. A frame is one or a few events, and so many take about an hour.
const MOST_FRAMES: f64 = 1e9;

/// Limit on a rank's rows in collectives without indices.
const MOST_ROWS: f64 = 1e18;

/// A simulation's parameters.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The cluster.
    pub network: Network,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The collective.
    pub collective: Collective,
    /// Allreduce: the algorithm.
    pub algorithm: Algorithm,
    /// Broadcast: the route; `None` leaves it to the planner.
    pub route: Option<Route>,
    /// Broadcast: the most bytes of a chunk; `None` leaves it to the planner.
    pub chunk_bytes: Option<usize>,
    /// Sum of outer products: the algorithm.
    pub outer: OuterAlgorithm,
    /// Sum of outer products: the columns; n is the rows.
    pub cols: u64,
    /// Degrees of a butterfly's layers; `None` leaves them to the planner.
    pub degrees: Option<Vec<u32>>,
    /// Size of the index space. Broadcast: the rows of the message. Shuffle: not used.
    pub n: u64,
    /// Average entries of a rank. Shuffle: a rank's rows, which go to all ranks evenly. Sum of outer products: a rank's pairs.
    pub entries: f64,
    /// The distribution of indices.
    pub law: Law,
    /// Bytes of a row. Shuffle: including the key. Sum of outer products: bytes of a number.
    pub row_bytes: usize,
    /// Whether there are only lengths in place of data.
    pub sized: bool,
    /// Number of runs of the collective; for `Reduce`, of the plan's reductions.
    pub repeats: usize,
    /// Ranks of which every frame and every computation is recorded, ascending.
    pub watched: Vec<u32>,
}

/// One simulated call of all ranks.
pub struct Phase {
    /// The collective's name.
    pub name: &'static str,
    /// Degrees of the layers, if it ran on a butterfly.
    pub degrees: Vec<u32>,
    /// Algorithm of an allreduce.
    pub algorithm: Algorithm,
    /// Route and chunk length of a broadcast.
    pub way: Option<RouteChoice>,
    /// Choices of a sum of outer products.
    pub outer: Option<OuterTold>,
    /// Times, traffic and results.
    pub ran: Ran<()>,
}

impl Scenario {
    /// A scenario without data, run once, which leaves all choices to the planner.
    pub fn new(network: Network, collective: Collective) -> Scenario {
        Scenario {
            network,
            seed: 1,
            collective,
            algorithm: Algorithm::Auto,
            route: None,
            chunk_bytes: None,
            outer: OuterAlgorithm::Auto,
            cols: 1,
            degrees: None,
            n: 1,
            entries: 0.0,
            law: Law::Uniform,
            row_bytes: 4,
            sized: false,
            repeats: 1,
            watched: Vec::new(),
        }
    }

    /// Whether a choice is left to the planner, which then needs a probe.
    fn asks_planner(&self) -> bool {
        match self.collective {
            Collective::Configure | Collective::Reduce | Collective::ConfigureReduce => {
                self.degrees.is_none()
            }
            Collective::Allreduce | Collective::AllreduceDense => self.algorithm == Algorithm::Auto,
            Collective::ReduceScatter => self.degrees.is_none(),
            Collective::Allgather => true,
            Collective::OuterProductSum => self.outer == OuterAlgorithm::Auto,
            // The planner chooses the chunks of a chain, too.
            Collective::Broadcast => self.route.is_none() || self.chunk_bytes.is_none(),
            _ => false,
        }
    }

    /// The degrees that the planner chooses for a plan, with a probe's profile.
    fn plan_degrees(&self, union: &Union, profile: &Profile, ranks_per_host: u32) -> Vec<u32> {
        let curve = |m: f64| union.entries(m);
        self.plan_work(&curve, ranks_per_host)
            .all(profile, &factorisations(self.network.ranks))
            .swap_remove(0)
            .degrees
    }

    fn plan_work<'a>(&self, curve: &'a dyn Fn(f64) -> f64, ranks_per_host: u32) -> PlanWork<'a> {
        let (ranks, n, row_bytes) = (self.network.ranks, self.n, self.row_bytes);
        PlanWork { ranks, n, row_bytes, out: curve, want: curve, same: true, ranks_per_host }
    }

    /// Bytes of a broadcast.
    fn message_bytes(&self) -> f64 {
        self.n as f64 * self.row_bytes as f64
    }

    /// Frames of all calls on a plan.
    fn plan_frames(&self, union: &Union, degrees: &[u32]) -> f64 {
        let curve = |m: f64| union.entries(m);
        let plan = self.plan_work(&curve, 1).predict(&self.network.profile(), degrees);
        let frames = |stages: &[Stage]| -> f64 {
            stages.iter().map(|stage| stage.sent / CHUNK_BYTES as f64 + stage.messages).sum()
        };
        let repeats = self.repeats as f64;
        let each = match self.collective {
            Collective::Reduce => frames(&plan.configure) + repeats * frames(&plan.reduce),
            _ => repeats * frames(&plan.configure),
        };
        f64::from(self.network.ranks) * each
    }

    /// Refuses a run without data whose frames would take too long to simulate.
    fn check_frames(&self, union: &Union, degrees: &[u32], probed: Option<&Profile>) -> Result<()> {
        let described = self.network.profile();
        let all = match self.collective {
            Collective::Broadcast => {
                self.repeats as f64 * moved::broadcast_frames(self, probed.unwrap_or(&described))
            }
            Collective::Shuffle => self.repeats as f64 * moved::shuffle_frames(self),
            Collective::OuterProductSum => self.repeats as f64 * outer::frames(self),
            _ => self.plan_frames(union, degrees),
        };
        if all > MOST_FRAMES {
            return Err(Error::bad_input(format!(
                "about {all:.1e} frames of at most {CHUNK_BYTES} bytes are more than can be simulated, which is \
                 {MOST_FRAMES:.0e}: simulate fewer ranks, entries, bytes or repeats"
            )));
        }
        Ok(())
    }

    /// Refuses impossible parameters.
    pub fn check(&self) -> Result<()> {
        self.network.check()?;
        let refuse = |message: String| Err(Error::bad_input(message));
        if self.n == 0 || self.n > 1 << 63 {
            return refuse(format!("an index space of n = {}: 1 to 2^63 can be", self.n));
        }
        let most = if self.collective.has_indices() { self.n as f64 } else { MOST_ROWS };
        if !self.entries.is_finite() || self.entries < 0.0 || self.entries > most {
            return refuse(format!("{} entries a rank of n = {}: at most n can be", self.entries, self.n));
        }
        if let Law::PowerLaw { alpha } = self.law
            && !(0.0..=10.0).contains(&alpha)
        {
            return refuse(format!("the exponent of a power law must be between 0 and 10, not {alpha}"));
        }
        let of_numbers = self.collective.has_indices() || self.collective.is_dense();
        if self.row_bytes == 0 || (of_numbers && !self.sized && !self.row_bytes.is_multiple_of(4)) {
            return refuse(format!("rows of {} bytes: real data is of 4 bytes a number", self.row_bytes));
        }
        if self.repeats == 0 {
            return refuse("a simulation runs at least once".to_owned());
        }
        moved::broadcast_options(self).check()?;
        if self.collective == Collective::OuterProductSum {
            outer::check(self)?;
        }
        if self.sized {
            let can = Collective::ALL.iter().filter(|(can, _)| can.has_sized());
            let can: Vec<_> = can.map(|(_, name)| *name).collect();
            return match self.collective {
                known if known.has_sized() => Ok(()),
                other => refuse(format!(
                    "{} cannot run with lengths in place of data: {} can; simulate it with real data",
                    other.name(),
                    can.join(", ")
                )),
            };
        }
        let each = match self.collective {
            Collective::AllreduceDense | Collective::Broadcast => self.n as f64,
            Collective::OuterProductSum => outer::numbers(self),
            _ => self.entries,
        };
        let numbers = f64::from(self.network.ranks) * each * self.row_bytes as f64 / 4.0;
        if numbers > MOST_NUMBERS {
            return refuse(format!(
                "{numbers:.3e} numbers on all ranks do not fit one machine's memory: simulate fewer, or lengths in place of \
                 data"
            ));
        }
        Ok(())
    }
}

/// Runs a scenario. `told(phase, ranks, seconds)` hears now and then how many ranks have come to the end of a phase, and how
/// late it is there, and before that for how many ranks indices were drawn (as a phase `draw`); should it return false, the
/// simulation ends.
pub fn simulate(scenario: &Scenario, mut told: impl FnMut(&str, usize, f64) -> bool) -> Result<Vec<Phase>> {
    scenario.check()?;
    let mut cluster = Cluster::new(scenario.network.clone(), scenario.seed, scenario.sized)?;
    let mut ranks = Ranks::new(scenario, &cluster, |ranks| told("draw", ranks, 0.0))?;
    let mut phases = Vec::new();
    for name in scenario.collective.phases(scenario.repeats) {
        let calls = ranks.calls(scenario, name)?;
        let ran = cluster.run(calls, &scenario.watched, |ranks, at| told(name, ranks, at))?;
        if let Some(error) = ran.results.iter().find_map(|result| result.as_ref().err()) {
            return Err(error.clone());
        }
        let Settled { algorithm, degrees, way, outer } = ranks.settle(scenario);
        phases.push(Phase { name, degrees, algorithm, way, outer, ran });
    }
    Ok(phases)
}
