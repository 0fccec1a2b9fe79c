//! Preparation of the caller's indices: a set in hash order, and the permutation back to the caller's order.
//!
//! Sorted distinct indices (the fast path) need one pass to find the blocks and a sort of the blocks
//! alone; any others are sorted whole. Cost: O(len) plus a radix sort of the blocks or indices.

use crate::block::{BLOCK_BITS, Block, IndexSet};
use crate::hash::BlockHash;
use crate::index::{Index, Indices};
use crate::permutation::{Builder, Permutation};
use crate::radix::sort_by_key;
use crate::runs::Runs;
use crate::simd;
use crate::union::MAX_TABLE_RATIO;
use crate::with_indices;
use skyphos_types::{Error, Result};

impl Indices<'_> {
    /// [`prepare`] for the type of these indices.
    pub fn prepare(self, n: u64, hash: BlockHash, what: &str) -> Result<Prepared> {
        with_indices!(self, slice => prepare(slice, n, hash, what))
    }
}

/// The caller's indices as a set.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// The distinct indices, in hash order.
    pub set: IndexSet,
    /// For each position of the set, the place of that index in the caller's array (the first, if it is repeated).
    pub order: Permutation,
    /// (place of the first, place of a repeat) for repeated indices, by position, then by place.
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
    let ascending = simd::dispatch!(blocks_if_ascending(indices));
    check_range(indices, ascending.is_some(), n, what)?;
    let Some(blocks) = ascending else {
        return Ok(sort_indices(indices, hash));
    };
    match hash.range() / MAX_TABLE_RATIO < blocks as u64 {
        true => Ok(place_blocks(indices, blocks, hash)),
        false => {
            let mut runs = Runs::with_room(blocks);
            runs.find(indices, 0);
            Ok(sort_blocks(&runs, hash))
        }
    }
}

fn check_range<I: Index>(indices: &[I], ascending: bool, n: u64, what: &str) -> Result<()> {
    let outside = |i: &I| i.get().is_none_or(|i| i >= n);
    // If indices ascend, only the first and the last can be outside.
    let bad = match ascending {
        true => indices.first().is_some_and(outside) || indices.last().is_some_and(outside),
        false => indices.iter().any(outside),
    };
    match indices.iter().position(outside).filter(|_| bad) {
        None => Ok(()),
        Some(place) => Err(Error::bad_input(format!(
            "{what}[{place}] = {} is outside the index space 0 <= index < n = {n}",
            indices[place]
        ))),
    }
}

/// Indices that are processed together, so that their runs stay in the L1 cache.
const PIECE: usize = 512;

/// Ascending indices that fill the index space well are sorted by putting every block in its place.
fn place_blocks<I: Index>(indices: &[I], count: usize, hash: BlockHash) -> Prepared {
    let range = hash.range() as usize;
    let mut masks = vec![0u64; range];
    // The complement of each block's first place: 0 means none, and a larger one is earlier.
    let mut places = vec![0u32; range];
    let (mut runs, mut ids) = (Runs::with_room(PIECE), [0u64; PIECE]);
    for (k, piece) in indices.chunks(PIECE).enumerate() {
        runs.find(piece, (k * PIECE) as u32);
        simd::dispatch!(place_piece(&runs, hash, &mut ids, &mut masks, &mut places));
    }
    simd::dispatch!(collect_blocks(&masks, &places, count))
}

#[inline(always)]
fn place_piece(runs: &Runs, hash: BlockHash, ids: &mut [u64; PIECE], masks: &mut [u64], places: &mut [u32]) {
    for (id, block) in ids.iter_mut().zip(runs.blocks()) {
        *id = hash.forward(*block);
    }
    for ((id, mask), start) in ids.iter().zip(runs.masks()).zip(runs.starts()) {
        let id = *id as usize;
        masks[id] |= mask;
        places[id] = places[id].max(!start);
    }
}

/// Collects the blocks that have indices. A block without indices is written, too, and the next block overwrites it.
#[inline(always)]
fn collect_blocks(masks: &[u64], places: &[u32], count: usize) -> Prepared {
    let mut blocks = vec![Block::default(); count + 1];
    let mut base = vec![0; count + 2];
    let mut order = Builder::for_runs(count + 1);
    let (mut k, mut position) = (0, 0);
    for ((id, mask), place) in (0..).zip(masks).zip(places) {
        let indices = mask.count_ones();
        blocks[k] = Block { id, mask: *mask };
        base[k] = position;
        order.push(!place, indices);
        k += usize::from(*mask != 0);
        position += indices;
    }
    base[k] = position;
    blocks.truncate(count);
    base.truncate(count + 1);
    Prepared { set: IndexSet::from_parts(blocks, base), order: order.finish(), repeats: Vec::new() }
}

/// The number of blocks that the indices lie in, if each is greater than the one before (and none negative).
#[inline(always)]
fn blocks_if_ascending<I: Index>(indices: &[I]) -> Option<usize> {
    let Some(first) = indices.first() else { return Some(0) };
    first.get()?;
    let mut blocks = 1;
    for (a, b) in indices.chunks(1024).zip(indices[1..].chunks(1024)) {
        let mut ascending = true;
        for (x, y) in a.iter().zip(b) {
            ascending &= x < y;
            blocks += usize::from(x.block() != y.block());
        }
        if !ascending {
            return None;
        }
    }
    Some(blocks)
}

/// Sorts blocks by the hash of their granule; the blocks of a granule stay in order.
fn sort_blocks(runs: &Runs, hash: BlockHash) -> Prepared {
    let (low, numbers, starts) = (hash.granule_log2(), runs.blocks(), runs.starts());
    // The runs with which granules begin.
    let mut firsts = vec![0u32; runs.len() + 1];
    let (mut count, mut granule) = (0, u64::MAX);
    for (k, block) in numbers.iter().enumerate() {
        firsts[count] = k as u32;
        count += usize::from(block >> low != granule);
        granule = block >> low;
    }
    firsts.truncate(count);
    let hashed = |first: u32| hash.forward(numbers[first as usize]) >> low;
    let mut blocks = Vec::with_capacity(runs.len());
    let mut order = Builder::for_runs(count);
    let mut emit = |granule: u64, g: usize| {
        let (first, end) = (firsts[g] as usize, firsts.get(g + 1).map_or(runs.len(), |k| *k as usize));
        for (k, number) in (first..end).zip(&numbers[first..end]) {
            blocks.push(Block { id: granule << low | hash.keep(*number), mask: runs.mask(k) });
        }
        order.push(starts[first], starts[end] - starts[first]);
    };
    if hash.bits() - low <= 32 {
        let mut words: Vec<u64> =
            firsts.iter().enumerate().map(|(g, first)| hashed(*first) << 32 | g as u64).collect();
        sort_by_key(&mut words, hash.bits() - low);
        words.iter().for_each(|w| emit(w >> 32, *w as u32 as usize));
    } else {
        let mut keyed: Vec<(u64, u32)> =
            firsts.iter().enumerate().map(|(g, first)| (hashed(*first), g as u32)).collect();
        keyed.sort_unstable();
        keyed.iter().for_each(|(granule, g)| emit(*granule, *g as usize));
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

    /// Oracle: a sorted map from (hashed block, bit) to places.
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
