//! Encoding of keyed rows, which the ranks of a shuffle exchange.
//!
//! ```text
//! head      kind of keys, type of values, bytes of a number, bytes of a count (0: one row per key); width u32; keys u64; rows u64; extra u64
//! numbers   numeric keys: each key minus `extra`, the smallest; strings: their lengths, whose sum is `extra`
//! strings   their bytes, concatenated
//! counts    in a list: the number of rows of each key
//! rows      from the next multiple of 8 on
//! ```
//! All numbers are little-endian. An empty table is encoded as no bytes.

use skyphos_types::{DType, Error, Result};

const HEAD_BYTES: usize = 32;

/// Kinds of keys in a block.
pub(super) const NUMBERS: u8 = 1;
pub(super) const STRINGS: u8 = 2;

/// A decoded block, whose parts fit its length.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    pub(super) kind: u8,
    pub(super) dtype: DType,
    pub(super) width: usize,
    pub(super) extra: u64,
    numbers: Narrow<'a>,
    pub(super) strings: &'a [u8],
    /// Rows per key, in a list only.
    counts: Option<Narrow<'a>>,
    pub(super) rows: &'a [u8],
}

/// Numbers of 1, 2, 4 or 8 bytes each.
#[derive(Clone, Copy, Debug)]
struct Narrow<'a> {
    bytes: &'a [u8],
    each: usize,
}

/// Splits the next `len` bytes off.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (part, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(part)
}

impl<'a> Narrow<'a> {
    /// Splits the next `keys` numbers off.
    fn take(rest: &mut &'a [u8], keys: usize, each: u8) -> Option<Narrow<'a>> {
        let each = [1, 2, 4, 8].contains(&each).then_some(usize::from(each))?;
        take(rest, keys.checked_mul(each)?).map(|bytes| Narrow { bytes, each })
    }

    fn iter(self) -> impl Iterator<Item = u64> + 'a {
        self.bytes.chunks_exact(self.each).map(|bytes| {
            let mut number = [0; 8];
            number[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(number)
        })
    }
}

/// Appends numbers, none above `max`, in as few bytes each as `max` needs. Returns the bytes per number.
pub(super) fn put_narrow(to: &mut Vec<u8>, max: u64, numbers: impl Iterator<Item = u64>) -> usize {
    match max {
        0..=0xff => to.extend(numbers.map(|number| number as u8)),
        0x100..=0xffff => numbers.for_each(|number| to.extend_from_slice(&(number as u16).to_le_bytes())),
        0x1_0000..=0xffff_ffff => {
            numbers.for_each(|number| to.extend_from_slice(&(number as u32).to_le_bytes()));
        }
        _ => numbers.for_each(|number| to.extend_from_slice(&number.to_le_bytes())),
    }
    match max {
        0..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => 8,
    }
}

/// Encoder of a block, part by part.
pub(super) struct Writer {
    bytes: Vec<u8>,
    head: [u8; 4],
    width: u32,
    keys: u64,
    extra: u64,
}

impl Writer {
    /// An encoder of `keys` keys of a kind, with `capacity` bytes reserved for its parts.
    pub(super) fn new(kind: u8, dtype: DType, width: usize, keys: usize, capacity: usize) -> Writer {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + capacity);
        bytes.resize(HEAD_BYTES, 0);
        Writer { bytes, head: [kind, dtype as u8, 1, 0], width: width as u32, keys: keys as u64, extra: 0 }
    }

    /// Writes the keys by `put`, which returns the bytes per number and the head's `extra`.
    pub(super) fn keys(&mut self, put: impl FnOnce(&mut Vec<u8>) -> (usize, u64)) {
        let (each, extra) = put(&mut self.bytes);
        (self.head[2], self.extra) = (each as u8, extra);
    }

    /// Writes the number of rows of each key, for a list.
    pub(super) fn counts(&mut self, max: u64, counts: impl Iterator<Item = u64>) {
        self.head[3] = put_narrow(&mut self.bytes, max, counts) as u8;
    }

    /// Writes the rows and returns the block.
    pub(super) fn rows(mut self, rows: u64, put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        put(&mut self.bytes);
        self.bytes[..4].copy_from_slice(&self.head);
        self.bytes[4..8].copy_from_slice(&self.width.to_le_bytes());
        for (at, number) in [self.keys, rows, self.extra].into_iter().enumerate() {
            self.bytes[8 + 8 * at..][..8].copy_from_slice(&number.to_le_bytes());
        }
        self.bytes
    }
}

impl<'a> Block<'a> {
    /// Decodes a block that is not empty.
    ///
    /// # Errors
    /// `BadInput` if its parts do not fit its length or contradict each other.
    pub fn read(block: &'a [u8]) -> Result<Block<'a>> {
        Block::parse(block).ok_or_else(|| {
            Error::bad_input("a block of keyed rows is damaged: its parts do not fit its length")
        })
    }

    fn parse(block: &'a [u8]) -> Option<Block<'a>> {
        let (head, mut rest) = block.split_at_checked(HEAD_BYTES)?;
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let [kind, dtype, each, count_bytes] = head[..4].try_into().expect("4 bytes");
        let width = u32::from_le_bytes(head[4..8].try_into().expect("4 bytes"));
        let (keys, row_count, extra) = (usize::try_from(word(8)).ok()?, word(16), word(24));
        let (dtype, width) =
            (DType::from_code(dtype)?, usize::try_from(width).ok().filter(|width| *width > 0)?);
        let numbers = Narrow::take(&mut rest, keys, each)?;
        let strings = match kind {
            STRINGS => take(&mut rest, usize::try_from(extra).ok()?)?,
            _ => &[],
        };
        let counts = match count_bytes {
            0 => None,
            each => Some(Narrow::take(&mut rest, keys, each)?),
        };
        let read = block.len() - rest.len();
        take(&mut rest, read.next_multiple_of(8) - read)?;
        let rows = rest;
        let counted = match counts {
            None => keys as u64,
            // Every key needs a row.
            Some(counts) => {
                counts.iter().try_fold(0u64, |sum, count| sum.checked_add(count).filter(|_| count > 0))?
            }
        };
        let bytes = row_count.checked_mul(width as u64)?.checked_mul(dtype.size() as u64)?;
        (counted == row_count && bytes == rows.len() as u64).then_some(())?;
        Some(Block { kind, dtype, width, extra, numbers, strings, counts, rows })
    }

    /// The number of each key.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.numbers.iter()
    }

    /// The number of rows of each key, in a list.
    pub(super) fn counts(&self) -> Option<impl Iterator<Item = u64> + use<'a>> {
        self.counts.map(Narrow::iter)
    }
}
