//! What bits choose, squeezed together or spread apart, by vectors of 512 bits.
//!
//! A bit a position is how blocks, bitmaps and merges say which entries are there. Going from bit to bit takes a
//! branch for each that the processor cannot foretell; these take a step for each 16 (or 8) positions instead.

use std::arch::x86_64::*;

/// Numbers that a squeeze of 64 positions may write beyond the last that was chosen.
pub(crate) const BEYOND: usize = 16;

/// The values of the bits of `mask`, side by side.
///
/// # Safety
/// The processor must have what [`crate::simd::with_avx512`] asks for. Values of `from` whose bit is set must be
/// there, and `to` must have room for as many and [`BEYOND`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(crate) unsafe fn squeeze<T: Copy>(mask: u64, from: *const T, to: *mut T) {
    let lanes = if size_of::<T>() == 8 { 8 } else { 16 };
    let mut at = 0;
    for part in (0..64).step_by(lanes) {
        let (some, from) = ((mask >> part) as u16, from.wrapping_add(part));
        // SAFETY: only values whose bit is set are read. `at` is at most the number of bits, so that a vector
        // ends at most `BEYOND` after them.
        unsafe {
            let to = to.add(at);
            match size_of::<T>() {
                8 => {
                    let v = _mm512_maskz_loadu_epi64(some as u8, from.cast());
                    _mm512_storeu_epi64(to.cast(), _mm512_maskz_compress_epi64(some as u8, v));
                }
                4 => {
                    let v = _mm512_maskz_loadu_epi32(some, from.cast());
                    _mm512_storeu_epi32(to.cast(), _mm512_maskz_compress_epi32(some, v));
                }
                2 => {
                    let v = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, from.cast()));
                    let v = _mm512_maskz_compress_epi32(some, v);
                    _mm256_storeu_epi16(to.cast(), _mm512_cvtepi32_epi16(v));
                }
                _ => {
                    let v = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(some, from.cast()));
                    let v = _mm512_maskz_compress_epi32(some, v);
                    _mm_storeu_epi8(to.cast(), _mm512_cvtepi32_epi8(v));
                }
            }
        }
        at += (if lanes == 8 { u32::from(some as u8) } else { u32::from(some) }).count_ones() as usize;
    }
}

/// Copies 64 floats; those that are −0.0 become 0. A bit for each of the others.
///
/// # Safety
/// The processor must have what [`crate::simd::with_avx512`] asks for; 64 floats of 2, 4 or 8 bytes must be there, and
/// room for as many.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(crate) unsafe fn unsigned<T: Copy>(from: *const T, to: *mut T) -> u64 {
    let (lanes, mut word) = (64 / size_of::<T>(), 0);
    for part in (0..64).step_by(lanes) {
        // SAFETY: a vector of the 64.
        let (v, to) = unsafe { (_mm512_loadu_si512(from.add(part).cast()), to.add(part).cast()) };
        let (some, v) = match size_of::<T>() {
            8 => {
                let some = _mm512_cmpneq_epi64_mask(v, _mm512_set1_epi64(i64::MIN));
                (u64::from(some), _mm512_maskz_mov_epi64(some, v))
            }
            4 => {
                let some = _mm512_cmpneq_epi32_mask(v, _mm512_set1_epi32(i32::MIN));
                (u64::from(some), _mm512_maskz_mov_epi32(some, v))
            }
            _ => {
                let some = _mm512_cmpneq_epi16_mask(v, _mm512_set1_epi16(i16::MIN));
                (u64::from(some), _mm512_maskz_mov_epi16(some, v))
            }
        };
        // SAFETY: the same of the room.
        unsafe { _mm512_storeu_si512(to, v) };
        word |= some << part;
    }
    word
}

/// `base` and the number of each bit of `mask`, added.
///
/// # Safety
/// The processor must have what [`crate::simd::with_avx512`] asks for; `to` must have room as for [`squeeze`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(crate) unsafe fn numbers_u32(mask: u64, base: u32, to: *mut u32) {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let mut numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32(base as i32));
    let mut at = 0;
    for part in (0..64).step_by(16) {
        let some = (mask >> part) as u16;
        // SAFETY: as in `squeeze`.
        unsafe { _mm512_storeu_epi32(to.add(at).cast(), _mm512_maskz_compress_epi32(some, numbers)) };
        numbers = _mm512_add_epi32(numbers, _mm512_set1_epi32(16));
        at += some.count_ones() as usize;
    }
}

/// The same of 64 bits; writes nothing beyond the 64th number.
///
/// # Safety
/// As for [`numbers_u32`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(crate) unsafe fn numbers_u64(mask: u64, base: u64, to: *mut u64) {
    let mut numbers =
        _mm512_add_epi64(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7), _mm512_set1_epi64(base as i64));
    let mut at = 0;
    for part in (0..64).step_by(8) {
        let some = (mask >> part) as u8;
        // SAFETY: as in `squeeze`; before the eighth part there are at most 56 numbers.
        unsafe { _mm512_storeu_epi64(to.add(at).cast(), _mm512_maskz_compress_epi64(some, numbers)) };
        numbers = _mm512_add_epi64(numbers, _mm512_set1_epi64(8));
        at += some.count_ones() as usize;
    }
}

/// A bit for each of 1 to 64 marks, set where it is not 0.
///
/// # Safety
/// The processor must have what [`crate::simd::with_avx512`] asks for.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(crate) unsafe fn bits_of(marks: &[u8]) -> u64 {
    let there = u64::MAX >> (64 - marks.len());
    // SAFETY: marks beyond the last are not read.
    let marks = unsafe { _mm512_maskz_loadu_epi8(there, marks.as_ptr().cast()) };
    _mm512_test_epi8_mask(marks, marks)
}

/// Puts values, one after the other, where the bits of `mask` are; others come from `blank`.
///
/// # Safety
/// The processor must have what [`crate::simd::with_avx512`] asks for, and there must be 16 values more than bits.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(crate) unsafe fn spread<T: Copy>(mask: u32, from: *const T, blank: &[T; 16], to: &mut [T; 32]) {
    let lanes = if size_of::<T>() == 8 { 8 } else { 16 };
    let (mut from, to, blank) = (from, to.as_mut_ptr(), blank.as_ptr());
    for part in (0..32).step_by(lanes) {
        let some = (mask >> part) as u16 & (u16::MAX >> (16 - lanes));
        // SAFETY: `from` has moved by as many values as there were bits, and a vector of them is there. `to` is
        // written within its length.
        unsafe {
            let to = to.add(part);
            match size_of::<T>() {
                8 => {
                    let (blank, v) = (_mm512_loadu_epi64(blank.cast()), _mm512_loadu_epi64(from.cast()));
                    _mm512_storeu_epi64(to.cast(), _mm512_mask_expand_epi64(blank, some as u8, v));
                }
                4 => {
                    let (blank, v) = (_mm512_loadu_epi32(blank.cast()), _mm512_loadu_epi32(from.cast()));
                    _mm512_storeu_epi32(to.cast(), _mm512_mask_expand_epi32(blank, some, v));
                }
                2 => {
                    let blank = _mm512_cvtepu16_epi32(_mm256_loadu_epi16(blank.cast()));
                    let v = _mm512_cvtepu16_epi32(_mm256_loadu_epi16(from.cast()));
                    let v = _mm512_mask_expand_epi32(blank, some, v);
                    _mm256_storeu_epi16(to.cast(), _mm512_cvtepi32_epi16(v));
                }
                _ => {
                    let blank = _mm512_cvtepu8_epi32(_mm_loadu_epi8(blank.cast()));
                    let v = _mm512_cvtepu8_epi32(_mm_loadu_epi8(from.cast()));
                    let v = _mm512_mask_expand_epi32(blank, some, v);
                    _mm_storeu_epi8(to.cast(), _mm512_cvtepi32_epi8(v));
                }
            }
            from = from.add(some.count_ones() as usize);
        }
    }
}
