//! Probe of a simulated cluster: a profile for the planner, from measurements in the simulation.
//!
//! Exchanges of small and of large messages, with one other rank and with several ([`Comm::fan`]), give the latency of a round,
//! the cost of each further message, the rate, and the slowdown by concurrent senders, all with the network's jitter. Processor
//! times are taken from the network's description, and from the slowest rank, as if a probe had timed kernels there.

use crate::Comm;
use crate::probe::Order;
use skyphos_plan::Profile;
use skyphos_sim::{Cluster, Network, slowest};
use skyphos_tune::median;
use skyphos_types::Result;

/// The most ranks that take part.
const MAX_RANKS: u32 = 64;

/// The most ranks that each rank sends to.
const MAX_PEERS: u32 = 16;

/// Length of small messages.
const SMALL_BYTES: usize = 64;

/// Length of large messages to several ranks.
const LARGE_BYTES: usize = 1 << 20;

/// Lengths of large messages to one rank: two, whose difference gives the rate.
const RATE_BYTES: [usize; 2] = [2 << 20, 8 << 20];

/// Runs of each exchange.
const RUNS: u32 = 8;

/// The profile of a cluster, as a probe on some of its ranks finds it.
pub fn probe(network: &Network, seed: u64) -> Result<Profile> {
    let described = network.profile();
    let ranks = network.ranks.min(MAX_RANKS);
    if ranks < 3 {
        return Ok(described);
    }
    // Fewer hosts in the same number of racks.
    let hosts_per_rack =
        (f64::from(network.hosts_per_rack) * f64::from(ranks) / f64::from(network.ranks)).ceil();
    let part = Network { ranks, hosts_per_rack: hosts_per_rack as u32, ..network.clone() };
    let mut cluster = Cluster::new(part, seed, true)?;
    let comms: Vec<Comm> = cluster
        .transports()
        .into_iter()
        .map(|transport| Comm::over(transport, Cluster::settings()))
        .collect::<Result<_>>()?;
    let peers = MAX_PEERS.min(ranks - 1);
    let mut exchange = |order: Order, k: u32, bytes: usize| -> Result<Times> {
        let calls =
            comms.iter().map(|comm| comm.fan_by(order, k, bytes, RUNS)?.prepare()).collect::<Result<_>>()?;
        let ran = cluster.run(calls, &[], |_, _| true)?;
        let times = ran.results.into_iter().collect::<Result<Vec<_>>>()?;
        let median_of_runs = |over_ranks: fn(Vec<f64>) -> f64| {
            let one_run = |run: usize| over_ranks(times.iter().map(|t| t[run]).collect());
            median((0..RUNS as usize).map(one_run).collect())
        };
        let slowest = median_of_runs(|t| t.into_iter().fold(0.0, f64::max));
        Ok(Times { slowest, typical: median_of_runs(median) })
    };
    let one = exchange(Order::Rank, 1, SMALL_BYTES)?;
    let many = exchange(Order::Rank, peers, SMALL_BYTES)?;
    let many_large = exchange(Order::Rank, peers, LARGE_BYTES)?;
    let k = f64::from(peers);
    // The frame cost of a typical rank: `one` and `many` both include the delay of the slowest ranks, which cancels out.
    let frames_s = 2.0 * described.frame_s / described.cores;
    // The median, because a slow rank has a slow processor, which `cores` accounts for, not a slow link.
    let [short, long] = RATE_BYTES.map(|bytes| exchange(Order::Rank, 1, bytes));
    let rate_of = |seconds: f64| (RATE_BYTES[1] - RATE_BYTES[0]) as f64 / seconds.max(1e-12);
    let rate = rate_of(long?.typical - short?.typical);
    // Without shared links, of racks or of hosts, a ring is not faster than other orders.
    let topology = comms[0].topology();
    let shared =
        topology.racks().iter().any(|rack| *rack != topology.racks()[0]) || network.ranks_per_host > 1;
    let ring_gain = if shared {
        let [short, long] = RATE_BYTES.map(|bytes| exchange(Order::Topology, 1, bytes));
        // A ring is as fast as its slowest link. The difference of two sizes cancels random delays of ranks.
        (rate_of(long?.slowest - short?.slowest) / rate).clamp(0.1, 1e3)
    } else {
        1.0
    };
    // Ratio of the duration of k concurrent large messages to that of k messages in sequence at the full rate.
    let slowdown = (many_large.typical - many.typical).max(0.0) / (k * LARGE_BYTES as f64 / rate);
    Ok(Profile {
        // A layer lasts until its last rank is done.
        latency_s: one.slowest,
        message_s: ((many.slowest - one.slowest) / (k - 1.0) - frames_s).max(0.0),
        rate,
        ring_gain,
        incast: ((slowdown - 1.0) / (k - 1.0)).max(0.0),
        // A call ends with its slowest rank, and in a probe all ranks time their kernels.
        cores: 1.0 / slowest(network, seed),
        ..described
    })
}

/// Seconds of an exchange on the slowest rank and on the median rank; each is the median of all runs.
struct Times {
    slowest: f64,
    typical: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_finds_the_described_network() {
        let network = Network { message_s: 3e-4, incast: 0.05, ..Network::new(100, 1e8, 1e-4) };
        let (found, described) = (probe(&network, 1).unwrap(), network.profile());
        let near = |a: f64, b: f64, what: &str| assert!((a / b - 1.0).abs() < 0.1, "{what}: {a}, not {b}");
        near(found.rate, described.rate, "rate");
        near(found.message_s, 3e-4, "message_s");
        // Layers stagger their messages, so few of them collide.
        assert!(found.incast < 0.02, "{}", found.incast);
        assert!(found.latency_s > 1e-4 && found.latency_s < 5e-4);
    }
}
