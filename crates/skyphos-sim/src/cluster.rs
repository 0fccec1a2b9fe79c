//! The simulated cluster: it polls each rank when its virtual time comes.

use crate::network::Network;
use crate::record::Record;
use crate::time::{MAX_NS, MAX_YEARS, nanoseconds};
use crate::transport::{Shared, Sim, Slowness};
use crate::world::World;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use skyphos_core::clock::VirtualClock;
use skyphos_core::slab::Pool;
use skyphos_core::transport::Transport;
use skyphos_core::{Call, Settings, Steps};
use skyphos_types::{Error, Result};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The time-out of simulated nodes: longer than any simulation.
const FOR_EVER: Duration = Duration::from_nanos(2 * MAX_NS);

/// Polls between two reports of progress.
const POLLS_PER_REPORT: u64 = 8192;

/// Ranks that an error names, at most.
const MAX_NAMED: usize = 8;

/// A simulated cluster: see [`crate`].
pub struct Cluster {
    pub(crate) shared: Arc<Shared>,
    pub(crate) clocks: Vec<Arc<VirtualClock>>,
    pub(crate) slowness: Vec<Arc<Slowness>>,
}

/// The outcome of a call.
pub struct Ran<R> {
    /// The result of each rank.
    pub results: Vec<Result<R>>,
    /// By rank: seconds from the time at which all ranks were ready to the rank's end.
    pub seconds: Vec<f64>,
    /// The nanosecond at which the call began.
    pub begin: u64,
    /// Frames and work of the call.
    pub record: Record,
}

impl<R> Ran<R> {
    /// Seconds until the last rank had its result.
    pub fn last(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }
}

/// For each rank of a cluster, the factor by which its work is slower, and the nanoseconds by which its clock is ahead.
fn draw_ranks(network: &Network, seed: u64) -> impl Iterator<Item = (f64, i64)> + '_ {
    // The constant makes this stream differ from the other streams of a seed.
    let mut random = Pcg64::seed_from_u64(seed ^ 0x51ed_270b_9c3f_a1e5);
    (0..network.ranks).map(move |_| {
        let slow = random.random::<f64>() < network.stragglers.share;
        let drawn = network.stragglers.slowness.draw(&mut random).max(1.0);
        let slowness = network.sharing() * if slow { drawn } else { 1.0 };
        (slowness, nanoseconds(network.clock.draw(&mut random)) as i64)
    })
}

/// The factor by which work is slower on the slowest rank of a cluster.
pub fn slowest(network: &Network, seed: u64) -> f64 {
    draw_ranks(network, seed).map(|(slowness, _)| slowness).fold(1.0, f64::max)
}

impl Cluster {
    /// A cluster whose randomness comes from `seed`. `sized`: buffers have lengths, but no data.
    pub fn new(network: Network, seed: u64, sized: bool) -> Result<Cluster> {
        network.check()?;
        let (mut clocks, mut all_slowness) = (Vec::new(), Vec::new());
        for (slowness, ahead) in draw_ranks(&network, seed) {
            let (costs, slowness) = (network.costs, Slowness::new(slowness));
            let here = slowness.clone();
            let price = move |effort| nanoseconds(costs.seconds(effort) * here.get());
            clocks.push(Arc::new(VirtualClock::new(ahead, price, sized)));
            all_slowness.push(slowness);
        }
        let address = |host: &u32| format!("simulated host {host}, rack {}", network.rack(*host));
        let shared = Arc::new(Shared {
            addresses: network.hosts_of_ranks().iter().map(address).collect(),
            topology: network.topology()?,
            pool: Pool::default(),
            costs: network.costs,
            ranks_on_host: network.ranks_per_host.min(network.ranks) as usize,
            world: Mutex::new(World::new(network, seed)),
        });
        Ok(Cluster { shared, clocks, slowness: all_slowness })
    }

    /// The transport of each rank, for its node.
    pub fn transports(&self) -> Vec<Box<dyn Transport>> {
        let one = |rank: usize| -> Box<dyn Transport> {
            let (shared, clock, slowness) =
                (self.shared.clone(), self.clocks[rank].clone(), self.slowness[rank].clone());
            Box::new(Sim { rank: rank as u32, shared, clock, slowness, generation: 0, waits: false })
        };
        (0..self.clocks.len()).map(one).collect()
    }

    /// Settings of simulated nodes: one thread, and no time-out.
    pub fn settings() -> Settings {
        Settings { timeout: FOR_EVER, ..Settings::default() }
    }

    /// Runs a call that all ranks have made, from the time when all are ready. Records every frame and stretch of work of the ranks in
    /// `watched` (ascending). Calls `report(ranks, seconds)` from time to time with the number of ranks that have their result, and
    /// the virtual time; the simulation ends if it returns false.
    pub fn run<R: Send + 'static>(
        &mut self,
        calls: Vec<Call<R>>,
        watched: &[u32],
        mut report: impl FnMut(usize, f64) -> bool,
    ) -> Result<Ran<R>> {
        let ranks = self.clocks.len();
        assert_eq!(calls.len(), ranks, "a call of every rank");
        let begin = self.clocks.iter().map(|clock| clock.at()).max().unwrap_or(0);
        let mut steps: Vec<Option<Steps<R>>> =
            calls.into_iter().map(|call| Some(call.into_steps())).collect();
        {
            let mut world = self.shared.world();
            world.record = Record::new(ranks as u32, watched.to_vec());
            for rank in 0..ranks as u32 {
                let distribution = world.network.start;
                let delay = distribution.draw(&mut world.random);
                // Until then frames wait for this rank, as they do while it works.
                self.clocks[rank as usize].advance_to(begin + nanoseconds(delay));
                world.wake(rank, begin + nanoseconds(delay));
            }
        }
        let mut results: Vec<Option<Result<R>>> = (0..ranks).map(|_| None).collect();
        let (mut seconds, mut left, mut polls) = (vec![0.0; ranks], ranks, 0u64);
        while left > 0 {
            let next = self.shared.world().run(|rank| self.clocks[rank as usize].at());
            let Some((rank, time)) = next else { return Err(stuck(&results)) };
            let clock = &self.clocks[rank as usize];
            clock.advance_to(time);
            if clock.at() > MAX_NS {
                return Err(too_late());
            }
            polls += 1;
            if polls.is_multiple_of(POLLS_PER_REPORT) && !report(ranks - left, (time - begin) as f64 / 1e9) {
                return Err(Error::Interrupted);
            }
            let Some(call) = &mut steps[rank as usize] else { continue };
            let from = clock.at();
            let result = call.step();
            let mut world = self.shared.world();
            world.record.worked(rank, from, clock.at());
            // Checked before the call's result, which may be a time-out at such a moment.
            if clock.at() > MAX_NS {
                return Err(too_late());
            }
            if let Some(result) = result {
                seconds[rank as usize] = (clock.at() - begin) as f64 / 1e9;
                (results[rank as usize], steps[rank as usize]) = (Some(result), None);
                left -= 1;
            }
        }
        let record = std::mem::take(&mut self.shared.world().record);
        let results = results.into_iter().map(|result| result.expect("all are done")).collect();
        Ok(Ran { results, seconds, begin, record })
    }
}

/// The error of a simulation that exceeds the range of its clock.
pub(crate) fn too_late() -> Error {
    Error::bad_input(format!(
        "the simulated time passes {MAX_YEARS} years: make the network faster, its delays and slowness smaller, or the data smaller"
    ))
}

/// The error of ranks that wait while no frame is under way.
fn stuck<R>(results: &[Option<Result<R>>]) -> Error {
    let waiting: Vec<usize> = (0..results.len()).filter(|rank| results[*rank].is_none()).collect();
    let named: Vec<String> = waiting.iter().take(MAX_NAMED).map(usize::to_string).collect();
    let more = if waiting.len() > MAX_NAMED {
        format!(" and {} more", waiting.len() - MAX_NAMED)
    } else {
        String::new()
    };
    Error::bad_input(format!(
        "the simulated call cannot end: ranks {}{more} wait, and no frame is on its way to them",
        named.join(", ")
    ))
}
