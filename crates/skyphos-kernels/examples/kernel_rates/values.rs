//! Kernels over dense values: quantisation, top-k, and folding.

use crate::{Check, RUNS, Run};
use skyphos_kernels::{
    Draw, Quantize, Scale, Select, dequantise, dequantise_and_add, fold_rows, quantise, quantised_bytes,
    take_topk, topk,
};
use skyphos_types::{Real, ReduceOp};
use std::cell::RefCell;
use std::rc::Rc;

fn params(scale: Scale) -> Quantize {
    Quantize::new(4, 1024, scale, 1).expect("4 bits")
}

const DRAW: Draw = Draw { call: 1, rank: 2, first_bucket: 0 };

fn quantised(values: &[f32], scale: Scale) -> Vec<u8> {
    let mut bytes = vec![0; quantised_bytes(values.len(), &params(scale))];
    quantise(values, &params(scale), DRAW, &mut bytes).expect("finite values");
    bytes
}

pub fn quantising(scale: Scale, values: &[f32]) -> (Run, Check) {
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

/// The values of 4-bit codes in buckets of 1,024, decoded one by one, and the scale of each bucket.
fn plain_values(bytes: &[u8], count: usize) -> impl Iterator<Item = (f32, f32)> + '_ {
    (0..count).map(|k| {
        let packed = &bytes[k / 1024 * 516..];
        let scale = f32::from_le_bytes(packed[..4].try_into().expect("4 bytes"));
        let field = i32::from(packed[4 + k % 1024 / 2] >> (k % 2 * 4)) & 15;
        let level = if field > 7 { field - 16 } else { field };
        (level as f32 * (1.0 / 7.0) * scale, scale)
    })
}

pub fn dequantising(add: bool, values: &[f32]) -> (Run, Check) {
    let bytes = Rc::new(quantised(values, Scale::L2));
    let out = Rc::new(RefCell::new(vec![0f32; values.len()]));
    let (packed, last) = (bytes.clone(), out.clone());
    (
        Box::new(move |v| {
            let mut out = out.borrow_mut();
            let decode = if add { dequantise_and_add::<f32> } else { dequantise::<f32> };
            decode(&bytes, &params(Scale::L2), &mut out).expect("valid codes");
            let passes = if add { 2 } else { 1 };
            size_of_val(v) * passes + bytes.len()
        }),
        Box::new(move |v| {
            // The warm-up run and the timed ones.
            let times = if add { RUNS + 1 } else { 1 };
            for (got, (want, _)) in last.borrow().iter().zip(plain_values(&packed, v.len())) {
                assert!(*got == (0..times).fold(0.0, |sum, _| sum + want));
            }
        }),
    )
}

/// Positions that `select` must choose, found by sorting.
fn plain_choice(values: &[f32], select: Select<f32>) -> Vec<u32> {
    let top = |start: usize, bucket: &[f32], k: usize| {
        let mut order: Vec<u32> = (0..bucket.len() as u32).collect();
        order.sort_by(|a, b| bucket[*b as usize].abs().total_cmp(&bucket[*a as usize].abs()));
        order.truncate(k);
        order.sort_unstable();
        order.into_iter().map(move |i| i + start as u32)
    };
    match select {
        Select::Whole { k } => top(0, values, k).collect(),
        Select::Buckets { k, bucket } => {
            values.chunks(bucket).enumerate().flat_map(|(n, part)| top(n * bucket, part, k)).collect()
        }
        Select::AtLeast(t) => (0..values.len() as u32).filter(|i| values[*i as usize].abs() >= t).collect(),
    }
}

type Chosen = Rc<RefCell<(Vec<u32>, Vec<f32>)>>;

fn check_choice(values: &[f32], select: Select<f32>, chosen: &Chosen) {
    let (indices, picked) = &*chosen.borrow();
    assert!(*indices == plain_choice(values, select), "the positions differ from those found by sorting");
    assert!(indices.iter().zip(picked).all(|(i, v)| values[*i as usize].to_bits() == v.to_bits()));
}

pub fn selecting(select: Select<f32>) -> (Run, Check) {
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

pub fn taking() -> (Run, Check) {
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
            // The values are put back, so that every run does the same.
            indices.iter().zip(&*picked).for_each(|(i, v)| acc[*i as usize] = *v);
            size_of_val(v) + indices.len() * (8 + 64)
        }),
        Box::new(move |v| check_choice(v, select, &last)),
    )
}

/// Adds a message to a sum, block by block as a reduction does. The message's map is one run.
pub fn folding<T: Real>(values: &[f32]) -> (Run, Check) {
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
                fold_rows(&ReduceOp::Sum, acc, start as u32, map, from, 1).expect("sums do not fail");
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
