//! Levels as codes of a few bits: two's complement, the first in a byte's lowest bits.

/// Values that are encoded together; their codes fill whole bytes at any number of bits.
pub(super) const BLOCK: usize = 64;

/// The lowest bits of the levels packed into bytes, the first `BLOCK * BITS / 8` of which count.
#[inline(always)]
pub(super) fn bytes_of<const BITS: usize>(levels: &[i8; BLOCK]) -> [u8; BLOCK] {
    let mut bytes = [0u8; BLOCK];
    match BITS {
        2 => {
            for (byte, l) in bytes.iter_mut().zip(levels.chunks_exact(4)) {
                let x = u32::from_le_bytes([l[0] as u8, l[1] as u8, l[2] as u8, l[3] as u8]);
                *byte = (x & 3 | x >> 6 & 12 | x >> 12 & 48 | x >> 18 & 192) as u8;
            }
        }
        4 => {
            for (byte, l) in bytes.iter_mut().zip(levels.chunks_exact(2)) {
                let x = u16::from_le_bytes([l[0] as u8, l[1] as u8]);
                *byte = (x & 15 | x >> 4 & 240) as u8;
            }
        }
        _ => bytes.iter_mut().zip(levels).for_each(|(byte, l)| *byte = *l as u8),
    }
    bytes
}

/// The levels in the first `BLOCK * BITS / 8` bytes.
#[inline(always)]
pub(super) fn levels_of<const BITS: usize>(bytes: &[u8; BLOCK]) -> [i8; BLOCK] {
    let mut fields = [0u8; BLOCK];
    match BITS {
        2 => {
            for (four, byte) in fields.chunks_exact_mut(4).zip(bytes) {
                let x = u32::from(*byte);
                let x = x & 3 | (x & 12) << 6 | (x & 48) << 12 | (x & 192) << 18;
                four.copy_from_slice(&x.to_le_bytes());
            }
        }
        4 => {
            for (two, byte) in fields.chunks_exact_mut(2).zip(bytes) {
                let x = u16::from(*byte);
                two.copy_from_slice(&(x & 15 | (x & 240) << 4).to_le_bytes());
            }
        }
        _ => fields = *bytes,
    }
    // Flipping the sign bit and subtracting its weight extends the sign.
    let sign = 1u8 << (BITS - 1);
    let mut levels = [0i8; BLOCK];
    levels.iter_mut().zip(fields).for_each(|(l, f)| *l = (f ^ sign).wrapping_sub(sign) as i8);
    levels
}

/// `bytes`, followed by zeros.
#[inline(always)]
pub(super) fn padded(bytes: &[u8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}
