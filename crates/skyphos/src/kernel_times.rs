//! Kernel times of this machine: the numbers of [`Kernels`], measured on the kernels that an allreduce runs, with evenly drawn
//! indices. The kernels of plans are measured in `row_times.rs`.
//!
//! All ranks measure at the same time, since the ranks of a host share memory and caches in a collective, too. Times are
//! processor times, so they do not depend on other processes on the core; the share of a core is a number of its own.

use crate::Comm;
use crate::kernel_timing::{ENTRIES, drawn, median_s};
use crate::probe::cpu_s;
use crate::row_times;
use skyphos_core::Endpoint;
use skyphos_core::collectives::barrier::barrier_from;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::slab::Payload;
use skyphos_core::stream::{Assembler, encode};
use skyphos_kernels::Indices;
use skyphos_kernels::product::{Destination, Rows, multiply};
use skyphos_kernels::stream::{Collector, Fold, Form, Shape, View, dense_form};
use skyphos_plan::{Kernels, RowKernels};
use skyphos_types::{ReduceOp, Result, Round};
use std::hint::black_box;
use std::time::Instant;

/// Sizes of index spaces. Vectors are sparse enough to be merged in `SPARSE_N`, and dense enough for block sums in the others.
const SPARSE_N: u64 = ENTRIES as u64 * 256;
const MEDIUM_N: u64 = ENTRIES as u64 * 16;
const DENSE_N: u64 = ENTRIES as u64 * 2;

/// Bytes of dense arrays: more than caches hold.
const ARRAY_BYTES: usize = 16 << 20;

/// First round of the closing barrier; the opening one begins at 0.
const END_ROUND: Round = Round(0x100);

/// The result of [`Comm::kernel_times`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelTimes {
    /// Processor time of each kernel.
    pub kernels: Kernels,
    /// Processor time of the kernels of plans.
    pub rows: RowKernels,
    /// Processor seconds of a multiply-add in a product of float64 matrices.
    pub product_s: f64,
    /// Share of a core that this rank had while all ranks measured.
    pub cores: f64,
}

impl KernelTimes {
    /// The names of the numbers of `kernels`, a part of [`skyphos_plan::Profile::NAMES`].
    pub const NAMES: [&'static str; 15] = {
        let [_, _, _, _, _, _, _, _, _, kernels @ .., _, _] = skyphos_plan::Profile::NAMES;
        kernels
    };
}

fn shape(dense_above: f64) -> Shape {
    Shape { width: 1, wide: false, dense_above, with_present: true }
}

fn encoded(ep: &Endpoint, n: u64, seed: u64, values: &[f32]) -> Vec<Payload> {
    let indices = drawn(n, seed);
    encode(ep, View::Sparse { indices: Indices::U32(&indices), values }, 1, 0, 0, n)
}

/// Seconds to reduce `sources` streams to a sparse vector.
fn reduce_s(ep: &Endpoint, n: u64, sources: usize, values: &[f32]) -> Result<f64> {
    let streams: Vec<Vec<Payload>> = (0..sources).map(|s| encoded(ep, n, s as u64, values)).collect();
    let bytes: Vec<Vec<&[u8]>> = streams.iter().map(|s| s.iter().map(Payload::as_bytes).collect()).collect();
    let op = ReduceOp::Sum;
    let density = ENTRIES as f64 / n as f64;
    let mut failed = Ok(());
    let seconds = median_s(|| {
        let once = || -> Result<Form<f32>> {
            let damaged = |_| ep.corrupt(ep.rank(), "segments that this rank has encoded");
            let mut collector = Collector::new(0, n, shape(1.0), 0f32, ENTRIES * sources);
            let mut fold = Fold::<f32, &[u8]>::new(&op, sources, 1, 0, n, density)?;
            for (source, segments) in bytes.iter().enumerate() {
                for segment in segments {
                    fold.push(source, segment).map_err(damaged)?;
                }
            }
            fold.advance(&op, &mut collector).map_err(damaged)?;
            Ok(collector.finish())
        };
        failed = once().map(|form| drop(black_box(form)));
    });
    failed.map(|()| seconds)
}

/// Seconds to decode an encoded vector into a result of a shape.
fn decode_s(ep: &Endpoint, n: u64, shape: Shape, segments: &[Payload]) -> Result<f64> {
    let mut failed = Ok(());
    let seconds = median_s(|| {
        let mut result = Assembler::new(&[0, n], shape, 0f32);
        failed = result.take_all(ep, ep.rank().0, 0, segments);
        drop(black_box(result));
    });
    failed.map(|()| seconds)
}

fn measure(ep: &Endpoint) -> Result<Kernels> {
    let entries = ENTRIES as f64;
    let values = vec![1f32; ENTRIES];
    let indices = drawn(SPARSE_N, 7);
    let view = View::Sparse { indices: Indices::U32(&indices), values: &values };
    let encode_s = median_s(|| drop(black_box(encode(ep, view, 1, 0, 0, SPARSE_N)))) / entries;
    let place_s = decode_s(ep, SPARSE_N, shape(1.0), &encoded(ep, SPARSE_N, 7, &values))? / entries;

    // Merges of few and of many sources: seconds per entry are `merge_s + merge_more_s * sources`.
    let each_s = |sources: usize| Ok(reduce_s(ep, SPARSE_N, sources, &values)? / (sources as f64 * entries));
    let (two_s, eight_s): (f64, f64) = (each_s(2)?, each_s(8)?);
    let merge_more_s = ((eight_s - two_s) / 6.0).max(0.0);
    let merge_s = (two_s - 2.0 * merge_more_s).max(0.0);

    // Block sums of the same number of entries in fewer and in more positions.
    let (dense_s, medium_s) = (reduce_s(ep, DENSE_N, 4, &values)?, reduce_s(ep, MEDIUM_N, 4, &values)?);
    let position_s = ((medium_s - dense_s) / (MEDIUM_N - DENSE_N) as f64).max(0.0);
    let block_s = ((dense_s - DENSE_N as f64 * position_s) / (4.0 * entries)).max(0.0);

    let from = vec![1u8; ARRAY_BYTES];
    let mut to = vec![0u8; ARRAY_BYTES];
    let copy_s = median_s(|| black_box(&mut to[..]).copy_from_slice(black_box(&from)));
    let dense_byte_s = copy_s / ARRAY_BYTES as f64;
    // The previous array is freed after the next is allocated, like the results of a program that calls in a loop.
    let mut array = Vec::new();
    let fresh_s = median_s(|| array = black_box(vec![1u8; ARRAY_BYTES / 2]));
    let fresh_byte_s = fresh_s / array.len() as f64;

    let bitmap_s = bitmap_s(ep, &values)?;
    Ok(Kernels {
        encode_s,
        place_s,
        merge_s,
        merge_more_s,
        block_s,
        position_s,
        dense_byte_s,
        fresh_byte_s,
        bitmap_s,
    })
}

/// Additional seconds of an entry that is read from an array with a bitmap, or written to one: the mean of both.
fn bitmap_s(ep: &Endpoint, values: &[f32]) -> Result<f64> {
    let indices = drawn(DENSE_N, 7);
    let (mut rows, mut present) = (vec![0f32; DENSE_N as usize], vec![0u64; DENSE_N as usize / 64]);
    for (index, value) in indices.iter().zip(values) {
        rows[*index as usize] = *value;
        present[*index as usize / 64] |= 1 << (index % 64);
    }
    let listed = View::Sparse { indices: Indices::U32(&indices), values };
    let marked = View::Dense { values: &rows, present: Some(&present) };
    let from_list_s = median_s(|| drop(black_box(encode(ep, listed, 1, 0, 0, DENSE_N))));
    let from_array_s = median_s(|| drop(black_box(encode(ep, marked, 1, 0, 0, DENSE_N))));
    let segments = encode(ep, listed, 1, 0, 0, DENSE_N);
    let to_list_s = decode_s(ep, DENSE_N, shape(1.0), &segments)?;
    let to_array_s = decode_s(ep, DENSE_N, shape(0.0), &segments)?;
    // Allocating the array is counted by its bytes.
    let make_s = median_s(|| drop(black_box(dense_form(shape(0.0), DENSE_N, 0f32))));
    let more_s = (from_array_s - from_list_s).max(0.0) + (to_array_s - make_s - to_list_s).max(0.0);
    Ok(more_s / 2.0 / ENTRIES as f64)
}

/// Rows, columns and pairs of the measured product. With this many pairs, the time to write the product is negligible.
const PRODUCT: (usize, usize, usize) = (384, 384, 256);

/// Seconds of a multiply-add.
pub(crate) fn product_s() -> f64 {
    let (rows, cols, pairs) = PRODUCT;
    let (a, b) = (vec![1f64; pairs * rows], vec![1f64; pairs * cols]);
    let mut out = vec![0f64; rows * cols];
    let factors = (Rows { numbers: &a, stride: rows }, Rows { numbers: &b, stride: cols });
    let seconds = median_s(|| {
        multiply(PRODUCT, black_box(factors), (black_box(&mut out), cols), (Destination::Overwrite, 1.0), 1);
    });
    seconds / (rows * cols * pairs) as f64
}

/// Seconds of writing a byte of an array, and additional seconds of a byte of newly allocated memory.
pub(crate) fn pass_s() -> (f64, f64) {
    let fill = |bytes: &mut [u8]| bytes.fill(black_box(1));
    let mut reused = vec![0u8; PASS_BYTES];
    fill(&mut reused);
    let reused_s = median_s(|| fill(black_box(&mut reused)));
    let fresh_s = median_s(|| {
        let mut fresh = Vec::<u8>::with_capacity(PASS_BYTES);
        fresh.resize(PASS_BYTES, black_box(1));
        drop(black_box(fresh));
    });
    (reused_s / PASS_BYTES as f64, (fresh_s - reused_s).max(0.0) / PASS_BYTES as f64)
}

/// Bytes of the array of [`pass_s`]: more than a core's cache holds.
const PASS_BYTES: usize = 8 << 20;

impl Comm {
    /// Measures the kernels on all ranks at the same time, for about 0.1 processor seconds. Collective.
    pub fn kernel_times(&self) -> Result<KernelTimes> {
        self.call(CallSig::plain(CallKind::Measure), async |ep| {
            barrier_from(ep, Round(0)).await?;
            let (start, cpu_start) = (Instant::now(), cpu_s());
            let (kernels, rows, product_s) = (measure(ep)?, row_times::measure()?, product_s());
            let cores = (cpu_s() - cpu_start) / start.elapsed().as_secs_f64();
            barrier_from(ep, END_ROUND).await?;
            Ok(KernelTimes { kernels, rows, product_s, cores: cores.min(1.0) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    #[test]
    fn indices_are_distinct_and_in_range() {
        for n in [DENSE_N, MEDIUM_N, SPARSE_N] {
            let indices = drawn(n, 3);
            assert!(indices.windows(2).all(|w| w[0] < w[1]) && u64::from(*indices.last().unwrap()) < n);
        }
    }

    #[test]
    fn every_kernel_takes_some_time() {
        let ranks = Comm::local(2, &Settings::default()).unwrap();
        for found in ranks.map_ranks(|comm| comm.kernel_times().unwrap()) {
            let k = found.kernels;
            assert!(k.numbers().iter().all(|s| s.is_finite() && *s >= 0.0), "{k:?}");
            let positive =
                [k.encode_s, k.place_s, k.merge_s + 2.0 * k.merge_more_s, k.dense_byte_s, k.fresh_byte_s];
            assert!(positive.iter().all(|s| *s > 0.0), "{k:?}");
            assert!(found.product_s > 0.0 && found.product_s < 1e-7, "{found:?}");
            let (pass_s, fresh_s) = pass_s();
            assert!(pass_s > 0.0 && fresh_s >= 0.0);
            assert!(found.cores > 0.0 && found.cores <= 1.0);
        }
    }
}
