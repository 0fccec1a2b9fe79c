//! The gain of replicas where machines are late at random: each process computes before each reduction, for a time with a heavy tail,
//! and a rank is done as soon as one of its replicas is.
//!
//! ```text
//! cargo run --release -p skyphos --example stragglers -- seeds exponents...
//! ```
//! Prints a line of JSON for each exponent of the Pareto distribution: milliseconds per call for each seed, with one and with two
//! processes per rank.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use skyphos::{Comm, ConfigureOptions, Replication, Settings};
use skyphos_sim::{Cluster, Distribution, Network, Outcome, Play};
use std::time::Duration;

const RANKS: u32 = 8;
const CALLS: usize = 20;
const N: u64 = 400_000;
const ENTRIES: usize = 100_000;

/// Scale of the Pareto distribution: the shortest computation, in seconds.
const SHORTEST_S: f64 = 0.02;

/// Milliseconds per call, until one replica of each rank has all results.
fn call_ms(replicas: u32, exponent: f64, seed: u64) -> f64 {
    let cluster = Cluster::new(Network::new(RANKS * replicas, 125e6, 100e-6), seed, false).unwrap();
    let play = Play { faults: Vec::new(), heartbeat_s: 1e5, log: false };
    let played = cluster.play(play, move |process| {
        let transport = process.join(1.0).unwrap();
        let settings = Settings { timeout: Duration::from_secs(100_000), ..Settings::default() };
        let comm = match replicas {
            1 => Comm::over(transport, settings).unwrap(),
            each => Comm::replicated(
                transport,
                Replication { each, share_hosts: false },
                settings,
                Ok((None, None)),
            )
            .unwrap(),
        };
        let mut random = Pcg64::seed_from_u64(u64::from(comm.rank()));
        let mut indices = rand::seq::index::sample(&mut random, N as usize, ENTRIES).into_vec();
        indices.sort_unstable();
        let indices: Vec<u64> = indices.into_iter().map(|index| index as u64).collect();
        let values: Vec<f32> = (0..ENTRIES).map(|_| random.random()).collect();
        let mut plan = comm.configure(&indices, &indices).options(ConfigureOptions::with_n(N)).run().unwrap();
        let mut late = Pcg64::seed_from_u64(seed << 32 | u64::from(process.number()));
        let (mut sum, began) = (vec![0.0; ENTRIES], process.now());
        for _ in 0..CALLS {
            process.work(Distribution::Pareto(SHORTEST_S, exponent).draw(&mut late));
            comm.reduce(&mut plan, &values, &mut sum).run().unwrap();
        }
        (began, process.now())
    });
    let times: Vec<(u64, u64)> = played
        .unwrap()
        .outcomes
        .into_iter()
        .map(|outcome| match outcome {
            Outcome::Done(times) => times,
            _ => panic!("a process crashed"),
        })
        .collect();
    let first = |rank: usize| times.iter().skip(rank).step_by(RANKS as usize).map(|(_, ended)| ended).min();
    let ended = (0..RANKS as usize).filter_map(first).max().expect("ranks");
    let began = times.iter().map(|(began, _)| began).min().expect("ranks");
    (ended - began) as f64 / 1e6 / CALLS as f64
}

fn main() {
    let numbers: Vec<f64> = std::env::args().skip(1).map(|word| word.parse().expect("a number")).collect();
    let (seeds, exponents) = numbers.split_first().expect("seeds and exponents");
    for exponent in exponents {
        let all_ms = |replicas| -> Vec<f64> {
            (0..*seeds as u64).map(|seed| call_ms(replicas, *exponent, seed)).collect()
        };
        println!("{{\"exponent\": {exponent}, \"one_ms\": {:?}, \"two_ms\": {:?}}}", all_ms(1), all_ms(2));
    }
}
