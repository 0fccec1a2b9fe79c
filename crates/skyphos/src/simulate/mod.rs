//! Simulation of collectives on clusters: a [`Scenario`] has the collective, its data and the network.
//!
//! Data is real (indices are drawn, values are ones) or *sized*: the same code runs with lengths in place of data, for runs that
//! would not fit memory. Plans, and collectives that only move bytes, can be sized. See [`skyphos_sim`] for the virtual time.

mod calls;
mod choices;
mod collective;
mod data;
mod limits;
mod outer;
mod probe;
mod rounds;
mod scenario;
mod transfers;

pub use collective::Collective;
pub use data::Law;
pub use probe::probe;
pub use rounds::name_of;
pub use scenario::Scenario;

use crate::OuterChoice;
use calls::Ranks;
use choices::Choices;
use skyphos_core::collectives::broadcast::RouteChoice;
use skyphos_sim::{Cluster, Ran};
use skyphos_tune::Algorithm;
use skyphos_types::Result;

/// One simulated call of all ranks.
pub struct Phase {
    /// The collective's name.
    pub name: &'static str,
    /// Degrees of the layers, if it ran on a butterfly.
    pub degrees: Vec<u32>,
    /// Algorithm of an allreduce.
    pub algorithm: Algorithm,
    /// Route and chunk length of a broadcast.
    pub route: Option<RouteChoice>,
    /// Choices of a sum of outer products.
    pub outer: Option<OuterChoice>,
    /// Times, traffic and results.
    pub ran: Ran<()>,
}

/// Runs a scenario. Calls `progress(phase, ranks, seconds)` now and then with the number of ranks that have completed a phase, and
/// the virtual time. While indices are drawn, the phase is `draw`, and `ranks` counts the ranks that have their indices. The
/// simulation ends with an error if `progress` returns false.
pub fn simulate(
    scenario: &Scenario,
    mut progress: impl FnMut(&str, usize, f64) -> bool,
) -> Result<Vec<Phase>> {
    scenario.check()?;
    let mut cluster = Cluster::new(scenario.network.clone(), scenario.seed, scenario.sized)?;
    let mut ranks = Ranks::new(scenario, &cluster, |ranks| progress("draw", ranks, 0.0))?;
    let mut phases = Vec::new();
    for name in scenario.collective.phases(scenario.repeats) {
        let calls = ranks.calls(scenario, name)?;
        let ran = cluster.run(calls, &scenario.watched, |ranks, at| progress(name, ranks, at))?;
        if let Some(error) = ran.results.iter().find_map(|result| result.as_ref().err()) {
            return Err(error.clone());
        }
        let Choices { algorithm, degrees, route, outer } = ranks.take_choices(scenario);
        phases.push(Phase { name, degrees, algorithm, route, outer, ran });
    }
    Ok(phases)
}
