//! Rows by key: grouping, the owner of each key, and the encoding of rows.
//!
//! A [`Grouper`] numbers distinct keys from 0 in the order of first occurrence, over any number of batches. A [`Table`] folds rows
//! of equal keys by that number, or lists them, and encodes them for other ranks ([`Block`]). Keys are 64-bit numbers or byte
//! strings; the table takes 8 bytes for each key, besides the key itself.

mod block;
mod fold;
mod grouper;
mod keys;
mod strings;
mod table;
mod tokens;

pub use block::Block;
pub use grouper::Grouper;
pub use keys::{KeyStore, Keys, Numbers, StringBatch, Strings};
pub use table::{Merge, NOWHERE, Table};
pub use tokens::tokens;

/// The hash of a number: the finaliser of MurmurHash3, in which each bit of a key flips about half of the bits.
pub fn hash_number(key: u64) -> u64 {
    let key = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let key = (key ^ (key >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ (key >> 33)
}

/// The rank, of `ranks`, that owns keys with a hash. It depends on bits that a rank's table mixes with others, so that the keys of
/// one owner do not collide there.
pub fn owner_of(hash: u64, ranks: u32) -> u32 {
    ((u64::from((hash >> 8) as u32) * u64::from(ranks)) >> 32) as u32
}

/// A shuffle sends its keys in waves, at most 65,536. The wave of keys with a hash, independent of their owner.
pub fn wave_of(hash: u64, waves: u32) -> u32 {
    (((hash >> 40 & 0xffff) * u64::from(waves)) >> 16) as u32
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Checks that counts differ from their mean by less than six standard deviations.
    pub(crate) fn assert_even(counts: &[u32]) {
        let mean = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        let even = |count: &u32| (f64::from(*count) - mean).abs() < 6.0 * mean.sqrt();
        assert!(counts.iter().all(even), "{counts:?}");
    }

    #[test]
    fn waves_of_an_owner_are_even() {
        let hashes = (0..100_000).map(hash_number).filter(|hash| owner_of(*hash, 7) == 3);
        let mut counts = [0u32; 16];
        hashes.for_each(|hash| counts[wave_of(hash, 16) as usize] += 1);
        assert_even(&counts);
    }

    #[test]
    fn owners_are_even() {
        for ranks in [1u32, 3, 8, 100] {
            let mut counts = vec![0u32; ranks as usize];
            (0..100_000).for_each(|key| counts[owner_of(hash_number(key), ranks) as usize] += 1);
            assert_even(&counts);
        }
    }
}
