//! Top-k selection: the positions and values of a vector's largest magnitudes (SparCML §2 and Algorithm 1).
//!
//! **Order.** A magnitude is the bits of a value without its sign, as an integer. That is the order of
//! absolute values, with -0.0 equal to 0.0 and NaN above infinity. A NaN is thus always chosen, and the
//! sum shows it, as a dense sum would; otherwise it would stay in the residual unnoticed. Of equal magnitudes
//! the one at the lower index is taken.
//!
//! **Method.** One pass keeps the values that reach a threshold (`loops.rs`). The threshold comes from:
//!
//! - *Whole*: a sample of up to 2^14 values, such that somewhat more than k values reach it; the exact k are then
//!   found by selection. If fewer than k reach it, the pass is repeated with a lower threshold.
//! - *Buckets*: the maxima of groups of a bucket's values, which at least k values reach (`bucket.rs`).
//! - *At least*: the caller's.
//!
//! Cost: one pass over the values and O(k); if many magnitudes equal the k-th, also memory for as many indices and
//! values. Exactly min(k, len) values are chosen, zeros included if fewer than k others exist. A value may be read
//! several times.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod bucket;
mod feedback;
mod loops;
mod magnitude;
mod selected;
mod slots;

use crate::simd::{self, InstructionSet};
pub use feedback::{Incoming, Layer, put_back, quantise_in_place, take_layers, take_topk_of_sum};
pub use magnitude::Magnitude;

use bucket::{append_buckets, take_buckets};
use loops::{Loops, with_loops};
use magnitude::{Key, kth_of_all};
use selected::Selected;
use skyphos_types::{Error, Result};

/// Rule of selection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Select<T> {
    /// The `k` largest of the whole vector.
    Whole {
        /// Values to choose.
        k: usize,
    },
    /// The `k` largest of every `bucket` consecutive values (the last bucket may have fewer).
    Buckets {
        /// Values to choose from each bucket.
        k: usize,
        /// Values per bucket; SparCML uses 512.
        bucket: usize,
    },
    /// All values of at least this magnitude.
    AtLeast(T),
}

/// Replaces `indices` and `picked` by the ascending positions of the chosen values, and the values.
///
/// # Errors
/// An empty bucket, a threshold that is NaN, or more than 2^32 - 1 values.
pub fn topk<T: Magnitude>(
    values: &[T],
    select: Select<T>,
    indices: &mut Vec<u32>,
    picked: &mut Vec<T>,
) -> Result<()> {
    check(values.len(), select)?;
    topk_at(simd::detected(), values, select, &mut Selected::new(indices, picked));
    Ok(())
}

/// As [`topk`], and clears the chosen values in `acc`, which becomes acc - TopK(acc).
///
/// # Errors
/// As [`topk`]; `acc` is then unchanged.
pub fn take_topk<T: Magnitude>(
    acc: &mut [T],
    select: Select<T>,
    indices: &mut Vec<u32>,
    picked: &mut Vec<T>,
) -> Result<()> {
    check(acc.len(), select)?;
    take_at(simd::detected(), acc, select, &mut Selected::new(indices, picked));
    Ok(())
}

fn take_at<T: Magnitude>(
    isa: InstructionSet,
    acc: &mut [T],
    select: Select<T>,
    selected: &mut Selected<'_, T>,
) {
    fill_and_take(
        isa,
        acc,
        0,
        select,
        selected,
        #[inline(always)]
        |_, _| {},
    );
}

/// Appends the values chosen from `acc`, whose first value has index `start`, and clears them in `acc`. Before a part of `acc` is
/// searched, `fill` is called with it and its offset. Parts are the buckets, or the whole vector.
fn fill_and_take<T: Magnitude>(
    isa: InstructionSet,
    acc: &mut [T],
    start: u32,
    select: Select<T>,
    selected: &mut Selected<'_, T>,
    fill: impl FnMut(&mut [T], usize),
) {
    if let Select::Buckets { k, bucket } = select {
        return with_loops!(isa, loops => take_buckets(acc, start, k, bucket, selected, fill, loops));
    }
    simd::dispatch!(isa => fill_whole(acc, fill));
    // Selection from a whole vector may start again, which clears its lists, so they are separate.
    let (mut indices, mut picked) = (Vec::new(), Vec::new());
    topk_at(isa, acc, select, &mut Selected::new(&mut indices, &mut picked));
    for i in indices {
        acc[i as usize] = T::ZERO;
        selected.indices.push(start + i);
    }
    selected.picked.append(&mut picked);
}

#[inline(always)]
fn fill_whole<T>(acc: &mut [T], mut fill: impl FnMut(&mut [T], usize)) {
    fill(acc, 0);
}

fn check<T: Magnitude>(values: usize, select: Select<T>) -> Result<()> {
    if u32::try_from(values).is_err() {
        return Err(Error::bad_input(format!(
            "{values} values are more than the 2^32 - 1 that one selection takes: select in parts"
        )));
    }
    match select {
        Select::Buckets { bucket: 0, .. } => {
            Err(Error::bad_input("bucket=0: a bucket needs at least one value"))
        }
        Select::AtLeast(t) if t.to_f32().is_nan() => {
            Err(Error::bad_input("a threshold must be a number, not NaN"))
        }
        _ => Ok(()),
    }
}

/// As [`topk`], for a given instruction set.
fn topk_at<T: Magnitude>(
    isa: InstructionSet,
    values: &[T],
    select: Select<T>,
    selected: &mut Selected<'_, T>,
) {
    match select {
        Select::Whole { k } => append_largest(isa, values, k.min(values.len()), selected),
        Select::Buckets { k, bucket } => {
            with_loops!(isa, loops => append_buckets(values, 0, k, bucket, selected, loops));
        }
        // Zero or negative. The comparison is in `T`, since a small f64 would become 0 in f32.
        Select::AtLeast(t) if t.least(T::ZERO) == t => {
            append_at_least(isa, values, T::ZERO.magnitude(), selected)
        }
        Select::AtLeast(t) => append_at_least(isa, values, t.magnitude(), selected),
    }
}

/// Appends all values whose magnitude is at least `threshold`, with the loops for an instruction set.
fn append_at_least<T: Magnitude>(
    isa: InstructionSet,
    values: &[T],
    threshold: T::Key,
    selected: &mut Selected<'_, T>,
) {
    with_loops!(isa, loops => append_all(values, threshold, selected, loops));
}

/// Appends all values whose magnitude is at least `threshold`.
#[inline(always)]
fn append_all<T: Magnitude>(
    values: &[T],
    threshold: T::Key,
    selected: &mut Selected<'_, T>,
    loops: impl Loops<T>,
) {
    const PART: usize = 4096;
    for (part, start) in values.chunks(PART).zip((0u32..).step_by(PART)) {
        // SAFETY: `Loops` promises that `collect` writes as many as it returns.
        unsafe { selected.append(part.len(), |to| loops.collect(part, start, threshold, to)) };
    }
}

/// Values of the sample from which the threshold is estimated.
const SAMPLE: usize = 1 << 14;

/// Length of the longest vector whose threshold is not estimated.
const MAX_UNSAMPLED: usize = 4 * SAMPLE;

/// Appends the `k` largest values.
fn append_largest<T: Magnitude>(isa: InstructionSet, values: &[T], k: usize, selected: &mut Selected<'_, T>) {
    if k == 0 {
        return;
    }
    let mut sample: Vec<T::Key> = match values.len() {
        ..=MAX_UNSAMPLED => Vec::new(),
        len => (0..SAMPLE).map(|i| values[sample_position(i, len)].magnitude()).collect(),
    };
    // The expected number of samples above the k-th largest value, and four standard deviations more.
    let expected = k as f64 * sample.len() as f64 / values.len() as f64;
    let mut rank = (expected + 4.0 * expected.sqrt() + 4.0) as usize;
    let (zero, one) = (T::Key::from_i64(0), T::Key::from_i64(1));
    while rank < sample.len() {
        let (_, threshold, _) = sample.select_nth_unstable_by(rank, |a, b| b.cmp(a));
        // In a vector of mostly zeros, zeros are left out as long as there are enough other values.
        let threshold = (*threshold).max(one);
        append_at_least(isa, values, threshold, selected);
        if selected.indices.len() >= k {
            return selected.keep_largest(0, k);
        }
        selected.clear();
        rank = if threshold == one { sample.len() } else { rank * 4 };
    }
    if let Some(threshold) = kth_of_all(values, k).filter(|kth| *kth > zero) {
        append_at_least(isa, values, threshold, selected);
        return selected.keep_largest(0, k);
    }
    // Fewer than k values are not zero, so the first zeros are chosen too.
    let mut zeros = k - values.iter().filter(|v| v.magnitude() > zero).count();
    for (v, i) in values.iter().zip(0..) {
        let is_zero = v.magnitude() == zero;
        if !is_zero || zeros > 0 {
            zeros -= usize::from(is_zero);
            selected.indices.push(i);
            selected.picked.push(*v);
        }
    }
}

/// Position of the i-th sample among `len` values: scattered, so that a period in the data does not bias the sample.
fn sample_position(i: usize, len: usize) -> usize {
    let mut x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    ((u128::from(x ^ x >> 32) * len as u128) >> 64) as usize
}

#[cfg(test)]
mod tests;
