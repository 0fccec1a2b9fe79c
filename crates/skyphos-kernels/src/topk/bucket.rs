//! Selection of the k largest values of every bucket.
//!
//! ```text
//! deal the bucket's magnitudes to groups in turn:
//!   k up to 4:  16 groups; take the two largest of each, whole
//!   above:      32 or 64 groups; take the largest of each, its upper 16 bits
//! least = the k-th largest of those     (k groups have a value that large, so at least k values reach it)
//! candidates = the values that reach it (by pairs exactly k, except in 1 or 2 of 100 buckets; else about 1.2 k)
//! of the candidates keep the k largest
//! ```
//!
//! The k-th largest of a few numbers is found by comparing each with all, that of pairs by merging ordered lists across the
//! lanes: no branch depends on the data. Where k is large, or too many values reach the threshold since many are equal,
//! a general selection takes over, which is slower.

use super::loops::{Loops, PAIRED};
use super::magnitude::{Magnitude, Number, kth_of_all};
use super::selected::Selected;
use super::slots::{LANES, SLACK, Slots};
use std::mem::MaybeUninit;

/// The largest k for which the maxima of groups are faster than general selection.
const FEW: usize = 32;

/// Candidates up to which each one is compared with all others.
const CANDIDATES: usize = 8 * LANES;

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
    for (some, start) in values.chunks(bucket).zip((start..).step_by(bucket)) {
        append_reaching(some, start, k, least_of(some, k, loops), selected, loops);
    }
}

/// As [`append_buckets`], and clears the appended values in `values`. Before a bucket is searched, `fill` is called with it and
/// its offset.
///
/// A bucket's values are appended after the next bucket was filled and while its threshold is computed. So the processor has work
/// while it waits for memory, and finds mispredicted branches early.
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
    let mut take = |(some, at, least): (&mut [T], usize, T::Key)| {
        let (start, before) = (start + at as u32, selected.indices.len());
        append_reaching(some, start, k, least, selected, loops);
        for index in &selected.indices[before..] {
            some[(index - start) as usize] = T::ZERO;
        }
    };
    let mut last = None;
    for (some, at) in values.chunks_mut(bucket).zip((0..).step_by(bucket)) {
        fill(some, at);
        let least = least_of(some, k, loops);
        if let Some(last) = last.replace((some, at, least)) {
            take(last);
        }
    }
    if let Some(last) = last {
        take(last);
    }
}

/// Reserves memory for all buckets, so that the reservations of single buckets allocate nothing.
#[inline(always)]
fn reserve<T>(count: usize, k: usize, bucket: usize, selected: &mut Selected<'_, T>) {
    let all = (count / bucket).saturating_mul(k).min(count);
    selected.indices.reserve(all);
    selected.picked.reserve(all);
}

/// A magnitude that at least k values of a bucket reach, and not many more; 0 if there are fewer than k values.
#[inline(always)]
fn least_of<T: Magnitude>(values: &[T], k: usize, loops: impl Loops<T>) -> T::Key {
    let least = match k {
        0 => T::Key::of(0),
        1..=PAIRED => loops.kth_of_pairs(values, k),
        5..=16 => kth_of::<T, 2>(values, k, loops),
        17..=FEW => kth_of::<T, 4>(values, k, loops),
        _ => kth_of_all(values, k).unwrap_or(T::Key::of(0)),
    };
    // If fewer than k groups have values, all values are candidates.
    least.max(T::Key::of(0))
}

/// The upper bits of the k-th largest maximum of `VECTORS` · 16 groups.
#[inline(always)]
fn kth_of<T: Magnitude, const VECTORS: usize>(values: &[T], k: usize, loops: impl Loops<T>) -> T::Key {
    let maxima = loops.maxima::<VECTORS>(values);
    let upper: i64 = loops.kth_of_few(&maxima, k).into();
    T::Key::of(upper << T::LOWER_BITS)
}

/// Appends the k largest of the values that reach a magnitude.
#[inline(always)]
fn append_reaching<T: Magnitude>(
    values: &[T],
    start: u32,
    k: usize,
    least: T::Key,
    selected: &mut Selected<'_, T>,
    loops: impl Loops<T>,
) {
    if k == 0 {
        return;
    }
    let before = selected.indices.len();
    // SAFETY: `Loops` promises that `collect` writes as many as it returns.
    let count = unsafe { selected.append(values.len(), |to| loops.collect(values, start, least, to)) };
    if count <= k {
        return;
    }
    if count > CANDIDATES {
        return selected.keep_largest(before, k);
    }
    let mut keys = [[T::Key::of(-1); LANES]; CANDIDATES / LANES];
    let flat = keys.as_flattened_mut().iter_mut();
    flat.zip(&selected.picked[before..]).for_each(|(key, v)| *key = v.magnitude());
    let kth = loops.kth_of_few(&keys[..count.div_ceil(LANES)], k);
    keep(selected, before, kth, k, loops);
}

/// Keeps the k largest of the candidates from `before` on; the k-th largest has magnitude `kth`.
#[inline(always)]
fn keep<T: Magnitude>(
    selected: &mut Selected<'_, T>,
    before: usize,
    kth: T::Key,
    k: usize,
    loops: impl Loops<T>,
) {
    const ROOM: usize = CANDIDATES + SLACK;
    let (mut places, mut kept) = ([MaybeUninit::uninit(); ROOM], [MaybeUninit::uninit(); ROOM]);
    let slots = Slots { indices: &mut places, picked: &mut kept };
    if loops.collect(&selected.picked[before..], 0, kth, slots) != k {
        return selected.keep_from(before, kth, k);
    }
    let (indices, picked) = (&mut selected.indices[before..], &mut selected.picked[before..]);
    for (to, (place, v)) in places.iter().zip(&kept).enumerate().take(k) {
        // SAFETY: `Loops` promises that `collect` has written `k` of both.
        let (from, v) = unsafe { (place.assume_init() as usize, v.assume_init()) };
        indices[to] = indices[from];
        picked[to] = v;
    }
    selected.indices.truncate(before + k);
    selected.picked.truncate(before + k);
}
