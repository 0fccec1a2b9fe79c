//! From a block with marks to its entries side by side.
//!
//! A branch for each word of 64 marks, or for each entry, would not be foretold. So words with a mark are listed first;
//! then few entries are taken one by one without caring where a word ends, and many are squeezed together as vectors
//! where the processor can. Rows of neighbours are copied together. Cost: a step for 64 marks, and one for each entry
//! or each 16 positions of a filled word.

use super::bits::bits_of;
use super::vector::IndexList;
#[cfg(target_arch = "x86_64")]
use crate::lanes;
use crate::simd;
use skyphos_types::Element;

/// Appends the rows that have a mark.
pub(super) fn append<T: Element>(
    level: simd::Level,
    block: Marked<'_, T>,
    indices: &mut IndexList,
    values: &mut Vec<T>,
) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `level` has seen that the processor has these instructions.
        simd::Level::Avx512 => unsafe { append_avx512(block, indices, values) },
        level => {
            simd::dispatch!(level => append_with(block, indices, values, bits_of, append_bits))
        }
    }
}

/// Rows from index `first` on, and their marks.
#[derive(Clone, Copy)]
pub(super) struct Marked<'a, T> {
    pub(super) first: u64,
    pub(super) marks: &'a [u8],
    pub(super) rows: &'a [T],
    pub(super) width: usize,
}

/// Words of 64 marks that are looked at together.
const WORDS: usize = 64;

/// Entries a word up to which they are listed one by one.
const FEW: usize = 6;

/// `mask(marks)` has a bit for each of up to 64 marks; `put(base, mask, rows, …)` appends one word's entries.
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
        // Words with a mark, and where they begin.
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
        } else if total <= filled * FEW {
            let mut room = [0; ROOM];
            match total <= filled * 2 {
                true => positions::<3>(&words[..filled], &starts, &mut room),
                false => positions::<8>(&words[..filled], &starts, &mut room),
            }
            let found = &room[..total];
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

/// Positions that fit, with those written beyond the last.
const ROOM: usize = WORDS * FEW + 8;

/// The positions of the bits of words, `AT_ONCE` of them written for each word whether it has as many or not: how many
/// it has could not be foretold. What is too much the next word overwrites.
#[inline(always)]
fn positions<const AT_ONCE: usize>(words: &[u64], starts: &[u32], room: &mut [u32; ROOM]) {
    let mut end = 0;
    for (word, start) in words.iter().zip(starts) {
        let (mut left, mut at, count) = (*word, end, word.count_ones() as usize);
        loop {
            for slot in &mut room[at..at + AT_ONCE] {
                *slot = start + left.trailing_zeros();
                left &= left.wrapping_sub(1);
            }
            at += AT_ONCE;
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

/// Rows of neighbours are copied together.
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
        // In two steps, for a run of all 64 positions.
        left &= (u64::MAX << start << (count - 1)) << 1;
    }
}

/// # Safety
/// The processor must have what [`simd::with_avx512`] asks for.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
unsafe fn append_avx512<T: Element>(block: Marked<'_, T>, indices: &mut IndexList, values: &mut Vec<T>) {
    append_with(
        block,
        indices,
        values,
        #[inline(always)]
        |marks| {
            // SAFETY: the caller has seen that the processor has these instructions.
            unsafe { lanes::bits_of(marks) }
        },
        #[inline(always)]
        |base, mask, rows, indices, values| {
            let count = mask.count_ones() as usize;
            // SAFETY: each list has room for as many as are chosen and those that may be written beyond, and
            // then holds the chosen ones. Values are read at marks only, for which there are rows.
            unsafe {
                match indices {
                    IndexList::Narrow(list) => {
                        list.reserve(64 + lanes::BEYOND);
                        lanes::numbers_u32(mask, base as u32, list.as_mut_ptr().add(list.len()));
                        list.set_len(list.len() + count);
                    }
                    IndexList::Wide(list) => {
                        list.reserve(64);
                        lanes::numbers_u64(mask, base, list.as_mut_ptr().add(list.len()));
                        list.set_len(list.len() + count);
                    }
                }
                values.reserve(64 + lanes::BEYOND);
                lanes::squeeze(mask, rows.as_ptr(), values.as_mut_ptr().add(values.len()));
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

    /// Appends blocks at every level and compares with a filter.
    fn check<T: Element>(present: &[bool], width: usize, first: u64, make: impl Fn(usize) -> T) {
        let marks: Vec<u8> = present.iter().map(|p| u8::from(*p)).collect();
        let rows: Vec<T> = (0..marks.len() * width).map(make).collect();
        let places: Vec<usize> = (0..marks.len()).filter(|k| present[*k]).collect();
        let want: Vec<u64> = places.iter().map(|k| first + *k as u64).collect();
        let chosen: Vec<T> = places.iter().flat_map(|k| &rows[k * width..][..width]).copied().collect();
        for level in simd::levels() {
            for empty in [IndexList::Narrow(Vec::new()), IndexList::Wide(Vec::new())] {
                let (mut indices, mut values) = (empty, Vec::new());
                let block = Marked { first, marks: &marks, rows: &rows, width };
                append(level, block, &mut indices, &mut values);
                assert_eq!(indices.to_vec(), want, "{level:?}");
                assert_eq!(values, chosen, "{level:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn appends_as_a_filter(some in prop::collection::vec((any::<bool>(), 1usize..150), 0..12),
                               single in prop_oneof![
                                   prop::collection::vec(prop::bool::weighted(0.3), 0..200),
                                   prop::collection::vec(prop::bool::weighted(0.02), 0..9000),
                               ],
                               first in 0u64..1 << 31, width in 1usize..4) {
            let runs = some.iter().flat_map(|(here, count)| std::iter::repeat_n(*here, *count));
            let present: Vec<bool> = runs.chain(single).collect();
            check(&present, width, first, |k| k as u8);
            check(&present, width, first, |k| bf16::from_f32(k as f32));
            check(&present, width, first, |k| k as f32);
            check(&present, width, first, |k| k as f64);
        }
    }
}
