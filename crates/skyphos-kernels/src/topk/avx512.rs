//! The loops by vectors of 512 bits. Each is right for values of 2, 4 and 8 bytes; the choice is made when
//! they are compiled.

use super::Magnitude;
use super::loops::{LANES, Number, SLACK, Slots};
use std::arch::x86_64::*;

/// Values that a vector holds; those of 2 bytes are widened.
const fn lanes<T>() -> usize {
    assert!(size_of::<T>() == 2 || size_of::<T>() == 4 || size_of::<T>() == 8);
    if size_of::<T>() == 8 { 8 } else { 16 }
}

/// The lanes of the values that are left.
#[inline(always)]
fn mask<T>(left: usize) -> u16 {
    if left < lanes::<T>() { (1 << left) - 1 } else { u16::MAX }
}

/// Values of the lanes of a mask, others zero, and their magnitudes.
///
/// # Safety
/// The processor must have AVX-512, and the values of the mask must be there.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
unsafe fn load<T>(from: *const T, mask: u16) -> (__m512i, __m512i) {
    // SAFETY: masked lanes are not read.
    unsafe {
        match size_of::<T>() {
            8 => {
                let v = _mm512_maskz_loadu_epi64(mask as u8, from.cast());
                (v, _mm512_and_si512(v, _mm512_set1_epi64(i64::MAX)))
            }
            4 => {
                let v = _mm512_maskz_loadu_epi32(mask, from.cast());
                (v, _mm512_and_si512(v, _mm512_set1_epi32(i32::MAX)))
            }
            _ => {
                let v = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from.cast()));
                (v, _mm512_and_si512(v, _mm512_set1_epi32(0x7fff)))
            }
        }
    }
}

/// [`super::loops::Loops::collect`].
///
/// # Safety
/// The processor must have what [`crate::simd::with_avx512`] asks for.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn collect<T: Magnitude>(
    values: &[T],
    start: u32,
    least: T::Key,
    Slots { indices, picked }: Slots<'_, T>,
) -> usize {
    assert!(values.len() + SLACK <= indices.len() && values.len() + SLACK <= picked.len());
    let least: i64 = least.into();
    let (least32, least64) = (_mm512_set1_epi32(least as i32), _mm512_set1_epi64(least));
    let mut places = _mm512_add_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        _mm512_set1_epi32(start as i32),
    );
    let step = _mm512_set1_epi32(lanes::<T>() as i32);
    let (mut at, mut count) = (0, 0);
    while at < values.len() {
        let there = mask::<T>(values.len() - at);
        // SAFETY: the lanes of `there` are inside `values`. `count` is at most `at`, so both outputs hold a
        // whole vector more. A bit pattern of a value is stored as a value of the same size.
        unsafe {
            let (v, magnitude) = load(values.as_ptr().add(at), there);
            let to = picked.as_mut_ptr().add(count);
            let kept = match size_of::<T>() {
                8 => {
                    let kept = _mm512_mask_cmpge_epi64_mask(there as u8, magnitude, least64);
                    _mm512_storeu_epi64(to.cast(), _mm512_maskz_compress_epi64(kept, v));
                    u16::from(kept)
                }
                4 => {
                    let kept = _mm512_mask_cmpge_epi32_mask(there, magnitude, least32);
                    _mm512_storeu_epi32(to.cast(), _mm512_maskz_compress_epi32(kept, v));
                    kept
                }
                _ => {
                    let kept = _mm512_mask_cmpge_epi32_mask(there, magnitude, least32);
                    let squeezed = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(kept, v));
                    _mm256_storeu_epi16(to.cast(), squeezed);
                    kept
                }
            };
            let index = _mm512_maskz_compress_epi32(kept, places);
            _mm512_storeu_epi32(indices.as_mut_ptr().add(count).cast(), index);
            count += kept.count_ones() as usize;
        }
        places = _mm512_add_epi32(places, step);
        at += lanes::<T>();
    }
    count
}

/// [`super::loops::Loops::maxima`].
///
/// # Safety
/// The processor must have what [`crate::simd::with_avx512`] asks for.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn maxima<T: Magnitude, const VECTORS: usize>(values: &[T]) -> [[i16; LANES]; VECTORS] {
    let mut groups = [[_mm512_set1_epi32(-1); 2]; VECTORS];
    let parts = LANES / lanes::<T>();
    for round in values.chunks(VECTORS * LANES) {
        for (vector, group) in groups.iter_mut().enumerate() {
            for (part, max) in group.iter_mut().enumerate().take(parts) {
                let at = vector * LANES + part * lanes::<T>();
                let there = mask::<T>(round.len().saturating_sub(at));
                // SAFETY: the lanes of `there` are inside `round`; others are not read. Where there is none,
                // the pointer is not used, so it may be anywhere.
                let (_, magnitude) = unsafe { load(round.as_ptr().wrapping_add(at), there) };
                *max = match size_of::<T>() {
                    8 => _mm512_mask_max_epi64(*max, there as u8, *max, magnitude),
                    _ => _mm512_mask_max_epi32(*max, there, *max, magnitude),
                };
            }
        }
    }
    let mut maxima = [[-1; LANES]; VECTORS];
    for (upper, group) in maxima.iter_mut().zip(groups) {
        for (upper, max) in upper.chunks_exact_mut(lanes::<T>()).zip(group) {
            // SAFETY: as many numbers of 2 bytes as a vector has lanes.
            unsafe {
                match size_of::<T>() {
                    8 => {
                        let max = _mm512_srai_epi64::<48>(max);
                        _mm_storeu_si128(upper.as_mut_ptr().cast(), _mm512_cvtepi64_epi16(max));
                    }
                    4 => {
                        let max = _mm512_srai_epi32::<16>(max);
                        _mm256_storeu_si256(upper.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(max));
                    }
                    _ => _mm256_storeu_si256(upper.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(max)),
                }
            }
        }
    }
    maxima
}

/// [`super::loops::Loops::kth_of_few`].
///
/// # Safety
/// The processor must have what [`crate::simd::with_avx512`] asks for.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn kth_of_few<K: Number>(keys: &[[K; LANES]], k: usize) -> K {
    macro_rules! body {
        ($key:ty, $lanes:expr, $set1:ident, $load:ident, $store:ident, $sub:ident, $sign:expr, $add:ident,
         $less:ident, $min:ident) => {{
            let keys: &[$key] = bytemuck::cast_slice(keys.as_flattened());
            let mut kths = $set1(<$key>::MAX);
            for mine in keys.chunks_exact($lanes) {
                // SAFETY: as many keys as a vector has lanes.
                let mine = unsafe { $load(mine.as_ptr().cast()) };
                let mut above = $set1(0);
                for key in keys {
                    // No difference overflows, for no key is below -1: its sign tells which is larger.
                    above = $add(above, $sign($sub(mine, $set1(*key))));
                }
                kths = $min(kths, $less(above, $set1(k as $key)), kths, mine);
            }
            let mut lanes: [$key; $lanes] = [0; $lanes];
            // SAFETY: as many keys as a vector has lanes.
            unsafe { $store(lanes.as_mut_ptr().cast(), kths) };
            bytemuck::cast(lanes.into_iter().fold(<$key>::MAX, <$key>::min))
        }};
    }
    match size_of::<K>() {
        8 => body!(
            i64,
            8,
            _mm512_set1_epi64,
            _mm512_loadu_si512,
            _mm512_storeu_si512,
            _mm512_sub_epi64,
            _mm512_srli_epi64::<63>,
            _mm512_add_epi64,
            _mm512_cmplt_epi64_mask,
            _mm512_mask_min_epi64
        ),
        4 => body!(
            i32,
            16,
            _mm512_set1_epi32,
            _mm512_loadu_si512,
            _mm512_storeu_si512,
            _mm512_sub_epi32,
            _mm512_srli_epi32::<31>,
            _mm512_add_epi32,
            _mm512_cmplt_epi32_mask,
            _mm512_mask_min_epi32
        ),
        _ => body!(
            i16,
            16,
            _mm256_set1_epi16,
            _mm256_loadu_si256,
            _mm256_storeu_si256,
            _mm256_sub_epi16,
            _mm256_srli_epi16::<15>,
            _mm256_add_epi16,
            _mm256_cmplt_epi16_mask,
            _mm256_mask_min_epi16
        ),
    }
}
