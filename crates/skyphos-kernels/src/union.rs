//! Union of sorted sets by tree merge (Kylix §VI-A), and the maps from parts into unions.
//!
//! Sets are merged in pairs, so that the two sides of a merge are about equally long: O(N log d) block steps for d sets of
//! N blocks in total, fewer if they overlap. The union of sets that fill much of their range is computed in a table of the
//! range instead: O(N + range). Neither has a branch that depends on the data.

use crate::block::{Block, IndexSet, count_indices};
use crate::simd;

/// Position of an element that the larger set does not contain.
pub const MISSING: u32 = u32::MAX;

/// Largest ratio of block numbers in a range to blocks present for which a table of the range is faster than a merge.
pub(crate) const MAX_TABLE_RATIO: u64 = 4;

/// The union of sorted lists of blocks.
pub fn union(lists: &[&[Block]]) -> Vec<Block> {
    let total: usize = lists.iter().map(|l| l.len()).sum();
    let filled: Vec<&[Block]> = lists.iter().copied().filter(|l| !l.is_empty()).collect();
    match filled.as_slice() {
        [] => Vec::new(),
        [one] => one.to_vec(),
        several => {
            let lo = several.iter().map(|l| l[0].id).min().expect("two lists");
            let last = several.iter().map(|l| l[l.len() - 1].id).max().expect("two lists");
            match (last - lo) / MAX_TABLE_RATIO < total as u64 {
                true => simd::dispatch!(union_by_table(several, lo, (last - lo + 1) as usize)),
                false => merge_all(several),
            }
        }
    }
}

/// The union by a table of the masks of all blocks from `lo`.
#[inline(always)]
fn union_by_table(lists: &[&[Block]], lo: u64, range: usize) -> Vec<Block> {
    let mut masks = vec![0u64; range];
    for list in lists {
        for block in *list {
            masks[(block.id - lo) as usize] |= block.mask;
        }
    }
    // A block without indices is written, too, and the next block overwrites it.
    let mut blocks = vec![Block::default(); range];
    let mut count = 0;
    for (id, mask) in (lo..).zip(masks) {
        blocks[count] = Block { id, mask };
        count += usize::from(mask != 0);
    }
    blocks.truncate(count);
    blocks
}

fn merge_all(lists: &[&[Block]]) -> Vec<Block> {
    match lists {
        [] => Vec::new(),
        [one] => one.to_vec(),
        [a, b] => merge(a, b),
        many => {
            let (left, right) = many.split_at(many.len() / 2);
            merge(&merge_all(left), &merge_all(right))
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

/// Uninitialised memory of a position.
type Slot = std::mem::MaybeUninit<u32>;

/// Finder of positions in a set.
pub struct Locator<'a> {
    set: &'a IndexSet,
    lo: u64,
    /// For each block id of the range, the block's index in the set's list, if many ids are present.
    table: Option<Vec<u32>>,
}

impl<'a> Locator<'a> {
    /// A locator of positions in `set`.
    pub fn new(set: &'a IndexSet) -> Locator<'a> {
        let blocks = set.blocks();
        let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else {
            return Locator { set, lo: 0, table: None };
        };
        let lo = first.id;
        let table = ((last.id - lo) / MAX_TABLE_RATIO < blocks.len() as u64).then(|| {
            let mut table = vec![u32::MAX; (last.id - lo + 1) as usize];
            for (k, block) in blocks.iter().enumerate() {
                table[(block.id - lo) as usize] = k as u32;
            }
            table
        });
        Locator { set, lo, table }
    }

    /// The position of every element of `part`, or [`MISSING`], in order.
    ///
    /// Both are sorted, so the positions ascend, except for missing ones.
    pub fn positions(&self, part: &[Block]) -> Vec<u32> {
        let count = count_indices(part) as usize;
        // 64 more, since the last vector store may reach beyond the end.
        let mut map: Vec<u32> = Vec::with_capacity(count + 64);
        let slots = &mut map.spare_capacity_mut()[..count + 64];
        let filled = match simd::detected() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value proves that the processor has the instructions.
            simd::InstructionSet::Avx512(_) => unsafe { fill_avx512(part, self, slots) },
            _ => fill(part, self, slots, expand),
        };
        assert_eq!(filled, count);
        // SAFETY: `fill` has written `count` positions.
        unsafe { map.set_len(count) };
        map
    }
}

/// Writes the positions of the elements of `part` and returns their number. `put(base, full, mask, out)` writes the positions of
/// the bits of `mask` in a block of the set with mask `full`, whose first element has position `base`.
#[inline(always)]
fn fill(
    part: &[Block],
    locator: &Locator<'_>,
    map: &mut [Slot],
    put: impl Fn(u32, u64, u64, &mut [Slot]),
) -> usize {
    let blocks = locator.set.blocks();
    match &locator.table {
        Some(table) => fill_found(part, locator.set, map, put, |id| {
            table.get(id.wrapping_sub(locator.lo) as usize).map_or(blocks.len(), |k| *k as usize)
        }),
        None => {
            let mut k = 0;
            fill_found(part, locator.set, map, put, |id| {
                while k < blocks.len() && blocks[k].id < id {
                    k += 1;
                }
                k
            })
        }
    }
}

/// [`fill`] by `find(id)`, the index of the block in `set`; any other index if the set does not contain the block.
#[inline(always)]
fn fill_found(
    part: &[Block],
    set: &IndexSet,
    map: &mut [Slot],
    put: impl Fn(u32, u64, u64, &mut [Slot]),
    mut find: impl FnMut(u64) -> usize,
) -> usize {
    let blocks = set.blocks();
    let mut at = 0;
    for block in part {
        let k = find(block.id);
        let full = blocks.get(k).filter(|b| b.id == block.id).map_or(0, |b| b.mask);
        put(set.base(k) as u32, full, block.mask, &mut map[at..]);
        at += block.mask.count_ones() as usize;
    }
    at
}

/// Writes positions bit by bit.
#[inline(always)]
fn expand(base: u32, full: u64, mask: u64, out: &mut [Slot]) {
    let mut left = mask;
    for slot in out.iter_mut().take(mask.count_ones() as usize) {
        let bit = left & left.wrapping_neg();
        let below = (full & (bit - 1)).count_ones();
        slot.write(if full & bit != 0 { base + below } else { MISSING });
        left ^= bit;
    }
}

/// [`fill`] by vectors. The bits of `mask`, compressed to their numbers among `full` (`pext`), select the positions, 16 at a time
/// and without a branch for each.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,bmi1,bmi2,popcnt")]
fn fill_avx512(part: &[Block], locator: &Locator<'_>, map: &mut [Slot]) -> usize {
    use std::arch::x86_64::*;
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    fill(
        part,
        locator,
        map,
        #[inline(always)]
        |base, full, mask, out| {
            if mask & !full != 0 || out.len() < 64 + mask.count_ones() as usize {
                return expand(base, full, mask, out);
            }
            let mut numbers = _pext_u64(mask, full);
            let mut positions = _mm512_add_epi32(lanes, _mm512_set1_epi32(base as i32));
            let mut at = 0;
            // Two vectors per step: most blocks take one step, so the loop's end is predictable.
            while numbers != 0 {
                for _ in 0..2 {
                    let mask16 = numbers as u16;
                    let chosen = _mm512_maskz_compress_epi32(mask16, positions);
                    // SAFETY: `at` is at most the number of bits of `mask`, and `out` reaches 64 beyond it.
                    unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(at).cast(), chosen) };
                    at += mask16.count_ones() as usize;
                    numbers >>= 16;
                    positions = _mm512_add_epi32(positions, _mm512_set1_epi32(16));
                }
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn blocks() -> impl Strategy<Value = Vec<Block>> {
        let mask = prop_oneof![any::<u64>(), (0u32..64).prop_map(|b| 1 << b), Just(u64::MAX)];
        let ids = prop_oneof![0u64..200, 0u64..20_000];
        prop::collection::btree_map(ids, mask.prop_filter("not empty", |m| *m != 0), 0..60)
            .prop_map(|m: BTreeMap<u64, u64>| m.into_iter().map(|(id, mask)| Block { id, mask }).collect())
    }

    proptest! {
        #[test]
        fn union_and_positions_match_the_oracle(lists in prop::collection::vec(blocks(), 0..9), probe in blocks()) {
            let views: Vec<&[Block]> = lists.iter().map(Vec::as_slice).collect();
            let set = IndexSet::new(union(&views));
            let filled: Vec<&[Block]> = views.iter().copied().filter(|l| !l.is_empty()).collect();
            prop_assert_eq!(&merge_all(&filled)[..], set.blocks());
            let want: BTreeSet<(u64, u32)> =
                lists.iter().flat_map(|l| IndexSet::new(l.clone()).elements().collect::<Vec<_>>()).collect();
            let elements: Vec<_> = set.elements().collect();
            prop_assert_eq!(&elements, &want.into_iter().collect::<Vec<_>>());
            for part in lists.iter().chain([&probe]) {
                let locator = Locator::new(&set);
                let map = locator.positions(part);
                let mut plain = vec![Slot::new(0); map.len()];
                fill(part, &Locator { table: None, ..locator }, &mut plain, expand);
                // SAFETY: all were initialised with 0.
                let plain: Vec<u32> = plain.iter().map(|p| unsafe { p.assume_init() }).collect();
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
