//! The number of machines that fail before all replicas of some rank have failed: a simulated group in which processes crash one after
//! the other, in random order, while the others reduce.
//!
//! ```text
//! cargo run --release -p skyphos --example failures_to_loss -- trials ranks...
//! ```
//! Prints a line of JSON for each number of ranks: for each trial, the number of failures until a rank has no replica left.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use skyphos::{Comm, ConfigureOptions, Error, Replication, Settings};
use skyphos_sim::{Cluster, Fault, Network, Outcome, Play, When};
use std::time::Duration;

const REPLICAS: u32 = 2;

/// Seconds between two failures, much longer than a call over links of this latency.
const FAILURE_INTERVAL_S: f64 = 1.0;
const LATENCY_S: f64 = 0.1;

/// The number of failures after which a call reports that a rank is lost.
fn failures(ranks: u32, seed: u64) -> usize {
    let processes = REPLICAS * ranks;
    let mut order: Vec<u32> = (0..processes).collect();
    order.shuffle(&mut Pcg64::seed_from_u64(seed));
    let crash = |(k, process): (usize, &u32)| {
        let fault = Fault::Crash { process: *process, sends_rest: false, back: None };
        (When::At(FAILURE_INTERVAL_S * (k as f64 + 1.0)), fault)
    };
    let faults = order.iter().enumerate().map(crash).collect();
    let cluster = Cluster::new(Network::new(processes, 1e9, LATENCY_S), seed, false).unwrap();
    let play = Play { faults, heartbeat_s: 10.0, log: false };
    let played = cluster.play(play, move |process| {
        let transport = process.join(1.0).unwrap();
        let replication = Replication { each: REPLICAS, share_hosts: false };
        let settings = Settings { timeout: Duration::from_secs(100), ..Settings::default() };
        let comm = Comm::replicated(transport, replication, settings, Ok((None, None)))?;
        let (indices, mut sum) = ([0, 5, 7], [0.0; 3]);
        let want = f64::from(ranks * (ranks - 1) / 2);
        let mut plan = comm.configure(&indices, &indices).options(ConfigureOptions::with_n(8)).run()?;
        loop {
            match comm.reduce(&mut plan, &[f64::from(comm.rank()); 3], &mut sum).run() {
                Ok(_) => assert_eq!(sum, [want; 3], "{ranks} ranks, seed {seed}"),
                Err(Error::PeerLost { .. }) => return Ok(process.now()),
                Err(error) => return Err(error),
            }
        }
    });
    let reported_s = |outcome: &Outcome<Result<u64, Error>>| match outcome {
        Outcome::Done(Ok(at)) => Some(*at as f64 / 1e9),
        Outcome::Done(Err(error)) => panic!("{ranks} ranks, seed {seed}: {error}"),
        _ => None,
    };
    // After the last failures no process is left to report them.
    let first = played.unwrap().outcomes.iter().filter_map(reported_s).fold(f64::INFINITY, f64::min);
    (first / FAILURE_INTERVAL_S) as usize
}

fn main() {
    let numbers: Vec<u32> = std::env::args().skip(1).map(|word| word.parse().expect("a number")).collect();
    let (trials, ranks) = numbers.split_first().expect("trials and numbers of ranks");
    for ranks in ranks {
        let found: Vec<usize> = (0..u64::from(*trials)).map(|seed| failures(*ranks, seed)).collect();
        println!("{{\"ranks\": {ranks}, \"failures\": {found:?}}}");
    }
}
