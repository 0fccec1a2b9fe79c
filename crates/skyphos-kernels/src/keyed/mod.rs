//! Keys of any kind to small numbers, and to the rank that owns them.
//!
//! A [`Grouper`] numbers distinct keys from 0 in the order in which they first come, over as many batches as there are: rows of
//! equal keys are then folded by number, or kept side by side ([`Table`]), and go to other ranks as bytes ([`Block`]). Numbers
//! and strings of bytes; 8 bytes of table a key, and the key.

mod block;
mod grouper;
mod keys;
mod strings;
mod table;
mod words;

pub use block::Block;
pub use grouper::Grouper;
pub use keys::{Keys, Known, Numbers, StringBatch, Strings};
pub use table::{Merge, NOWHERE, Table};
pub use words::words;

/// The hash of a number: the finaliser of MurmurHash3, in which each bit of a key changes half of the bits.
pub fn hash_number(key: u64) -> u64 {
    let key = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let key = (key ^ (key >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ (key >> 33)
}

/// The rank that owns keys of a hash, of `ranks`. A table within a rank goes by the upper half, all bits of which it mixes: those that
/// an owner's keys have in common do no harm.
pub fn owner_of(hash: u64, ranks: u32) -> u32 {
    ((u64::from((hash >> 8) as u32) * u64::from(ranks)) >> 32) as u32
}

/// In which of several waves keys of a hash go, at most 65,536 of them. By bits that owners do not go by.
pub fn wave_of(hash: u64, waves: u32) -> u32 {
    (((hash >> 40 & 0xffff) * u64::from(waves)) >> 16) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_of_an_owner_have_about_as_many() {
        let hashes = (0..100_000).map(hash_number).filter(|hash| owner_of(*hash, 7) == 3);
        let mut counts = [0u32; 16];
        hashes.for_each(|hash| counts[wave_of(hash, 16) as usize] += 1);
        let even = 100_000.0 / 7.0 / 16.0;
        assert!(
            counts.iter().all(|count| (f64::from(*count) - even).abs() < 6.0 * even.sqrt()),
            "{counts:?}"
        );
    }

    #[test]
    fn owners_have_about_as_many() {
        for ranks in [1u32, 3, 8, 100] {
            let mut counts = vec![0u32; ranks as usize];
            (0..100_000).for_each(|key| counts[owner_of(hash_number(key), ranks) as usize] += 1);
            let even = 100_000.0 / f64::from(ranks);
            assert!(
                counts.iter().all(|count| (f64::from(*count) - even).abs() < 6.0 * even.sqrt()),
                "{counts:?}"
            );
        }
    }
}
