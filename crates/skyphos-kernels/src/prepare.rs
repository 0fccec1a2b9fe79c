//! Preparation of the caller's indices: a set in hash order, and the permutation back to the caller's order.
//!
//! Sorted distinct indices (the fast path) need one pass to find the blocks and a sort of the blocks
//! alone; other indices are sorted one by one. Cost: O(len) plus a radix sort of the blocks or indices.

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
    pub fn prepare(self, n: u64, hash: BlockHash, name: &str) -> Result<Prepared> {
        with_indices!(self, slice => prepare(slice, n, hash, name))
    }
}

/// The caller's indices as a set.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// The distinct indices, in hash order.
    pub set: IndexSet,
    /// For each position of the set, the offset of its index in the caller's array (the first one, if it is repeated).
    pub order: Permutation,
    /// For each repeat of an index: the offsets of its first occurrence and of the repeat. Ordered by position, then by offset.
    pub repeats: Vec<(u32, u32)>,
}

/// Checks and prepares indices of the space `0..n`; `name` is the argument's name in errors.
pub fn prepare<I: Index>(indices: &[I], n: u64, hash: BlockHash, name: &str) -> Result<Prepared> {
    if indices.len() >= u32::MAX as usize {
        return Err(Error::bad_input(format!(
            "{name} has {} indices; one rank takes at most 2^32 - 2",
            indices.len()
        )));
    }
    let ascending = simd::dispatch!(blocks_if_ascending(indices));
    check_range(indices, ascending.is_some(), n, name)?;
    let Some(blocks) = ascending else {
        return Ok(sort_indices(indices, hash));
    };
    match hash.range() / MAX_TABLE_RATIO < blocks as u64 {
        true => Ok(sort_dense(indices, blocks, hash)),
        false => {
            let mut runs = Runs::with_capacity(blocks);
            runs.find(indices, 0);
            Ok(sort_blocks(&runs, hash))
        }
    }
}

fn check_range<I: Index>(indices: &[I], ascending: bool, n: u64, name: &str) -> Result<()> {
    let outside = |i: &I| i.get().is_none_or(|i| i >= n);
    // If indices ascend, some are outside only if the first or the last is.
    let bad = match ascending {
        true => indices.first().is_some_and(outside) || indices.last().is_some_and(outside),
        false => indices.iter().any(outside),
    };
    match indices.iter().position(outside).filter(|_| bad) {
        None => Ok(()),
        Some(offset) => Err(Error::bad_input(format!(
            "{name}[{offset}] = {} is outside the index space 0 <= index < n = {n}",
            indices[offset]
        ))),
    }
}

/// Indices that are processed together, so that their runs stay in the L1 cache.
const BATCH: usize = 512;

/// Sorts ascending indices that fill much of the index space: writes the mask of each block to its hashed number in a table.
fn sort_dense<I: Index>(indices: &[I], count: usize, hash: BlockHash) -> Prepared {
    let range = hash.range() as usize;
    let mut masks = vec![0u64; range];
    // The complement of each block's first offset: 0 if the block is empty, larger for an earlier offset.
    let mut complements = vec![0u32; range];
    let (mut runs, mut ids) = (Runs::with_capacity(BATCH), [0u64; BATCH]);
    for (k, batch) in indices.chunks(BATCH).enumerate() {
        runs.find(batch, (k * BATCH) as u32);
        simd::dispatch!(sort_batch(&runs, hash, &mut ids, &mut masks, &mut complements));
    }
    simd::dispatch!(collect_blocks(&masks, &complements, count))
}

#[inline(always)]
fn sort_batch(
    runs: &Runs,
    hash: BlockHash,
    ids: &mut [u64; BATCH],
    masks: &mut [u64],
    complements: &mut [u32],
) {
    for (id, block) in ids.iter_mut().zip(runs.blocks()) {
        *id = hash.forward(*block);
    }
    for ((id, mask), start) in ids.iter().zip(runs.masks()).zip(runs.starts()) {
        let id = *id as usize;
        masks[id] |= mask;
        complements[id] = complements[id].max(!start);
    }
}

/// Collects the blocks that have indices. A block without indices is written, too, and the next block overwrites it.
#[inline(always)]
fn collect_blocks(masks: &[u64], complements: &[u32], count: usize) -> Prepared {
    let mut blocks = vec![Block::default(); count + 1];
    let mut base = vec![0; count + 2];
    let mut order = Builder::with_capacity(count + 1);
    let (mut k, mut position) = (0, 0);
    for ((id, mask), complement) in (0..).zip(masks).zip(complements) {
        let indices = mask.count_ones();
        blocks[k] = Block { id, mask: *mask };
        base[k] = position;
        order.push(!complement, indices);
        k += usize::from(*mask != 0);
        position += indices;
    }
    base[k] = position;
    blocks.truncate(count);
    base.truncate(count + 1);
    Prepared { set: IndexSet::from_parts(blocks, base), order: order.finish(), repeats: Vec::new() }
}

/// The number of blocks that the indices lie in, if they ascend strictly and none is negative.
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
    let (granule_log2, block_numbers, starts) = (hash.granule_log2(), runs.blocks(), runs.starts());
    // The first run of each granule.
    let mut granule_starts = vec![0u32; runs.len() + 1];
    let (mut count, mut granule) = (0, u64::MAX);
    for (k, block) in block_numbers.iter().enumerate() {
        granule_starts[count] = k as u32;
        count += usize::from(block >> granule_log2 != granule);
        granule = block >> granule_log2;
    }
    granule_starts.truncate(count);
    let hashed = |first: u32| hash.forward(block_numbers[first as usize]) >> granule_log2;
    let mut blocks = Vec::with_capacity(runs.len());
    let mut order = Builder::with_capacity(count);
    let mut emit = |granule: u64, g: usize| {
        let (first, end) =
            (granule_starts[g] as usize, granule_starts.get(g + 1).map_or(runs.len(), |k| *k as usize));
        for (k, number) in (first..end).zip(&block_numbers[first..end]) {
            blocks.push(Block {
                id: granule << granule_log2 | hash.offset_in_granule(*number),
                mask: runs.mask(k),
            });
        }
        order.push(starts[first], starts[end] - starts[first]);
    };
    if hash.bits() - granule_log2 <= 32 {
        let mut words: Vec<u64> =
            granule_starts.iter().enumerate().map(|(g, first)| hashed(*first) << 32 | g as u64).collect();
        sort_by_key(&mut words, hash.bits() - granule_log2);
        words.iter().for_each(|w| emit(w >> 32, *w as u32 as usize));
    } else {
        let mut keyed: Vec<(u64, u32)> =
            granule_starts.iter().enumerate().map(|(g, first)| (hashed(*first), g as u32)).collect();
        keyed.sort_unstable();
        keyed.iter().for_each(|(granule, g)| emit(*granule, *g as usize));
    }
    Prepared { set: IndexSet::new(blocks), order: order.finish(), repeats: Vec::new() }
}

fn sort_indices<I: Index>(indices: &[I], hash: BlockHash) -> Prepared {
    let hashed = |index: &I| {
        let i = index.get().expect("check_range refuses negative indices");
        hash.forward(i >> BLOCK_BITS) << BLOCK_BITS | (i & 63)
    };
    let key_bits = hash.bits() + BLOCK_BITS;
    let sorted: Vec<(u64, u32)> = if key_bits <= 32 {
        let mut words: Vec<u64> =
            indices.iter().enumerate().map(|(offset, i)| hashed(i) << 32 | offset as u64).collect();
        sort_by_key(&mut words, key_bits);
        words.into_iter().map(|w| (w >> 32, w as u32)).collect()
    } else {
        let mut keyed: Vec<(u64, u32)> =
            indices.iter().enumerate().map(|(offset, i)| (hashed(i), offset as u32)).collect();
        keyed.sort_unstable();
        keyed
    };
    let mut blocks: Vec<Block> = Vec::new();
    let (mut order, mut repeats): (Vec<u32>, Vec<(u32, u32)>) =
        (Vec::with_capacity(sorted.len()), Vec::new());
    let mut last = None;
    for (key, offset) in sorted {
        if last == Some(key) {
            repeats.push((*order.last().expect("a first occurrence"), offset));
            continue;
        }
        last = Some(key);
        let (id, bit) = (key >> BLOCK_BITS, 1 << (key & 63));
        match blocks.last_mut() {
            Some(block) if block.id == id => block.mask |= bit,
            _ => blocks.push(Block { id, mask: bit }),
        }
        order.push(offset);
    }
    Prepared { set: IndexSet::new(blocks), order: Permutation::Each(order), repeats }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Oracle: a sorted map from (hashed block, bit) to offsets.
    fn oracle(indices: &[i64], hash: BlockHash) -> BTreeMap<(u64, u32), Vec<u32>> {
        let mut map: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for (offset, i) in indices.iter().enumerate() {
            map.entry((hash.forward(*i as u64 / 64), (*i % 64) as u32)).or_default().push(offset as u32);
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
        fn sets_match_the_oracle(n_bits in 1u32..63, raw in prop::collection::vec(any::<u64>(), 0..600), sort: bool) {
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
