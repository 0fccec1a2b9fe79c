//! The cost of `auto` once earlier calls have settled the choice: the same call by `auto` and by the name of the algorithm that it
//! takes, in turn. Prints the medians, and the median of the differences, for one rank, where nothing waits, and for two.
//!
//! `cargo run --release -p skyphos --example choice_cost`

use skyphos::{Algorithm, AllreduceOptions, Comm, IndexList, Settings, SparseVec};
use std::time::Instant;

const N: u64 = 1 << 20;
const CALLS: usize = 5000;

fn main() {
    for ranks in [1, 2] {
        for entries in [10usize, 1000, 20_000] {
            let all = Comm::local(ranks, &Settings::default()).expect("a group");
            let found = all.map_ranks(|comm| measure(&comm, entries));
            let (named, chosen, difference) = found[0];
            println!(
                "{ranks} ranks, {entries:>6} entries: named {:7.2} µs, auto {:7.2} µs, difference {:6.2} µs (limit 20)",
                1e6 * named,
                1e6 * chosen,
                1e6 * difference
            );
        }
    }
}

/// Median seconds of the call by name, of the call by `auto`, and of their differences.
fn measure(comm: &Comm, entries: usize) -> (f64, f64, f64) {
    let step = (N / entries as u64) as u32;
    let indices = (0..entries as u32).map(|k| k * step + comm.rank()).collect();
    let x = SparseVec::new(N, 1, IndexList::Narrow(indices), vec![1f32; entries]).expect("a vector");
    let call = |options: &AllreduceOptions| {
        let start = Instant::now();
        let done = comm.allreduce(&x).options(options.clone()).run().expect("a sum");
        (start.elapsed().as_secs_f64(), done.explanation.algorithm)
    };
    // Without adaptation, `auto` takes no survey after some calls, and always the same algorithm.
    let auto = AllreduceOptions::default();
    comm.agree_profile(None, false).expect("no learning");
    for _ in 0..200 {
        call(&auto);
    }
    let named = AllreduceOptions { algorithm: call(&auto).1, ..AllreduceOptions::default() };
    assert_ne!(named.algorithm, Algorithm::Auto);
    let pairs: Vec<(f64, f64)> = (0..CALLS).map(|_| (call(&named).0, call(&auto).0)).collect();
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    (
        median(pairs.iter().map(|p| p.0).collect()),
        median(pairs.iter().map(|p| p.1).collect()),
        median(pairs.iter().map(|p| p.1 - p.0).collect()),
    )
}
