//! The largest magnitudes of a vector: where they are, and what they are (top-k sparsification; SparCML
//! §2 and Algorithm 1).
//!
//! **Order.** A magnitude is the bits of a value without its sign, as an integer. That is the order of
//! absolute values, with -0.0 equal to 0.0 and NaN above infinity. A NaN is thus always chosen, and makes
//! itself known in the sum as it would in a dense one; if it counted as small it would stay in a residual
//! for ever, unseen. Of equal magnitudes the one at the lower index is taken.
//!
//! **How.** All ways end in one pass that keeps what reaches a threshold (`loops.rs`), with vectors:
//!
//! - *Whole*: a sample of up to 2^14 values gives a threshold that somewhat more than k values reach; those
//!   are kept, and the exact k of them found by selection. Should fewer reach it, once more with less.
//! - *Buckets*: the maxima of groups of a bucket's values give a threshold that at least k reach (`bucket.rs`).
//! - *At least*: the threshold is given.
//!
//! Cost: one pass over the values, O(k) for the rest, if no more than a few magnitudes around the k-th are
//! alike; else memory for as many indices and values as are alike. Exactly min(k, len) are chosen, zeros too
//! if there is nothing else. Nothing is promised of how often a value is read.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod bucket;
mod feedback;
mod loops;
mod magnitude;
mod room;
mod slots;

use crate::simd::{self, Level};
pub use feedback::{Incoming, Layer, put_back, quantise_in_place, take_layers, take_topk_of_sum};
pub use magnitude::Magnitude;

use bucket::{append_buckets, take_buckets};
use loops::{Loops, with_loops};
use magnitude::{Number, kth_of_all};
use room::Room;
use skyphos_types::{Error, Result};

/// Which values to choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Select<T> {
    /// The `k` largest of the whole vector.
    Whole {
        /// How many.
        k: usize,
    },
    /// The `k` largest of every `bucket` consecutive values (of the rest too, if the last has fewer).
    Buckets {
        /// How many of a bucket.
        k: usize,
        /// Values of a bucket; SparCML has 512.
        bucket: usize,
    },
    /// All of at least this magnitude.
    AtLeast(T),
}

/// Replaces `indices` and `picked` by the positions of the chosen values, ascending, and the values.
///
/// # Errors
/// A bucket of no values, a threshold that is NaN, more than 2^32 - 1 values.
pub fn topk<T: Magnitude>(
    values: &[T],
    select: Select<T>,
    indices: &mut Vec<u32>,
    picked: &mut Vec<T>,
) -> Result<()> {
    check(values.len(), select)?;
    topk_at(simd::level(), values, select, &mut Room::new(indices, picked));
    Ok(())
}

/// As [`topk`]; the chosen values are moved out of `acc`, so that what stays is acc - TopK(acc).
///
/// # Errors
/// As [`topk`]; `acc` is then as it was.
pub fn take_topk<T: Magnitude>(
    acc: &mut [T],
    select: Select<T>,
    indices: &mut Vec<u32>,
    picked: &mut Vec<T>,
) -> Result<()> {
    check(acc.len(), select)?;
    take_at(simd::level(), acc, select, &mut Room::new(indices, picked));
    Ok(())
}

fn take_at<T: Magnitude>(level: Level, acc: &mut [T], select: Select<T>, room: &mut Room<'_, T>) {
    take_of(
        level,
        acc,
        0,
        select,
        room,
        #[inline(always)]
        |_, _| {},
    );
}

/// Appends what is chosen of `acc`, whose first value is at place `start`, and clears it there. Before that `fill` gets each
/// part of it and the part's place in `acc`: if values are chosen from buckets, each of those.
fn take_of<T: Magnitude>(
    level: Level,
    acc: &mut [T],
    start: u32,
    select: Select<T>,
    room: &mut Room<'_, T>,
    fill: impl FnMut(&mut [T], usize),
) {
    if let Select::Buckets { k, bucket } = select {
        return with_loops!(level, loops => take_buckets(acc, start, k, bucket, room, fill, loops));
    }
    simd::dispatch!(level => fill_whole(acc, fill));
    // Selection in a whole vector may begin anew, so it has room of its own.
    let (mut indices, mut picked) = (Vec::new(), Vec::new());
    topk_at(level, acc, select, &mut Room::new(&mut indices, &mut picked));
    for i in indices {
        acc[i as usize] = T::ZERO;
        room.indices.push(start + i);
    }
    room.picked.append(&mut picked);
}

#[inline(always)]
fn fill_whole<T>(acc: &mut [T], mut fill: impl FnMut(&mut [T], usize)) {
    fill(acc, 0);
}

fn check<T: Magnitude>(values: usize, select: Select<T>) -> Result<()> {
    if u32::try_from(values).is_err() {
        return Err(Error::bad_input(format!("{values} values are more than 2^32 - 1: select in parts")));
    }
    match select {
        Select::Buckets { bucket: 0, .. } => Err(Error::bad_input("a bucket has at least one value, not 0")),
        Select::AtLeast(t) if t.to_f32().is_nan() => {
            Err(Error::bad_input("a threshold is a number, not NaN"))
        }
        _ => Ok(()),
    }
}

/// With the instructions of a level that the processor has.
fn topk_at<T: Magnitude>(level: Level, values: &[T], select: Select<T>, room: &mut Room<'_, T>) {
    match select {
        Select::Whole { k } => whole(level, values, k.min(values.len()), room),
        Select::Buckets { k, bucket } => {
            with_loops!(level, loops => append_buckets(values, 0, k, bucket, room, loops));
        }
        Select::AtLeast(t) if t.to_f32() <= 0.0 => at_least(level, values, T::ZERO.magnitude(), room),
        Select::AtLeast(t) => at_least(level, values, t.magnitude(), room),
    }
}

fn at_least<T: Magnitude>(level: Level, values: &[T], least: T::Key, room: &mut Room<'_, T>) {
    with_loops!(level, loops => append_all(values, least, room, loops));
}

/// Appends all values of at least that magnitude.
#[inline(always)]
fn append_all<T: Magnitude>(values: &[T], least: T::Key, room: &mut Room<'_, T>, loops: impl Loops<T>) {
    const PART: usize = 4096;
    for (part, start) in values.chunks(PART).zip((0u32..).step_by(PART)) {
        room.append(part.len(), |to| loops.collect(part, start, least, to));
    }
}

/// Values whose magnitudes tell about all.
const SAMPLE: usize = 1 << 14;

fn whole<T: Magnitude>(level: Level, values: &[T], k: usize, room: &mut Room<'_, T>) {
    if k == 0 {
        return;
    }
    let mut sample: Vec<T::Key> = match values.len() {
        few if few <= 4 * SAMPLE => Vec::new(),
        many => (0..SAMPLE).map(|i| values[place(i, many)].magnitude()).collect(),
    };
    // The number of the sample expected above the k-th of all, and four standard deviations more.
    let expected = k as f64 * sample.len() as f64 / values.len() as f64;
    let mut rank = (expected + 4.0 * expected.sqrt() + 4.0) as usize;
    let (zero, one) = (T::Key::of(0), T::Key::of(1));
    while rank < sample.len() {
        let (_, least, _) = sample.select_nth_unstable_by(rank, |a, b| b.cmp(a));
        // In a vector of mostly zeros those are left out as long as there is enough else.
        let least = (*least).max(one);
        at_least(level, values, least, room);
        if room.indices.len() >= k {
            return room.keep_largest(0, k);
        }
        room.clear();
        rank = if least == one { sample.len() } else { rank * 4 };
    }
    if let Some(least) = kth_of_all(values, k).filter(|least| *least > zero) {
        at_least(level, values, least, room);
        return room.keep_largest(0, k);
    }
    // So few are not zero that zeros are chosen too, the first ones.
    let mut zeros = k - values.iter().filter(|v| v.magnitude() > zero).count();
    for (v, i) in values.iter().zip(0..) {
        let is_zero = v.magnitude() == zero;
        if !is_zero || zeros > 0 {
            zeros -= usize::from(is_zero);
            room.indices.push(i);
            room.picked.push(*v);
        }
    }
}

/// The place of the i-th of the sample among `many`: scattered, so that no period of the data is met.
fn place(i: usize, many: usize) -> usize {
    let mut x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    ((u128::from(x ^ x >> 32) * many as u128) >> 64) as usize
}

#[cfg(test)]
mod tests;
