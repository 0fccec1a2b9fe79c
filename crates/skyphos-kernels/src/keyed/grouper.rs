//! Distinct keys by number.

use super::{Keys, Known};
use hashbrown::HashTable;
use skyphos_types::{Error, Result};
use std::ops::Range;

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
        let mut numbers = Vec::with_capacity(batch.len());
        self.numbers_of(batch, 0..batch.len(), &mut numbers)?;
        Ok(numbers)
    }

    /// Appends those of some of them.
    ///
    /// # Errors
    /// As [`Grouper::numbers`].
    pub fn numbers_of(&mut self, batch: &K::Batch<'_>, some: Range<usize>, to: &mut Vec<u32>) -> Result<()> {
        let Grouper { known, table } = self;
        for at in some {
            let hash = batch.hash(at);
            let upper = (hash >> 32) as u32;
            let is = |entry: &(u32, u32)| entry.0 == upper && known.is(entry.1, batch, at);
            if let Some((_, number)) = table.find(hash, is) {
                to.push(*number);
                continue;
            }
            let number = u32::try_from(known.len()).ok().filter(|number| *number < u32::MAX);
            let number =
                number.ok_or_else(|| Error::bad_input("more than 2^32 - 1 different keys on a rank"))?;
            known.add(batch, at);
            table.insert_unique(hash, (upper, number), |entry| known.hash(entry.1));
            to.push(number);
        }
        Ok(())
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
    pub fn keys(&self) -> &K {
        &self.known
    }

    /// The same, to keep.
    pub fn into_keys(self) -> K {
        self.known
    }

    /// Bytes of memory that the table takes, without its keys.
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
}
