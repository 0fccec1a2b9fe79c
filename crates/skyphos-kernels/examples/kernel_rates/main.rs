//! Rates of the kernels, as a fraction of the memory's rate measured in the same run: `cargo run --release -p
//! skyphos-kernels --example kernel_rates [name …]`. One core, 64 MB of float32, best of several runs.
//!
//! A kernel's bytes are the cache lines that it must read and write, each counted once. The
//! memory's rate is that of copying the same values (read and written once), measured between the kernels'
//! runs, so that other load on the machine affects both. A merge is compared with a plain loop instead, as a ratio of
//! times. Every answer is checked against a plain one.

mod gradient;
mod merging;
mod sparse;
mod values;

use skyphos_kernels::{Scale, Select};
use skyphos_types::{bf16, f16};
use std::hint::black_box;
use std::time::Instant;

/// Values of each run.
const VALUES: usize = 16 << 20;

/// Runs of each kernel, in turn with its baseline.
const RUNS: usize = 9;

/// Runs a kernel once on the values and returns the bytes that had to move.
type Run = Box<dyn FnMut(&[f32]) -> usize>;

/// Compares the last answer with a plain one.
type Check = Box<dyn FnOnce(&[f32])>;

/// A kernel with its buffers.
struct Kernel {
    run: Run,
    check: Check,
    /// Values or entries of a run.
    entries: usize,
    /// The run that it is compared with; a copy of the values by default.
    baseline: Option<Run>,
}

impl From<(Run, Check)> for Kernel {
    fn from((run, check): (Run, Check)) -> Kernel {
        Kernel { run, check, entries: VALUES, baseline: None }
    }
}

/// Makes a kernel's buffers.
type Make = Box<dyn Fn(&[f32]) -> Kernel>;

/// Name, the ratio that it should reach if one was set, and the kernel.
type Line = (String, Option<f64>, Make);

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let values = bell_shaped(VALUES);
    let mut copy = vec![0f32; VALUES];
    println!(
        "{:<34} {:>8} {:>7} {:>11} {:>7} {:>7}",
        "kernel", "ns/entry", "GB/s", "base GB/s", "ratio", "target"
    );
    for (name, target, make) in kernels() {
        if !wanted.is_empty() && !wanted.iter().any(|w| name.contains(w.as_str())) {
            continue;
        }
        let Kernel { mut run, check, entries, baseline } = make(&values);
        let mut baseline = baseline.unwrap_or_else(|| {
            let mut copy = std::mem::take(&mut copy);
            copy.resize(VALUES, 0.0);
            Box::new(move |v| {
                black_box(&mut copy[..]).copy_from_slice(black_box(v));
                size_of_val(v) * 2
            })
        });
        // The first run touches its memory.
        let bytes = run(&values) as f64;
        let (mut best, mut best_baseline) = (0f64, 0f64);
        for _ in 0..RUNS {
            best = best.max(rate(&mut run, &values));
            best_baseline = best_baseline.max(rate(&mut baseline, &values));
        }
        check(&values);
        let target = target.map_or(String::new(), |t| format!("{t:.2}"));
        let (each, ratio) = (bytes / best / entries as f64 * 1e9, best / best_baseline);
        let (gb, baseline_gb) = (best / 1e9, best_baseline / 1e9);
        println!("{name:<34} {each:>8.2} {gb:>7.1} {baseline_gb:>11.1} {ratio:>7.2} {target:>7}");
    }
}

/// Bytes a second.
fn rate(run: &mut Run, values: &[f32]) -> f64 {
    let start = Instant::now();
    let bytes = run(values);
    bytes as f64 / start.elapsed().as_secs_f64()
}

/// One line per kernel; add further kernels here.
fn kernels() -> Vec<Line> {
    fn line<K: Into<Kernel>>(name: &str, target: Option<f64>, make: impl Fn(&[f32]) -> K + 'static) -> Line {
        (name.to_owned(), target, Box::new(move |v| make(v).into()))
    }
    let top_of_512 = |k| move |_: &[f32]| values::selecting(Select::Buckets { k, bucket: 512 });
    let mut all = vec![
        line("quantise 4 bits", Some(0.4), |v| values::quantising(Scale::L2, v)),
        line("quantise 4 bits, max", Some(0.4), |v| values::quantising(Scale::Max, v)),
        line("dequantise 4 bits", None, |v| values::dequantising(false, v)),
        line("dequantise and add", None, |v| values::dequantising(true, v)),
        line("top 4 of 512", Some(0.3), top_of_512(4)),
        line("top 8 of 512", Some(0.3), top_of_512(8)),
        line("top 16 of 512", Some(0.3), top_of_512(16)),
        line("top 32 of 512", Some(0.3), top_of_512(32)),
        line("take top 8 of 512", None, |_| values::taking()),
        // The comparison is `residual += gradient`; the target is 1.6 times its duration.
        line("compress, top 4 of 512", Some(0.625), |v| gradient::compressing(4, v)),
        line("compress, top 1 of 512", Some(0.625), |v| gradient::compressing(1, v)),
        line("compress, top 16 of 512", None, |v| gradient::compressing(16, v)),
        line("top 1 % of all", None, |_| values::selecting(Select::Whole { k: VALUES / 100 })),
        line("at least 2.5", None, |_| values::selecting(Select::AtLeast(2.5))),
        line("fold float32", None, values::folding::<f32>),
        line("fold bfloat16", None, values::folding::<bf16>),
        line("fold float16", None, values::folding::<f16>),
    ];
    all.extend(sparse::lines());
    all.extend(merging::lines());
    all
}

/// Sums of uniform numbers, which are nearly normally distributed.
fn bell_shaped(count: usize) -> Vec<f32> {
    let mut random = Random(1);
    (0..count).map(|_| (0..6).map(|_| random.uniform() as f32).sum::<f32>() * 1.4 - 4.2).collect()
}

/// A linear congruential generator.
struct Random(u64);

impl Random {
    /// A uniform number of 0..1, a multiple of 2^-24.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / f64::from(1 << 24)
    }

    /// A whole number of at least 1, geometrically distributed.
    fn geometric(&mut self, mean: f64) -> u64 {
        let log = ((self.uniform() + 0.5 / f64::from(1 << 24)).ln()) / (1.0 - 1.0 / mean).ln();
        if mean > 1.0 { 1 + log as u64 } else { 1 }
    }
}
