//! What a planner can know of a simulated cluster: what a probe measures in there.
//!
//! Exchanges of small and of large messages, with one other rank and with several ([`Comm::fan`]), tell the latency of a
//! round, what each further message costs, the rate, and by how much senders slow each other down, all with the jitter
//! that there is. The processors' times are those of the description and of the slowest rank of all, as a probe would have
//! timed its kernels on them.

use crate::Comm;
use skyphos_core::stream::median;
use skyphos_plan::Profile;
use skyphos_sim::{Cluster, Network, slowest};
use skyphos_types::Result;

/// Ranks that take part, and to how many of them each sends.
const RANKS: u32 = 64;
const OTHERS: u32 = 16;

/// Bytes of small and of large messages, and how often each exchange is done.
const SMALL: usize = 64;
const LARGE: usize = 1 << 20;
const TIMES: u32 = 8;

/// A profile of the cluster, as a probe on its first ranks finds it.
pub fn probe(network: &Network, seed: u64) -> Result<Profile> {
    let described = network.profile();
    let ranks = network.ranks.min(RANKS);
    if ranks < 3 {
        return Ok(described);
    }
    let part = Network { ranks, ..network.clone() };
    let mut cluster = Cluster::new(part, seed, true)?;
    let comms: Vec<Comm> = cluster
        .transports()
        .into_iter()
        .map(|transport| Comm::over(transport, Cluster::settings()))
        .collect::<Result<_>>()?;
    let others = OTHERS.min(ranks - 1);
    let mut typical = |k: u32, bytes: usize| -> Result<f64> {
        let calls = comms.iter().map(|comm| comm.fan_call(k, bytes, TIMES)).collect::<Result<_>>()?;
        let ran = cluster.run(calls, &[], |_, _| true)?;
        let times = ran.results.into_iter().collect::<Result<Vec<_>>>()?;
        // A layer lasts until its last rank is done: the slowest of each exchange, the median of exchanges.
        let slowest = |turn: usize| times.iter().map(|t| t[turn]).fold(0.0, f64::max);
        Ok(median((0..TIMES as usize).map(slowest).collect()))
    };
    let (one, many) = (typical(1, SMALL)?, typical(others, SMALL)?);
    let (one_large, many_large) = (typical(1, LARGE)?, typical(others, LARGE)?);
    let k = f64::from(others);
    // Of a typical rank: the slowest ones are seen in all of these times alike.
    let frames_s = 2.0 * described.frame_s / described.cores;
    let carried_s = (one_large - one).max(1e-12);
    let crowd = (many_large - many).max(0.0) / (k * carried_s);
    Ok(Profile {
        latency_s: one,
        message_s: ((many - one) / (k - 1.0) - frames_s).max(0.0),
        rate: LARGE as f64 / carried_s,
        incast: ((crowd - 1.0) / (k - 1.0)).max(0.0),
        // A call ends when its slowest rank does: all of them time their kernels, at once.
        cores: 1.0 / slowest(network, seed),
        ..described
    })
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
