//! Bijection on block numbers that spreads neighbours evenly, which balances the split of the index space over ranks.
//!
//! Granules of 2^g neighbouring blocks stay together, so that gathers run along memory; the granules
//! are permuted. On k-bit numbers the permutation is two rounds of "multiply by an odd constant modulo
//! 2^k, then fold the high half on the low half" and a last multiplication: each step is invertible,
//! no table is needed, and the high bits, which choose the owner, depend on all bits of the input.
//!
//! Larger granules are faster to gather and split less evenly. With 512 granules a rank the parts of a
//! uniform set differ by 4 %. Measured with 1 M Zipf(1.1) indices of 2^24 on 4 ranks, a reduction
//! takes 29 ms with granules of 1 block, 24 of 8, 20 of 64.

/// The permutation for index spaces of a given size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHash {
    /// log2 of the number of granules.
    bits: u32,
    /// log2 of the blocks in a granule.
    granule_log2: u32,
}

/// Granules that each rank should own at least, for balance.
const GRANULES_PER_RANK: u64 = 512;

/// Largest log2 of the blocks in a granule. Granules of more than 16,384 indices gain nothing.
const MAX_GRANULE_LOG2: u32 = 8;

/// Odd constants with well-mixed bits (from the fractional parts of the golden ratio, e and π).
const MULTIPLIERS: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xb7e1_5162_8aed_2a6b, 0x243f_6a88_85a3_08d3];

/// The inverses of [`MULTIPLIERS`] modulo 2^64, by Newton's iteration.
const INVERSES: [u64; 3] =
    [inverse_of(MULTIPLIERS[0]), inverse_of(MULTIPLIERS[1]), inverse_of(MULTIPLIERS[2])];

const fn inverse_of(odd: u64) -> u64 {
    let (mut x, mut k) = (odd, 0); // right to 3 bits; each step doubles that
    while k < 5 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        k += 1;
    }
    x
}

impl BlockHash {
    /// The hash for an index space of `n` indices over `ranks` ranks.
    pub fn new(n: u64, ranks: u32) -> BlockHash {
        let blocks = n.div_ceil(64).max(1);
        let bits = 64 - (blocks - 1).leading_zeros();
        let granules = GRANULES_PER_RANK * u64::from(ranks);
        let granule_log2 = (blocks / granules).checked_ilog2().unwrap_or(0).min(MAX_GRANULE_LOG2);
        BlockHash { bits: bits - granule_log2, granule_log2 }
    }

    /// Hashed numbers are below this: a power of two, at least the number of blocks.
    pub fn range(self) -> u64 {
        1 << (self.bits + self.granule_log2)
    }

    /// Number of significant bits of a hashed number.
    pub fn bits(self) -> u32 {
        self.bits + self.granule_log2
    }

    /// log2 of the blocks in a granule.
    pub(crate) fn granule_log2(self) -> u32 {
        self.granule_log2
    }

    /// The index of a block in its granule, which the hash does not change.
    #[inline(always)]
    pub(crate) fn offset_in_granule(self, number: u64) -> u64 {
        number & ((1 << self.granule_log2) - 1)
    }

    #[inline(always)]
    fn mask(self) -> u64 {
        (1 << self.bits) - 1
    }

    /// Half the width, rounded up: folding by it is its own inverse.
    #[inline(always)]
    fn half(self) -> u32 {
        self.bits.div_ceil(2).max(1)
    }

    /// The hashed number of a block.
    #[inline(always)]
    pub fn forward(self, block: u64) -> u64 {
        let (mask, half) = (self.mask(), self.half());
        let mut x = (block >> self.granule_log2).wrapping_mul(MULTIPLIERS[0]) & mask;
        x ^= x >> half;
        x = x.wrapping_mul(MULTIPLIERS[1]) & mask;
        x ^= x >> half;
        (x.wrapping_mul(MULTIPLIERS[2]) & mask) << self.granule_log2 | self.offset_in_granule(block)
    }

    /// The block with a hashed number.
    #[inline(always)]
    pub fn inverse(self, hashed: u64) -> u64 {
        let (mask, half) = (self.mask(), self.half());
        let mut x = (hashed >> self.granule_log2).wrapping_mul(INVERSES[2]) & mask;
        x ^= x >> half;
        x = x.wrapping_mul(INVERSES[1]) & mask;
        x ^= x >> half;
        (x.wrapping_mul(INVERSES[0]) & mask) << self.granule_log2 | self.offset_in_granule(hashed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forward_permutes_every_small_range() {
        for (n, ranks) in
            [(1, 1), (64, 2), (65, 1), (1000, 8), (4096, 3), (64 * 1000, 1), (1 << 20, 1), (1 << 20, 9)]
        {
            let hash = BlockHash::new(n, ranks);
            let mut seen = vec![false; hash.range() as usize];
            for block in 0..hash.range() {
                let h = hash.forward(block);
                assert!(!std::mem::replace(&mut seen[h as usize], true), "n = {n}: {h} twice");
            }
        }
    }

    proptest! {
        #[test]
        fn inverse_undoes_forward(n in 1u64..=1 << 63, ranks in 1u32..5000, block in any::<u64>()) {
            let hash = BlockHash::new(n, ranks);
            let block = block % n.div_ceil(64);
            prop_assert!(hash.forward(block) < hash.range());
            prop_assert_eq!(hash.inverse(hash.forward(block)), block);
        }
    }

    #[test]
    fn runs_of_granules_spread_over_all_owners() {
        // 1,000 neighbouring granules over 8 owners: 125 each if spread as at random (σ ≈ 10).
        for (n, first) in [(1u64 << 24, 0u64), (1 << 24, 777), (1 << 40, 1 << 20), (50_000_000, 5)] {
            let hash = BlockHash::new(n, 8);
            let mut owned = [0; 8];
            for granule in first..first + 1000 {
                let hashed = hash.forward(granule << hash.granule_log2);
                owned[(hashed as u128 * 8 / hash.range() as u128) as usize] += 1;
            }
            assert!(owned.iter().all(|c| (70..=190).contains(c)), "n = {n}: {owned:?}");
        }
    }
}
