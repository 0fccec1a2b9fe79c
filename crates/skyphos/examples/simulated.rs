//! The simulator's own speed: a butterfly of P ranks with real indices, and with lengths only.
//!
//! `cargo run --release -p skyphos --example simulated -- [RANKS [ENTRIES [DEGREES [sized [COLLECTIVE [N]]]]]]`
//!
//! DEGREES are numbers such as 32x32. `-` instead of a word takes its default, except for COLLECTIVE.

use skyphos::sim::Network;
use skyphos::simulate::{Collective, Law, Scenario, simulate};
use std::time::Instant;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |k: usize, otherwise: f64| words.get(k).and_then(|w| w.parse().ok()).unwrap_or(otherwise);
    let ranks = number(0, 1024.0) as u32;
    let degrees =
        words.get(2).filter(|w| *w != "-").map(|w| w.split('x').filter_map(|d| d.parse().ok()).collect());
    let sized = words.get(3).is_some_and(|w| w == "sized");
    let collective = Collective::from_name(words.get(4).map_or("reduce", |w| w)).expect("a collective");
    let scenario = Scenario {
        degrees,
        n: number(5, 10_000_000.0) as u64,
        entries: number(1, 10_000.0),
        law: Law::PowerLaw { alpha: 1.1 },
        sized,
        ..Scenario::new(Network::new(ranks, 1.25e9, 50e-6), collective)
    };
    let start = Instant::now();
    for phase in simulate(&scenario, |_, _, _| true).expect("it runs") {
        let (name, degrees, seconds) = (phase.name, &phase.degrees, phase.ran.last());
        println!("{name} {:?} {degrees:?}: {:.3} ms simulated", phase.algorithm, seconds * 1e3);
    }
    println!("{:.2} s", start.elapsed().as_secs_f64());
}
