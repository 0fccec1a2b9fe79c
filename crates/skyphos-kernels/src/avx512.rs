//! AVX-512 operations on 64 positions at a time, chosen by the bits of a word.
//!
//! Blocks, bitmaps and merges have one bit per position that marks the present entries. A loop over the bits takes
//! an unpredictable branch for each; these operations take one step for 16 (or 8) positions instead.
//!
//! All are methods of [`Avx512`], so a value of it proves that the processor has the instructions.

use crate::simd::Avx512;
use std::arch::x86_64::*;

/// Numbers that [`Avx512::compress`] may write beyond the last chosen one.
pub(crate) const OVERRUN: usize = 16;

impl Avx512 {
    /// Copies the values whose bits are set in `mask` to consecutive positions.
    ///
    /// # Safety
    /// Values of `from` whose bit is set must be readable; `to` must have room for as many values plus [`OVERRUN`].
    #[inline(always)]
    pub(crate) unsafe fn compress<T: Copy>(self, mask: u64, from: *const T, to: *mut T) {
        // SAFETY: `self` proves the instructions; the memory is as the caller promises.
        unsafe { compress(mask, from, to) }
    }

    /// Copies 64 floats; −0.0 becomes 0. Returns a bit per float, set unless it was −0.0.
    ///
    /// # Safety
    /// 64 floats of 2, 4 or 8 bytes must be readable, and as many writable.
    #[inline(always)]
    pub(crate) unsafe fn clear_negative_zeros<T: Copy>(self, from: *const T, to: *mut T) -> u64 {
        // SAFETY: `self` proves the instructions; the memory is as the caller promises.
        unsafe { clear_negative_zeros(from, to) }
    }

    /// Lists `base` plus the number of each bit that is set in `mask`.
    ///
    /// # Safety
    /// `to` must have room for a number per set bit plus [`OVERRUN`].
    #[inline(always)]
    pub(crate) unsafe fn positions_u32(self, mask: u64, base: u32, to: *mut u32) {
        // SAFETY: `self` proves the instructions; the memory is as the caller promises.
        unsafe { positions_u32(mask, base, to) }
    }

    /// As [`Avx512::positions_u32`] in 64 bits; writes nothing beyond the 64th number.
    ///
    /// # Safety
    /// `to` must have room for 64 numbers.
    #[inline(always)]
    pub(crate) unsafe fn positions_u64(self, mask: u64, base: u64, to: *mut u64) {
        // SAFETY: `self` proves the instructions; the memory is as the caller promises.
        unsafe { positions_u64(mask, base, to) }
    }

    /// A bit for each of up to 64 marks, set where the mark is not 0.
    #[inline(always)]
    pub(crate) fn bits_of_marks(self, marks: &[u8]) -> u64 {
        // SAFETY: `self` proves the instructions.
        unsafe { bits_of_marks(marks) }
    }

    /// Sets to 1 the marks whose bits are set.
    #[inline(always)]
    pub(crate) fn set_marks(self, bits: u64, marks: &mut [u8; 64]) {
        // SAFETY: `self` proves the instructions.
        unsafe { set_marks(bits, marks) }
    }

    /// Puts consecutive values at the positions whose bits are set in `mask`; the others come from `blank`.
    ///
    /// # Safety
    /// A value per set bit, and 16 more, must be readable.
    #[inline(always)]
    pub(crate) unsafe fn expand<T: Copy>(self, mask: u32, from: *const T, blank: &[T; 16], to: &mut [T; 32]) {
        // SAFETY: `self` proves the instructions; the memory is as the caller promises.
        unsafe { expand(mask, from, blank, to) }
    }

    /// Copies by masked vectors, without a branch for lengths of up to one vector.
    ///
    /// # Safety
    /// Both slices must be of the same length.
    #[inline(always)]
    pub(crate) unsafe fn copy<T: bytemuck::Pod>(self, from: &[T], to: &mut [T]) {
        // SAFETY: `self` proves the instructions; the lengths are as the caller promises.
        unsafe { copy(from, to) }
    }
}

/// # Safety
/// As [`Avx512::compress`]; the processor must have the instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
unsafe fn compress<T: Copy>(mask: u64, from: *const T, to: *mut T) {
    let lanes = if size_of::<T>() == 8 { 8 } else { 16 };
    let mut at = 0;
    for part in (0..64).step_by(lanes) {
        let (chosen, from) = ((mask >> part) as u16, from.wrapping_add(part));
        // SAFETY: only values whose bit is set are read. `at` is at most the number of bits, so that a vector
        // ends at most `OVERRUN` after them.
        unsafe {
            let to = to.add(at);
            match size_of::<T>() {
                8 => {
                    let v = _mm512_maskz_loadu_epi64(chosen as u8, from.cast());
                    _mm512_storeu_epi64(to.cast(), _mm512_maskz_compress_epi64(chosen as u8, v));
                }
                4 => {
                    let v = _mm512_maskz_loadu_epi32(chosen, from.cast());
                    _mm512_storeu_epi32(to.cast(), _mm512_maskz_compress_epi32(chosen, v));
                }
                2 => {
                    let v = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(chosen, from.cast()));
                    let v = _mm512_maskz_compress_epi32(chosen, v);
                    _mm256_storeu_epi16(to.cast(), _mm512_cvtepi32_epi16(v));
                }
                _ => {
                    let v = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(chosen, from.cast()));
                    let v = _mm512_maskz_compress_epi32(chosen, v);
                    _mm_storeu_epi8(to.cast(), _mm512_cvtepi32_epi8(v));
                }
            }
        }
        at += (if lanes == 8 { u32::from(chosen as u8) } else { u32::from(chosen) }).count_ones() as usize;
    }
}

/// # Safety
/// As [`Avx512::clear_negative_zeros`]; the processor must have the instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
unsafe fn clear_negative_zeros<T: Copy>(from: *const T, to: *mut T) -> u64 {
    let (lanes, mut word) = (64 / size_of::<T>(), 0);
    for part in (0..64).step_by(lanes) {
        // SAFETY: the vector lies within the 64 floats.
        let (v, to) = unsafe { (_mm512_loadu_si512(from.add(part).cast()), to.add(part).cast()) };
        let (chosen, v) = match size_of::<T>() {
            8 => {
                let chosen = _mm512_cmpneq_epi64_mask(v, _mm512_set1_epi64(i64::MIN));
                (u64::from(chosen), _mm512_maskz_mov_epi64(chosen, v))
            }
            4 => {
                let chosen = _mm512_cmpneq_epi32_mask(v, _mm512_set1_epi32(i32::MIN));
                (u64::from(chosen), _mm512_maskz_mov_epi32(chosen, v))
            }
            _ => {
                let chosen = _mm512_cmpneq_epi16_mask(v, _mm512_set1_epi16(i16::MIN));
                (u64::from(chosen), _mm512_maskz_mov_epi16(chosen, v))
            }
        };
        // SAFETY: likewise, 64 floats are writable.
        unsafe { _mm512_storeu_si512(to, v) };
        word |= chosen << part;
    }
    word
}

/// # Safety
/// As [`Avx512::positions_u32`]; the processor must have the instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
unsafe fn positions_u32(mask: u64, base: u32, to: *mut u32) {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let mut numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32(base as i32));
    let mut at = 0;
    for part in (0..64).step_by(16) {
        let chosen = (mask >> part) as u16;
        // SAFETY: as in `compress`.
        unsafe { _mm512_storeu_epi32(to.add(at).cast(), _mm512_maskz_compress_epi32(chosen, numbers)) };
        numbers = _mm512_add_epi32(numbers, _mm512_set1_epi32(16));
        at += chosen.count_ones() as usize;
    }
}

/// # Safety
/// As [`Avx512::positions_u64`]; the processor must have the instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
unsafe fn positions_u64(mask: u64, base: u64, to: *mut u64) {
    let mut numbers =
        _mm512_add_epi64(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7), _mm512_set1_epi64(base as i64));
    let mut at = 0;
    for part in (0..64).step_by(8) {
        let chosen = (mask >> part) as u8;
        // SAFETY: as in `compress`; before the eighth part there are at most 56 numbers.
        unsafe { _mm512_storeu_epi64(to.add(at).cast(), _mm512_maskz_compress_epi64(chosen, numbers)) };
        numbers = _mm512_add_epi64(numbers, _mm512_set1_epi64(8));
        at += chosen.count_ones() as usize;
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
fn bits_of_marks(marks: &[u8]) -> u64 {
    // As many low bits as marks, at most 64.
    let in_slice = _bzhi_u64(u64::MAX, marks.len() as u32);
    // SAFETY: `in_slice` selects no mark beyond the last one.
    let marks = unsafe { _mm512_maskz_loadu_epi8(in_slice, marks.as_ptr().cast()) };
    _mm512_test_epi8_mask(marks, marks)
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
fn set_marks(bits: u64, marks: &mut [u8; 64]) {
    // SAFETY: a vector of 64 marks.
    unsafe { _mm512_mask_storeu_epi8(marks.as_mut_ptr().cast(), bits, _mm512_set1_epi8(1)) }
}

/// # Safety
/// As [`Avx512::expand`]; the processor must have the instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
unsafe fn expand<T: Copy>(mask: u32, from: *const T, blank: &[T; 16], to: &mut [T; 32]) {
    let lanes = if size_of::<T>() == 8 { 8 } else { 16 };
    let (mut from, to, blank) = (from, to.as_mut_ptr(), blank.as_ptr());
    for part in (0..32).step_by(lanes) {
        let chosen = (mask >> part) as u16 & (u16::MAX >> (16 - lanes));
        // SAFETY: `from` has moved by as many values as there were bits, and a whole vector is readable from there. `to`
        // is written within its length.
        unsafe {
            let to = to.add(part);
            match size_of::<T>() {
                8 => {
                    let (blank, v) = (_mm512_loadu_epi64(blank.cast()), _mm512_loadu_epi64(from.cast()));
                    _mm512_storeu_epi64(to.cast(), _mm512_mask_expand_epi64(blank, chosen as u8, v));
                }
                4 => {
                    let (blank, v) = (_mm512_loadu_epi32(blank.cast()), _mm512_loadu_epi32(from.cast()));
                    _mm512_storeu_epi32(to.cast(), _mm512_mask_expand_epi32(blank, chosen, v));
                }
                2 => {
                    let blank = _mm512_cvtepu16_epi32(_mm256_loadu_epi16(blank.cast()));
                    let v = _mm512_cvtepu16_epi32(_mm256_loadu_epi16(from.cast()));
                    let v = _mm512_mask_expand_epi32(blank, chosen, v);
                    _mm256_storeu_epi16(to.cast(), _mm512_cvtepi32_epi16(v));
                }
                _ => {
                    let blank = _mm512_cvtepu8_epi32(_mm_loadu_epi8(blank.cast()));
                    let v = _mm512_cvtepu8_epi32(_mm_loadu_epi8(from.cast()));
                    let v = _mm512_mask_expand_epi32(blank, chosen, v);
                    _mm_storeu_epi8(to.cast(), _mm512_cvtepi32_epi8(v));
                }
            }
            from = from.add(chosen.count_ones() as usize);
        }
    }
}

/// # Safety
/// As [`Avx512::copy`]; the processor must have the instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
unsafe fn copy<T: bytemuck::Pod>(from: &[T], to: &mut [T]) {
    const LANES: usize = 16;
    debug_assert_eq!(from.len(), to.len());
    let bytes = size_of_val(from);
    if !size_of::<T>().is_multiple_of(4) || bytes > 512 {
        return to.copy_from_slice(from);
    }
    let (from, to) = (from.as_ptr().cast::<i32>(), to.as_mut_ptr().cast::<i32>());
    let (mut at, words) = (0, bytes / 4);
    // SAFETY: no more than `words` words are touched.
    unsafe {
        while words - at > LANES {
            _mm512_storeu_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast()));
            at += LANES;
        }
        let mask = _bzhi_u32(u32::MAX, (words - at) as u32) as u16;
        _mm512_mask_storeu_epi32(to.add(at), mask, _mm512_maskz_loadu_epi32(mask, from.add(at)));
    }
}
