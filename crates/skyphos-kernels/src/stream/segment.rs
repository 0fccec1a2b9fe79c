//! A stretch of a sparse stream on the wire: entries of ascending index, and how far they go.
//!
//! A stream travels as segments, each small enough for one frame and readable by itself, so that a
//! receiver folds what has come while the rest is on its way. After a head of 32 bytes come the values,
//! then the indices in the smallest of these forms:
//!
//! | form | bytes | best when |
//! |---|---|---|
//! | run | none | every index from the first on is there (dense data) |
//! | gaps | a byte and 256 gaps of as many bits as the largest needs, a block | sparse |
//! | bitmap | an eighth a position | more than some per cent are there |
//! | raw | 8 an entry | the gaps do not fit 32 bits |
//!
//! Gaps adapt to each block of 256 entries, so that a power law's head costs next to nothing. Decoding
//! trusts nothing. Cost: O(entries) either way.

use super::bitpack::{self, BLOCK};
use crate::index::Index;
use crate::simd;
use bytemuck::Pod;

/// Bytes of a segment's head; values begin after it, aligned if the segment is.
pub const HEAD_BYTES: usize = 32;

const RUN: u8 = 0;
const GAPS: u8 = 1;
const BITMAP: u8 = 2;
const RAW: u8 = 3;

/// What a segment says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub(super) form: u8,
    /// Entries.
    pub count: u32,
    /// Index of the first entry.
    pub first: u64,
    /// All entries of the stream with an index below this have come with this segment and those before.
    pub end: u64,
    pub(super) index_bytes: u32,
    /// Entries of the whole stream.
    pub of: u32,
}

impl Head {
    pub(super) fn write(&self, out: &mut [u8]) {
        out[..HEAD_BYTES].fill(0);
        out[0] = self.form;
        out[4..8].copy_from_slice(&self.count.to_le_bytes());
        out[8..16].copy_from_slice(&self.first.to_le_bytes());
        out[16..24].copy_from_slice(&self.end.to_le_bytes());
        out[24..28].copy_from_slice(&self.index_bytes.to_le_bytes());
        out[28..32].copy_from_slice(&self.of.to_le_bytes());
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Head> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Head {
            form: *bytes.first()?,
            count: (number(0)? >> 32) as u32,
            first: number(8)?,
            end: number(16)?,
            index_bytes: number(24)? as u32,
            of: (number(24)? >> 32) as u32,
        })
    }
}

/// Where entries stand.
#[derive(Clone, Copy, Debug)]
pub enum Places<'a, I> {
    /// At these ascending indices.
    Listed(&'a [I]),
    /// At every index from this one on.
    From(u64),
}

impl<I: Index> Places<'_, I> {
    fn get(&self, k: usize) -> u64 {
        match self {
            Places::Listed(indices) => indices[k].number(),
            Places::From(first) => first + k as u64,
        }
    }
}

/// Cuts entries into segments.
pub struct Encoder<'a, T, I> {
    places: Places<'a, I>,
    values: &'a [T],
    width: usize,
    /// The stream's range ends here.
    hi: u64,
    /// Entries written so far.
    done: usize,
    finished: bool,
    most: usize,
    /// Entries of the whole stream, and whether these are its last.
    of: usize,
    last: bool,
}

/// The next segment: what it will hold.
pub struct Next {
    head: Head,
    /// Bits of each block's gaps.
    bits: [u8; MAX_BLOCKS],
    value_bytes: usize,
}

/// Blocks of gaps in a segment at most.
const MAX_BLOCKS: usize = 128;

impl Next {
    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        HEAD_BYTES + self.value_bytes + self.head.index_bytes as usize
    }
}

impl<'a, T: Pod, I: Index> Encoder<'a, T, I> {
    /// Entries with their rows of `width` values, of a stream whose range ends at `hi`; segments of about
    /// `segment_bytes`, at least one entry each. Entries must ascend, be below `hi`, and be as many as rows.
    pub fn new(
        places: Places<'a, I>,
        values: &'a [T],
        width: usize,
        hi: u64,
        segment_bytes: usize,
    ) -> Encoder<'a, T, I> {
        let (most, of) = (Self::most(width, segment_bytes), values.len() / width);
        Encoder { places, values, width, hi, done: 0, finished: false, most, of, last: true }
    }

    /// Entries of a segment of about `segment_bytes`.
    pub fn most(width: usize, segment_bytes: usize) -> usize {
        // Sparse entries cost up to 4 bytes of index, hardly ever more.
        let entry = width * size_of::<T>() + 4;
        (segment_bytes.saturating_sub(HEAD_BYTES) / entry).clamp(1, MAX_BLOCKS * BLOCK)
    }

    /// The same for some of a stream's `of` entries, of whole segments unless they are the `last`.
    pub fn stretch(self, of: usize, last: bool) -> Encoder<'a, T, I> {
        Encoder { of, last, ..self }
    }

    fn count(&self) -> usize {
        self.values.len() / self.width
    }

    /// Plans the next segment; `None` after the last. A stream without entries is one empty segment.
    pub fn plan(&mut self) -> Option<Next> {
        if self.finished {
            return None;
        }
        let count = (self.count() - self.done).min(self.most);
        self.finished = self.done + count == self.count();
        let mut bits = [0; MAX_BLOCKS];
        let first = if count == 0 { self.hi } else { self.places.get(self.done) };
        let last = if count == 0 { self.hi } else { self.places.get(self.done + count - 1) };
        let (form, index_bytes) = self.smallest(first, last, count, &mut bits);
        let end = if self.finished && self.last { self.hi } else { last + 1 };
        let value_bytes = count * self.width * size_of::<T>();
        let (count, of) = (count as u32, self.of as u32);
        let head = Head { form, count, first, end, index_bytes: index_bytes as u32, of };
        Some(Next { head, bits, value_bytes })
    }

    /// Whether the last segment has been planned.
    pub fn finished(&self) -> bool {
        self.finished
    }

    fn smallest(&self, first: u64, last: u64, count: usize, bits: &mut [u8; MAX_BLOCKS]) -> (u8, usize) {
        let span = last - first;
        if count == 0 || span == count as u64 - 1 {
            return (RUN, 0);
        }
        if span >= u64::from(u32::MAX) {
            return (RAW, count * 8);
        }
        let Places::Listed(indices) = self.places else { unreachable!("a run without a hole") };
        let indices = &indices[self.done..self.done + count];
        let (mut bytes, mut gaps) = (count.div_ceil(BLOCK), [0u32; BLOCK]);
        for (block, bits) in indices.chunks(BLOCK).enumerate().zip(&mut bits[..]).map(|((k, _), b)| (k, b)) {
            let gaps = gaps_of(indices, block, &mut gaps);
            *bits = bitpack::width_of(gaps) as u8;
            bytes += bitpack::packed_bytes(gaps.len(), u32::from(*bits));
        }
        let bitmap = (span as usize / 64 + 1) * 8;
        if bitmap < bytes { (BITMAP, bitmap) } else { (GAPS, bytes) }
    }

    /// Writes the segment just planned into exactly its bytes.
    pub fn write(&mut self, next: &Next, out: &mut [u8]) {
        let count = next.head.count as usize;
        next.head.write(out);
        let rows = &self.values[self.done * self.width..(self.done + count) * self.width];
        let (values, out) = out[HEAD_BYTES..].split_at_mut(next.value_bytes);
        values.copy_from_slice(bytemuck::cast_slice(rows));
        if let Places::Listed(indices) = self.places {
            let indices = &indices[self.done..self.done + count];
            match next.head.form {
                GAPS => write_gaps(indices, &next.bits, out),
                BITMAP => {
                    out.fill(0);
                    let (mut place, mut word) = (0, 0u64);
                    for index in indices {
                        // Each bit writes its word, so that nothing branches.
                        let at = (index.number() - next.head.first) as usize;
                        let kept = if at / 64 == place { word } else { 0 };
                        (place, word) = (at / 64, kept | 1 << (at % 64));
                        out[place * 8..][..8].copy_from_slice(&word.to_le_bytes());
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

/// The gaps of a block of indices: indices left out before each; 0 for the very first.
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
    for (block, width) in widths.iter().enumerate() {
        let gaps = gaps_of(indices, block, &mut gaps);
        let (here, rest) = packed.split_at_mut(bitpack::packed_bytes(gaps.len(), u32::from(*width)));
        bitpack::pack(gaps, u32::from(*width), here);
        packed = rest;
    }
}

/// A segment that came, checked as a whole; entries are checked as they are read.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// What it says of itself.
    pub head: Head,
    pub(super) values: &'a [u8],
    pub(super) indices: &'a [u8],
}

/// Entries of a segment, by its head; of one that is damaged, none.
pub fn entries(bytes: &[u8]) -> usize {
    Head::read(bytes).map_or(0, |head| head.count as usize)
}

/// Entries of the whole stream that a segment is of, by its head.
pub fn stream_entries(bytes: &[u8]) -> usize {
    Head::read(bytes).map_or(0, |head| head.of as usize)
}

impl<'a> Segment<'a> {
    /// Reads a segment of rows of `row` bytes, of a stream with the range `lo..hi`.
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
        if !fits || count as u64 > span || head.count > head.of {
            return Err("a segment whose indices do not fit its entries");
        }
        Ok(Segment { head, values, indices })
    }

    /// The rows of all its entries.
    pub fn values<T: Pod>(&self) -> &'a [T] {
        bytemuck::cast_slice(self.values)
    }

    /// Whether its indices are a bitmap.
    pub fn is_bitmap(&self) -> bool {
        self.head.form == BITMAP
    }

    /// Begins to read the indices.
    pub fn reader(&self) -> Reader {
        Reader { entry: 0, at: 0, next: 0 }
    }
}

/// Some entries of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// At these distances from the segment's first index, in the caller's buffer, so many.
    Listed(usize),
    /// So many neighbours from this distance on.
    Run(u64, usize),
}

/// How far a segment has been read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reader {
    entry: usize,
    /// Bytes of packed gaps, or words of the bitmap, that have been read.
    at: usize,
    /// The least distance that the next entry may have.
    next: u64,
}

/// Entries that one step of a [`Reader`] yields at most.
pub const STEP: usize = BLOCK;

impl Reader {
    /// The distances from the segment's first index of some more entries, at most [`STEP`] of them listed.
    /// `None` at the end.
    #[inline]
    pub fn step(
        &mut self,
        segment: &Segment<'_>,
        out: &mut [u64; STEP],
    ) -> Result<Option<Offsets>, &'static str> {
        let count = segment.head.count as usize;
        if self.entry == count {
            return Ok(None);
        }
        let span = segment.head.end - segment.head.first;
        let got = match segment.head.form {
            RUN => {
                self.entry = count;
                return Ok(Some(Offsets::Run(0, count)));
            }
            GAPS => self.step_gaps(segment, count, out)?,
            BITMAP => self.step_bitmap(segment, count, out)?,
            _ => self.step_raw(segment, count, out)?,
        };
        if self.next > span {
            return Err("a segment with entries beyond its end");
        }
        self.entry += got;
        Ok(Some(Offsets::Listed(got)))
    }

    fn step_gaps(
        &mut self,
        segment: &Segment<'_>,
        count: usize,
        out: &mut [u64; STEP],
    ) -> Result<usize, &'static str> {
        let (widths, packed) = segment.indices.split_at(count.div_ceil(BLOCK));
        let (bits, got) = (u32::from(widths[self.entry / BLOCK]), (count - self.entry).min(BLOCK));
        if bits > 32 {
            return Err("gaps of more than 32 bits");
        }
        let bytes = bitpack::packed_bytes(got, bits);
        let packed = packed.get(self.at..self.at + bytes).ok_or("gaps cut short")?;
        let mut gaps = [0u32; BLOCK];
        bitpack::unpack(packed, bits, &mut gaps[..got]);
        let mut at = self.next;
        for (slot, gap) in out.iter_mut().zip(&gaps[..got]) {
            at += u64::from(*gap);
            *slot = at;
            at += 1;
        }
        (self.at, self.next) = (self.at + bytes, at);
        Ok(got)
    }

    fn step_bitmap(
        &mut self,
        segment: &Segment<'_>,
        count: usize,
        out: &mut [u64; STEP],
    ) -> Result<usize, &'static str> {
        let (level, mut got) = (simd::level(), 0);
        let mut words = segment.indices.chunks_exact(8).enumerate().skip(self.at);
        while got + 64 <= STEP && self.entry + got < count {
            let (k, word) = words.next().ok_or("a bitmap with too few bits")?;
            let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            let room = out[got..].first_chunk_mut().expect("room for 64 bits");
            // Where entries lie in runs, most words are empty.
            if word != 0 {
                list_bits(level, word, k as u64 * 64, room);
            }
            got += word.count_ones() as usize;
            self.at = k + 1;
        }
        if self.entry + got > count {
            return Err("a bitmap with too many bits");
        }
        self.next = got.checked_sub(1).map_or(self.next, |k| out[k] + 1);
        Ok(got)
    }

    /// The next 64 positions that have entries, of a segment with a bitmap: the distance of the first, and a bit for each.
    /// `None` at the end. Not to be mixed with [`Reader::step`] in a segment.
    #[inline(always)]
    pub(super) fn step_word(&mut self, segment: &Segment<'_>) -> Result<Option<(u64, u64)>, &'static str> {
        let count = segment.head.count as usize;
        while self.entry < count {
            let bytes =
                segment.indices.get(self.at * 8..self.at * 8 + 8).ok_or("a bitmap with too few bits")?;
            let word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            let from = self.at as u64 * 64;
            self.at += 1;
            if word == 0 {
                continue;
            }
            self.entry += word.count_ones() as usize;
            if self.entry > count {
                return Err("a bitmap with too many bits");
            }
            if from + 63 - u64::from(word.leading_zeros()) >= segment.head.end - segment.head.first {
                return Err("a segment with entries beyond its end");
            }
            return Ok(Some((from, word)));
        }
        Ok(None)
    }

    fn step_raw(
        &mut self,
        segment: &Segment<'_>,
        count: usize,
        out: &mut [u64; STEP],
    ) -> Result<usize, &'static str> {
        let got = (count - self.entry).min(BLOCK);
        let raw = segment.indices[self.entry * 8..(self.entry + got) * 8].chunks_exact(8);
        for (slot, bytes) in out.iter_mut().zip(raw) {
            let index = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            let at = index.checked_sub(segment.head.first).filter(|at| *at >= self.next);
            *slot = at.ok_or("indices that do not ascend")?;
            self.next = slot.checked_add(1).ok_or("an index that is too large")?;
        }
        Ok(got)
    }
}

/// `base` and the number of each bit of the word, added.
#[inline(always)]
fn list_bits(level: simd::Level, word: u64, base: u64, out: &mut [u64; 64]) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `level` has seen that the processor has these instructions; there is room for all bits.
        simd::Level::Avx512 => unsafe { crate::lanes::numbers_u64(word, base, out.as_mut_ptr()) },
        _ => {
            let mut left = word;
            for slot in out.iter_mut().take(word.count_ones() as usize) {
                *slot = base + u64::from(left.trailing_zeros());
                left &= left - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode<T: Pod, I: Index>(
        places: Places<'_, I>,
        values: &[T],
        width: usize,
        hi: u64,
        size: usize,
    ) -> Vec<Vec<u8>> {
        let mut encoder = Encoder::new(places, values, width, hi, size);
        let mut all = Vec::new();
        while let Some(next) = encoder.plan() {
            let mut bytes = vec![0xee; next.bytes()];
            encoder.write(&next, &mut bytes);
            all.push(bytes);
        }
        all
    }

    /// All entries of segments, and whether they reach `hi`.
    fn decode(
        segments: &[Vec<u8>],
        width: usize,
        lo: u64,
        hi: u64,
    ) -> Result<(Vec<u64>, Vec<u32>), &'static str> {
        let (mut indices, mut values, mut reached) = (Vec::new(), Vec::new(), lo);
        for bytes in segments {
            let segment = Segment::parse(bytes, width * 4, reached, hi)?;
            let (mut reader, mut out) = (segment.reader(), [0; STEP]);
            while let Some(some) = reader.step(&segment, &mut out)? {
                match some {
                    Offsets::Listed(count) => {
                        indices.extend(out[..count].iter().map(|o| segment.head.first + o))
                    }
                    Offsets::Run(at, count) => {
                        indices.extend((0..count as u64).map(|k| segment.head.first + at + k));
                    }
                }
            }
            values.extend(segment.values.chunks_exact(4).map(|v| u32::from_le_bytes(v.try_into().unwrap())));
            reached = segment.head.end;
        }
        assert_eq!(reached, hi);
        Ok((indices, values))
    }

    /// Ascending indices from steps of all sizes.
    fn indices() -> impl Strategy<Value = Vec<u64>> {
        let step = prop_oneof![
            6 => Just(1u64), 3 => 1u64..4, 3 => 1u64..300, 1 => 1u64..1 << 20, 1 => 1u64 << 31..1 << 40,
        ];
        let kinds = prop_oneof![Just(0u64), Just(1 << 20), Just(1 << 50)];
        (prop::collection::vec(step, 0..1200), kinds).prop_map(|(steps, first)| {
            steps
                .iter()
                .scan(first, |at, s| {
                    *at += s;
                    Some(*at - 1)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn lists_bits_as_a_filter(word in prop_oneof![any::<u64>(), Just(u64::MAX), Just(0)], base in 0u64..1 << 60) {
            let want: Vec<u64> = (0..64).filter(|k| word >> k & 1 == 1).map(|k| base + k).collect();
            for level in simd::levels() {
                let mut out = [7; 64];
                list_bits(level, word, base, &mut out);
                prop_assert_eq!(&out[..want.len()], &want[..], "{:?}", level);
            }
        }

        #[test]
        fn decode_undoes_encode(all in indices(), width in 1usize..4, size in 40usize..9000, beyond in 0u64..100) {
            let hi = all.last().map_or(5, |i| i + 1) + beyond;
            let values: Vec<u32> = (0..(all.len() * width) as u32).collect();
            let segments = encode(Places::Listed(&all), &values, width, hi, size);
            prop_assert!(segments.len() > all.len() * (width * 4 + 4) / size.max(41) / 2);
            prop_assert_eq!(decode(&segments, width, 0, hi), Ok((all.clone(), values.clone())));
            if let Ok(small) = all.iter().map(|i| i32::try_from(*i)).collect::<Result<Vec<_>, _>>() {
                prop_assert_eq!(&encode(Places::Listed(&small), &values, width, hi, size), &segments);
            }
            let first = all.first().copied().unwrap_or(0);
            let run: Vec<u64> = (first..first + all.len() as u64).collect();
            let segments = encode(Places::<u64>::From(first), &values, width, first + all.len() as u64, size);
            prop_assert_eq!(decode(&segments, width, 0, first + all.len() as u64), Ok((run, values)));
        }

        #[test]
        fn damage_is_an_error_or_other_entries(all in indices(), at in any::<prop::sample::Index>(), byte: u8) {
            let hi = all.last().map_or(5, |i| i + 1);
            let values: Vec<u32> = (0..all.len() as u32).collect();
            for mut bytes in encode(Places::Listed(&all), &values, 1, hi, 3000) {
                let at = at.index(bytes.len());
                bytes[at] = byte;
                let Ok(segment) = Segment::parse(&bytes, 4, 0, hi) else { continue };
                let (mut reader, mut out, mut last) = (segment.reader(), [0; STEP], None);
                while let Ok(Some(some)) = reader.step(&segment, &mut out) {
                    let found: Vec<u64> = match some {
                        Offsets::Listed(count) => out[..count].to_vec(),
                        Offsets::Run(at, count) => (at..at + count as u64).collect(),
                    };
                    for offset in found {
                        prop_assert!(segment.head.first + offset < segment.head.end);
                        prop_assert!(last.is_none_or(|l| offset > l));
                        last = Some(offset);
                    }
                }
            }
        }
    }

    #[test]
    fn the_smallest_form_wins() {
        let bytes = |all: &[u64]| {
            let hi = all.last().unwrap() + 1;
            encode(Places::Listed(all), &vec![0u8; all.len()], 1, hi, 1 << 20)[0].len()
                - HEAD_BYTES
                - all.len()
        };
        assert_eq!(bytes(&(5..5000).collect::<Vec<_>>()), 0);
        // Each second index: a gap of 1 bit, or a bitmap of 2 bits an entry.
        assert_eq!(bytes(&(0..256).map(|k| k * 2).collect::<Vec<_>>()), 1 + 32);
        // Uniform, 1 in 128: gaps of some 10 bits.
        let mut state = 1u64;
        let mut draw = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            state >> 40
        };
        let mut all: Vec<u64> = (0..16384).map(|_| draw() % (1 << 21)).collect();
        all.sort_unstable();
        all.dedup();
        let bits = bytes(&all) as f64 * 8.0 / all.len() as f64;
        assert!((9.0..10.6).contains(&bits), "{bits}");
        assert_eq!(bytes(&[0, 1 << 40]), 16);
    }
}
