//! Index sets on the wire: the smallest of three forms.
//!
//! A set lies in a range `lo..hi` of hashed block numbers that both sides know. A head of 17 bytes holds the form (1 byte), the
//! number of blocks and the number of elements (8 bytes each). The body depends on the form:
//!
//! | form | bytes | best when |
//! |---|---|---|
//! | blocks | for each block 4 or 8 for its number and 8 for its mask | some indices per block |
//! | flat | 4 or 8 for each index: (block - lo) · 64 + bit | one index per block |
//! | bitmap | 8 for each block of the range | most blocks are present |
//!
//! Numbers take 4 bytes where the range allows. The decoder checks everything it reads.

use crate::block::{BLOCK_BITS, Block, count_indices};

const HEAD_BYTES: usize = 17;
const BLOCKS: u8 = 0;
const FLAT: u8 = 1;
const BITMAP: u8 = 2;

fn number_bytes(range: u64) -> u64 {
    if range <= 1 << 32 { 4 } else { 8 }
}

fn flat_bytes(range: u64) -> u64 {
    if range <= 1 << (32 - BLOCK_BITS) { 4 } else { 8 }
}

/// A set with its smallest form chosen, ready to be written.
pub struct Encoding<'a> {
    blocks: &'a [Block],
    lo: u64,
    range: u64,
    elements: u64,
    form: u8,
    size: u64,
}

/// The smallest form of a set with these numbers of blocks and indices in a range of block ids: its bytes and its code.
fn smallest(blocks: u64, indices: u64, range: u64) -> (u64, u8) {
    let sizes = [
        (blocks * (number_bytes(range) + 8), BLOCKS),
        (indices * flat_bytes(range), FLAT),
        (range.saturating_mul(8), BITMAP),
    ];
    *sizes.iter().min().expect("three forms")
}

/// Encoded bytes of a set with these numbers of blocks and indices in a range of block ids.
pub fn encoded_bytes(blocks: u64, indices: u64, range: u64) -> usize {
    HEAD_BYTES + smallest(blocks, indices, range).0 as usize
}

impl<'a> Encoding<'a> {
    /// The smallest form of a set of the range `lo..hi`.
    pub fn new(blocks: &'a [Block], lo: u64, hi: u64) -> Encoding<'a> {
        let (range, elements) = (hi - lo, count_indices(blocks));
        let (size, form) = smallest(blocks.len() as u64, elements, range);
        Encoding { blocks, lo, range, elements, form, size }
    }

    /// Encoded bytes.
    pub fn bytes(&self) -> usize {
        HEAD_BYTES + self.size as usize
    }

    /// Writes the set into exactly [`Encoding::bytes`] bytes.
    pub fn write(&self, out: &mut [u8]) {
        let (head, body) = out.split_at_mut(HEAD_BYTES);
        head[0] = self.form;
        head[1..9].copy_from_slice(&(self.blocks.len() as u64).to_le_bytes());
        head[9..17].copy_from_slice(&self.elements.to_le_bytes());
        match self.form {
            BLOCKS => {
                let size = number_bytes(self.range) as usize;
                let (ids, masks) = body.split_at_mut(self.blocks.len() * size);
                put_numbers(ids, size, self.blocks.iter().map(|b| b.id - self.lo));
                put_numbers(masks, 8, self.blocks.iter().map(|b| b.mask));
            }
            FLAT => {
                let size = flat_bytes(self.range) as usize;
                let mut at = 0;
                for b in self.blocks {
                    let (first, mut left) = ((b.id - self.lo) << BLOCK_BITS, b.mask);
                    while left != 0 {
                        let flat = first | u64::from(left.trailing_zeros());
                        body[at..at + size].copy_from_slice(&flat.to_le_bytes()[..size]);
                        at += size;
                        left &= left - 1;
                    }
                }
            }
            _ => {
                body.fill(0);
                for b in self.blocks {
                    let at = (b.id - self.lo) as usize * 8;
                    body[at..at + 8].copy_from_slice(&b.mask.to_le_bytes());
                }
            }
        }
    }
}

fn put_numbers(out: &mut [u8], size: usize, numbers: impl Iterator<Item = u64>) {
    if size == 4 {
        out.chunks_exact_mut(4).zip(numbers).for_each(|(o, v)| o.copy_from_slice(&(v as u32).to_le_bytes()));
    } else {
        out.chunks_exact_mut(8).zip(numbers).for_each(|(o, v)| o.copy_from_slice(&v.to_le_bytes()));
    }
}

/// The set at the start of `bytes`, and its encoded size.
pub fn decode(bytes: &[u8], lo: u64, hi: u64) -> Result<(Vec<Block>, usize), &'static str> {
    let range = hi - lo;
    let (head, body) = bytes.split_at_checked(HEAD_BYTES).ok_or("a set shorter than its head")?;
    let count = u64::from_le_bytes(head[1..9].try_into().expect("8 bytes"));
    let elements = u64::from_le_bytes(head[9..17].try_into().expect("8 bytes"));
    if count > range || elements > count.saturating_mul(64) || elements < count {
        return Err("a set with more blocks than its range, or indices than its blocks");
    }
    let body_bytes = match head[0] {
        BLOCKS => count.saturating_mul(number_bytes(range) + 8),
        FLAT => elements.saturating_mul(flat_bytes(range)),
        BITMAP => range.saturating_mul(8),
        _ => return Err("a set of unknown form"),
    };
    let body =
        body.get(..usize::try_from(body_bytes).map_err(|_| "a set too large")?).ok_or("a set cut short")?;
    let blocks = match head[0] {
        BLOCKS => decode_blocks(body, count as usize, lo, number_bytes(range) as usize),
        FLAT => decode_flat(body, count as usize, lo, flat_bytes(range) as usize),
        _ => decode_bitmap(body, count as usize, lo),
    };
    // The blocks are sorted, so the last one is inside the range only if all are.
    let sorted =
        blocks.iter().zip(&blocks[1.min(blocks.len())..]).fold(true, |all, (a, b)| all & (a.id < b.id));
    let inside =
        blocks.last().is_none_or(|b| b.id < hi) && blocks.iter().fold(true, |all, b| all & (b.mask != 0));
    if !sorted || !inside || count_indices(&blocks) != elements || blocks.len() as u64 != count {
        return Err("a set that is not sorted, distinct and inside its range");
    }
    Ok((blocks, HEAD_BYTES + body_bytes as usize))
}

fn number(bytes: &[u8]) -> u64 {
    match bytes.try_into() {
        Ok(four) => u64::from(u32::from_le_bytes(four)),
        Err(_) => u64::from_le_bytes(bytes.try_into().expect("4 or 8 bytes")),
    }
}

fn decode_blocks(body: &[u8], count: usize, lo: u64, size: usize) -> Vec<Block> {
    let (ids, masks) = body.split_at(count * size);
    ids.chunks_exact(size)
        .zip(masks.chunks_exact(8))
        .map(|(id, m)| Block {
            id: lo.saturating_add(number(id)),
            mask: u64::from_le_bytes(m.try_into().expect("8 bytes")),
        })
        .collect()
}

/// The blocks with indices. A block without indices is written, too, and the next block overwrites it. If there are more than
/// `count`, the result has `count + 1`.
fn decode_bitmap(body: &[u8], count: usize, lo: u64) -> Vec<Block> {
    let mut blocks = vec![Block::default(); count + 1];
    let mut k = 0;
    for (mask, id) in body.chunks_exact(8).zip(lo..) {
        let mask = u64::from_le_bytes(mask.try_into().expect("8 bytes"));
        blocks[k.min(count)] = Block { id, mask };
        k += usize::from(mask != 0);
    }
    blocks.truncate(k);
    blocks
}

fn decode_flat(body: &[u8], count: usize, lo: u64, size: usize) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::with_capacity(count);
    for flat in body.chunks_exact(size).map(number) {
        let (id, bit) = (lo.saturating_add(flat >> BLOCK_BITS), 1 << (flat & 63));
        match blocks.last_mut() {
            Some(block) if block.id == id => block.mask |= bit,
            _ => blocks.push(Block { id, mask: bit }),
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn encode(blocks: &[Block], lo: u64, hi: u64, out: &mut Vec<u8>) {
        let encoding = Encoding::new(blocks, lo, hi);
        out.resize(encoding.bytes(), 0xee);
        encoding.write(out);
    }

    fn set(range: u64) -> impl Strategy<Value = Vec<Block>> {
        let mask = prop_oneof![any::<u64>(), (0u32..64).prop_map(|b| 1 << b)];
        prop::collection::btree_map(0..range, mask.prop_filter("not empty", |m| *m != 0), 0..80)
            .prop_map(|m: BTreeMap<u64, u64>| m.into_iter().map(|(id, mask)| Block { id, mask }).collect())
    }

    proptest! {
        #[test]
        fn round_trip(
            (range, blocks) in prop_oneof![Just(80u64), Just(100_000), Just(1 << 30), Just(1 << 50)]
                .prop_flat_map(|r| (Just(r), set(r))),
            lo in 0u64..1 << 50,
        ) {
            let moved: Vec<Block> = blocks.iter().map(|b| Block { id: b.id + lo, ..*b }).collect();
            let mut bytes = vec![];
            encode(&moved, lo, lo + range, &mut bytes);
            let size = bytes.len();
            bytes.extend([7; 5]);
            prop_assert_eq!(decode(&bytes, lo, lo + range), Ok((moved, size)));
            prop_assert!(decode(&bytes[..size - 1], lo, lo + range).is_err());
        }

        #[test]
        fn any_bytes_are_a_set_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), form in 0u8..4,
                                           count in 0u8..10, elements in 0u8..20) {
            let mut crafted = vec![form];
            crafted.extend(u64::from(count).to_le_bytes());
            crafted.extend(u64::from(elements).to_le_bytes());
            crafted.extend(&bytes);
            for input in [&bytes, &crafted] {
                if let Ok((blocks, _)) = decode(input, 1000, 1010) {
                    prop_assert!(blocks.iter().all(|b| (1000..1010).contains(&b.id) && b.mask != 0));
                }
            }
        }
    }

    #[test]
    fn a_count_beyond_all_memory_is_an_error() {
        // In the largest index space, eight bytes for each claimed index overflow to 0 bytes.
        for form in 0..3 {
            let mut bytes = vec![form];
            bytes.extend((1u64 << 57).to_le_bytes());
            bytes.extend((1u64 << 61).to_le_bytes());
            assert_eq!(decode(&bytes, 0, 1 << 58), Err("a set cut short"));
        }
    }

    #[test]
    fn the_smallest_form_wins() {
        let size = |blocks: &[Block], range| {
            let mut out = vec![];
            encode(blocks, 0, range, &mut out);
            out.len() - HEAD_BYTES
        };
        let one = |id| Block { id, mask: 1 };
        assert_eq!(size(&[one(5)], 1000), 4);
        assert_eq!(size(&[Block { id: 5, mask: u64::MAX }], 1000), 12);
        assert_eq!(size(&(0..1000).map(|id| Block { id, mask: 3 }).collect::<Vec<_>>(), 1000), 8000);
    }
}
