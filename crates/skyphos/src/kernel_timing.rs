//! Timing of one kernel in processor time, and random indices for it.

use crate::probe::cpu_s;

/// Entries of a vector.
pub(crate) const ENTRIES: usize = 1 << 16;

/// Runs of each kernel, of which the median counts.
const RUNS: usize = 5;

/// The median processor seconds of [`RUNS`] runs.
pub(crate) fn median_s(mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = cpu_s();
            run();
            cpu_s() - start
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

/// Ascending random indices below `n`, one in each of [`ENTRIES`] equal ranges.
pub(crate) fn drawn(n: u64, seed: u64) -> Vec<u32> {
    let spacing = n / ENTRIES as u64;
    let mut random = seed.wrapping_mul(2).wrapping_add(1);
    (0..ENTRIES as u64)
        .map(|k| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (k * spacing + (random >> 33) % spacing) as u32
        })
        .collect()
}
