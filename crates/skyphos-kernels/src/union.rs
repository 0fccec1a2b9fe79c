//! Union of sorted sets by tree merge (Kylix §VI-A), and the maps from parts into unions.
//!
//! Sets are merged in pairs, so that the two sides of a merge are about equally long: O(N log d)
//! block steps for d sets of N blocks together, less where they overlap. Merging has no branch that
//! depends on the data.

use crate::block::{Block, IndexSet};

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

/// Appends to `map` the position in `whole` of every element of `part`, or [`MISSING`].
///
/// Both are sorted, so the positions that are there ascend.
pub fn positions(part: &[Block], whole: &IndexSet, map: &mut Vec<u32>) {
    let blocks = whole.blocks();
    let mut k = 0;
    for block in part {
        while k < blocks.len() && blocks[k].id < block.id {
            k += 1;
        }
        let full = if k < blocks.len() && blocks[k].id == block.id { blocks[k].mask } else { 0 };
        let base = whole.base(k) as u32;
        if full == block.mask {
            map.extend(base..base + full.count_ones());
            continue;
        }
        let mut left = block.mask;
        while left != 0 {
            let bit = left & left.wrapping_neg();
            let below = (full & (bit - 1)).count_ones();
            map.push(if full & bit != 0 { base + below } else { MISSING });
            left ^= bit;
        }
    }
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
                let mut map = Vec::new();
                positions(part, &whole, &mut map);
                let want: Vec<u32> = IndexSet::new(part.clone())
                    .elements()
                    .map(|e| elements.binary_search(&e).map_or(MISSING, |p| p as u32))
                    .collect();
                prop_assert_eq!(map, want);
            }
        }
    }
}
