//! Distinct keys by number.

use super::{Keys, Known};
use hashbrown::HashTable;
use skyphos_types::{Error, Result};
use std::ops::Range;

/// Keys that are looked up at a time, each step for all of them: a large table's entries are far, and the processor waits for many
/// of them at once.
const TOGETHER: usize = 64;

/// A key that was not found at first sight.
const UNSEEN: u32 = u32::MAX;

/// See the module's text.
#[derive(Default)]
pub struct Grouper<K> {
    known: K,
    /// Half of a key's hash, and its number.
    table: HashTable<(u32, u32)>,
}

/// Where an entry is in the table: by what it holds, so that a table grows without its keys. All bits of an entry count in the
/// lowest and in the highest ones, which hashbrown goes by; keys of an owner have some of them in common.
fn place((half, _): &(u32, u32)) -> u64 {
    let product = u64::from(*half).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
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
        let mut halves = [0u32; TOGETHER];
        let mut seen = [UNSEEN; TOGETHER];
        for start in some.clone().step_by(TOGETHER) {
            let count = TOGETHER.min(some.end - start);
            for (k, half) in halves[..count].iter_mut().enumerate() {
                *half = (batch.hash(start + k) >> 32) as u32;
            }
            for (half, seen) in halves[..count].iter().zip(&mut seen) {
                let found = self.table.find(place(&(*half, 0)), |entry| entry.0 == *half);
                *seen = found.map_or(UNSEEN, |entry| entry.1);
            }
            for (k, (half, seen)) in halves[..count].iter().zip(seen).enumerate() {
                let at = start + k;
                to.push(match seen != UNSEEN && self.known.is(seen, batch, at) {
                    true => seen,
                    false => self.number(*half, batch, at)?,
                });
            }
        }
        Ok(())
    }

    /// The number of a key, which is new, or has come since, or has half of its hash in common with another.
    #[cold]
    fn number(&mut self, half: u32, batch: &K::Batch<'_>, at: usize) -> Result<u32> {
        let Grouper { known, table } = self;
        let new = (half, known.len() as u32);
        let is = |entry: &(u32, u32)| entry.0 == half && known.is(entry.1, batch, at);
        if let Some((_, number)) = table.find(place(&new), is) {
            return Ok(*number);
        }
        if known.len() >= UNSEEN as usize {
            return Err(Error::bad_input("more than 2^32 - 1 different keys on a rank"));
        }
        known.add(batch, at);
        table.insert_unique(place(&new), new, place);
        Ok(new.1)
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
