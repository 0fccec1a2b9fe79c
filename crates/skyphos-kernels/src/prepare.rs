//! From a user's indices to a set in hash order, and the way back.
//!
//! Sorted distinct indices (the fast path) need one pass to find the blocks and a sort of the blocks
//! alone; any others are sorted whole. Cost: O(len) plus a radix sort of the blocks or indices.

use crate::block::{BLOCK_BITS, Block, IndexSet};
use crate::hash::BlockHash;
use crate::permutation::{Builder, Permutation};
use crate::radix::sort_by_key;
use skyphos_types::{Error, Result};

/// An integer type that users write indices in.
pub trait Index: Copy + PartialOrd + Send + Sync + std::fmt::Display {
    /// As an unsigned 64-bit number; `None` if negative.
    fn get(self) -> Option<u64>;
}

macro_rules! index {
    ($($t:ty),*) => {$(
        impl Index for $t {
            #[inline(always)]
            #[allow(clippy::useless_conversion, reason = "u64 to u64 in one of four instances")]
            fn get(self) -> Option<u64> { u64::try_from(self).ok() }
        }
    )*};
}
index!(i32, i64, u32, u64);

/// A user's indices, of whichever integer type.
#[derive(Clone, Copy, Debug)]
pub enum Indices<'a> {
    /// int32
    I32(&'a [i32]),
    /// int64
    I64(&'a [i64]),
    /// uint32
    U32(&'a [u32]),
    /// uint64
    U64(&'a [u64]),
}

macro_rules! indices_from {
    ($($variant:ident: $t:ty),*) => {$(
        impl<'a> From<&'a [$t]> for Indices<'a> {
            fn from(slice: &'a [$t]) -> Indices<'a> { Indices::$variant(slice) }
        }
        impl<'a> From<&'a Vec<$t>> for Indices<'a> {
            fn from(list: &'a Vec<$t>) -> Indices<'a> { Indices::$variant(list) }
        }
        impl<'a, const N: usize> From<&'a [$t; N]> for Indices<'a> {
            fn from(list: &'a [$t; N]) -> Indices<'a> { Indices::$variant(list) }
        }
    )*};
}
indices_from!(I32: i32, I64: i64, U32: u32, U64: u64);

macro_rules! with_indices {
    ($indices:expr, $slice:ident => $body:expr) => {
        match $indices {
            Indices::I32($slice) => $body,
            Indices::I64($slice) => $body,
            Indices::U32($slice) => $body,
            Indices::U64($slice) => $body,
        }
    };
}

impl Indices<'_> {
    /// How many, repeats included.
    pub fn len(self) -> usize {
        with_indices!(self, slice => slice.len())
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// One more than the largest (negative ones aside).
    pub fn end(self) -> u64 {
        with_indices!(self, slice => slice.iter().filter_map(|i| i.get()).max().map_or(0, |i| i.saturating_add(1)))
    }

    /// Whether both are the very same memory.
    pub fn is_same_memory(self, other: Indices<'_>) -> bool {
        let place = |indices: Indices<'_>| with_indices!(indices, slice => slice.as_ptr().cast::<u8>());
        self.len() == other.len()
            && std::mem::discriminant(&self) == std::mem::discriminant(&other)
            && place(self) == place(other)
    }

    /// [`prepare`] for the type at hand.
    pub fn prepare(self, n: u64, hash: BlockHash, what: &str) -> Result<Prepared> {
        with_indices!(self, slice => prepare(slice, n, hash, what))
    }
}

/// A user's indices as a set.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// The distinct indices, in hash order.
    pub set: IndexSet,
    /// For each position of the set, the place of that index in the user's array (the first, if it
    /// stands there more than once).
    pub order: Permutation,
    /// (place of the first, place of a repeat) for indices that stand there more than once, by
    /// position, then by place.
    pub repeats: Vec<(u32, u32)>,
}

/// Checks and prepares indices of the space `0..n`.
pub fn prepare<I: Index>(indices: &[I], n: u64, hash: BlockHash, what: &str) -> Result<Prepared> {
    if indices.len() >= u32::MAX as usize {
        return Err(Error::bad_input(format!(
            "{what} has {} indices; one rank takes at most 2^32 - 2",
            indices.len()
        )));
    }
    match blocks_if_ascending(indices, n, what)? {
        Some(runs) => Ok(sort_blocks(&runs, hash)),
        None => Ok(sort_indices(indices, hash)),
    }
}

/// A block as it stands in the user's array.
#[derive(Clone, Copy)]
struct Run {
    block: u64,
    mask: u64,
    start: u32,
}

/// Checks the range; the runs of equal block if the indices are strictly ascending.
fn blocks_if_ascending<I: Index>(indices: &[I], n: u64, what: &str) -> Result<Option<Vec<Run>>> {
    let ascending = ascends(indices);
    // Of ascending indices the ends tell.
    let ends = [indices.len().saturating_sub(1), 0];
    let suspects = if ascending { ends[..indices.len().min(2)].iter() } else { [].iter() };
    let all = if ascending { 0..0 } else { 0..indices.len() };
    for place in suspects.copied().chain(all) {
        if indices[place].get().is_none_or(|i| i >= n) {
            let place = indices.iter().position(|i| i.get().is_none_or(|i| i >= n)).unwrap_or(place);
            return Err(Error::bad_input(format!(
                "{what}[{place}] = {} is outside the index space 0 <= index < n = {n}",
                indices[place]
            )));
        }
    }
    if !ascending {
        return Ok(None);
    }
    // Every index writes its block's run anew, so that nothing depends on where blocks end.
    let most = (indices.len() as u64).min(n.div_ceil(64)) as usize;
    let mut runs = vec![Run { block: u64::MAX, mask: 0, start: 0 }; most + 1];
    let (mut k, mut run) = (0, Run { block: u64::MAX, mask: 0, start: 0 });
    for (place, index) in indices.iter().enumerate() {
        let i = index.get().expect("checked");
        let block = i >> BLOCK_BITS;
        let fresh = block != run.block;
        k += usize::from(fresh);
        run = Run {
            block,
            mask: (run.mask & u64::from(fresh).wrapping_sub(1)) | 1 << (i & 63),
            start: if fresh { place as u32 } else { run.start },
        };
        runs[k] = run;
    }
    runs.truncate(k + 1);
    Ok(Some(runs))
}

/// Whether each index is greater than the one before (and none negative).
fn ascends<I: Index>(indices: &[I]) -> bool {
    indices.first().is_none_or(|i| i.get().is_some())
        && indices
            .chunks(1024)
            .zip(indices.get(1..).unwrap_or(&[]).chunks(1024))
            .all(|(a, b)| a.iter().zip(b).fold(true, |all, (x, y)| all & (x < y)))
}

/// `runs[0]` stands for no block.
fn sort_blocks(runs: &[Run], hash: BlockHash) -> Prepared {
    let runs = &runs[1..];
    let mut blocks = Vec::with_capacity(runs.len());
    let mut order = Builder::default();
    let mut emit = |id: u64, run: &Run| {
        blocks.push(Block { id, mask: run.mask });
        order.push(run.start, run.mask.count_ones());
    };
    if hash.bits() <= 32 {
        let mut words: Vec<u64> =
            runs.iter().enumerate().map(|(k, r)| hash.forward(r.block) << 32 | k as u64).collect();
        sort_by_key(&mut words, hash.bits());
        words.iter().for_each(|w| emit(w >> 32, &runs[*w as u32 as usize]));
    } else {
        let mut keyed: Vec<(u64, u32)> =
            runs.iter().enumerate().map(|(k, r)| (hash.forward(r.block), k as u32)).collect();
        keyed.sort_unstable();
        keyed.iter().for_each(|(id, k)| emit(*id, &runs[*k as usize]));
    }
    Prepared { set: IndexSet::new(blocks), order: order.finish(), repeats: Vec::new() }
}

fn sort_indices<I: Index>(indices: &[I], hash: BlockHash) -> Prepared {
    let hashed = |index: &I| {
        let i = index.get().expect("checked");
        hash.forward(i >> BLOCK_BITS) << BLOCK_BITS | (i & 63)
    };
    let key_bits = hash.bits() + BLOCK_BITS;
    let sorted: Vec<(u64, u32)> = if key_bits <= 32 {
        let mut words: Vec<u64> =
            indices.iter().enumerate().map(|(place, i)| hashed(i) << 32 | place as u64).collect();
        sort_by_key(&mut words, key_bits);
        words.into_iter().map(|w| (w >> 32, w as u32)).collect()
    } else {
        let mut keyed: Vec<(u64, u32)> =
            indices.iter().enumerate().map(|(place, i)| (hashed(i), place as u32)).collect();
        keyed.sort_unstable();
        keyed
    };
    let mut blocks: Vec<Block> = Vec::new();
    let (mut order, mut repeats): (Vec<u32>, Vec<(u32, u32)>) =
        (Vec::with_capacity(sorted.len()), Vec::new());
    let mut last = None;
    for (key, place) in sorted {
        if last == Some(key) {
            repeats.push((*order.last().expect("a first occurrence"), place));
            continue;
        }
        last = Some(key);
        let (id, bit) = (key >> BLOCK_BITS, 1 << (key & 63));
        match blocks.last_mut() {
            Some(block) if block.id == id => block.mask |= bit,
            _ => blocks.push(Block { id, mask: bit }),
        }
        order.push(place);
    }
    Prepared { set: IndexSet::new(blocks), order: Permutation::Each(order), repeats }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Plain oracle: a sorted map from (hashed block, bit) to places.
    fn oracle(indices: &[i64], hash: BlockHash) -> BTreeMap<(u64, u32), Vec<u32>> {
        let mut map: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for (place, i) in indices.iter().enumerate() {
            map.entry((hash.forward(*i as u64 / 64), (*i % 64) as u32)).or_default().push(place as u32);
        }
        map
    }

    fn check(indices: &[i64], n: u64) {
        let hash = BlockHash::new(n, 3);
        let got = prepare(indices, n, hash, "contribute").unwrap();
        let want = oracle(indices, hash);
        assert_eq!(got.set.elements().collect::<Vec<_>>(), want.keys().copied().collect::<Vec<_>>());
        assert_eq!(got.order.to_vec(), want.values().map(|p| p[0]).collect::<Vec<_>>());
        let repeats: Vec<_> = want.values().flat_map(|p| p[1..].iter().map(|q| (p[0], *q))).collect();
        assert_eq!(got.repeats, repeats);
    }

    proptest! {
        #[test]
        fn as_the_oracle(n_bits in 1u32..63, raw in prop::collection::vec(any::<u64>(), 0..600), sort: bool) {
            let n = 1u64 << n_bits;
            let mut indices: Vec<i64> = raw.iter().map(|r| (r % n) as i64).collect();
            if sort {
                indices.sort_unstable();
                indices.dedup();
            }
            check(&indices, n);
        }
    }

    #[test]
    fn bad_indices_are_named() {
        let hash = BlockHash::new(10, 1);
        let text = prepare(&[1i32, -3], 10, hash, "want").unwrap_err().to_string();
        assert!(text.contains("want[1] = -3"), "{text}");
        let text = prepare(&[1u64, 10], 10, hash, "want").unwrap_err().to_string();
        assert!(text.contains("want[1] = 10") && text.contains("n = 10"), "{text}");
        assert!(prepare::<i64>(&[], 10, hash, "want").unwrap().set.is_empty());
        check(&[(1 << 62) + 5, 3], 1 << 63);
    }
}
