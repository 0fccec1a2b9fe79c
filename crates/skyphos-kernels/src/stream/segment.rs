//! Segment: a part of a sparse stream on the wire, with entries of ascending index and the end of its range.
//!
//! A stream is sent as segments. Each fits one frame and can be decoded by itself, so a receiver folds the
//! first ones while the rest is under way. A head of 32 bytes is followed by the values, then by the indices
//! in the smallest of these forms:
//!
//! | form | bytes | best when |
//! |---|---|---|
//! | run | none | indices are consecutive (dense data) |
//! | gaps | per block of 256: a byte, and gaps of as many bits as the largest needs | the vector is sparse |
//! | bitmap | an eighth per position | more than a few per cent of positions are entries |
//! | raw | 8 per entry | the gaps do not fit 32 bits |
//!
//! The width of gaps adapts to each block of 256 entries, so that the dense head of a power law takes few
//! bits. Decoding checks everything it reads. Cost: O(entries) either way.

use super::bitpack::BLOCK;
use bytemuck::Pod;

/// Bytes of a segment's head; the values after it are aligned if the segment is.
pub const HEAD_BYTES: usize = 32;

pub(super) const RUN: u8 = 0;
pub(super) const GAPS: u8 = 1;
pub(super) const BITMAP: u8 = 2;
pub(super) const RAW: u8 = 3;

/// Head of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub(super) form: u8,
    /// Number of entries.
    pub count: u32,
    /// Index of the first entry.
    pub first: u64,
    /// End of the segment's range: this segment and the earlier ones have all of the stream's entries below it.
    pub end: u64,
    pub(super) index_bytes: u32,
    /// Number of entries of the whole stream.
    pub total: u32,
}

impl Head {
    pub(super) fn write(&self, out: &mut [u8]) {
        out[..HEAD_BYTES].fill(0);
        out[0] = self.form;
        out[4..8].copy_from_slice(&self.count.to_le_bytes());
        out[8..16].copy_from_slice(&self.first.to_le_bytes());
        out[16..24].copy_from_slice(&self.end.to_le_bytes());
        out[24..28].copy_from_slice(&self.index_bytes.to_le_bytes());
        out[28..32].copy_from_slice(&self.total.to_le_bytes());
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Head> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Head {
            form: *bytes.first()?,
            count: (number(0)? >> 32) as u32,
            first: number(8)?,
            end: number(16)?,
            index_bytes: number(24)? as u32,
            total: (number(24)? >> 32) as u32,
        })
    }
}

/// A received segment. Its head and length have been checked; indices are checked as they are read.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The head.
    pub head: Head,
    pub(super) values: &'a [u8],
    pub(super) indices: &'a [u8],
}

/// Number of entries according to a segment's head; 0 if it is damaged.
pub fn entries(bytes: &[u8]) -> usize {
    Head::read(bytes).map_or(0, |head| head.count as usize)
}

/// Number of entries of the whole stream according to a segment's head; 0 if it is damaged.
pub fn stream_entries(bytes: &[u8]) -> usize {
    Head::read(bytes).map_or(0, |head| head.total as usize)
}

impl<'a> Segment<'a> {
    /// Decodes a segment of rows of `row` bytes, of a stream with the range `lo..hi`.
    pub fn parse(bytes: &'a [u8], row: usize, lo: u64, hi: u64) -> Result<Segment<'a>, &'static str> {
        let head = Head::read(bytes)
            .filter(|_| bytes.len() >= HEAD_BYTES)
            .ok_or("a segment shorter than its head")?;
        let value_bytes = head.count as usize * row;
        if head.first < lo || head.first > hi || head.end > hi || head.first > head.end {
            return Err("a segment outside its stream's range");
        }
        if bytes.len() != HEAD_BYTES + value_bytes + head.index_bytes as usize {
            return Err("a segment longer or shorter than it says");
        }
        let (values, indices) = bytes[HEAD_BYTES..].split_at(value_bytes);
        let (count, span) = (head.count as usize, head.end - head.first);
        let fits = match head.form {
            RUN => indices.is_empty(),
            GAPS => indices.len() >= count.div_ceil(BLOCK),
            BITMAP => indices.len().is_multiple_of(8),
            RAW => indices.len() == count * 8,
            _ => return Err("a segment of unknown form"),
        };
        if !fits || count as u64 > span || head.count > head.total {
            return Err("a segment whose indices do not fit its entries");
        }
        Ok(Segment { head, values, indices })
    }

    /// The rows of all entries.
    pub fn values<T: Pod>(&self) -> &'a [T] {
        bytemuck::cast_slice(self.values)
    }

    /// Whether the indices are a bitmap.
    pub fn is_bitmap(&self) -> bool {
        self.head.form == BITMAP
    }
}
