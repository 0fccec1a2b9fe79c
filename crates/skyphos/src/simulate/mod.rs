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
use skyphos_core::collectives::broadcast::{Route, Way};
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_plan::{PlanWork, Profile, Stage, Union, factorisations};
use skyphos_sim::{Cluster, Network, Ran};
use skyphos_types::{Error, Result};

/// Most numbers that the vectors of all ranks may have, if they are real.
const MOST_NUMBERS: f64 = 2e9;

/// Most frames of a run without data, each of which is an event or a few: about an hour's.
const MOST_FRAMES: f64 = 1e9;

/// Most rows of a rank where they need not be indices.
const MOST_ROWS: f64 = 1e18;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The cluster.
    pub network: Network,
    /// What all that is drawn follows from.
    pub seed: u64,
    /// The collective.
    pub collective: Collective,
    /// Of an allreduce: by which algorithm.
    pub algorithm: Algorithm,
    /// Of a broadcast: its route; `None`: chosen.
    pub route: Option<Route>,
    /// And the most bytes of a chunk; `None`: chosen.
    pub chunk_bytes: Option<usize>,
    /// Of a sum of outer products: by which algorithm.
    pub outer: OuterAlgorithm,
    /// And its columns; its rows are n.
    pub cols: u64,
    /// Layers of a butterfly; `None`: chosen.
    pub degrees: Option<Vec<u32>>,
    /// Size of the index space; of a broadcast the rows of its message. A shuffle does not look at it.
    pub n: u64,
    /// Entries of each rank, on average; of a shuffle its rows, which go to all ranks evenly; of a sum of outer products its pairs.
    pub entries: f64,
    /// How indices lie.
    pub law: Law,
    /// Bytes of an entry's row; of a shuffle with the key's; of a sum of outer products those of a number.
    pub row_bytes: usize,
    /// Whether there are only lengths, and no data.
    pub sized: bool,
    /// How many times it runs; of a plan's reductions.
    pub repeats: usize,
    /// Ranks of which every frame and stretch of work is kept, ascending.
    pub watched: Vec<u32>,
}

/// A part of what ran.
pub struct Phase {
    /// Its name: a collective's.
    pub name: &'static str,
    /// Layers, where it is a butterfly of them.
    pub degrees: Vec<u32>,
    /// The algorithm, of an allreduce.
    pub algorithm: Algorithm,
    /// Route and chunk of a broadcast.
    pub way: Option<Way>,
    /// How outer products were summed.
    pub outer: Option<OuterTold>,
    /// What happened.
    pub ran: Ran<()>,
}

impl Scenario {
    /// A collective of nothing yet, on a cluster, once; what the planner can choose is left to it.
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

    /// Whether anything is left to the planner, which then needs a probe.
    fn asks_planner(&self) -> bool {
        match self.collective {
            Collective::Configure | Collective::Reduce | Collective::ConfigureReduce => {
                self.degrees.is_none()
            }
            Collective::Allreduce | Collective::AllreduceDense => self.algorithm == Algorithm::Auto,
            Collective::ReduceScatter => self.degrees.is_none(),
            Collective::Allgather => true,
            Collective::OuterProductSum => self.outer == OuterAlgorithm::Auto,
            // A chain's chunks are by the model, too.
            Collective::Broadcast => self.route.is_none() || self.chunk_bytes.is_none(),
            _ => false,
        }
    }

    /// The degrees that the planner chooses for a plan, by what a probe finds.
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

    /// Frames of a plan, of all that runs.
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

    /// Refuses what would not come to an end, though no memory holds its frames.
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

    /// Refuses what cannot be.
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
