//! The cost of lost or slow processes to a replicated reduction, without the noise of a real network: simulated hosts on links of
//! 250 Mbit/s.
//!
//! ```text
//! cargo run --release -p skyphos --example hit_call -- kill|cut|slow lost_hosts rounds times_as_slow
//! ```
//! Prints, for each round, the durations of the call with the faults and of later calls, relative to a call of a run without faults. Only
//! unaffected processes are timed.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use skyphos::{Comm, ConfigureOptions, Replication, Settings};
use skyphos_sim::{Cluster, Fault, Network, Outcome, Play, When};
use std::time::Duration;

const HOSTS: u32 = 8;
const RANKS: u32 = 4;
const CALLS_BEFORE: usize = 4;
const CALLS_AFTER: usize = 10;
const N: u64 = 4_000_000;
const ENTRIES: usize = 1_000_000;

/// Begin and end of each call on each unaffected process.
fn calls(faults: Vec<(When, Fault)>) -> Vec<Vec<(u64, u64)>> {
    let affected: Vec<u32> = faults.iter().filter_map(|(_, fault)| process_of(fault)).collect();
    let cluster = Cluster::new(Network::new(HOSTS, 31.25e6, 100e-6), 1, false).unwrap();
    let play = Play { faults, heartbeat_s: 10.0, log: false };
    let played = cluster
        .play(play, |process| {
            let transport = process.join(1.0).unwrap();
            let replication = Replication { each: HOSTS / RANKS, share_hosts: false };
            let settings = Settings { timeout: Duration::from_secs(100), ..Settings::default() };
            let comm = Comm::replicated(transport, replication, settings, Ok((None, None))).ok()?;
            let mut random = Pcg64::seed_from_u64(u64::from(comm.rank()));
            let indices = rand::seq::index::sample(&mut random, N as usize, ENTRIES);
            let indices: Vec<u64> = indices.into_iter().map(|index| index as u64).collect();
            let values: Vec<f32> = (0..ENTRIES).map(|_| random.random()).collect();
            let mut plan =
                comm.configure(&indices, &indices).options(ConfigureOptions::with_n(N)).run().ok()?;
            let mut times = Vec::new();
            for _ in 0..=CALLS_BEFORE + CALLS_AFTER {
                let mut out = vec![0.0; ENTRIES];
                let began = process.now();
                comm.reduce(&mut plan, &values, &mut out).run().ok()?;
                times.push((began, process.now()));
            }
            Some(times)
        })
        .unwrap();
    let times = |outcome: Outcome<Option<Vec<(u64, u64)>>>| match outcome {
        Outcome::Done(times) => times,
        _ => None,
    };
    let unaffected = (0..).zip(played.outcomes).filter(|(process, _)| !affected.contains(process));
    unaffected.filter_map(|(_, outcome)| times(outcome)).collect()
}

fn process_of(fault: &Fault) -> Option<u32> {
    match fault {
        Fault::CutOff { process, .. } | Fault::Slow { process, .. } | Fault::Crash { process, .. } => {
            Some(*process)
        }
        _ => None,
    }
}

/// Seconds of each call, from the moment when its last process begins until its last process ends.
fn seconds(calls: &[Vec<(u64, u64)>]) -> Vec<f64> {
    let duration = |k: usize| {
        let began = calls.iter().map(|times| times[k].0).max().unwrap();
        (calls.iter().map(|times| times[k].1).max().unwrap() - began) as f64 / 1e9
    };
    (0..calls[0].len()).map(duration).collect()
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let kind = words.first().map_or("kill", String::as_str);
    let hosts: u32 = words.get(1).map_or(1, |text| text.parse().unwrap());
    let rounds: u64 = words.get(2).map_or(5, |text| text.parse().unwrap());
    let undisturbed = calls(vec![]);
    let usual = seconds(&undisturbed)[CALLS_BEFORE];
    let slowdown: f64 = words.get(3).map_or(10.0, |text| text.parse().unwrap());
    println!("undisturbed: {:.1} ms", usual * 1e3);
    for round in 0..rounds {
        let mut random = Pcg64::seed_from_u64(round);
        let at = undisturbed[0][CALLS_BEFORE].0 as f64 / 1e9 + usual * random.random_range(0.0..0.8);
        let ranks = rand::seq::index::sample(&mut random, RANKS as usize, hosts as usize);
        let faults = ranks.into_iter().map(|rank| {
            let process = rank as u32 + RANKS * random.random_range(0..2);
            let fault = match kind {
                "cut" => Fault::CutOff { process, heals: None },
                "slow" => Fault::Slow { process, times: slowdown },
                _ => Fault::Crash { process, sends_rest: false, back: None },
            };
            (When::At(at), fault)
        });
        let got = seconds(&calls(faults.collect()));
        let later: Vec<String> =
            got[CALLS_BEFORE + 1..].iter().map(|s| format!("{:.2}", s / usual)).collect();
        println!("{kind} {hosts}: hit {:.2}, later {}", got[CALLS_BEFORE] / usual, later.join(" "));
    }
}
