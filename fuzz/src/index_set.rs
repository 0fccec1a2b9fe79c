//! Index sets in their three forms (`skyphos-kernels`, `codec.rs`).

use crate::allocation::{Limits, within};
use crate::number;
use arbitrary::{Result, Unstructured};
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_kernels::{Block, Encoding, IndexSet, count_indices, decode, union};

/// Number of block ids of the largest index space.
const MAX_BLOCKS: u64 = 1 << 58;

/// Five times the bytes of a set: an index of 4 bytes becomes a block of 16.
const LIMITS: Limits = Limits { one: 5 * CHUNK_BYTES, all: 24 * CHUNK_BYTES };

/// The input has a range of blocks, then an encoded set, mostly with a valid head.
pub fn run(data: &[u8]) {
    let _ = decode_sets(&mut Unstructured::new(&data[..data.len().min(CHUNK_BYTES)]));
}

fn decode_sets(u: &mut Unstructured<'_>) -> Result<()> {
    let bits = if u.arbitrary()? { 58 } else { u.int_in_range(0..=58)? };
    let range = (u.arbitrary::<u64>()? & ((1 << bits) - 1)) + 1;
    let lo = u.int_in_range(0..=MAX_BLOCKS - range)?;
    let mut bytes = Vec::new();
    if u.ratio(3, 4)? {
        bytes.push(u.int_in_range(0..=3)?);
        bytes.extend(number(u)?.to_le_bytes());
        bytes.extend(number(u)?.to_le_bytes());
    }
    bytes.extend(u.bytes(u.len())?);
    let (first, used) = check_set(&bytes, lo, lo + range);
    // A message may hold two sets.
    let (second, _) = check_set(&bytes[used..], lo, lo + range);
    if count_indices(&first) + count_indices(&second) < 1 << 20 {
        let both = union(&[&first, &second]);
        check_blocks(&both, lo, lo + range);
        let set = IndexSet::new(both);
        assert!(set.len() as u64 >= count_indices(&first));
    }
    Ok(())
}

fn check_set(bytes: &[u8], lo: u64, hi: u64) -> (Vec<Block>, usize) {
    let Ok((blocks, used)) = within(LIMITS, || decode(bytes, lo, hi)) else { return (Vec::new(), 0) };
    assert!(used <= bytes.len());
    check_blocks(&blocks, lo, hi);
    let encoding = Encoding::new(&blocks, lo, hi);
    assert!(encoding.bytes() <= used, "another form is smaller");
    let mut again = vec![0; encoding.bytes()];
    encoding.write(&mut again);
    assert_eq!(decode(&again, lo, hi), Ok((blocks.clone(), again.len())));
    (blocks, used)
}

fn check_blocks(blocks: &[Block], lo: u64, hi: u64) {
    assert!(blocks.is_sorted_by(|a, b| a.id < b.id));
    assert!(blocks.iter().all(|block| (lo..hi).contains(&block.id) && block.mask != 0));
}
