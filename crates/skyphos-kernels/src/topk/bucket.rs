//! Selection of the k largest values of every bucket.
//!
//! ```text
//! distribute the bucket's magnitudes over groups, round robin:
//!   k up to 4:  16 groups; take the two largest magnitudes of each
//!   above:      32 or 64 groups; take the upper 16 bits of the largest of each
//! threshold = the k-th largest of those     (at least k values reach it)
//! candidates = the values that reach it     (k up to 4: exactly k in 98 of 100 buckets; above: about 1.2 k)
//! keep the k largest candidates
//! ```
//!
//! The k-th largest of a few numbers is found by comparing each with all; the k-th largest of the pairs by merging sorted lists
//! across the lanes. No branch depends on the data. If k is large, or many equal values reach the threshold, a general selection is
//! used, which is slower.

use super::loops::{Loops, MAX_PAIRED};
use super::magnitude::{Key, Magnitude, kth_of_all};
use super::selected::Selected;
use super::slots::{LANES, OVERRUN, Slots};
use std::mem::MaybeUninit;

/// The largest k for which the maxima of groups are faster than general selection.
const MAX_GROUPED: usize = 32;

/// Largest number of candidates for which each is compared with all others.
const MAX_COMPARED: usize = 8 * LANES;

#[inline(always)]
pub(super) fn append_buckets<T: Magnitude>(
    values: &[T],
    start: u32,
    k: usize,
    bucket: usize,
    selected: &mut Selected<'_, T>,
    loops: impl Loops<T>,
) {
    reserve(values.len(), k, bucket, selected);
    for (part, start) in values.chunks(bucket).zip((start..).step_by(bucket)) {
        append_reaching(part, start, k, threshold_of(part, k, loops), selected, loops);
    }
}

/// As [`append_buckets`], and clears the appended values in `values`. Before a bucket is searched, `fill` is called with it and
/// its offset.
///
/// A bucket's values are appended after the next bucket was filled, while that one's threshold is computed. So the processor has
/// work while it waits for memory, and detects mispredicted branches early.
#[inline(always)]
pub(super) fn take_buckets<T: Magnitude>(
    values: &mut [T],
    start: u32,
    k: usize,
    bucket: usize,
    selected: &mut Selected<'_, T>,
    mut fill: impl FnMut(&mut [T], usize),
    loops: impl Loops<T>,
) {
    reserve(values.len(), k, bucket, selected);
    let mut take = |(part, at, threshold): (&mut [T], usize, T::Key)| {
        let (start, before) = (start + at as u32, selected.indices.len());
        append_reaching(part, start, k, threshold, selected, loops);
        for index in &selected.indices[before..] {
            part[(index - start) as usize] = T::ZERO;
        }
    };
    let mut previous = None;
    for (part, at) in values.chunks_mut(bucket).zip((0..).step_by(bucket)) {
        fill(part, at);
        let threshold = threshold_of(part, k, loops);
        if let Some(previous) = previous.replace((part, at, threshold)) {
            take(previous);
        }
    }
    if let Some(previous) = previous {
        take(previous);
    }
}

/// Reserves memory for all buckets, so that the reservations of single buckets allocate nothing.
#[inline(always)]
fn reserve<T>(count: usize, k: usize, bucket: usize, selected: &mut Selected<'_, T>) {
    let all = (count / bucket).saturating_mul(k).min(count);
    selected.indices.reserve(all);
    selected.picked.reserve(all);
}

/// A magnitude that at least k values of a bucket reach, but not many more; 0 if the bucket has fewer than k values.
#[inline(always)]
fn threshold_of<T: Magnitude>(values: &[T], k: usize, loops: impl Loops<T>) -> T::Key {
    let threshold = match k {
        0 => T::Key::from_i64(0),
        1..=MAX_PAIRED => loops.kth_of_pairs(values, k),
        5..=16 => kth_of_maxima::<T, 2>(values, k, loops),
        17..=MAX_GROUPED => kth_of_maxima::<T, 4>(values, k, loops),
        _ => kth_of_all(values, k).unwrap_or(T::Key::from_i64(0)),
    };
    // If fewer than k groups have values, all values are candidates.
    threshold.max(T::Key::from_i64(0))
}

/// The upper bits of the k-th largest maximum of `VECTORS` · 16 groups.
#[inline(always)]
fn kth_of_maxima<T: Magnitude, const VECTORS: usize>(values: &[T], k: usize, loops: impl Loops<T>) -> T::Key {
    let maxima = loops.maxima::<VECTORS>(values);
    let upper: i64 = loops.kth_of_few(&maxima, k).into();
    T::Key::from_i64(upper << T::LOWER_BITS)
}

/// Appends the k largest of the values that reach the threshold.
#[inline(always)]
fn append_reaching<T: Magnitude>(
    values: &[T],
    start: u32,
    k: usize,
    threshold: T::Key,
    selected: &mut Selected<'_, T>,
    loops: impl Loops<T>,
) {
    if k == 0 {
        return;
    }
    let before = selected.indices.len();
    // SAFETY: `Loops` promises that `collect` writes as many as it returns.
    let count = unsafe { selected.append(values.len(), |to| loops.collect(values, start, threshold, to)) };
    if count <= k {
        return;
    }
    if count > MAX_COMPARED {
        return selected.keep_largest(before, k);
    }
    let mut keys = [[T::Key::from_i64(-1); LANES]; MAX_COMPARED / LANES];
    let flat = keys.as_flattened_mut().iter_mut();
    flat.zip(&selected.picked[before..]).for_each(|(key, v)| *key = v.magnitude());
    let kth = loops.kth_of_few(&keys[..count.div_ceil(LANES)], k);
    keep_k(selected, before, kth, k, loops);
}

/// Keeps the k largest of the candidates from `before` on; the k-th largest has magnitude `kth`.
#[inline(always)]
fn keep_k<T: Magnitude>(
    selected: &mut Selected<'_, T>,
    before: usize,
    kth: T::Key,
    k: usize,
    loops: impl Loops<T>,
) {
    const CAPACITY: usize = MAX_COMPARED + OVERRUN;
    let (mut positions, mut kept) = ([MaybeUninit::uninit(); CAPACITY], [MaybeUninit::uninit(); CAPACITY]);
    let slots = Slots { indices: &mut positions, picked: &mut kept };
    if loops.collect(&selected.picked[before..], 0, kth, slots) != k {
        return selected.keep_from(before, kth, k);
    }
    let (indices, picked) = (&mut selected.indices[before..], &mut selected.picked[before..]);
    for (to, (position, v)) in positions.iter().zip(&kept).enumerate().take(k) {
        // SAFETY: `Loops` promises that `collect` has written `k` positions and values.
        let (from, v) = unsafe { (position.assume_init() as usize, v.assume_init()) };
        indices[to] = indices[from];
        picked[to] = v;
    }
    selected.indices.truncate(before + k);
    selected.picked.truncate(before + k);
}
