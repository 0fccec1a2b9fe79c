//! Union of sorted sets by tree merge (Kylix §VI-A), and the maps from parts into unions.
//!
//! Sets are merged in pairs, so that the two sides of a merge are about equally long: O(N log d)
//! block steps for d sets of N blocks together, less where they overlap. Merging has no branch that
//! depends on the data.

use crate::block::{Block, IndexSet};
use crate::simd;

/// Position of an element that the larger set does not hold.
pub const MISSING: u32 = u32::MAX;

/// The union of sorted lists of blocks.
pub fn union(lists: &[&[Block]]) -> Vec<Block> {
    match lists {
        [] => Vec::new(),
        [one] => one.to_vec(),
        [a, b] => merge(a, b),
        many => {
            let (left, right) = many.split_at(many.len() / 2);
            merge(&union(left), &union(right))
        }
    }
}

fn merge(a: &[Block], b: &[Block]) -> Vec<Block> {
    let mut out = vec![Block::default(); a.len() + b.len()];
    let (mut i, mut j, mut k) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        let (x, y) = (a[i], b[j]);
        let (take_x, take_y) = (x.id <= y.id, y.id <= x.id);
        let mask =
            (x.mask & 0u64.wrapping_sub(u64::from(take_x))) | (y.mask & 0u64.wrapping_sub(u64::from(take_y)));
        out[k] = Block { id: x.id.min(y.id), mask };
        i += usize::from(take_x);
        j += usize::from(take_y);
        k += 1;
    }
    for rest in [&a[i..], &b[j..]] {
        out[k..k + rest.len()].copy_from_slice(rest);
        k += rest.len();
    }
    out.truncate(k);
    out
}

/// The position in `whole` of every element of `part`, or [`MISSING`], in order.
///
/// Both are sorted, so the positions that are there ascend.
pub fn positions(part: &[Block], whole: &IndexSet) -> Vec<u32> {
    let count: usize = part.iter().map(|b| b.mask.count_ones() as usize).sum();
    // Room for a last vector store that reaches past the end.
    let mut map = vec![0u32; count + 64];
    match simd::level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `level` has seen that the processor has these instructions.
        simd::Level::Avx512 => unsafe { fill_avx512(part, whole, &mut map) },
        _ => fill(part, whole, &mut map, expand),
    }
    map.truncate(count);
    map
}

/// Walks both lists; `put(base, full, mask, out)` writes the positions of the bits of `mask` in a block
/// whose whole mask is `full` and whose first element has position `base`.
#[inline(always)]
fn fill(part: &[Block], whole: &IndexSet, map: &mut [u32], put: impl Fn(u32, u64, u64, &mut [u32])) {
    let blocks = whole.blocks();
    let (mut k, mut at) = (0, 0);
    for block in part {
        while k < blocks.len() && blocks[k].id < block.id {
            k += 1;
        }
        let full = if k < blocks.len() && blocks[k].id == block.id { blocks[k].mask } else { 0 };
        put(whole.base(k) as u32, full, block.mask, &mut map[at..]);
        at += block.mask.count_ones() as usize;
    }
}

/// Bit by bit.
#[inline(always)]
fn expand(base: u32, full: u64, mask: u64, out: &mut [u32]) {
    let mut left = mask;
    for slot in out.iter_mut().take(mask.count_ones() as usize) {
        let bit = left & left.wrapping_neg();
        let below = (full & (bit - 1)).count_ones();
        *slot = if full & bit != 0 { base + below } else { MISSING };
        left ^= bit;
    }
}

/// The bits that are there, squeezed to the numbers they have among `full`, lead to the positions: 16
/// at a time, without a branch for each.
///
/// # Safety
/// The processor must have avx512f, bmi2 and popcnt.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,bmi1,bmi2,popcnt")]
unsafe fn fill_avx512(part: &[Block], whole: &IndexSet, map: &mut [u32]) {
    use std::arch::x86_64::*;
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    fill(
        part,
        whole,
        map,
        #[inline(always)]
        |base, full, mask, out| {
            if mask & !full != 0 || out.len() < 64 + mask.count_ones() as usize {
                return expand(base, full, mask, out);
            }
            let mut numbers = _pext_u64(mask, full);
            let (mut at, mut first) = (0, base);
            while numbers != 0 {
                let some = numbers as u16;
                let positions = _mm512_add_epi32(lanes, _mm512_set1_epi32(first as i32));
                let chosen = _mm512_maskz_compress_epi32(some, positions);
                // SAFETY: `at` is at most the number of bits of `mask`, and `out` reaches 64 beyond it.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(at).cast(), chosen) };
                at += some.count_ones() as usize;
                (numbers, first) = (numbers >> 16, first + 16);
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn blocks() -> impl Strategy<Value = Vec<Block>> {
        let mask = prop_oneof![any::<u64>(), (0u32..64).prop_map(|b| 1 << b), Just(u64::MAX)];
        prop::collection::btree_map(0u64..200, mask.prop_filter("not empty", |m| *m != 0), 0..60)
            .prop_map(|m: BTreeMap<u64, u64>| m.into_iter().map(|(id, mask)| Block { id, mask }).collect())
    }

    proptest! {
        #[test]
        fn union_and_positions_as_the_oracle(lists in prop::collection::vec(blocks(), 0..9), probe in blocks()) {
            let views: Vec<&[Block]> = lists.iter().map(Vec::as_slice).collect();
            let whole = IndexSet::new(union(&views));
            let want: BTreeSet<(u64, u32)> =
                lists.iter().flat_map(|l| IndexSet::new(l.clone()).elements().collect::<Vec<_>>()).collect();
            let elements: Vec<_> = whole.elements().collect();
            prop_assert_eq!(&elements, &want.into_iter().collect::<Vec<_>>());
            for part in lists.iter().chain([&probe]) {
                let map = positions(part, &whole);
                let mut plain = vec![0; map.len()];
                fill(part, &whole, &mut plain, expand);
                prop_assert_eq!(&map, &plain);
                let want: Vec<u32> = IndexSet::new(part.clone())
                    .elements()
                    .map(|e| elements.binary_search(&e).map_or(MISSING, |p| p as u32))
                    .collect();
                prop_assert_eq!(map, want);
            }
        }
    }
}
