//! Kernels over sparse vectors: entries added into dense arrays, streams folded, results collected.

use crate::{Check, Kernel, Line, RUNS, Random, Run};
use skyphos_kernels::fold_rows;
use skyphos_kernels::stream::{Collector, Encoder, EntryIndices, Fold, Form, Shape, Sink};
use skyphos_types::ReduceOp;
use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;

/// Bytes of a cache line, and the values in it.
const LINE: usize = 64;
const PER_LINE: u64 = (LINE / size_of::<f32>()) as u64;

/// Positions of the dense arrays.
const N: u64 = 1 << 24;

/// The distribution of a set's entries.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Each position with the same probability.
    Uniform,
    /// In runs of about this many neighbours.
    Runs(f64),
}

/// Ascending indices below `n`, about `density` of them.
pub fn random_set(n: u64, density: f64, kind: Kind, seed: u64) -> Vec<u64> {
    let (mut random, mut all) = (Random(seed), Vec::new());
    let (run, gap) = match kind {
        Kind::Uniform => (1.0, 1.0 / density),
        Kind::Runs(run) => (run, run * (1.0 - density) / density + 1.0),
    };
    let mut at = random.geometric(gap) - 1;
    while at < n {
        let count = random.geometric(run).min(n - at);
        all.extend(at..at + count);
        at += count - 1 + random.geometric(gap);
    }
    all
}

/// Distinct cache lines of a dense array in which entries lie.
fn lines_touched(indices: &[u64]) -> usize {
    1 + indices.windows(2).filter(|w| w[0] / PER_LINE != w[1] / PER_LINE).count()
}

pub fn lines() -> Vec<Line> {
    let mut all: Vec<Line> = Vec::new();
    let sets = [
        (0.001, Kind::Uniform, "0.1 %"),
        (0.01, Kind::Uniform, "1 %"),
        (0.1, Kind::Uniform, "10 %"),
        (0.5, Kind::Uniform, "50 %"),
        (0.1, Kind::Runs(64.0), "10 % in runs"),
    ];
    for (density, kind, name) in sets {
        let adding = move |v: &[f32]| scatter_adding(&random_set(N, density, kind, 3), v);
        all.push((format!("scatter-add 2^24, {name}"), Some(0.4), Box::new(adding)));
    }
    for (density, kind, name) in sets {
        for sources in [1, 8] {
            let folding = move |v: &[f32]| stream_folding(N, density, kind, sources, v);
            let target = (sources == 1).then_some(0.3);
            all.push((format!("decode-and-add 2^24, {name} × {sources}"), target, Box::new(folding)));
        }
    }
    for sources in [2, 4, 8] {
        for percent in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0] {
            let density = percent / 100.0 / sources as f64;
            let reducing = move |v: &[f32]| stream_reducing(density, sources, v);
            all.push((format!("reduce 2^24, {percent} % in {sources} streams"), None, Box::new(reducing)));
        }
    }
    for (log, sources) in [(32, 1), (32, 2), (32, 8), (40, 8)] {
        let (n, density) = (1 << log, (1 << 20) as f64 / (1u64 << log) as f64);
        let folding = move |v: &[f32]| stream_folding(n, density, Kind::Uniform, sources, v);
        all.push((format!("decode-and-add 2^{log}, 2^20 × {sources}"), None, Box::new(folding)));
    }
    for (density, kind, name) in sets {
        for (wide, bits) in [(false, 32), (true, 64)] {
            let collecting = move |v: &[f32]| collecting(density, kind, wide, v);
            all.push((format!("collect {bits} bit 2^24, {name}"), None, Box::new(collecting)));
        }
    }
    all
}

/// Adds a sparse vector to a dense one.
fn scatter_adding(indices: &[u64], values: &[f32]) -> Kernel {
    let map: Vec<u32> = indices.iter().map(|i| *i as u32).collect();
    let from = values[..map.len()].to_vec();
    let sum = Rc::new(RefCell::new(vec![0f32; N as usize]));
    let (bytes, entries) = (lines_touched(indices) * LINE * 2 + map.len() * 8, map.len());
    let (last, map_too, from_too) = (sum.clone(), map.clone(), from.clone());
    let run: Run = Box::new(move |_| {
        fold_rows(&ReduceOp::Sum, &mut sum.borrow_mut(), 0, &map, &from, 1).expect("sums do not fail");
        bytes
    });
    let check: Check = Box::new(move |_| {
        let mut want = vec![0f32; N as usize];
        for (i, v) in map_too.iter().zip(&from_too) {
            want[*i as usize] = (0..RUNS + 1).fold(0.0, |sum, _| sum + v);
        }
        assert!(*last.borrow() == want);
    });
    Kernel { run, check, entries, baseline: None }
}

/// The segments of a stream, of up to 32 KB each.
fn segments_of(indices: &[u64], values: &[f32], n: u64) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(EntryIndices::Listed(indices), values, 1, n, 32 << 10);
    let mut all = Vec::new();
    while let Some(next) = encoder.plan() {
        let mut bytes = vec![0; next.bytes()];
        encoder.write(&next, &mut bytes);
        all.push(bytes);
    }
    all
}

/// Receives blocks like a collector, and discards them.
struct Discard;

impl Sink<f32> for Discard {
    fn block(&mut self, first: u64, marks: &[u8], rows: &[f32], _: &[u32]) {
        black_box((first, marks, rows));
    }

    fn entries(&mut self, base: u64, offsets: &[u32], rows: &[f32], _: &[u32]) {
        black_box((base, offsets, rows));
    }
}

/// Folds received streams. Bytes counted: all segments, and for each source a read and a write of the cache lines with entries.
fn stream_folding(n: u64, density: f64, kind: Kind, sources: usize, values: &[f32]) -> Kernel {
    let sets: Vec<Vec<u64>> = (0..sources as u64).map(|s| random_set(n, density, kind, 3 + s)).collect();
    let streams: Rc<Vec<Vec<Vec<u8>>>> =
        Rc::new(sets.iter().map(|set| segments_of(set, &values[..set.len()], n)).collect());
    let wire: usize = streams.iter().flatten().map(Vec::len).sum();
    let bytes = wire + sets.iter().map(|set| lines_touched(set) * LINE * 2).sum::<usize>();
    let entries = sets.iter().map(Vec::len).sum();
    let folded = streams.clone();
    let run: Run = Box::new(move |_| {
        fold_all(&folded, n, density, &mut Discard);
        bytes
    });
    let check: Check = Box::new(move |v| {
        let shape = Shape { width: 1, wide: true, dense_above: 1.0, with_present: true };
        let mut collector = Collector::new(0, n, shape, 0f32, 0);
        fold_all(&streams, n, density, &mut collector);
        let mut want: Vec<(u64, usize, f32)> = sets
            .iter()
            .enumerate()
            .flat_map(|(s, set)| set.iter().zip(v).map(move |(i, v)| (*i, s, *v)))
            .collect();
        want.sort_by_key(|(i, s, _)| (*i, *s));
        let sums = want.chunk_by(|a, b| a.0 == b.0).map(|same| same.iter().fold(0.0, |sum, e| sum + e.2));
        let Form::Sparse { indices, values } = collector.finish() else { panic!("a dense result") };
        assert!(values.iter().copied().eq(sums));
        want.dedup_by_key(|e| e.0);
        assert!(indices.to_vec().into_iter().eq(want.iter().map(|e| e.0)));
    });
    Kernel { run, check, entries, baseline: None }
}

/// Reduces streams, each of this `density`, to a sparse vector, as the owner of a range does.
fn stream_reducing(density: f64, sources: usize, values: &[f32]) -> Kernel {
    let sets: Vec<Vec<u64>> =
        (0..sources as u64).map(|s| random_set(N, density, Kind::Uniform, 3 + s)).collect();
    let streams: Vec<Vec<Vec<u8>>> =
        sets.iter().map(|set| segments_of(set, &values[..set.len()], N)).collect();
    let entries: usize = sets.iter().map(Vec::len).sum();
    let bytes = streams.iter().flatten().map(Vec::len).sum::<usize>() + entries * 8;
    let shape = Shape { width: 1, wide: false, dense_above: 1.0, with_present: true };
    let result = Rc::new(RefCell::new(None));
    let last = result.clone();
    reuse_large_blocks();
    let run: Run = Box::new(move |_| {
        last.take();
        let mut collector = Collector::new(0, N, shape, 0f32, entries);
        fold_all(&streams, N, density, &mut collector);
        last.replace(Some(collector.finish()));
        bytes
    });
    let check: Check = Box::new(move |v| {
        let Some(Form::Sparse { indices, values }) = result.take() else { panic!("a dense result") };
        let mut want = vec![0f32; N as usize];
        sets.iter().for_each(|set| set.iter().zip(v).for_each(|(i, v)| want[*i as usize] += v));
        assert!(indices.to_vec().iter().zip(&values).all(|(i, v)| want[*i as usize] == *v));
        assert_eq!(want.iter().filter(|v| **v != 0.0).count(), values.iter().filter(|v| **v != 0.0).count());
    });
    Kernel { run, check, entries, baseline: None }
}

/// Makes glibc reuse freed blocks of up to 30 MB: it maps only blocks that are larger than any it has freed.
fn reuse_large_blocks() {
    drop(black_box(vec![1u8; 30 << 20]));
}

fn fold_all(streams: &[Vec<Vec<u8>>], n: u64, density: f64, sink: &mut impl Sink<f32>) {
    let op = ReduceOp::Sum;
    let mut fold = Fold::<f32, &[u8]>::new(&op, streams.len(), 1, 0, n, density).expect("sums do not fail");
    for (source, segments) in streams.iter().enumerate() {
        for segment in segments {
            fold.push(source, segment).expect("valid segments");
        }
    }
    fold.advance(&op, sink).expect("valid segments");
    assert!(fold.done());
}

/// Positions of a block handed to a collector.
const BLOCK: usize = 1 << 14;
/// Positions after which the same blocks are handed over again, so that they stay in the cache.
const PERIOD: usize = 1 << 16;
/// Positions of one collector. The next one reuses its memory, because new memory would cost more than the kernel.
const PART: usize = 1 << 20;

/// Collects entries from blocks that are in the cache. Bytes counted: the marks, the cache lines with entries, and the entries written.
fn collecting(density: f64, kind: Kind, wide: bool, values: &[f32]) -> Kernel {
    let set = random_set(PERIOD as u64, density, kind, 3);
    let (times, parts) = (PART / PERIOD, N as usize / PART);
    let entries = set.len() * times * parts;
    let per_entry = size_of::<f32>() + if wide { 8 } else { 4 };
    let bytes = N as usize + lines_touched(&set) * times * parts * LINE + entries * per_entry;
    let shape = Shape { width: 1, wide, dense_above: 1.0, with_present: true };
    let mut marks = vec![0u8; PERIOD];
    set.iter().for_each(|i| marks[*i as usize] = 1);
    let rows: Vec<f32> = values.iter().zip(&marks).map(|(v, m)| v * f32::from(*m)).collect();
    reuse_large_blocks();
    let result = Rc::new(RefCell::new(None));
    let last = result.clone();
    let run: Run = Box::new(move |_| {
        for _ in 0..parts {
            last.take();
            let mut collector = Collector::new(0, PART as u64, shape, 0f32, set.len() * times);
            for first in (0..PART).step_by(BLOCK) {
                let range = first % PERIOD..first % PERIOD + BLOCK;
                collector.block(first as u64, &marks[range.clone()], &rows[range], &[]);
            }
            last.replace(Some(collector.finish()));
        }
        bytes
    });
    let check: Check = Box::new(move |v| {
        let Some(Form::Sparse { indices, values }) = result.take() else { panic!("a dense result") };
        let set = random_set(PERIOD as u64, density, kind, 3);
        let want = (0..PART as u64).step_by(PERIOD).flat_map(|first| set.iter().map(move |i| first + i));
        assert!(indices.to_vec().into_iter().eq(want));
        assert!(values.iter().copied().eq((0..times).flat_map(|_| set.iter().map(|i| v[*i as usize]))));
    });
    Kernel { run, check, entries, baseline: None }
}
