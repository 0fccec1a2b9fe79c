//! Index sets as sorted blocks of 64 indices.

use crate::simd;
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;

/// log2 of [`BLOCK_SIZE`].
pub const BLOCK_BITS: u32 = 6;
/// Number of neighbouring indices in a block.
pub const BLOCK_SIZE: u64 = 1 << BLOCK_BITS;

/// A subset of 64 neighbouring indices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// Hashed number of the block.
    pub id: u64,
    /// Bit k stands for the block's k-th index; never 0 in a set.
    pub mask: u64,
}

/// Number of indices in all blocks.
pub fn count_indices(blocks: &[Block]) -> u64 {
    #[inline(always)]
    fn count(blocks: &[Block]) -> u64 {
        blocks.iter().map(|b| u64::from(b.mask.count_ones())).sum()
    }
    simd::dispatch!(count(blocks))
}

/// The position of each block's first index; the last number is the number of all indices.
fn bases(blocks: &[Block]) -> Vec<u32> {
    #[inline(always)]
    fn fill(blocks: &[Block], base: &mut [u32]) {
        let mut position = 0;
        for (block, slot) in blocks.iter().zip(&mut base[1..]) {
            position += block.mask.count_ones();
            *slot = position;
        }
    }
    let mut base = vec![0; blocks.len() + 1];
    simd::dispatch!(fill(blocks, &mut base));
    base
}

/// A set of indices in hash order: by block, then by bit. The k-th element in this order has
/// *position* k. Clones share the memory.
#[derive(Clone, Debug, Default)]
pub struct IndexSet {
    blocks: Arc<Vec<Block>>,
    /// Position of each block's first element; the last number is the number of all elements.
    base: Arc<Vec<u32>>,
}

impl PartialEq for IndexSet {
    fn eq(&self, other: &IndexSet) -> bool {
        Arc::ptr_eq(&self.blocks, &other.blocks) || self.blocks == other.blocks
    }
}

impl IndexSet {
    /// A set of blocks, which must be sorted by id, distinct, and have no empty mask.
    ///
    /// The number of elements must be below 2^32 - 1; callers check that.
    pub fn new(blocks: Vec<Block>) -> IndexSet {
        debug_assert!(blocks.windows(2).all(|w| w[0].id < w[1].id));
        debug_assert!(blocks.iter().all(|b| b.mask != 0));
        let base = bases(&blocks);
        IndexSet::from_parts(blocks, base)
    }

    /// As [`IndexSet::new`], with the positions known.
    pub(crate) fn from_parts(blocks: Vec<Block>, base: Vec<u32>) -> IndexSet {
        debug_assert_eq!(base, bases(&blocks));
        IndexSet { blocks: Arc::new(blocks), base: Arc::new(base) }
    }

    /// Number of indices.
    pub fn len(&self) -> usize {
        *self.base.last().unwrap_or(&0) as usize
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The blocks.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Position of the first element of block number `k` (of the list, not its id).
    pub fn base(&self, k: usize) -> usize {
        self.base.get(k).map_or(0, |p| *p as usize)
    }

    /// The blocks with ids in `lo..hi`, as a range of the list.
    pub fn blocks_between(&self, lo: u64, hi: u64) -> std::ops::Range<usize> {
        self.blocks.partition_point(|b| b.id < lo)..self.blocks.partition_point(|b| b.id < hi)
    }

    /// (block id, bit) of every element, in order.
    pub fn elements(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.blocks.iter().flat_map(|b| (0..64).filter(|bit| b.mask >> bit & 1 == 1).map(|bit| (b.id, bit)))
    }

    /// (block id, bit) of the element at a position.
    pub fn element(&self, position: usize) -> (u64, u32) {
        let k = self.base.partition_point(|p| *p as usize <= position) - 1;
        let mut mask = self.blocks[k].mask;
        for _ in self.base(k)..position {
            mask &= mask - 1;
        }
        (self.blocks[k].id, mask.trailing_zeros())
    }
}

/// The `parts + 1` bounds of the equal ranges into which `lo..hi` is cut.
pub fn split_ranges(lo: u64, hi: u64, parts: u32) -> Vec<u64> {
    let width = u128::from(hi - lo);
    (0..=parts).map(|k| lo + (width * u128::from(k) / u128::from(parts)) as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_bits() {
        let set = IndexSet::new(vec![Block { id: 3, mask: 0b101 }, Block { id: 9, mask: 1 << 63 }]);
        assert_eq!(set.len(), 3);
        assert_eq!(set.elements().collect::<Vec<_>>(), [(3, 0), (3, 2), (9, 63)]);
        for (k, e) in set.elements().enumerate() {
            assert_eq!(set.element(k), e);
        }
        assert_eq!(set.blocks_between(3, 9), 0..1);
        assert_eq!((set.base(0), set.base(1), set.base(2)), (0, 2, 3));
        assert_eq!((IndexSet::default().len(), IndexSet::default().base(0)), (0, 0));
    }

    #[test]
    fn ranges_cover_without_gap() {
        assert_eq!(split_ranges(0, 10, 3), [0, 3, 6, 10]);
        assert_eq!(split_ranges(5, 6, 4), [5, 5, 5, 5, 6]);
        assert_eq!(split_ranges(0, 1 << 58, 7)[7], 1 << 58);
    }
}
