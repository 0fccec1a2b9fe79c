//! The k largest of every bucket.
//!
//! ```text
//! deal the bucket's magnitudes to groups in turn:
//!   k up to 4:  16 groups; take the two largest of each, whole
//!   above:      32 or 64 groups; take the largest of each, its upper 16 bits
//! least = the k-th largest of those     (so many groups have a value that large, so k values reach it)
//! candidates = the values that reach it (with pairs exactly k but in 1 or 2 of 100 buckets; else about 1.2 k)
//! of the candidates keep the k largest
//! ```
//!
//! The k-th largest of a few numbers is found by comparing each with all, that of pairs by merging ordered lists across the
//! lanes: nothing branches on the data. Where k is large, or too many values reach the threshold (many are alike),
//! selection takes over: slower, and right for anything.

use super::loops::{Loops, PAIRED};
use super::magnitude::{Magnitude, Number, kth_of_all};
use super::room::Room;
use super::slots::{LANES, SLACK, Slots};
use std::mem::MaybeUninit;

/// The largest k for which maxima of groups are worth finding.
const FEW: usize = 32;

/// Candidates up to which each is compared with all.
const CANDIDATES: usize = 8 * LANES;

#[inline(always)]
pub(super) fn append_buckets<T: Magnitude>(
    values: &[T],
    start: u32,
    k: usize,
    bucket: usize,
    room: &mut Room<'_, T>,
    loops: impl Loops<T>,
) {
    reserve(values.len(), k, bucket, room);
    for (some, start) in values.chunks(bucket).zip((start..).step_by(bucket)) {
        append_reaching(some, start, k, least_of(some, k, loops), room, loops);
    }
}

/// As [`append_buckets`]; what is appended is cleared in `values`. Before that `fill` gets each bucket and its place.
///
/// A bucket's values are appended when the next one has been filled and its threshold is on its way: so the processor waits for
/// memory and goes on with one that it has, and a branch that goes another way than foreseen is known soon.
#[inline(always)]
pub(super) fn take_buckets<T: Magnitude>(
    values: &mut [T],
    start: u32,
    k: usize,
    bucket: usize,
    room: &mut Room<'_, T>,
    mut fill: impl FnMut(&mut [T], usize),
    loops: impl Loops<T>,
) {
    reserve(values.len(), k, bucket, room);
    let mut take = |(some, at, least): (&mut [T], usize, T::Key)| {
        let (start, before) = (start + at as u32, room.indices.len());
        append_reaching(some, start, k, least, room, loops);
        for index in &room.indices[before..] {
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

/// Room for all at once; each bucket asks for its candidates' room again, for nothing.
#[inline(always)]
fn reserve<T>(count: usize, k: usize, bucket: usize, room: &mut Room<'_, T>) {
    let all = (count / bucket).saturating_mul(k).min(count);
    room.indices.reserve(all);
    room.picked.reserve(all);
}

/// A magnitude that at least k values of a bucket reach, and not many more; 0 where there are no k values.
#[inline(always)]
fn least_of<T: Magnitude>(values: &[T], k: usize, loops: impl Loops<T>) -> T::Key {
    let least = match k {
        0 => T::Key::of(0),
        1..=PAIRED => loops.kth_of_pairs(values, k),
        5..=16 => kth_of::<T, 2>(values, k, loops),
        17..=FEW => kth_of::<T, 4>(values, k, loops),
        _ => kth_of_all(values, k).unwrap_or(T::Key::of(0)),
    };
    // Where fewer than k groups have values, all values are candidates.
    least.max(T::Key::of(0))
}

/// The k-th of the maxima of `VECTORS` · 16 groups, of which the upper bits count.
#[inline(always)]
fn kth_of<T: Magnitude, const VECTORS: usize>(values: &[T], k: usize, loops: impl Loops<T>) -> T::Key {
    let maxima = loops.maxima::<VECTORS>(values);
    let upper: i64 = loops.kth_of_few(&maxima, k).into();
    T::Key::of(upper << T::LOWER_BITS)
}

/// Of the values that reach a magnitude keeps the k largest.
#[inline(always)]
fn append_reaching<T: Magnitude>(
    values: &[T],
    start: u32,
    k: usize,
    least: T::Key,
    room: &mut Room<'_, T>,
    loops: impl Loops<T>,
) {
    if k == 0 {
        return;
    }
    let before = room.indices.len();
    let count = room.append(values.len(), |to| loops.collect(values, start, least, to));
    if count <= k {
        return;
    }
    if count > CANDIDATES {
        return room.keep_largest(before, k);
    }
    let mut keys = [[T::Key::of(-1); LANES]; CANDIDATES / LANES];
    let flat = keys.as_flattened_mut().iter_mut();
    flat.zip(&room.picked[before..]).for_each(|(key, v)| *key = v.magnitude());
    let kth = loops.kth_of_few(&keys[..count.div_ceil(LANES)], k);
    keep(room, before, kth, k, loops);
}

/// Of the candidates from `before` on keeps the k largest; the k-th has magnitude `kth`.
#[inline(always)]
fn keep<T: Magnitude>(room: &mut Room<'_, T>, before: usize, kth: T::Key, k: usize, loops: impl Loops<T>) {
    const ROOM: usize = CANDIDATES + SLACK;
    let (mut places, mut kept) = ([MaybeUninit::uninit(); ROOM], [MaybeUninit::uninit(); ROOM]);
    let slots = Slots { indices: &mut places, picked: &mut kept };
    if loops.collect(&room.picked[before..], 0, kth, slots) != k {
        return room.keep_from(before, kth, k);
    }
    let (indices, picked) = (&mut room.indices[before..], &mut room.picked[before..]);
    for (to, (place, v)) in places.iter().zip(&kept).enumerate().take(k) {
        // SAFETY: `collect` has written `k` of both.
        let (from, v) = unsafe { (place.assume_init() as usize, v.assume_init()) };
        indices[to] = indices[from];
        picked[to] = v;
    }
    room.indices.truncate(before + k);
    room.picked.truncate(before + k);
}
