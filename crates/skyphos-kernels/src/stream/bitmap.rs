//! Entries of segments whose indices are a bitmap, a word of 64 positions at a time.

use super::bits::set_word;
use super::reader::Reader;
use super::segment::Segment;
use crate::array_builder::ArrayBuilder;
#[cfg(target_arch = "x86_64")]
use crate::avx512::OVERRUN;
use crate::simd;
use skyphos_types::Element;

/// Largest number of entries of a word that are folded one by one.
const MAX_LISTED: u32 = 4;

/// Rows that may be written beyond the last entry. Each becomes `op(row, identity)`, which must equal the row.
pub(super) const ROW_OVERRUN: usize = 64;

/// Folds the first of `values`, one for each bit that is set, into the rows at the bits' positions.
#[inline(always)]
pub(super) fn take_word<T: Element>(
    isa: simd::InstructionSet,
    bits: u64,
    values: &[T],
    rows: &mut [T],
    identity: T,
    op: impl Fn(T, T) -> T + Copy,
) {
    #[cfg(target_arch = "x86_64")]
    if let simd::InstructionSet::Avx512(avx512) = isa
        && bits.count_ones() > MAX_LISTED
        && values.len() >= bits.count_ones() as usize + OVERRUN
    {
        let blank = [identity; 16];
        let (low, high) = rows[..64].split_at_mut(32);
        let (mut values, mut spread) = (values, [identity; 32]);
        for (bits, rows) in [(bits as u32, low), ((bits >> 32) as u32, high)] {
            // SAFETY: `values` has a value for each bit of both halves, and `OVERRUN` more.
            unsafe { avx512.expand(bits, values.as_ptr(), &blank, &mut spread) };
            rows.iter_mut().zip(&spread).for_each(|(row, value)| *row = op(*row, *value));
            values = &values[bits.count_ones() as usize..];
        }
        return;
    }
    let (_, mut left) = (isa, bits);
    for value in &values[..bits.count_ones() as usize] {
        let at = left.trailing_zeros() as usize;
        rows[at] = op(rows[at], *value);
        left &= left - 1;
    }
}

/// Writes the entries of a bitmap segment into the rows of a dense vector of width 1, and sets their bits.
pub fn put_bitmap<T: Element>(
    segment: &Segment<'_>,
    all: &mut [T],
    mut present: Option<&mut [u64]>,
    identity: T,
) -> Result<(), &'static str> {
    let (mut reader, mut values, isa) = (Reader::default(), segment.values::<T>(), simd::detected());
    while let Some((from, bits)) = reader.step_word(segment)? {
        let at = segment.head.first + from;
        // Beyond this segment's range there may be entries of other segments, which must not be overwritten.
        let isa = if at + 64 <= segment.head.end { isa } else { simd::InstructionSet::Baseline };
        take_word(isa, bits, values, &mut all[at as usize..], identity, |_, value| value);
        if let Some(present) = &mut present {
            set_word(present, at as usize, bits);
        }
        values = &values[bits.count_ones() as usize..];
    }
    Ok(())
}

/// Writes the indices of a bitmap segment to a list, from position `at` on.
///
/// # Panics
/// If they end beyond the list.
pub fn list_bitmap(
    segment: &Segment<'_>,
    list: &mut ArrayBuilder<u32>,
    at: usize,
) -> Result<(), &'static str> {
    let (mut reader, isa) = (Reader::default(), simd::detected());
    let mut end = at;
    let mut slots = list.slots(&(at..at + segment.head.count as usize));
    while let Some((from, bits)) = reader.step_word(segment)? {
        let (count, base) = (bits.count_ones() as usize, (segment.head.first + from) as u32);
        match isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: there are slots for `count` numbers and `OVERRUN` more.
            simd::InstructionSet::Avx512(avx512) if slots.len() >= count + OVERRUN => unsafe {
                avx512.positions_u32(bits, base, slots.as_mut_ptr().cast());
            },
            _ => {
                let mut left = bits;
                for slot in &mut slots[..count] {
                    slot.write(base + left.trailing_zeros());
                    left &= left - 1;
                }
            }
        }
        (slots, end) = (&mut slots[count..], end + count);
    }
    // SAFETY: the loop has written as many numbers as the words have bits.
    unsafe { list.mark_written(at..end) };
    Ok(())
}

/// Sets the mark of each set bit to 1.
#[inline(always)]
pub(super) fn mark_word(isa: simd::InstructionSet, bits: u64, marks: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if let simd::InstructionSet::Avx512(avx512) = isa {
        return avx512.set_marks(bits, marks.first_chunk_mut().expect("64 marks"));
    }
    let (_, mut left) = (isa, bits);
    while left != 0 {
        marks[left.trailing_zeros() as usize] = 1;
        left &= left - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_match_single_bits(bits: u64, sparse: u64, at in 0usize..40, values: [u32; 64], extra in 0usize..20) {
            let mut values = values.to_vec();
            values.extend((0..extra as u32).map(|k| k << 10));
            for isa in simd::all_detected() {
                for bits in [bits, bits & sparse & sparse.rotate_left(7), 0, u64::MAX] {
                    let (mut rows, mut marks) = ([7u32; 104 + ROW_OVERRUN], [0u8; 104 + ROW_OVERRUN]);
                    let wide: Vec<u64> = values.iter().map(|v| u64::from(*v) << 20).collect();
                    let mut wide_rows = [3u64; 104 + ROW_OVERRUN];
                    take_word(isa, bits, &values[..], &mut rows[at..], 0, u32::wrapping_add);
                    take_word(isa, bits, &wide, &mut wide_rows[at..], 0, u64::wrapping_add);
                    mark_word(isa, bits, &mut marks[at..]);
                    let mut next = 0;
                    for (k, mark) in marks.iter().enumerate() {
                        let set = k >= at && k < at + 64 && bits >> (k - at) & 1 == 1;
                        let value = if set { values[next] } else { 0 };
                        next += usize::from(set);
                        prop_assert_eq!(*mark, u8::from(set));
                        prop_assert_eq!(rows[k], value.wrapping_add(7));
                        prop_assert_eq!(wide_rows[k], (u64::from(value) << 20) + 3);
                    }
                }
            }
        }
    }
}
