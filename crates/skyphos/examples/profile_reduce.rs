//! A steady reduction for a profiler: 4 ranks of this process, one layer, and a million Zipf(1.1)
//! indices per rank.
//!
//! `cargo build --release --example profile_reduce && taskset -c 0 perf record target/release/examples/profile_reduce`

use skyphos::{Comm, ConfigureOptions};
use std::time::Instant;

fn main() -> skyphos::Result<()> {
    let (n, count, rounds) = (1u64 << 24, 1_000_000, 60);
    let comms = Comm::local(4, &Default::default())?;
    let times = comms.map_ranks(|comm| {
        let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ u64::from(comm.rank() + 1) << 32;
        let mut uniform = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        // Inverse of the distribution function of P(i) ~ i^-1.1 on 1..n.
        let top = 1.0 - (n as f64).powf(-0.1);
        let mut present = vec![false; n as usize];
        let mut left = count;
        while left > 0 {
            let i = ((1.0 - uniform() * top).powf(-10.0) as u64).min(n) - 1;
            left -= usize::from(!std::mem::replace(&mut present[i as usize], true));
        }
        let mine: Vec<u64> = (0..n).filter(|i| present[*i as usize]).collect();
        let options = ConfigureOptions { degrees: Some(vec![4]), ..ConfigureOptions::with_n(n) };
        let start = Instant::now();
        let mut plan = comm.configure(&mine, &mine).options(options.clone()).run()?;
        let configured = start.elapsed();
        let values = vec![1.0f64; mine.len()];
        let mut out = values.clone();
        let mut spent = vec![];
        for _ in 0..rounds {
            comm.barrier().run()?;
            let start = Instant::now();
            comm.reduce(&mut plan, &values, &mut out).run()?;
            comm.barrier().run()?;
            spent.push(start.elapsed().as_secs_f64() * 1e3);
        }
        spent.sort_by(f64::total_cmp);
        Ok::<_, skyphos::Error>((configured.as_secs_f64() * 1e3, spent[rounds / 2]))
    });
    for result in times {
        let (configure_ms, reduce_ms) = result?;
        println!("configure {configure_ms:.1} ms, reduce {reduce_ms:.2} ms");
    }
    Ok(())
}
