//! Encoder of segments (`segment.rs`): cuts ascending entries into segments of about equal bytes, and writes each into its
//! buffer. Cost: O(entries).

use super::bitpack::{self, BLOCK};
use super::segment::{BITMAP, GAPS, HEAD_BYTES, Head, RAW, RUN};
use crate::index::Index;
use bytemuck::Pod;

/// The indices of a stream's entries.
#[derive(Clone, Copy, Debug)]
pub enum EntryIndices<'a, I> {
    /// These ascending indices.
    Listed(&'a [I]),
    /// Consecutive indices from this one on.
    From(u64),
}

impl<I: Index> EntryIndices<'_, I> {
    fn get(&self, k: usize) -> u64 {
        match self {
            EntryIndices::Listed(indices) => indices[k].number(),
            EntryIndices::From(first) => first + k as u64,
        }
    }
}

/// Encoder of entries into segments.
pub struct Encoder<'a, T, I> {
    indices: EntryIndices<'a, I>,
    values: &'a [T],
    width: usize,
    /// End of the stream's range of indices.
    hi: u64,
    /// Entries written so far.
    done: usize,
    finished: bool,
    /// Largest number of entries per segment.
    max_entries: usize,
    /// Entries of the whole stream.
    total: usize,
    /// Whether the stream ends with these entries.
    last: bool,
}

/// Plan of the next segment.
pub struct SegmentPlan {
    head: Head,
    /// Bits per gap in each block.
    bits: [u8; MAX_BLOCKS],
    value_bytes: usize,
}

/// Largest number of blocks of gaps per segment.
const MAX_BLOCKS: usize = 128;

impl SegmentPlan {
    /// Bytes of the segment.
    pub fn bytes(&self) -> usize {
        HEAD_BYTES + self.value_bytes + self.head.index_bytes as usize
    }
}

impl<'a, T: Pod, I: Index> Encoder<'a, T, I> {
    /// An encoder of entries with rows of `width` values, of a stream whose range ends at `hi`, into segments of about
    /// `segment_bytes` with at least one entry each. Indices must ascend, be below `hi`, and be as many as rows.
    pub fn new(
        indices: EntryIndices<'a, I>,
        values: &'a [T],
        width: usize,
        hi: u64,
        segment_bytes: usize,
    ) -> Encoder<'a, T, I> {
        let (max_entries, total) = (Self::max_entries(width, segment_bytes), values.len() / width);
        Encoder { indices, values, width, hi, done: 0, finished: false, max_entries, total, last: true }
    }

    /// Largest number of entries of a segment of about `segment_bytes`.
    pub fn max_entries(width: usize, segment_bytes: usize) -> usize {
        // The index of an entry rarely takes more than 4 bytes.
        let entry = width * size_of::<T>() + 4;
        (segment_bytes.saturating_sub(HEAD_BYTES) / entry).clamp(1, MAX_BLOCKS * BLOCK)
    }

    /// The encoder of one part of a stream of `total` entries. The part must fill whole segments unless it is the `last`.
    pub fn part(self, total: usize, last: bool) -> Encoder<'a, T, I> {
        Encoder { total, last, ..self }
    }

    fn count(&self) -> usize {
        self.values.len() / self.width
    }

    /// Plans the next segment; `None` after the last. A stream without entries is one empty segment.
    pub fn plan(&mut self) -> Option<SegmentPlan> {
        if self.finished {
            return None;
        }
        let count = (self.count() - self.done).min(self.max_entries);
        self.finished = self.done + count == self.count();
        let mut bits = [0; MAX_BLOCKS];
        let first = if count == 0 { self.hi } else { self.indices.get(self.done) };
        let last = if count == 0 { self.hi } else { self.indices.get(self.done + count - 1) };
        let (form, index_bytes) = self.smallest(first, last, count, &mut bits);
        let end = if self.finished && self.last { self.hi } else { last + 1 };
        let value_bytes = count * self.width * size_of::<T>();
        let (count, total) = (count as u32, self.total as u32);
        let head = Head { form, count, first, end, index_bytes: index_bytes as u32, total };
        Some(SegmentPlan { head, bits, value_bytes })
    }

    /// Whether the last segment has been planned.
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// The smallest form of the indices of `count` entries, and its bytes; writes the bits per gap of each block.
    fn smallest(&self, first: u64, last: u64, count: usize, bits: &mut [u8; MAX_BLOCKS]) -> (u8, usize) {
        let span = last - first;
        if count == 0 || span == count as u64 - 1 {
            return (RUN, 0);
        }
        if span >= u64::from(u32::MAX) {
            return (RAW, count * 8);
        }
        let EntryIndices::Listed(indices) = self.indices else {
            unreachable!("consecutive indices are a run")
        };
        let indices = &indices[self.done..self.done + count];
        let (mut bytes, mut gaps) = (count.div_ceil(BLOCK), [0u32; BLOCK]);
        for (block, bits) in bits[..count.div_ceil(BLOCK)].iter_mut().enumerate() {
            let gaps = gaps_of(indices, block, &mut gaps);
            *bits = bitpack::width_of(gaps) as u8;
            bytes += bitpack::packed_bytes(gaps.len(), u32::from(*bits));
        }
        let bitmap = (span as usize / 64 + 1) * 8;
        if bitmap < bytes { (BITMAP, bitmap) } else { (GAPS, bytes) }
    }

    /// Writes the segment just planned into exactly its bytes.
    pub fn write(&mut self, next: &SegmentPlan, out: &mut [u8]) {
        let count = next.head.count as usize;
        next.head.write(out);
        let rows = &self.values[self.done * self.width..(self.done + count) * self.width];
        let (values, out) = out[HEAD_BYTES..].split_at_mut(next.value_bytes);
        values.copy_from_slice(bytemuck::cast_slice(rows));
        if let EntryIndices::Listed(indices) = self.indices {
            let indices = &indices[self.done..self.done + count];
            match next.head.form {
                GAPS => write_gaps(indices, &next.bits, out),
                BITMAP => {
                    out.fill(0);
                    let (mut last, mut word) = (0, 0u64);
                    for index in indices {
                        // Each bit writes its whole word, which avoids a branch at the word's end.
                        let at = (index.number() - next.head.first) as usize;
                        let earlier = if at / 64 == last { word } else { 0 };
                        (last, word) = (at / 64, earlier | 1 << (at % 64));
                        out[last * 8..][..8].copy_from_slice(&word.to_le_bytes());
                    }
                }
                RAW => {
                    for (slot, index) in out.chunks_exact_mut(8).zip(indices) {
                        slot.copy_from_slice(&index.number().to_le_bytes());
                    }
                }
                _ => {}
            }
        }
        self.done += count;
    }
}

/// The gaps of a block of indices: the number of absent indices before each; 0 for the segment's first.
#[inline(always)]
fn gaps_of<'g, I: Index>(indices: &[I], block: usize, gaps: &'g mut [u32; BLOCK]) -> &'g [u32] {
    let start = block * BLOCK;
    let count = (indices.len() - start).min(BLOCK);
    gaps[0] = match start {
        0 => 0,
        _ => (indices[start].number() - indices[start - 1].number()) as u32 - 1,
    };
    let pairs = indices[start..start + count].iter().zip(&indices[start + 1..start + count]);
    for (gap, (a, b)) in gaps[1..].iter_mut().zip(pairs) {
        *gap = (b.number() - a.number()) as u32 - 1;
    }
    &gaps[..count]
}

fn write_gaps<I: Index>(indices: &[I], bits: &[u8; MAX_BLOCKS], out: &mut [u8]) {
    let blocks = indices.len().div_ceil(BLOCK);
    let (widths, mut packed) = out.split_at_mut(blocks);
    widths.copy_from_slice(&bits[..blocks]);
    let mut gaps = [0u32; BLOCK];
    for (number, width) in widths.iter().enumerate() {
        let gaps = gaps_of(indices, number, &mut gaps);
        let (block, rest) = packed.split_at_mut(bitpack::packed_bytes(gaps.len(), u32::from(*width)));
        bitpack::pack(gaps, u32::from(*width), block);
        packed = rest;
    }
}
