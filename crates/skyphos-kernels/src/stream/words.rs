//! Entries of 64 positions at once, told apart by a word of bits: what the bitmap of a dense stream is made of.

use super::bits::set_word;
use super::segment::Segment;
#[cfg(target_arch = "x86_64")]
use crate::lanes;
use crate::pieces::Pieces;
use crate::simd;
use skyphos_types::Element;

/// Entries of a word up to which they are taken one by one.
const FEW: u32 = 4;

/// Rows that may be touched beyond the last entry's: each becomes `op(row, identity)`, which must be the row.
pub(super) const SLACK: usize = 64;

/// Takes the first of `values`, one for each bit that is set, into their places among `rows`.
#[inline(always)]
pub(super) fn take_word<T: Element>(
    level: simd::Level,
    bits: u64,
    values: &[T],
    rows: &mut [T],
    identity: T,
    op: impl Fn(T, T) -> T + Copy,
) {
    #[cfg(target_arch = "x86_64")]
    if level == simd::Level::Avx512
        && bits.count_ones() > FEW
        && values.len() >= bits.count_ones() as usize + lanes::BEYOND
    {
        let blank = [identity; 16];
        let (low, high) = rows[..64].split_at_mut(32);
        let (mut values, mut spread) = (values, [identity; 32]);
        for (bits, rows) in [(bits as u32, low), ((bits >> 32) as u32, high)] {
            // SAFETY: `level` has seen that the processor has these instructions; there are as many values.
            unsafe { lanes::spread(bits, values.as_ptr(), &blank, &mut spread) };
            rows.iter_mut().zip(&spread).for_each(|(row, value)| *row = op(*row, *value));
            values = &values[bits.count_ones() as usize..];
        }
        return;
    }
    let (_, mut left) = (level, bits);
    for value in &values[..bits.count_ones() as usize] {
        let at = left.trailing_zeros() as usize;
        rows[at] = op(rows[at], *value);
        left &= left - 1;
    }
}

/// Puts the entries of a segment with a bitmap, one number each, among all rows of a dense vector, and sets their bits.
pub fn put_bitmap<T: Element>(
    segment: &Segment<'_>,
    all: &mut [T],
    mut present: Option<&mut [u64]>,
    identity: T,
) -> Result<(), &'static str> {
    let (mut reader, mut values, level) = (segment.reader(), segment.values::<T>(), simd::level());
    while let Some((from, bits)) = reader.step_word(segment)? {
        let at = segment.head.first + from;
        // Other segments' entries may stand beyond the end of this one's range.
        let level = if at + 64 <= segment.head.end { level } else { simd::Level::Baseline };
        take_word(level, bits, values, &mut all[at as usize..], identity, |_, value| value);
        if let Some(present) = &mut present {
            set_word(present, at as usize, bits);
        }
        values = &values[bits.count_ones() as usize..];
    }
    Ok(())
}

/// Lists the indices of a segment with a bitmap, from position `at` on. Panics where that is outside.
pub fn list_bitmap(segment: &Segment<'_>, list: &mut Pieces<u32>, at: usize) -> Result<(), &'static str> {
    let (mut reader, level) = (segment.reader(), simd::level());
    let mut end = at;
    let mut slots = list.slots(&(at..at + segment.head.count as usize));
    while let Some((from, bits)) = reader.step_word(segment)? {
        let (count, base) = (bits.count_ones() as usize, (segment.head.first + from) as u32);
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `level` has seen that the processor has these instructions; there is room beyond.
            simd::Level::Avx512 if slots.len() >= count + lanes::BEYOND => unsafe {
                lanes::numbers_u32(bits, base, slots.as_mut_ptr().cast());
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
    // SAFETY: each word has written as many as it has bits.
    unsafe { list.note(at..end) };
    Ok(())
}

/// Marks the positions of bits that are set with 1.
#[inline(always)]
pub(super) fn mark_word(level: simd::Level, bits: u64, marks: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if level == simd::Level::Avx512 {
        // SAFETY: `level` has seen that the processor has these instructions; there are 64 marks.
        return unsafe { mark_avx512(bits, marks[..64].as_mut_ptr().cast()) };
    }
    let (_, mut left) = (level, bits);
    while left != 0 {
        marks[left.trailing_zeros() as usize] = 1;
        left &= left - 1;
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,bmi1,bmi2,popcnt")]
unsafe fn mark_avx512(bits: u64, marks: *mut i8) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's marks.
    unsafe { _mm512_mask_storeu_epi8(marks, bits, _mm512_set1_epi8(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_one_by_one(bits: u64, sparse: u64, at in 0usize..40, values: [u32; 64], more in 0usize..20) {
            let mut values = values.to_vec();
            values.extend((0..more as u32).map(|k| k << 10));
            for level in simd::levels() {
                for bits in [bits, bits & sparse & sparse.rotate_left(7), 0, u64::MAX] {
                    let (mut rows, mut marks) = ([7u32; 104 + SLACK], [0u8; 104 + SLACK]);
                    let wide: Vec<u64> = values.iter().map(|v| u64::from(*v) << 20).collect();
                    let mut wide_rows = [3u64; 104 + SLACK];
                    take_word(level, bits, &values[..], &mut rows[at..], 0, u32::wrapping_add);
                    take_word(level, bits, &wide, &mut wide_rows[at..], 0, u64::wrapping_add);
                    mark_word(level, bits, &mut marks[at..]);
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
