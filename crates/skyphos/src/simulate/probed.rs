//! What a planner can know of a simulated cluster: what a probe measures in there.
//!
//! Exchanges of small and of large messages, with one other rank and with several ([`Comm::fan`]), tell the latency of a
//! round, what each further message costs, the rate, and by how much senders slow each other down, all with the jitter
//! that there is. The processors' times are those of the description and of the slowest rank of all, as a probe would have
//! timed its kernels on them.

use crate::Comm;
use crate::probe::Order;
use skyphos_plan::Profile;
use skyphos_sim::{Cluster, Network, slowest};
use skyphos_tune::median;
use skyphos_types::Result;

/// Ranks that take part, and to how many of them each sends.
const RANKS: u32 = 64;
const OTHERS: u32 = 16;

/// Bytes of small messages, of large ones to many, and of two sizes to one; how often each exchange is done.
const SMALL: usize = 64;
const LARGE: usize = 1 << 20;
const ONE: [usize; 2] = [2 << 20, 8 << 20];
const TIMES: u32 = 8;

/// A profile of the cluster, as a probe on its first ranks finds it.
pub fn probe(network: &Network, seed: u64) -> Result<Profile> {
    let described = network.profile();
    let ranks = network.ranks.min(RANKS);
    if ranks < 3 {
        return Ok(described);
    }
    // As many racks as there are, of fewer hosts each.
    let hosts_per_rack =
        (f64::from(network.hosts_per_rack) * f64::from(ranks) / f64::from(network.ranks)).ceil();
    let part = Network { ranks, hosts_per_rack: hosts_per_rack as u32, ..network.clone() };
    let mut cluster = Cluster::new(part, seed, true)?;
    let comms: Vec<Comm> = cluster
        .transports()
        .into_iter()
        .map(|transport| Comm::over(transport, Cluster::settings()))
        .collect::<Result<_>>()?;
    let others = OTHERS.min(ranks - 1);
    let mut exchange = |order: Order, k: u32, bytes: usize| -> Result<Seen> {
        let calls =
            comms.iter().map(|comm| comm.fan_by(order, k, bytes, TIMES)?.prepare()).collect::<Result<_>>()?;
        let ran = cluster.run(calls, &[], |_, _| true)?;
        let times = ran.results.into_iter().collect::<Result<Vec<_>>>()?;
        let turns = |of: fn(Vec<f64>) -> f64| {
            let turn = |turn: usize| of(times.iter().map(|t| t[turn]).collect());
            median((0..TIMES as usize).map(turn).collect())
        };
        Ok(Seen { slowest: turns(|t| t.into_iter().fold(0.0, f64::max)), typical: turns(median) })
    };
    let far = Order::Numbers;
    let one = exchange(far, 1, SMALL)?;
    let (many, many_large) = (exchange(far, others, SMALL)?, exchange(far, others, LARGE)?);
    let k = f64::from(others);
    // Of a typical rank: the slowest ones are seen in all of these times alike.
    let frames_s = 2.0 * described.frame_s / described.cores;
    // Slow ranks hold their processors up, not links: that is what `cores` says.
    let [some, more] = [exchange(far, 1, ONE[0])?, exchange(far, 1, ONE[1])?];
    let per = |seconds: f64| (ONE[1] - ONE[0]) as f64 / seconds.max(1e-12);
    let rate = per(more.typical - some.typical);
    // Where no two hosts share a link, nor two ranks one of a host, a ring has no more than others.
    let topology = comms[0].topology();
    let shared =
        topology.racks().iter().any(|rack| *rack != topology.racks()[0]) || network.ranks_per_host > 1;
    let ring_gain = if shared {
        let [near, nearer] = [exchange(Order::Places, 1, ONE[0])?, exchange(Order::Places, 1, ONE[1])?];
        // A ring is as fast as its slowest part; ranks that are late by chance say nothing of links.
        (per(nearer.slowest - near.slowest) / rate).clamp(0.1, 1e3)
    } else {
        1.0
    };
    let crowd = (many_large.typical - many.typical).max(0.0) / (k * LARGE as f64 / rate);
    Ok(Profile {
        // A layer lasts until its last rank is done.
        latency_s: one.slowest,
        message_s: ((many.slowest - one.slowest) / (k - 1.0) - frames_s).max(0.0),
        rate,
        ring_gain,
        incast: ((crowd - 1.0) / (k - 1.0)).max(0.0),
        // A call ends when its slowest rank does: all of them time their kernels, at once.
        cores: 1.0 / slowest(network, seed),
        ..described
    })
}

/// Seconds of an exchange, of several the median: of the slowest rank and of the median one.
struct Seen {
    slowest: f64,
    typical: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_described_is_found() {
        let network = Network { message_s: 3e-4, incast: 0.05, ..Network::new(100, 1e8, 1e-4) };
        let (found, described) = (probe(&network, 1).unwrap(), network.profile());
        let near = |a: f64, b: f64, what: &str| assert!((a / b - 1.0).abs() < 0.1, "{what}: {a} for {b}");
        near(found.rate, described.rate, "rate");
        near(found.message_s, 3e-4, "message_s");
        // Layers stagger their messages, so that few of them meet.
        assert!(found.incast < 0.02, "{}", found.incast);
        assert!(found.latency_s > 1e-4 && found.latency_s < 5e-4);
    }
}
