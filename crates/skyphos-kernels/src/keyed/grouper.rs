//! Grouper: a number for each distinct key, from 0 in the order of first occurrence.

use super::{KeyStore, Keys};
use hashbrown::HashTable;
use skyphos_types::{Error, Result};
use std::ops::Range;

/// Keys that are looked up together, step by step, so that the cache misses of a large table overlap.
const LOOKUP_BATCH: usize = 64;

/// Result of the first look-up if it found nothing.
const NOT_FOUND: u32 = u32::MAX;

/// Numbers of distinct keys, over any number of batches.
#[derive(Default)]
pub struct Grouper<K> {
    keys: K,
    /// The upper half of a key's hash, and the key's number.
    table: HashTable<(u32, u32)>,
}

/// The table's hash of an entry. It depends on the entry alone, so that the table grows without reading the keys. The keys of one
/// owner share some bits of the half, so all bits of the half are mixed into the lowest and the highest ones, which hashbrown uses.
fn table_hash((half, _): &(u32, u32)) -> u64 {
    let product = u64::from(*half).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}

impl<K: KeyStore> Grouper<K> {
    /// The number of each key of a batch.
    ///
    /// # Errors
    /// `BadInput` if there are more than 2^32 - 1 distinct keys.
    pub fn numbers(&mut self, batch: &K::Batch<'_>) -> Result<Vec<u32>> {
        let mut numbers = Vec::with_capacity(batch.len());
        self.numbers_of(batch, 0..batch.len(), &mut numbers)?;
        Ok(numbers)
    }

    /// Appends the numbers of a range of a batch's keys.
    ///
    /// # Errors
    /// As [`Grouper::numbers`].
    pub fn numbers_of(&mut self, batch: &K::Batch<'_>, range: Range<usize>, to: &mut Vec<u32>) -> Result<()> {
        let mut halves = [0u32; LOOKUP_BATCH];
        let mut found = [NOT_FOUND; LOOKUP_BATCH];
        for start in range.clone().step_by(LOOKUP_BATCH) {
            let count = LOOKUP_BATCH.min(range.end - start);
            for (k, half) in halves[..count].iter_mut().enumerate() {
                *half = (batch.hash(start + k) >> 32) as u32;
            }
            for (half, found) in halves[..count].iter().zip(&mut found) {
                let entry = self.table.find(table_hash(&(*half, 0)), |entry| entry.0 == *half);
                *found = entry.map_or(NOT_FOUND, |entry| entry.1);
            }
            for (k, (half, found)) in halves[..count].iter().zip(found).enumerate() {
                let at = start + k;
                to.push(match found != NOT_FOUND && self.keys.equals(found, batch, at) {
                    true => found,
                    false => self.find_or_add(*half, batch, at)?,
                });
            }
        }
        Ok(())
    }

    /// The number of a key that the first look-up did not find: it is new, was added since, or shares half of its hash with another.
    #[cold]
    fn find_or_add(&mut self, half: u32, batch: &K::Batch<'_>, at: usize) -> Result<u32> {
        let Grouper { keys, table } = self;
        let new = (half, keys.len() as u32);
        let equals = |entry: &(u32, u32)| entry.0 == half && keys.equals(entry.1, batch, at);
        if let Some((_, number)) = table.find(table_hash(&new), equals) {
            return Ok(*number);
        }
        if keys.len() >= NOT_FOUND as usize {
            return Err(Error::bad_input("a rank takes at most 2^32 - 1 distinct keys"));
        }
        keys.add(batch, at);
        table.insert_unique(table_hash(&new), new, table_hash);
        Ok(new.1)
    }

    /// Number of distinct keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The distinct keys, by number.
    pub fn keys(&self) -> &K {
        &self.keys
    }

    /// The distinct keys, by number, taken out.
    pub fn into_keys(self) -> K {
        self.keys
    }

    /// Bytes of the table, without the keys.
    pub fn table_bytes(&self) -> usize {
        self.table.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::{Numbers, StringBatch, Strings};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Oracle: numbers by an ordered map.
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
        fn each_string_has_one_number(keys in prop::collection::vec(prop::collection::vec(0u8..3, 0..4), 0..200), cut in any::<prop::sample::Index>()) {
            let (numbers, distinct) = oracle(&keys);
            let mut grouper = Grouper::<Strings>::default();
            let mut got = Vec::new();
            let (first, second) = keys.split_at(cut.index(keys.len() + 1));
            for part in [first, second] {
                let (offsets, bytes) = batch_of(part);
                got.extend(grouper.numbers(&StringBatch::new(&offsets, &bytes).unwrap()).unwrap());
            }
            prop_assert_eq!(got, numbers);
            prop_assert_eq!(grouper.into_keys().into_parts(), batch_of(&distinct));
        }
    }
}
