//! A bijection on block numbers that spreads neighbours evenly: what balances the range split.
//!
//! Blocks of 64 neighbouring indices keep together, so that gathers stay in cache lines; the blocks
//! are permuted. On k-bit numbers (k = ⌈log2 of the number of blocks⌉) the permutation is two rounds of
//! "multiply by an odd constant modulo 2^k, then fold the high half on the low half" and a last
//! multiplication: each step is invertible, no table is needed, and the high bits, which choose the
//! owner, depend on all bits of the input.

/// The permutation for index spaces of a given size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHash {
    bits: u32,
}

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
    /// For an index space of `n` indices.
    pub fn new(n: u64) -> BlockHash {
        let blocks = n.div_ceil(64).max(1);
        BlockHash { bits: 64 - (blocks - 1).leading_zeros() }
    }

    /// Hashed numbers are below this: a power of two, at least the number of blocks.
    pub fn range(self) -> u64 {
        1 << self.bits
    }

    /// Number of significant bits of a hashed number.
    pub fn bits(self) -> u32 {
        self.bits
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
        let mut x = block.wrapping_mul(MULTIPLIERS[0]) & mask;
        x ^= x >> half;
        x = x.wrapping_mul(MULTIPLIERS[1]) & mask;
        x ^= x >> half;
        x.wrapping_mul(MULTIPLIERS[2]) & mask
    }

    /// The block with a hashed number.
    #[inline(always)]
    pub fn inverse(self, hashed: u64) -> u64 {
        let (mask, half) = (self.mask(), self.half());
        let mut x = hashed.wrapping_mul(INVERSES[2]) & mask;
        x ^= x >> half;
        x = x.wrapping_mul(INVERSES[1]) & mask;
        x ^= x >> half;
        x.wrapping_mul(INVERSES[0]) & mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_permutation_of_every_small_range() {
        for n in [1, 64, 65, 1000, 4096, 64 * 1000, 1 << 20] {
            let hash = BlockHash::new(n);
            let mut seen = vec![false; hash.range() as usize];
            for block in 0..hash.range() {
                let h = hash.forward(block);
                assert!(!std::mem::replace(&mut seen[h as usize], true), "n = {n}: {h} twice");
            }
        }
    }

    proptest! {
        #[test]
        fn inverse_undoes_forward(n in 1u64..=1 << 63, block in any::<u64>()) {
            let hash = BlockHash::new(n);
            let block = block % n.div_ceil(64);
            prop_assert!(hash.forward(block) < hash.range());
            prop_assert_eq!(hash.inverse(hash.forward(block)), block);
        }
    }

    #[test]
    fn runs_of_blocks_spread_over_all_owners() {
        // 1,000 neighbouring blocks over 8 owners: 125 each if spread as at random (σ ≈ 10).
        for (n, first) in [(1u64 << 24, 0u64), (1 << 24, 7777), (1 << 40, 1 << 30), (50_000_000, 5)] {
            let hash = BlockHash::new(n);
            let mut owned = [0; 8];
            for block in first..first + 1000 {
                owned[(hash.forward(block) as u128 * 8 / hash.range() as u128) as usize] += 1;
            }
            assert!(owned.iter().all(|c| (70..=190).contains(c)), "n = {n}: {owned:?}");
        }
    }
}
