//! Sketches of index sets, from which the size of a union is estimated: the k least hashes of each set (Bar-Yossef et al. 2002;
//! Beyer et al. 2007, "On synopses for distinct-value estimation").
//!
//! The k least hashes of a union are among those of its sets. If h_k is the k-th, as a fraction of the range of hashes, the union
//! has about (k - 1) / h_k indices, to a relative error of about 1/√k. A set with fewer than k indices is counted exactly.

use crate::index::{Index, Indices};
use crate::{simd, with_indices};

/// The `k` least distinct hashes of a set, in ascending order.
pub fn sketch(indices: Indices<'_>, k: usize) -> Vec<u64> {
    match k {
        0 => Vec::new(),
        _ => with_indices!(indices, list => simd::dispatch!(least_hashes(list, k))),
    }
}

/// Hashes that are computed together, by vectors.
const BLOCK: usize = 64;

#[inline(always)]
fn least_hashes<I: Index>(list: &[I], k: usize) -> Vec<u64> {
    let (mut least, mut threshold) = (Vec::with_capacity(2 * k), u64::MAX);
    for block in list.chunks(BLOCK) {
        let mut hashes = [u64::MAX; BLOCK];
        hashes.iter_mut().zip(block).for_each(|(hash, index)| *hash = mix(index.number()));
        // After the first blocks few hashes are below the threshold.
        if !hashes.iter().fold(false, |any, hash| any | (*hash < threshold)) {
            continue;
        }
        for hash in hashes {
            if hash < threshold {
                least.push(hash);
            }
            if least.len() == 2 * k {
                keep_least(&mut least, k);
                threshold = least.get(k - 1).copied().unwrap_or(u64::MAX);
            }
        }
    }
    keep_least(&mut least, k);
    least
}

/// Keeps the `k` least, each once, since indices may be repeated.
fn keep_least(hashes: &mut Vec<u64>, k: usize) {
    hashes.sort_unstable();
    hashes.dedup();
    hashes.truncate(k);
}

/// Estimated size of the union of the sets with these sketches of `k` hashes; 0 if `k` is 0.
pub fn estimated_union<'a>(sketches: impl Iterator<Item = &'a [u64]>, k: usize) -> f64 {
    let Some(last) = k.checked_sub(1) else { return 0.0 };
    let mut all: Vec<u64> = sketches.flatten().copied().collect();
    all.sort_unstable();
    all.dedup();
    match all.get(last) {
        None => all.len() as f64,
        Some(hash) => last as f64 / (*hash as f64 / 2f64.powi(64)),
    }
}

/// A bijective hash that spreads indices over all 64 bits (the finaliser of SplitMix64).
#[inline(always)]
fn mix(index: u64) -> u64 {
    let mut hash = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: usize = 64;

    fn sketch_of(list: &[u64]) -> Vec<u64> {
        sketch(Indices::U64(list), K)
    }

    #[test]
    fn sketches_without_hashes_give_no_estimate() {
        let sets = [(0..1000).collect::<Vec<u64>>(), vec![], vec![5, 9]];
        let sketches: Vec<_> = sets.iter().map(|set| sketch(Indices::U64(set), 0)).collect();
        assert!(sketches.iter().all(Vec::is_empty));
        assert_eq!(estimated_union(sketches.iter().map(|s| &s[..]), 0), 0.0);
    }

    #[test]
    fn small_sets_are_counted() {
        let sets = [vec![1, 5, 9], vec![], vec![5, 9, 11, 40]];
        let sketches: Vec<_> = sets.iter().map(|set| sketch_of(set)).collect();
        assert_eq!(estimated_union(sketches.iter().map(|s| &s[..]), K), 5.0);
    }

    #[test]
    fn large_sets_are_estimated() {
        for (count, step, shift) in
            [(10_000u64, 1u64, 0u64), (10_000, 1, 5_000), (3_000, 1 << 33, 7), (70, 3, 210)]
        {
            let set = |rank: u64| (0..count).map(|i| i * step + rank * shift * step).collect::<Vec<_>>();
            let sketches: Vec<_> = (0..4).map(|rank| sketch_of(&set(rank))).collect();
            let mut all: Vec<u64> = (0..4).flat_map(set).collect();
            all.sort_unstable();
            all.dedup();
            let got = estimated_union(sketches.iter().map(|s| &s[..]), K);
            assert!((got / all.len() as f64 - 1.0).abs() < 0.3, "{got}, not {}", all.len());
        }
    }

    #[test]
    fn a_sketch_does_not_depend_on_the_order() {
        let mut want: Vec<u64> = (0..5_000).map(mix).collect();
        want.sort_unstable();
        want.truncate(K);
        assert_eq!(sketch_of(&(0..5_000).collect::<Vec<_>>()), want);
        assert_eq!(sketch_of(&(0..5_000).rev().collect::<Vec<_>>()), want);
        assert_eq!(sketch_of(&(0..15_000).map(|k| k / 3).collect::<Vec<_>>()), want, "with repeats");
    }
}
