//! Keys of any kind to small numbers, and to the rank that owns them.
//!
//! A [`Grouper`] numbers distinct keys from 0 in the order in which they first come, over as many batches as there are: rows of
//! equal keys are then folded by number ([`fold_rows`](crate::fold_rows)). Numbers and strings of bytes; 8 bytes of table a key,
//! and the key.

use hashbrown::HashTable;
use skyphos_types::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

/// The hash of a number: the finaliser of MurmurHash3, in which each bit of a key changes half of the bits.
pub fn hash_number(key: u64) -> u64 {
    let key = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let key = (key ^ (key >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ (key >> 33)
}

/// The hash of bytes: XXH3, the same on all machines.
pub fn hash_bytes(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// The rank that owns keys of a hash, of `ranks`. A table within a rank goes by the lowest bits and the highest: these are others.
pub fn owner_of(hash: u64, ranks: u32) -> u32 {
    ((u64::from((hash >> 8) as u32) * u64::from(ranks)) >> 32) as u32
}

/// Keys of a batch, one after the other.
pub trait Keys {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The hash of one.
    fn hash(&self, at: usize) -> u64;
}

/// Distinct keys of a kind.
pub trait Known: Default {
    /// A batch of them.
    type Batch<'a>: Keys;

    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a known key is the one at a place of a batch.
    fn is(&self, number: u32, batch: &Self::Batch<'_>, at: usize) -> bool;

    /// One more.
    fn add(&mut self, batch: &Self::Batch<'_>, at: usize);

    /// The hash of a known key.
    fn hash(&self, number: u32) -> u64;
}

/// Numbers as they are.
pub type Numbers = Vec<u64>;

impl Keys for &[u64] {
    fn len(&self) -> usize {
        <[u64]>::len(self)
    }

    fn hash(&self, at: usize) -> u64 {
        hash_number(self[at])
    }
}

impl Known for Numbers {
    type Batch<'a> = &'a [u64];

    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn is(&self, number: u32, batch: &&[u64], at: usize) -> bool {
        self[number as usize] == batch[at]
    }

    fn add(&mut self, batch: &&[u64], at: usize) {
        self.push(batch[at]);
    }

    fn hash(&self, number: u32) -> u64 {
        hash_number(self[number as usize])
    }
}

/// Strings of bytes as Arrow has them: string k is `bytes[offsets[k]..offsets[k + 1]]`.
#[derive(Clone, Copy, Debug)]
pub struct StringBatch<'a> {
    offsets: &'a [i64],
    bytes: &'a [u8],
}

impl<'a> StringBatch<'a> {
    /// Of these.
    ///
    /// # Errors
    /// `BadInput` where the offsets do not ascend within the bytes.
    pub fn new(offsets: &'a [i64], bytes: &'a [u8]) -> Result<StringBatch<'a>> {
        let whole = offsets.first().is_some_and(|first| *first >= 0) && offsets.is_sorted();
        match whole && offsets.last().is_some_and(|last| *last as u64 <= bytes.len() as u64) {
            true => Ok(StringBatch { offsets, bytes }),
            false => Err(Error::bad_input(format!(
                "offsets of strings that do not lie within their {} bytes",
                bytes.len()
            ))),
        }
    }

    fn get(&self, at: usize) -> &'a [u8] {
        &self.bytes[self.offsets[at] as usize..self.offsets[at + 1] as usize]
    }
}

impl Keys for StringBatch<'_> {
    fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    fn hash(&self, at: usize) -> u64 {
        hash_bytes(self.get(at))
    }
}

/// Strings one after the other.
#[derive(Debug)]
pub struct Strings {
    offsets: Vec<i64>,
    bytes: Vec<u8>,
}

impl Default for Strings {
    fn default() -> Strings {
        Strings { offsets: vec![0], bytes: Vec::new() }
    }
}

impl Strings {
    fn get(&self, number: u32) -> &[u8] {
        let at = number as usize;
        &self.bytes[self.offsets[at] as usize..self.offsets[at + 1] as usize]
    }

    /// Where each begins, and the end; and all of them.
    pub fn into_parts(self) -> (Vec<i64>, Vec<u8>) {
        (self.offsets, self.bytes)
    }
}

impl Known for Strings {
    type Batch<'a> = StringBatch<'a>;

    fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    fn is(&self, number: u32, batch: &StringBatch<'_>, at: usize) -> bool {
        self.get(number) == batch.get(at)
    }

    fn add(&mut self, batch: &StringBatch<'_>, at: usize) {
        self.bytes.extend_from_slice(batch.get(at));
        self.offsets.push(self.bytes.len() as i64);
    }

    fn hash(&self, number: u32) -> u64 {
        hash_bytes(self.get(number))
    }
}

/// See the module's text.
#[derive(Default)]
pub struct Grouper<K> {
    known: K,
    /// Upper half of a key's hash, and its number.
    table: HashTable<(u32, u32)>,
}

impl<K: Known> Grouper<K> {
    /// The number of each key of a batch.
    ///
    /// # Errors
    /// `BadInput` where there are more than 2^32 - 1 different ones.
    pub fn numbers(&mut self, batch: &K::Batch<'_>) -> Result<Vec<u32>> {
        let Grouper { known, table } = self;
        let number_of = |at: usize| {
            let hash = batch.hash(at);
            let upper = (hash >> 32) as u32;
            let is = |entry: &(u32, u32)| entry.0 == upper && known.is(entry.1, batch, at);
            if let Some((_, number)) = table.find(hash, is) {
                return Ok(*number);
            }
            let number = u32::try_from(known.len()).ok().filter(|number| *number < u32::MAX);
            let number =
                number.ok_or_else(|| Error::bad_input("more than 2^32 - 1 different keys on a rank"))?;
            known.add(batch, at);
            table.insert_unique(hash, (upper, number), |entry| known.hash(entry.1));
            Ok(number)
        };
        (0..batch.len()).map(number_of).collect()
    }

    /// How many different ones there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The keys, by number.
    pub fn into_keys(self) -> K {
        self.known
    }
}

/// The owner of each key of a batch.
pub fn owners(batch: &impl Keys, ranks: u32) -> Vec<u32> {
    (0..batch.len()).map(|at| owner_of(batch.hash(at), ranks)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Numbers as a map gives them.
    fn oracle<T: Ord + Clone>(keys: &[T]) -> (Vec<u32>, Vec<T>) {
        let (mut numbers, mut distinct) = (BTreeMap::new(), Vec::new());
        let of_each = keys.iter().map(|key| {
            *numbers.entry(key.clone()).or_insert_with(|| {
                distinct.push(key.clone());
                distinct.len() as u32 - 1
            })
        });
        (of_each.collect(), distinct)
    }

    fn batch_of(strings: &[Vec<u8>]) -> (Vec<i64>, Vec<u8>) {
        let mut offsets = vec![0];
        strings.iter().for_each(|string| offsets.push(offsets[offsets.len() - 1] + string.len() as i64));
        (offsets, strings.concat())
    }

    proptest! {
        #[test]
        fn each_key_has_one_number(keys in prop::collection::vec(prop_oneof![0u64..20, any::<u64>()], 0..300), cut in any::<prop::sample::Index>()) {
            let (numbers, distinct) = oracle(&keys);
            let mut grouper = Grouper::<Numbers>::default();
            let (first, second) = keys.split_at(cut.index(keys.len() + 1));
            let got = [grouper.numbers(&first).unwrap(), grouper.numbers(&second).unwrap()].concat();
            prop_assert_eq!(got, numbers);
            prop_assert_eq!(grouper.into_keys(), distinct);
        }

        #[test]
        fn strings_too(keys in prop::collection::vec(prop::collection::vec(0u8..3, 0..4), 0..200), cut in any::<prop::sample::Index>()) {
            let (numbers, distinct) = oracle(&keys);
            let mut grouper = Grouper::<Strings>::default();
            let mut got = Vec::new();
            let (first, second) = keys.split_at(cut.index(keys.len() + 1));
            for some in [first, second] {
                let (offsets, bytes) = batch_of(some);
                got.extend(grouper.numbers(&StringBatch::new(&offsets, &bytes).unwrap()).unwrap());
            }
            prop_assert_eq!(got, numbers);
            prop_assert_eq!(grouper.into_keys().into_parts(), batch_of(&distinct));
        }
    }

    #[test]
    fn owners_have_about_as_many() {
        for ranks in [1u32, 3, 8, 100] {
            let keys: Vec<u64> = (0..100_000).collect();
            let mut counts = vec![0u32; ranks as usize];
            owners(&&keys[..], ranks).iter().for_each(|owner| counts[*owner as usize] += 1);
            let even = 100_000.0 / f64::from(ranks);
            assert!(
                counts.iter().all(|count| (f64::from(*count) - even).abs() < 6.0 * even.sqrt()),
                "{counts:?}"
            );
        }
    }

    #[test]
    fn offsets_that_lie_elsewhere() {
        for offsets in [&[][..], &[-1, 2], &[0, 3, 2], &[0, 4]] {
            assert!(StringBatch::new(offsets, b"abc").is_err());
        }
        assert_eq!(StringBatch::new(&[0], b"").unwrap().len(), 0);
    }
}
