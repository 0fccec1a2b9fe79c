//! How fast kernels are, as a fraction of the memory's rate measured beside them: `cargo run --release -p
//! skyphos-kernels --example kernel_rates [name …]`. One core, 64 MB of float32, best of several runs.
//!
//! A kernel's bytes are the cache lines it must touch: what it reads and what it writes, once each. The
//! memory's rate is that of copying the same values (read and written once), measured between the kernels'
//! runs so that both meet the same neighbours. Every answer is checked against a plain one.

use skyphos_kernels::{
    Draw, Quantize, Scale, Select, dequantise, dequantise_and_add, fold_rows, quantise, quantised_bytes,
    take_topk, topk,
};
use skyphos_types::{Real, ReduceOp, bf16, f16};
use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Instant;

/// Values of each run.
const VALUES: usize = 16 << 20;

/// Runs of each kernel, and of the copy between them.
const RUNS: usize = 9;

/// Runs a kernel once on the values and returns the bytes that had to move.
type Run = Box<dyn FnMut(&[f32]) -> usize>;

/// Compares the last answer with a plain one.
type Check = Box<dyn FnOnce(&[f32])>;

/// Makes a kernel's buffers.
type Make = Box<dyn Fn(&[f32]) -> (Run, Check)>;

/// Name, the fraction of the memory's rate that it should reach if one was set, and the kernel.
type Line = (&'static str, Option<f64>, Make);

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let values = bell_shaped(VALUES);
    let mut copy = vec![0f32; VALUES];
    println!("{:<22} {:>7} {:>10} {:>7} {:>7}", "kernel", "GB/s", "copy GB/s", "ratio", "target");
    for (name, target, make) in kernels() {
        if !wanted.is_empty() && !wanted.iter().any(|w| name.contains(w.as_str())) {
            continue;
        }
        let (mut run, check) = make(&values);
        run(&values); // touches its memory
        let (mut best, mut best_copy) = (0f64, 0f64);
        for _ in 0..RUNS {
            let start = Instant::now();
            let bytes = run(&values);
            best = best.max(bytes as f64 / start.elapsed().as_secs_f64());
            let start = Instant::now();
            black_box(&mut copy[..]).copy_from_slice(black_box(&values));
            best_copy = best_copy.max(size_of_val(&values[..]) as f64 * 2.0 / start.elapsed().as_secs_f64());
        }
        check(&values);
        let bar = target.map_or(String::new(), |t| format!("{t:.2}"));
        let (rate, copy_rate, ratio) = (best / 1e9, best_copy / 1e9, best / best_copy);
        println!("{name:<22} {rate:>7.1} {copy_rate:>10.1} {ratio:>7.2} {bar:>7}");
    }
}

/// One line a kernel: add here what else is to be measured.
fn kernels() -> Vec<Line> {
    let of_512 = |k| -> Make { Box::new(move |_| selecting(Select::Buckets { k, bucket: 512 })) };
    vec![
        ("quantise 4 bits", Some(0.4), Box::new(|v| quantising(Scale::L2, v))),
        ("quantise 4 bits, max", Some(0.4), Box::new(|v| quantising(Scale::Max, v))),
        ("dequantise 4 bits", None, Box::new(|v| dequantising(false, v))),
        ("dequantise and add", None, Box::new(|v| dequantising(true, v))),
        ("top 4 of 512", Some(0.3), of_512(4)),
        ("top 8 of 512", Some(0.3), of_512(8)),
        ("top 16 of 512", Some(0.3), of_512(16)),
        ("top 32 of 512", Some(0.3), of_512(32)),
        ("take top 8 of 512", None, Box::new(|_| taking())),
        ("top 1 % of all", None, Box::new(|_| selecting(Select::Whole { k: VALUES / 100 }))),
        ("at least 2.5", None, Box::new(|_| selecting(Select::AtLeast(2.5)))),
        ("fold float32", None, Box::new(folding::<f32>)),
        ("fold bfloat16", None, Box::new(folding::<bf16>)),
        ("fold float16", None, Box::new(folding::<f16>)),
    ]
}

/// Sums of uniform numbers: about normally distributed.
fn bell_shaped(count: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| (0..6).map(|_| uniform()).sum::<f32>() * 1.4 - 4.2).collect()
}

fn params(scale: Scale) -> Quantize {
    Quantize::new(4, 1024, scale, 1).expect("4 bits")
}

const DRAW: Draw = Draw { call: 1, rank: 2, first_bucket: 0 };

fn quantised(values: &[f32], scale: Scale) -> Vec<u8> {
    let mut bytes = vec![0; quantised_bytes(values.len(), &params(scale))];
    quantise(values, &params(scale), DRAW, &mut bytes).expect("finite values");
    bytes
}

fn quantising(scale: Scale, values: &[f32]) -> (Run, Check) {
    let out = Rc::new(RefCell::new(quantised(values, scale)));
    let last = out.clone();
    (
        Box::new(move |v| {
            let mut out = out.borrow_mut();
            quantise(v, &params(scale), DRAW, &mut out).expect("finite values");
            size_of_val(v) + out.len()
        }),
        Box::new(move |v| {
            for (k, (v, got)) in v.iter().zip(plain_values(&last.borrow(), v.len())).enumerate() {
                let step = got.1 / 7.0 * 1.0001;
                assert!((v - got.0).abs() <= step, "value {k}: {v} became {}, steps are {step}", got.0);
            }
        }),
    )
}

/// What 4-bit codes in buckets of 1,024 stand for, one by one, and each one's scale.
fn plain_values(bytes: &[u8], count: usize) -> impl Iterator<Item = (f32, f32)> + '_ {
    (0..count).map(|k| {
        let packed = &bytes[k / 1024 * 516..];
        let scale = f32::from_le_bytes(packed[..4].try_into().expect("4 bytes"));
        let field = i32::from(packed[4 + k % 1024 / 2] >> (k % 2 * 4)) & 15;
        let level = if field > 7 { field - 16 } else { field };
        (level as f32 * (1.0 / 7.0) * scale, scale)
    })
}

fn dequantising(add: bool, values: &[f32]) -> (Run, Check) {
    let bytes = Rc::new(quantised(values, Scale::L2));
    let out = Rc::new(RefCell::new(vec![0f32; values.len()]));
    let (packed, last) = (bytes.clone(), out.clone());
    (
        Box::new(move |v| {
            let mut out = out.borrow_mut();
            let way = if add { dequantise_and_add::<f32> } else { dequantise::<f32> };
            way(&bytes, &params(Scale::L2), &mut out).expect("what was just quantised");
            let passes = if add { 2 } else { 1 };
            size_of_val(v) * passes + bytes.len()
        }),
        Box::new(move |v| {
            // The first run, and then as many as were timed.
            let times = if add { RUNS + 1 } else { 1 };
            for (got, (want, _)) in last.borrow().iter().zip(plain_values(&packed, v.len())) {
                assert!(*got == (0..times).fold(0.0, |sum, _| sum + want));
            }
        }),
    )
}

/// Positions and values of a selection by sorting.
fn plain_choice(values: &[f32], select: Select<f32>) -> Vec<u32> {
    let top = |start: usize, some: &[f32], k: usize| {
        let mut order: Vec<u32> = (0..some.len() as u32).collect();
        order.sort_by(|a, b| some[*b as usize].abs().total_cmp(&some[*a as usize].abs()));
        order.truncate(k);
        order.sort_unstable();
        order.into_iter().map(move |i| i + start as u32)
    };
    match select {
        Select::Whole { k } => top(0, values, k).collect(),
        Select::Buckets { k, bucket } => {
            values.chunks(bucket).enumerate().flat_map(|(n, some)| top(n * bucket, some, k)).collect()
        }
        Select::AtLeast(t) => (0..values.len() as u32).filter(|i| values[*i as usize].abs() >= t).collect(),
    }
}

type Chosen = Rc<RefCell<(Vec<u32>, Vec<f32>)>>;

fn check_choice(values: &[f32], select: Select<f32>, chosen: &Chosen) {
    let (indices, picked) = &*chosen.borrow();
    assert!(*indices == plain_choice(values, select), "other positions than by sorting");
    assert!(indices.iter().zip(picked).all(|(i, v)| values[*i as usize].to_bits() == v.to_bits()));
}

fn selecting(select: Select<f32>) -> (Run, Check) {
    let chosen = Chosen::default();
    let last = chosen.clone();
    (
        Box::new(move |v| {
            let (indices, picked) = &mut *chosen.borrow_mut();
            topk(v, select, indices, picked).expect("a selection");
            size_of_val(v) + 8 * indices.len()
        }),
        Box::new(move |v| check_choice(v, select, &last)),
    )
}

fn taking() -> (Run, Check) {
    let select = Select::Buckets { k: 8, bucket: 512 };
    let chosen = Chosen::default();
    let (last, mut acc) = (chosen.clone(), Vec::new());
    (
        Box::new(move |v| {
            if acc.is_empty() {
                acc = v.to_vec();
            }
            let (indices, picked) = &mut *chosen.borrow_mut();
            take_topk(&mut acc, select, indices, picked).expect("a selection");
            // Put back, so that every run does the same.
            indices.iter().zip(&*picked).for_each(|(i, v)| acc[*i as usize] = *v);
            size_of_val(v) + indices.len() * (8 + 64)
        }),
        Box::new(move |v| check_choice(v, select, &last)),
    )
}

/// Adds a message whose map is one run to a sum, block by block as a reduction does.
fn folding<T: Real>(values: &[f32]) -> (Run, Check) {
    const BLOCK: usize = 1 << 14;
    let from: Rc<Vec<T>> = Rc::new(values.iter().map(|v| T::from_f32(*v)).collect());
    let sum = Rc::new(RefCell::new(vec![T::ZERO; values.len()]));
    let map: Vec<u32> = (0..values.len() as u32).collect();
    let (message, last) = (from.clone(), sum.clone());
    (
        Box::new(move |_| {
            let mut sum = sum.borrow_mut();
            for (block, acc) in sum.chunks_mut(BLOCK).enumerate() {
                let (start, end) = (block * BLOCK, block * BLOCK + acc.len());
                let (map, from) = (&map[start..end], &from[start..end]);
                fold_rows(&ReduceOp::Sum, acc, start as u32, map, from, 1).expect("a sum");
            }
            size_of_val(&map[..]) + 3 * size_of_val(&from[..])
        }),
        Box::new(move |_| {
            for (got, v) in last.borrow().iter().zip(message.iter()) {
                assert!(*got == (0..RUNS + 1).fold(T::ZERO, |sum, _| sum.add(*v)));
            }
        }),
    )
}
