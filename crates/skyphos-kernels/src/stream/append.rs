//! Append of a block's marked rows to lists of indices and values.
//!
//! A branch for each word of 64 marks, or for each entry, would be mispredicted often. So the words with a mark are listed first.
//! If they have few entries, positions are written without a branch per word; if many, AVX-512 compresses them. Consecutive rows
//! are copied together. Cost: a step for 64 marks, and one for each entry or each 16 positions of a filled word.

use super::bits::bits_of;
use super::vector::IndexList;
#[cfg(target_arch = "x86_64")]
use crate::avx512::OVERRUN;
use crate::simd;
use skyphos_types::Element;

/// Appends the marked rows.
pub(super) fn append<T: Element>(
    isa: simd::InstructionSet,
    block: Marked<'_, T>,
    indices: &mut IndexList,
    values: &mut Vec<T>,
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `avx512` proves that the processor has the instructions.
        simd::InstructionSet::Avx512(avx512) => unsafe { append_avx512(avx512, block, indices, values) },
        isa => {
            simd::dispatch!(isa => append_with(block, indices, values, bits_of, append_bits))
        }
    }
}

/// Rows from index `first` on, with a mark (0 or 1) for each.
#[derive(Clone, Copy)]
pub(super) struct Marked<'a, T> {
    pub(super) first: u64,
    pub(super) marks: &'a [u8],
    pub(super) rows: &'a [T],
    pub(super) width: usize,
}

/// Words of 64 marks that are handled together.
const WORDS: usize = 64;

/// Largest mean number of entries per word for which positions are listed one by one.
const MAX_LISTED: usize = 6;

/// Appends the marked rows. `mask(marks)` has a bit for each of up to 64 marks; `put(base, mask, rows, …)` appends one word's entries.
#[inline(always)]
fn append_with<T: Element>(
    Marked { first, marks, rows, width }: Marked<'_, T>,
    indices: &mut IndexList,
    values: &mut Vec<T>,
    mask: impl Fn(&[u8]) -> u64,
    put: impl Fn(u64, u64, &[T], &mut IndexList, &mut Vec<T>),
) {
    assert!(rows.len() >= marks.len() * width);
    for (k, marks) in marks.chunks(64 * WORDS).enumerate() {
        let (from, rows) = (first + (k * 64 * WORDS) as u64, &rows[k * 64 * WORDS * width..]);
        // Words with a mark, and the position of each word's first bit.
        let (mut words, mut starts) = ([0u64; WORDS + 1], [0u32; WORDS + 1]);
        let (mut filled, mut total) = (0, 0);
        for (k, marks) in marks.chunks(64).enumerate() {
            let word = mask(marks);
            (words[filled], starts[filled]) = (word, k as u32 * 64);
            filled += usize::from(word != 0);
            total += word.count_ones() as usize;
        }
        let all = words[..filled].iter().zip(&starts[..filled]);
        if width > 1 {
            for (word, start) in all {
                append_runs(
                    from + u64::from(*start),
                    *word,
                    &rows[*start as usize * width..],
                    width,
                    indices,
                    values,
                );
            }
        } else if total <= filled * MAX_LISTED {
            let mut buffer = [0; CAPACITY];
            match total <= filled * 2 {
                true => positions::<3>(&words[..filled], &starts, &mut buffer),
                false => positions::<8>(&words[..filled], &starts, &mut buffer),
            }
            let found = &buffer[..total];
            match indices {
                IndexList::Narrow(list) => list.extend(found.iter().map(|at| from as u32 + at)),
                IndexList::Wide(list) => list.extend(found.iter().map(|at| from + u64::from(*at))),
            }
            values.extend(found.iter().map(|at| rows[*at as usize]));
        } else {
            for (word, start) in all {
                let (base, rows) = (from + u64::from(*start), &rows[*start as usize..]);
                match *word {
                    u64::MAX => append_runs(base, *word, rows, 1, indices, values),
                    word => put(base, word, rows, indices, values),
                }
            }
        }
    }
}

/// Capacity for the positions, including those written beyond the last one.
const CAPACITY: usize = WORDS * MAX_LISTED + 8;

/// Lists the positions of the bits of words. They are written in batches, however many bits a word has, since that number is not
/// predictable; the next word overwrites the excess.
#[inline(always)]
fn positions<const BATCH: usize>(words: &[u64], starts: &[u32], buffer: &mut [u32; CAPACITY]) {
    let mut end = 0;
    for (word, start) in words.iter().zip(starts) {
        let (mut left, mut at, count) = (*word, end, word.count_ones() as usize);
        loop {
            for slot in &mut buffer[at..at + BATCH] {
                *slot = start + left.trailing_zeros();
                left &= left.wrapping_sub(1);
            }
            at += BATCH;
            if left == 0 {
                break;
            }
        }
        end += count;
    }
}

#[inline(always)]
fn append_bits<T: Element>(base: u64, mask: u64, rows: &[T], indices: &mut IndexList, values: &mut Vec<T>) {
    let mut left = mask;
    while left != 0 {
        let bit = left.trailing_zeros();
        match indices {
            IndexList::Narrow(list) => list.push(base as u32 + bit),
            IndexList::Wide(list) => list.push(base + u64::from(bit)),
        }
        values.push(rows[bit as usize]);
        left &= left - 1;
    }
}

/// Appends rows, consecutive ones by one copy.
#[inline(always)]
fn append_runs<T: Element>(
    base: u64,
    mask: u64,
    rows: &[T],
    width: usize,
    indices: &mut IndexList,
    values: &mut Vec<T>,
) {
    let mut left = mask;
    while left != 0 {
        let start = left.trailing_zeros();
        let count = (left >> start).trailing_ones();
        let from = base + u64::from(start);
        match indices {
            IndexList::Narrow(list) => list.extend((0..count).map(|k| from as u32 + k)),
            IndexList::Wide(list) => list.extend((0..u64::from(count)).map(|k| from + k)),
        }
        values.extend_from_slice(&rows[start as usize * width..][..count as usize * width]);
        // Two shifts, since a run of all 64 positions would shift by 64.
        left &= (u64::MAX << start << (count - 1)) << 1;
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
fn append_avx512<T: Element>(
    avx512: simd::Avx512,
    block: Marked<'_, T>,
    indices: &mut IndexList,
    values: &mut Vec<T>,
) {
    append_with(
        block,
        indices,
        values,
        #[inline(always)]
        |marks| avx512.bits_of_marks(marks),
        #[inline(always)]
        |base, mask, rows, indices, values| {
            let count = mask.count_ones() as usize;
            // SAFETY: `reserve` makes room for 64 numbers and `OVERRUN` (for 64-bit positions, 64), of which `count` are written.
            // Values are read only at marks, which have rows.
            unsafe {
                match indices {
                    IndexList::Narrow(list) => {
                        list.reserve(64 + OVERRUN);
                        avx512.positions_u32(mask, base as u32, list.as_mut_ptr().add(list.len()));
                        list.set_len(list.len() + count);
                    }
                    IndexList::Wide(list) => {
                        list.reserve(64);
                        avx512.positions_u64(mask, base, list.as_mut_ptr().add(list.len()));
                        list.set_len(list.len() + count);
                    }
                }
                values.reserve(64 + OVERRUN);
                avx512.compress(mask, rows.as_ptr(), values.as_mut_ptr().add(values.len()));
                values.set_len(values.len() + count);
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use skyphos_types::bf16;

    /// Appends blocks with every instruction set and compares with a filter.
    fn check<T: Element>(present: &[bool], width: usize, first: u64, make: impl Fn(usize) -> T) {
        let marks: Vec<u8> = present.iter().map(|p| u8::from(*p)).collect();
        let rows: Vec<T> = (0..marks.len() * width).map(make).collect();
        let chosen_positions: Vec<usize> = (0..marks.len()).filter(|k| present[*k]).collect();
        let want: Vec<u64> = chosen_positions.iter().map(|k| first + *k as u64).collect();
        let chosen: Vec<T> =
            chosen_positions.iter().flat_map(|k| &rows[k * width..][..width]).copied().collect();
        for isa in simd::all_detected() {
            for empty in [IndexList::Narrow(Vec::new()), IndexList::Wide(Vec::new())] {
                let (mut indices, mut values) = (empty, Vec::new());
                let block = Marked { first, marks: &marks, rows: &rows, width };
                append(isa, block, &mut indices, &mut values);
                assert_eq!(indices.to_vec(), want, "{isa:?}");
                assert_eq!(values, chosen, "{isa:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn appends_match_a_filter(runs in prop::collection::vec((any::<bool>(), 1usize..150), 0..12),
                               single in prop_oneof![
                                   prop::collection::vec(prop::bool::weighted(0.3), 0..200),
                                   prop::collection::vec(prop::bool::weighted(0.02), 0..9000),
                               ],
                               first in 0u64..1 << 31, width in 1usize..4) {
            let runs = runs.iter().flat_map(|(marked, count)| std::iter::repeat_n(*marked, *count));
            let present: Vec<bool> = runs.chain(single).collect();
            check(&present, width, first, |k| k as u8);
            check(&present, width, first, |k| bf16::from_f32(k as f32));
            check(&present, width, first, |k| k as f32);
            check(&present, width, first, |k| k as f64);
        }
    }
}
