//! The k largest of every bucket.
//!
//! ```text
//! deal the bucket's magnitudes to 16, 32 or 64 groups in turn; take each group's maximum
//! least = the k-th largest maximum      (k groups have a value that large, so k values reach it)
//! candidates = the values that reach it (about 1.4 k if values come in no special order)
//! of the candidates keep the k largest
//! ```
//!
//! The k-th largest of a few numbers is found by comparing each with all: no step waits for another, and
//! nothing branches on the data. Where k is large, or too many values reach the threshold (many are alike),
//! selection takes over: slower, and right for anything.

use super::Magnitude;
use super::loops::{LANES, Loops, Number, SLACK, Slots};
use super::room::Room;
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
    if k == 0 {
        return;
    }
    // Once for all buckets; each asks for its candidates' room again, for nothing.
    let all = (values.len() / bucket).saturating_mul(k).min(values.len());
    room.indices.reserve(all);
    room.picked.reserve(all);
    for (number, some) in values.chunks(bucket).enumerate() {
        let start = start + (number * bucket) as u32;
        match k {
            1..=8 => append_bucket::<T, 1>(some, start, k, room, loops),
            9..=16 => append_bucket::<T, 2>(some, start, k, room, loops),
            17..=FEW => append_bucket::<T, 4>(some, start, k, room, loops),
            _ => append_by_selection(some, start, k, room, loops),
        }
    }
}

/// With `VECTORS` · 16 groups.
#[inline(always)]
fn append_bucket<T: Magnitude, const VECTORS: usize>(
    values: &[T],
    start: u32,
    k: usize,
    room: &mut Room<'_, T>,
    loops: impl Loops<T>,
) {
    let maxima = loops.maxima::<VECTORS>(values);
    let upper: i64 = loops.kth_of_few(&maxima, k).into();
    // Where fewer than k groups have values, all values are candidates.
    let least = T::Key::of(upper.max(0) << T::LOWER_BITS);

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

#[inline(always)]
fn append_by_selection<T: Magnitude>(
    values: &[T],
    start: u32,
    k: usize,
    room: &mut Room<'_, T>,
    loops: impl Loops<T>,
) {
    let before = room.indices.len();
    let least = super::kth_of_all(values, k).unwrap_or(T::Key::of(0));
    room.append(values.len(), |to| loops.collect(values, start, least, to));
    room.keep_largest(before, k);
}
