//! Reader of a segment's indices (`segment.rs`): a block of entries or a word of a bitmap at a time. Indices that do not ascend, lie
//! outside the segment's range, or are too few give an error. Cost: O(entries).

use super::bitpack::{self, BLOCK};
use super::segment::{BITMAP, GAPS, RUN, Segment};
use crate::simd;

/// Offsets of the next entries from the segment's first index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// This many offsets, in the caller's buffer.
    Listed(usize),
    /// Consecutive offsets: the first, and their number.
    Run(u64, usize),
}

/// Position in a segment's indices; [`Reader::default`] is their start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reader {
    entry: usize,
    /// Bytes of packed gaps, or words of the bitmap, already read.
    at: usize,
    /// The least offset that the next entry may have.
    next: u64,
}

/// Largest number of entries that a [`Reader`] lists per step.
pub const STEP: usize = BLOCK;

impl Reader {
    /// Reads the offsets of the next entries; at most [`STEP`] are listed in `out`. `None` at the end.
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
        let (isa, mut got) = (simd::detected(), 0);
        let mut words = segment.indices.chunks_exact(8).enumerate().skip(self.at);
        while got + 64 <= STEP && self.entry + got < count {
            let (k, word) = words.next().ok_or("a bitmap with too few bits")?;
            let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            let slots = out[got..].first_chunk_mut().expect("64 slots");
            // If entries lie in runs, most words are empty.
            if word != 0 {
                list_bits(isa, word, k as u64 * 64, slots);
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

    /// Reads the next non-zero word of a bitmap segment: the offset of its first bit, and the word. `None` at the end. It must not be
    /// mixed with [`Reader::step`] within a segment.
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

/// Lists `base` plus the number of each bit that is set in the word.
#[inline(always)]
fn list_bits(isa: simd::InstructionSet, word: u64, base: u64, out: &mut [u64; 64]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `out` has 64 slots.
        simd::InstructionSet::Avx512(avx512) => unsafe { avx512.positions_u64(word, base, out.as_mut_ptr()) },
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
    use crate::stream::testing::{ascending, encode_all as encode};
    use crate::stream::{EntryIndices, HEAD_BYTES};
    use proptest::prelude::*;

    /// Decodes all entries of segments, which must end at `hi`.
    fn decode(
        segments: &[Vec<u8>],
        width: usize,
        lo: u64,
        hi: u64,
    ) -> Result<(Vec<u64>, Vec<u32>), &'static str> {
        let (mut indices, mut values, mut reached) = (Vec::new(), Vec::new(), lo);
        for bytes in segments {
            let segment = Segment::parse(bytes, width * 4, reached, hi)?;
            let (mut reader, mut out) = (Reader::default(), [0; STEP]);
            while let Some(step) = reader.step(&segment, &mut out)? {
                match step {
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
        (prop::collection::vec(step, 0..1200), kinds).prop_map(|(steps, first)| ascending(first, &steps))
    }

    proptest! {
        #[test]
        fn listed_bits_match_a_filter(word in prop_oneof![any::<u64>(), Just(u64::MAX), Just(0)], base in 0u64..1 << 60) {
            let want: Vec<u64> = (0..64).filter(|k| word >> k & 1 == 1).map(|k| base + k).collect();
            for isa in simd::all_detected() {
                let mut out = [7; 64];
                list_bits(isa, word, base, &mut out);
                prop_assert_eq!(&out[..want.len()], &want[..], "{:?}", isa);
            }
        }

        #[test]
        fn decode_undoes_encode(all in indices(), width in 1usize..4, size in 40usize..9000, beyond in 0u64..100) {
            let hi = all.last().map_or(5, |i| i + 1) + beyond;
            let values: Vec<u32> = (0..(all.len() * width) as u32).collect();
            let segments = encode(EntryIndices::Listed(&all), &values, width, hi, size);
            prop_assert!(segments.len() > all.len() * (width * 4 + 4) / size.max(41) / 2);
            prop_assert_eq!(decode(&segments, width, 0, hi), Ok((all.clone(), values.clone())));
            if let Ok(small) = all.iter().map(|i| i32::try_from(*i)).collect::<Result<Vec<_>, _>>() {
                prop_assert_eq!(&encode(EntryIndices::Listed(&small), &values, width, hi, size), &segments);
            }
            let first = all.first().copied().unwrap_or(0);
            let run: Vec<u64> = (first..first + all.len() as u64).collect();
            let segments = encode(EntryIndices::<u64>::From(first), &values, width, first + all.len() as u64, size);
            prop_assert_eq!(decode(&segments, width, 0, first + all.len() as u64), Ok((run, values)));
        }

        #[test]
        fn damage_is_an_error_or_other_entries(all in indices(), at in any::<prop::sample::Index>(), byte: u8) {
            let hi = all.last().map_or(5, |i| i + 1);
            let values: Vec<u32> = (0..all.len() as u32).collect();
            for mut bytes in encode(EntryIndices::Listed(&all), &values, 1, hi, 3000) {
                let at = at.index(bytes.len());
                bytes[at] = byte;
                let Ok(segment) = Segment::parse(&bytes, 4, 0, hi) else { continue };
                let (mut reader, mut out, mut last) = (Reader::default(), [0; STEP], None);
                while let Ok(Some(step)) = reader.step(&segment, &mut out) {
                    let found: Vec<u64> = match step {
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
            encode(EntryIndices::Listed(all), &vec![0u8; all.len()], 1, hi, 1 << 20)[0].len()
                - HEAD_BYTES
                - all.len()
        };
        assert_eq!(bytes(&(5..5000).collect::<Vec<_>>()), 0);
        // Every second index: a gap of 1 bit, or a bitmap of 2 bits an entry.
        assert_eq!(bytes(&(0..256).map(|k| k * 2).collect::<Vec<_>>()), 1 + 32);
        // Uniform, 1 in 128: gaps of about 10 bits.
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
