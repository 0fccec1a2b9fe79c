//! The parameters of a simulation, and the planner's predictions for them.

use super::collective::Collective;
use super::data::Law;
use crate::OuterAlgorithm;
use skyphos_core::collectives::broadcast::Route;
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_plan::{PlanWork, Profile, Stage, Union, factorisations};
use skyphos_sim::Network;
use skyphos_tune::Algorithm;

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
    /// Sum of outer products: the number of columns; `n` is the number of rows.
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
    pub(super) fn asks_planner(&self) -> bool {
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
    pub(super) fn plan_degrees(&self, union: &Union, profile: &Profile, ranks_per_host: u32) -> Vec<u32> {
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
    pub(super) fn message_bytes(&self) -> f64 {
        self.n as f64 * self.row_bytes as f64
    }

    /// Frames of all calls on a plan.
    pub(super) fn plan_frames(&self, union: &Union, degrees: &[u32]) -> f64 {
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
}
