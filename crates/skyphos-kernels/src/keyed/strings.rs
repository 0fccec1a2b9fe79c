//! Hashes and comparisons of strings in a concatenated array.
//!
//! Most keys are short, and their lengths vary, so a branch on the length is often mispredicted. Strings of up to 16 bytes are
//! therefore loaded as one number of 16 bytes, and the bytes of the next strings are masked out.

use super::hash_number;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of the longest string that is loaded as one number.
const SHORT_BYTES: usize = 16;

/// A string of up to 16 bytes as a number, zero-extended.
#[inline]
fn short(bytes: &[u8], start: usize, len: usize) -> u128 {
    let Some(padded) = bytes.get(start..start + SHORT_BYTES) else {
        let mut padded = [0; SHORT_BYTES];
        padded[..len].copy_from_slice(&bytes[start..start + len]);
        return u128::from_le_bytes(padded);
    };
    let all = u128::from_le_bytes(padded.try_into().expect("16 bytes"));
    all & u128::MAX.checked_shr(8 * (SHORT_BYTES - len) as u32).unwrap_or(0)
}

/// Start and length of a string.
#[inline]
fn span_of(offsets: &[i64], at: usize) -> (usize, usize) {
    let start = offsets[at] as usize;
    (start, offsets[at + 1] as usize - start)
}

/// The hash of a string, the same on all machines: XXH3, or for a short string the product of its two zero-extended halves, mixed
/// with its length.
#[inline]
pub(super) fn hash_string(offsets: &[i64], bytes: &[u8], at: usize) -> u64 {
    let (start, len) = span_of(offsets, at);
    if len > SHORT_BYTES {
        return xxh3_64(&bytes[start..start + len]);
    }
    let whole = short(bytes, start, len);
    let (low, high) = (whole as u64 ^ 0x9e37_79b9_7f4a_7c15, (whole >> 64) as u64 ^ 0xd6e8_feb8_6659_fd93);
    let product = u128::from(low) * u128::from(high);
    hash_number(product as u64 ^ (product >> 64) as u64 ^ (len as u64).wrapping_mul(0xa076_1d64_78bd_642f))
}

/// Whether two strings, each from its own array, are equal.
#[inline]
pub(super) fn same_string(a: (&[i64], &[u8], usize), b: (&[i64], &[u8], usize)) -> bool {
    let ((start_a, len_a), (start_b, len_b)) = (span_of(a.0, a.2), span_of(b.0, b.2));
    if len_a != len_b {
        return false;
    }
    if len_a > SHORT_BYTES {
        return a.1[start_a..start_a + len_a] == b.1[start_b..start_b + len_b];
    }
    short(a.1, start_a, len_a) == short(b.1, start_b, len_b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::{owner_of, tests::assert_even};
    use proptest::prelude::*;

    fn hash(string: &[u8]) -> u64 {
        hash_string(&[0, string.len() as i64], string, 0)
    }

    proptest! {
        /// The bytes around a string do not matter.
        #[test]
        fn strings_are_compared_by_their_bytes(
            a in prop::collection::vec(0u8..3, 0..20),
            b in prop::collection::vec(0u8..3, 0..20),
            before in prop::collection::vec(any::<u8>(), 0..20),
            after in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let whole = [&before[..], &a, &after].concat();
            let offsets = [before.len() as i64, (before.len() + a.len()) as i64];
            prop_assert_eq!(hash_string(&offsets, &whole, 0), hash(&a));
            prop_assert!(same_string((&offsets, &whole, 0), (&[0, a.len() as i64], &a, 0)));
            prop_assert_eq!(same_string((&offsets, &whole, 0), (&[0, b.len() as i64], &b, 0)), a == b);
        }
    }

    #[test]
    fn different_strings_have_different_hashes() {
        let mut hashes: Vec<u64> = (0..200_000u32).map(|k| hash(k.to_string().as_bytes())).collect();
        // Strings of zeroes of different lengths differ.
        hashes.extend((0..40).map(|len| hash(&vec![0; len])));
        let mut owners = [0u32; 64];
        hashes.iter().for_each(|hash| owners[owner_of(*hash, 64) as usize] += 1);
        assert_even(&owners);
        for half in [0, 32] {
            let mut halves: Vec<u32> = hashes.iter().map(|hash| (hash >> half) as u32).collect();
            halves.sort_unstable();
            halves.dedup();
            // About five pairs of this many share a half by chance.
            assert!(halves.len() + 20 > hashes.len(), "{half}: {}", hashes.len() - halves.len());
        }
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 200_040);
    }
}
