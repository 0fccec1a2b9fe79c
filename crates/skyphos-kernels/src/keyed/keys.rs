//! Kinds of keys: 64-bit numbers, and byte strings in Arrow's layout.

use super::block::{Block, NUMBERS, STRINGS, put_narrow};
use super::hash_number;
use super::strings::{hash_string, same_string};
use skyphos_types::{Error, Result};

/// A batch of keys.
pub trait Keys {
    /// Number of keys.
    fn len(&self) -> usize;

    /// Whether there are no keys.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The hash of the key at a position.
    fn hash(&self, at: usize) -> u64;
}

/// A store of distinct keys of one kind, by number.
pub trait KeyStore: Default {
    /// A batch of keys of this kind.
    type Batch<'a>: Keys;

    /// Number of keys.
    fn len(&self) -> usize;

    /// Whether there are no keys.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the key with a number equals the one at a position of a batch.
    fn equals(&self, number: u32, batch: &Self::Batch<'_>, at: usize) -> bool;

    /// Adds the key at a position of a batch.
    fn add(&mut self, batch: &Self::Batch<'_>, at: usize);

    /// The hash of the key with a number.
    fn hash(&self, number: u32) -> u64;

    /// All keys as a batch.
    fn batch(&self) -> Self::Batch<'_>;

    /// Bytes of memory of all keys.
    fn bytes(&self) -> usize;

    /// The code of this kind in a block.
    const KIND: u8;

    /// Memory into which a block's keys are decoded.
    type DecodeBuffer: Default;

    /// Appends the keys with these numbers, encoded. Returns the bytes per number and the head's `extra`.
    fn encode(&self, numbers: &[u32], to: &mut Vec<u8>) -> (usize, u64);

    /// Decodes the keys of a block.
    ///
    /// # Errors
    /// `BadInput` if they do not fit the block.
    fn decode<'a>(block: &Block<'a>, buffer: &'a mut Self::DecodeBuffer) -> Result<Self::Batch<'a>>;
}

/// Numeric keys.
pub type Numbers = Vec<u64>;

impl Keys for &[u64] {
    fn len(&self) -> usize {
        <[u64]>::len(self)
    }

    fn hash(&self, at: usize) -> u64 {
        hash_number(self[at])
    }
}

impl KeyStore for Numbers {
    type Batch<'a> = &'a [u64];

    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn equals(&self, number: u32, batch: &&[u64], at: usize) -> bool {
        self[number as usize] == batch[at]
    }

    fn add(&mut self, batch: &&[u64], at: usize) {
        self.push(batch[at]);
    }

    fn hash(&self, number: u32) -> u64 {
        hash_number(self[number as usize])
    }

    fn batch(&self) -> &[u64] {
        self
    }

    fn bytes(&self) -> usize {
        8 * self.capacity()
    }

    const KIND: u8 = NUMBERS;

    type DecodeBuffer = Vec<u64>;

    fn encode(&self, numbers: &[u32], to: &mut Vec<u8>) -> (usize, u64) {
        let key = |number: &u32| self[*number as usize];
        let base = numbers.iter().map(key).min().unwrap_or(0);
        let max = numbers.iter().map(|number| key(number) - base).max().unwrap_or(0);
        (put_narrow(to, max, numbers.iter().map(|number| key(number) - base)), base)
    }

    fn decode<'a>(block: &Block<'a>, buffer: &'a mut Vec<u64>) -> Result<&'a [u64]> {
        buffer.clear();
        buffer.extend(block.numbers().map(|number| block.extra.wrapping_add(number)));
        Ok(buffer)
    }
}

/// Byte strings in Arrow's layout: string k is `bytes[offsets[k]..offsets[k + 1]]`.
#[derive(Clone, Copy, Debug)]
pub struct StringBatch<'a> {
    offsets: &'a [i64],
    bytes: &'a [u8],
}

impl<'a> StringBatch<'a> {
    /// A batch of the strings between these offsets.
    ///
    /// # Errors
    /// `BadInput` if the offsets do not ascend, or exceed the bytes.
    pub fn new(offsets: &'a [i64], bytes: &'a [u8]) -> Result<StringBatch<'a>> {
        let ascend = offsets.first().is_some_and(|first| *first >= 0) && offsets.is_sorted();
        match ascend && offsets.last().is_some_and(|last| *last as u64 <= bytes.len() as u64) {
            true => Ok(StringBatch { offsets, bytes }),
            false => Err(Error::bad_input(format!(
                "the offsets of strings do not ascend within their {} bytes",
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
        hash_string(self.offsets, self.bytes, at)
    }
}

/// String keys, concatenated.
#[derive(Clone, Debug)]
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

    /// The offsets of all strings, and their bytes.
    pub fn into_parts(self) -> (Vec<i64>, Vec<u8>) {
        (self.offsets, self.bytes)
    }
}

impl KeyStore for Strings {
    type Batch<'a> = StringBatch<'a>;

    fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    fn equals(&self, number: u32, batch: &StringBatch<'_>, at: usize) -> bool {
        same_string((&self.offsets, &self.bytes, number as usize), (batch.offsets, batch.bytes, at))
    }

    fn add(&mut self, batch: &StringBatch<'_>, at: usize) {
        self.bytes.extend_from_slice(batch.get(at));
        self.offsets.push(self.bytes.len() as i64);
    }

    fn hash(&self, number: u32) -> u64 {
        hash_string(&self.offsets, &self.bytes, number as usize)
    }

    fn batch(&self) -> StringBatch<'_> {
        StringBatch { offsets: &self.offsets, bytes: &self.bytes }
    }

    fn bytes(&self) -> usize {
        8 * self.offsets.capacity() + self.bytes.capacity()
    }

    const KIND: u8 = STRINGS;

    type DecodeBuffer = Vec<i64>;

    fn encode(&self, numbers: &[u32], to: &mut Vec<u8>) -> (usize, u64) {
        let len = |number: &u32| self.get(*number).len() as u64;
        let each = put_narrow(to, numbers.iter().map(len).max().unwrap_or(0), numbers.iter().map(len));
        let before = to.len();
        numbers.iter().for_each(|number| to.extend_from_slice(self.get(*number)));
        (each, (to.len() - before) as u64)
    }

    fn decode<'a>(block: &Block<'a>, buffer: &'a mut Vec<i64>) -> Result<StringBatch<'a>> {
        buffer.clear();
        buffer.push(0);
        let mut end = 0u64;
        for len in block.numbers() {
            end = end.saturating_add(len);
            buffer.push(i64::try_from(end).unwrap_or(i64::MAX));
        }
        if end != block.strings.len() as u64 {
            return Err(Error::bad_input("the lengths of a block's strings do not add up to their bytes"));
        }
        StringBatch::new(buffer, block.strings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_outside_the_bytes_are_refused() {
        for offsets in [&[][..], &[-1, 2], &[0, 3, 2], &[0, 4]] {
            assert!(StringBatch::new(offsets, b"abc").is_err());
        }
        assert_eq!(StringBatch::new(&[0], b"").unwrap().len(), 0);
    }
}
