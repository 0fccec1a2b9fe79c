//! Runs of ascending indices that lie in the same block, in the caller's order.

use crate::block::BLOCK_BITS;
use crate::index::Index;
use crate::simd;

/// Runs of indices of the same block.
///
/// Bits are added modulo 2^64 instead of combined by "or". The indices of a run are distinct, so the sums before and after it
/// differ by its mask, and the sums of several indices are computed at once.
pub(crate) struct Runs {
    blocks: Vec<u64>,
    /// Sum of the bits of all indices before each run, and of all indices.
    sums: Vec<u64>,
    /// Offset of each run's first index, and the end of the last run.
    starts: Vec<u32>,
    len: usize,
}

/// Numbers that vector stores may write past the end.
const OVERRUN: usize = 16;

impl Runs {
    /// No runs, with capacity for `runs`: the number of indices, or of their blocks.
    pub(crate) fn with_capacity(runs: usize) -> Runs {
        let len = runs + OVERRUN;
        Runs { blocks: vec![0; len], sums: vec![0; len], starts: vec![0; len], len: 0 }
    }

    /// Number of runs.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The numbers of the blocks.
    pub(crate) fn blocks(&self) -> &[u64] {
        &self.blocks[..self.len]
    }

    /// Offset of each run's first index, and the end of the last run.
    pub(crate) fn starts(&self) -> &[u32] {
        &self.starts[..=self.len]
    }

    /// The mask of each run.
    #[inline(always)]
    pub(crate) fn masks(&self) -> impl Iterator<Item = u64> + '_ {
        self.sums[..=self.len].windows(2).map(|w| w[1].wrapping_sub(w[0]))
    }

    /// The mask of run `k`.
    #[inline(always)]
    pub(crate) fn mask(&self, k: usize) -> u64 {
        self.sums[k + 1].wrapping_sub(self.sums[k])
    }

    /// Finds the runs of ascending, non-negative indices, the first of which has offset `start`.
    pub(crate) fn find<I: Index>(&mut self, indices: &[I], start: u32) {
        match simd::detected() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value proves that the processor has the instructions.
            simd::InstructionSet::Avx512(_) => unsafe { self.find_avx512(indices, start) },
            _ => self.find_from(indices, start, Search { runs: 0, block: u64::MAX, sum: 0 }),
        }
    }

    /// Continues a search. Each index is written as the start of a run, and overwritten by the next index if it starts none, so that
    /// no branch depends on where runs end.
    #[inline(always)]
    fn find_from<I: Index>(&mut self, indices: &[I], start: u32, search: Search) {
        let Search { runs: mut k, mut block, mut sum } = search;
        for (offset, index) in (start..).zip(indices) {
            (self.blocks[k], self.sums[k], self.starts[k]) = (index.block(), sum, offset);
            k += usize::from(index.block() != block);
            block = index.block();
            sum = sum.wrapping_add(1 << index.bit());
        }
        (self.sums[k], self.starts[k], self.len) = (sum, start + indices.len() as u32, k);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,bmi1,bmi2,popcnt")]
    fn find_avx512<I: Index>(&mut self, indices: &[I], start: u32) {
        use std::arch::x86_64::*;
        const LANES: usize = 8;
        let zero = _mm512_setzero_si512();
        let last = _mm512_set1_epi64(7);
        let mut offsets =
            _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(start as i32));
        let (mut previous, mut sum, mut k) = (_mm512_set1_epi64(-1), zero, 0);
        let whole = indices.len() / LANES * LANES;
        assert!(size_of::<I>() == 4 || size_of::<I>() == 8);
        for eight in indices[..whole].chunks_exact(LANES) {
            // SAFETY: eight indices of 4 or 8 bytes are readable.
            let values = unsafe {
                match size_of::<I>() {
                    8 => _mm512_loadu_si512(eight.as_ptr().cast()),
                    _ => _mm512_cvtepu32_epi64(_mm256_loadu_si256(eight.as_ptr().cast())),
                }
            };
            let blocks = _mm512_srli_epi64(values, BLOCK_BITS);
            let begins_run = _mm512_cmpneq_epi64_mask(blocks, _mm512_alignr_epi64(blocks, previous, 7));
            let bits =
                _mm512_sllv_epi64(_mm512_set1_epi64(1), _mm512_and_si512(values, _mm512_set1_epi64(63)));
            // Sums of one, two, four, eight neighbours.
            let mut sums = _mm512_add_epi64(bits, _mm512_alignr_epi64(bits, zero, 7));
            sums = _mm512_add_epi64(sums, _mm512_alignr_epi64(sums, zero, 6));
            sums = _mm512_add_epi64(sums, _mm512_alignr_epi64(sums, zero, 4));
            sums = _mm512_add_epi64(sums, sum);
            // There are no more runs than indices so far, so the end of a vector store lies within the overrun.
            assert!(k + OVERRUN <= self.blocks.len());
            // SAFETY: just checked; all three are of the same length.
            unsafe {
                let (b, s, p) = (self.blocks.as_mut_ptr(), self.sums.as_mut_ptr(), self.starts.as_mut_ptr());
                _mm512_storeu_si512(b.add(k).cast(), _mm512_maskz_compress_epi64(begins_run, blocks));
                let earlier = _mm512_sub_epi64(sums, bits);
                _mm512_storeu_si512(s.add(k).cast(), _mm512_maskz_compress_epi64(begins_run, earlier));
                _mm256_storeu_si256(p.add(k).cast(), _mm256_maskz_compress_epi32(begins_run, offsets));
            }
            k += begins_run.count_ones() as usize;
            previous = blocks;
            sum = _mm512_permutexvar_epi64(last, sums);
            offsets = _mm256_add_epi32(offsets, _mm256_set1_epi32(LANES as i32));
        }
        let last_lane = |v: __m512i| _mm512_reduce_or_epi64(_mm512_permutexvar_epi64(last, v)) as u64;
        let search = Search { runs: k, block: last_lane(previous), sum: last_lane(sum) };
        self.find_from(&indices[whole..], start + whole as u32, search);
    }
}

/// State of a search for runs.
struct Search {
    /// Runs found.
    runs: usize,
    /// Block of the last index.
    block: u64,
    /// Sum of the bits of all indices so far.
    sum: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check<I: Index>(indices: &[I], start: u32) {
        let mut runs = Runs::with_capacity(indices.len());
        runs.find(indices, start);
        let mut plain = Runs::with_capacity(indices.len());
        plain.find_from(indices, start, Search { runs: 0, block: u64::MAX, sum: 0 });
        let mut want: Vec<(u64, u64, u32)> = Vec::new();
        for (index, offset) in indices.iter().zip(start..) {
            match want.last_mut() {
                Some((block, mask, _)) if *block == index.block() => *mask |= 1 << index.bit(),
                _ => want.push((index.block(), 1 << index.bit(), offset)),
            }
        }
        for got in [runs, plain] {
            assert_eq!(got.len(), want.len());
            let starts = got.starts();
            assert_eq!(starts[got.len()], start + indices.len() as u32);
            let found: Vec<_> = (0..got.len()).map(|k| (got.blocks()[k], got.mask(k), starts[k])).collect();
            assert_eq!(found, want);
            assert_eq!(got.masks().collect::<Vec<_>>(), want.iter().map(|w| w.1).collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn runs_match_the_oracle(steps in prop::collection::vec(prop_oneof![1u64..4, 1u64..200], 0..300), start in 0u32..9) {
            let indices: Vec<u64> = steps.iter().scan(0, |at, s| { *at += s; Some(*at - 1) }).collect();
            check(&indices, start);
            check(&indices.iter().map(|i| *i as i32).collect::<Vec<_>>(), start);
            check(&indices.iter().map(|i| i << 40).collect::<Vec<_>>(), start);
        }
    }
}
