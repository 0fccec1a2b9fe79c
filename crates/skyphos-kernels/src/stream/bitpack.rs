//! Bit packing of small numbers, 256 at a time, with the bits that the largest of them needs.
//!
//! 256 numbers lie in 32 rows of 8 lanes; a lane's numbers follow each other bit by bit in its own
//! 32-bit words (the vertical layout of Lemire and Boytsov 2015, §4), so that packing and unpacking are
//! shifts of whole rows, which the compiler turns into vector instructions. A shorter last block is packed
//! in one lane. Cost: about one step a number either way.

use crate::simd;

/// Numbers per full block.
pub(crate) const BLOCK: usize = 256;
const LANES: usize = 8;
const ROWS: usize = BLOCK / LANES;

/// One number or word of each lane.
type Row = [u32; LANES];

/// Bits that the largest of the numbers needs.
#[inline(always)]
pub(crate) fn width_of(numbers: &[u32]) -> u32 {
    32 - numbers.iter().fold(0, |all, n| all | n).leading_zeros()
}

/// Bytes of `count` (at most [`BLOCK`]) numbers of `bits` bits.
#[inline(always)]
pub(crate) fn packed_bytes(count: usize, bits: u32) -> usize {
    match count {
        BLOCK => bits as usize * LANES * 4,
        _ => (count * bits as usize).div_ceil(8),
    }
}

/// Packs at most [`BLOCK`] numbers into exactly [`packed_bytes`].
pub(crate) fn pack(numbers: &[u32], bits: u32, out: &mut [u8]) {
    debug_assert_eq!(out.len(), packed_bytes(numbers.len(), bits));
    match <&[u32; BLOCK]>::try_from(numbers) {
        Ok(block) => simd::dispatch!(pack_block(block, bits, out)),
        Err(_) => pack_few(numbers, bits, out),
    }
}

/// Reverses [`pack`] for `numbers.len()` numbers. `packed` must have their [`packed_bytes`].
pub(crate) fn unpack(packed: &[u8], bits: u32, numbers: &mut [u32]) {
    debug_assert_eq!(packed.len(), packed_bytes(numbers.len(), bits));
    match <&mut [u32; BLOCK]>::try_from(&mut *numbers) {
        Ok(block) => simd::dispatch!(unpack_block(packed, bits, block)),
        Err(_) => unpack_few(packed, bits, numbers),
    }
}

#[inline(always)]
fn pack_block(block: &[u32; BLOCK], bits: u32, out: &mut [u8]) {
    // One row more than needed: a number that ends with its word adds only zeros to the next.
    let mut words = [[0u32; LANES]; ROWS + 1];
    for row in 0..ROWS {
        let at = row * bits as usize;
        let (word, shift) = (at / 32, at as u32 % 32);
        for lane in 0..LANES {
            let number = block[row * LANES + lane];
            words[word][lane] |= number << shift;
            words[word + 1][lane] |= (number >> 1) >> (31 - shift);
        }
    }
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    out.copy_from_slice(&bytes[..out.len()]);
}

#[inline(always)]
fn unpack_block(packed: &[u8], bits: u32, block: &mut [u32; BLOCK]) {
    let mut words = [[0u32; LANES]; ROWS + 1];
    bytemuck::cast_slice_mut::<Row, u8>(&mut words)[..packed.len()].copy_from_slice(packed);
    let mask = ((1u64 << bits) - 1) as u32;
    for row in 0..ROWS {
        let at = row * bits as usize;
        let (word, shift) = (at / 32, at as u32 % 32);
        for lane in 0..LANES {
            let low = words[word][lane] >> shift;
            let high = (words[word + 1][lane] << 1) << (31 - shift);
            block[row * LANES + lane] = (low | high) & mask;
        }
    }
}

fn pack_few(numbers: &[u32], bits: u32, out: &mut [u8]) {
    let (mut pending, mut count, mut at) = (0u64, 0, 0);
    for number in numbers {
        pending |= u64::from(*number) << count;
        count += bits;
        while count >= 8 {
            out[at] = pending as u8;
            (pending, count, at) = (pending >> 8, count - 8, at + 1);
        }
    }
    if count > 0 {
        out[at] = pending as u8;
    }
}

fn unpack_few(packed: &[u8], bits: u32, numbers: &mut [u32]) {
    let (mut pending, mut count, mut bytes) = (0u64, 0, packed.iter());
    let mask = (1u64 << bits) - 1;
    for number in numbers {
        while count < bits {
            pending |= u64::from(bytes.next().copied().unwrap_or(0)) << count;
            count += 8;
        }
        *number = (pending & mask) as u32;
        (pending, count) = (pending >> bits, count - bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unpack_undoes_pack(bits in 0u32..=32, raw in prop::collection::vec(any::<u32>(), 0..=BLOCK), whole: bool) {
            let mask = ((1u64 << bits) - 1) as u32;
            let mut numbers: Vec<u32> = raw.iter().map(|n| n & mask).collect();
            if whole {
                numbers.resize(BLOCK, mask);
            }
            prop_assert!(width_of(&numbers) <= bits);
            let mut packed = vec![0xee; packed_bytes(numbers.len(), bits)];
            pack(&numbers, bits, &mut packed);
            let mut back = vec![7; numbers.len()];
            unpack(&packed, bits, &mut back);
            prop_assert_eq!(back, numbers);
        }
    }
}
