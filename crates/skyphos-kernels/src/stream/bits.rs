//! Presence bitmaps: a bit for each row, set if the row is an entry, in words of 64.

use crate::simd;

/// Sets the bits of `count` rows from `from` on.
pub fn set_run(bits: &mut [u64], from: usize, count: usize) {
    let end = from + count;
    if count == 0 {
        return;
    }
    let (first, last) = (from / 64, (end - 1) / 64);
    let (first_mask, last_mask) = (u64::MAX << (from % 64), u64::MAX >> (63 - (end - 1) % 64));
    if first == last {
        bits[first] |= first_mask & last_mask;
        return;
    }
    bits[first] |= first_mask;
    bits[first + 1..last].fill(u64::MAX);
    bits[last] |= last_mask;
}

/// Sets the bits of ascending rows, one by one.
///
/// If many rows share a word, each update waits for the previous one, and the branch at the word's end is mispredicted. Then each
/// row writes a byte, its mark, and a block of marks is converted to bits at once.
pub struct AscendingBits {
    /// Whether there are enough rows for marks to be faster.
    uses_marks: bool,
    /// The row of the first mark, a multiple of 64.
    base: usize,
    marks: [u8; Self::BLOCK],
}

impl AscendingBits {
    /// Marks per block; they stay in the L1 cache.
    const BLOCK: usize = 4096;

    /// If fewer than one row in this many is set, marks cost more than they save.
    const SPARSE: usize = 64;

    /// A setter of the bits of `count` rows, from row `first` to row `last`.
    pub fn new(count: usize, first: usize, last: usize) -> AscendingBits {
        let uses_marks = (last - first) / Self::SPARSE < count;
        AscendingBits { uses_marks, base: first / 64 * 64, marks: [0; Self::BLOCK] }
    }

    /// Sets the next row's bit, now or at the latest in [`AscendingBits::finish`].
    #[inline(always)]
    pub fn set(&mut self, bits: &mut [u64], row: usize) {
        if !self.uses_marks {
            bits[row / 64] |= 1 << (row % 64);
            return;
        }
        if row - self.base >= Self::BLOCK {
            self.flush(bits);
            self.base = row / 64 * 64;
        }
        self.marks[row - self.base] = 1;
    }

    /// Sets the bits whose marks are pending.
    pub fn finish(mut self, bits: &mut [u64]) {
        if self.uses_marks {
            self.flush(bits);
        }
    }

    #[inline(never)]
    fn flush(&mut self, bits: &mut [u64]) {
        let count = Self::BLOCK.min(64 * bits.len() - self.base);
        set_marked(bits, self.base, &self.marks[..count]);
        self.marks.fill(0);
    }
}

/// Sets the bits of the marked rows. The first mark is that of row `from`; each mark is 0 or 1.
pub fn set_marked(bits: &mut [u64], from: usize, marks: &[u8]) {
    let isa = simd::detected();
    for (k, chunk) in marks.chunks(64).enumerate() {
        let word = match isa {
            #[cfg(target_arch = "x86_64")]
            simd::InstructionSet::Avx512(avx512) => avx512.bits_of_marks(chunk),
            _ => bits_of(chunk),
        };
        set_word(bits, from + 64 * k, word);
    }
}

/// A bit for each of up to 64 marks, which are 0 or 1.
#[inline(always)]
pub(super) fn bits_of(marks: &[u8]) -> u64 {
    let mut word = 0;
    let mut whole = marks.chunks_exact(8);
    for (k, eight) in whole.by_ref().enumerate() {
        // The product moves the lowest bit of byte j to bit 56 + j.
        let eight = u64::from_le_bytes(eight.try_into().expect("8 bytes"));
        word |= (eight.wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * k);
    }
    let done = marks.len() / 8 * 8;
    for (k, mark) in whole.remainder().iter().enumerate() {
        word |= u64::from(*mark) << (done + k);
    }
    word
}

/// Sets the bits that are set in `word`, whose first bit belongs to row `at`.
#[inline(always)]
pub(super) fn set_word(bits: &mut [u64], at: usize, word: u64) {
    let (index, shift) = (at / 64, at % 64);
    bits[index] |= word << shift;
    if shift > 0 && word >> (64 - shift) != 0 {
        bits[index + 1] |= word >> (64 - shift);
    }
}

/// Clears the bits of the last word beyond the last row, which a damaged message may have set.
pub fn clear_beyond(bits: &mut [u64], rows: u64) {
    if let Some(last) = bits.last_mut().filter(|_| !rows.is_multiple_of(64)) {
        *last &= (1 << (rows % 64)) - 1;
    }
}

/// Number of set bits in `from..to`.
pub fn count_between(words: &[u64], from: usize, to: usize) -> usize {
    if from >= to {
        return 0;
    }
    let (first, last) = (from / 64, (to - 1) / 64);
    let (first_mask, last_mask) = (u64::MAX << (from % 64), u64::MAX >> (63 - (to - 1) % 64));
    if first == last {
        return (words[first] & first_mask & last_mask).count_ones() as usize;
    }
    let between: u32 = words[first + 1..last].iter().map(|word| word.count_ones()).sum();
    ((words[first] & first_mask).count_ones() + between + (words[last] & last_mask).count_ones()) as usize
}

/// The positions of the set bits in `from..to`.
pub fn set_bits_between(words: &[u64], from: usize, to: usize) -> Vec<usize> {
    let mut all = Vec::new();
    first_set_bits(words, from, to, usize::MAX, &mut all);
    all
}

/// Lists the positions of the first set bits in `from..to`, at most `max`. Returns the position to continue from.
pub fn first_set_bits(words: &[u64], from: usize, to: usize, max: usize, found: &mut Vec<usize>) -> usize {
    found.clear();
    let mut at = from;
    while at < to {
        let end = (at / 64 + 1) * 64;
        let mut left = words[at / 64] & u64::MAX << (at % 64);
        if to < end {
            left &= (1 << (to % 64)) - 1;
        }
        while left != 0 {
            if found.len() == max {
                return at;
            }
            at = end - 64 + left.trailing_zeros() as usize;
            found.push(at);
            at += 1;
            left &= left - 1;
        }
        at = end;
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn listing_continues_where_it_stopped(words: [u64; 4], from in 0usize..=256, len in 0usize..=256, max in 1usize..80) {
            let to = (from + len).min(256);
            let (mut at, mut all, mut found) = (from, Vec::<usize>::new(), Vec::new());
            while at < to {
                at = first_set_bits(&words, at, to, max, &mut found);
                prop_assert!(found.len() == max || at == to);
                all.extend(&found);
            }
            prop_assert_eq!(all, set_bits_between(&words, from, to));
        }

        #[test]
        fn runs_and_marks_match_single_bits(before: [u64; 4], from in 0usize..256, marks in prop::collection::vec(0u8..2, 0..200)) {
            let marks = &marks[..marks.len().min(256 - from)];
            let set = |bits: &mut [u64; 4], k: usize| bits[k / 64] |= 1 << (k % 64);
            let (mut run, mut want) = (before, before);
            set_run(&mut run, from, marks.len());
            (from..from + marks.len()).for_each(|k| set(&mut want, k));
            prop_assert_eq!(run, want);
            let (mut marked, mut want) = (before, before);
            set_marked(&mut marked, from, marks);
            marks.iter().enumerate().filter(|(_, mark)| **mark == 1).for_each(|(k, _)| set(&mut want, from + k));
            prop_assert_eq!(marked, want);
            let rows = || (from..from + marks.len()).step_by(3);
            if let (Some(first), Some(last)) = (rows().next(), rows().next_back()) {
                for count in [rows().count(), 0] {
                    let (mut listed, mut want) = (before, before);
                    let mut ascending = AscendingBits::new(count, first, last);
                    rows().for_each(|k| ascending.set(&mut listed, k));
                    ascending.finish(&mut listed);
                    rows().for_each(|k| set(&mut want, k));
                    prop_assert_eq!(listed, want);
                }
            }
            let (end, bit) = (from + marks.len(), |k: &usize| before[k / 64] >> (k % 64) & 1 == 1);
            prop_assert_eq!(set_bits_between(&before, from, end), (from..end).filter(bit).collect::<Vec<_>>());
            prop_assert_eq!(count_between(&before, from, end), (from..end).filter(bit).count());
        }
    }

    #[test]
    fn ascending_rows_may_span_many_blocks() {
        for step in [1, 3, 50, 63, 64, 65, 1000] {
            let mut bits = vec![0u64; 500];
            let rows: Vec<usize> = (70..32_000).step_by(step).collect();
            let mut ascending = AscendingBits::new(rows.len(), rows[0], rows[rows.len() - 1]);
            rows.iter().for_each(|row| ascending.set(&mut bits, *row));
            ascending.finish(&mut bits);
            assert_eq!(set_bits_between(&bits, 0, 32_000), rows, "step {step}");
        }
    }
}
