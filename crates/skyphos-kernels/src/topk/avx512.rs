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
const fn mask<T>(left: usize) -> u16 {
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

/// Which lanes of a vector reach a magnitude.
///
/// # Safety
/// As [`load`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
unsafe fn reaching<T>(from: *const T, mask: u16, least32: __m512i, least64: __m512i) -> u16 {
    // SAFETY: the caller's promise.
    let (_, magnitude) = unsafe { load(from, mask) };
    match size_of::<T>() {
        8 => u16::from(_mm512_mask_cmpge_epi64_mask(mask as u8, magnitude, least64)),
        _ => _mm512_mask_cmpge_epi32_mask(mask, magnitude, least32),
    }
}

/// [`super::loops::Loops::collect`]. Few vectors have a value that is kept: those are found first, 32 at a time, so that
/// the others cost a comparison each.
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
    const AT_ONCE: usize = 32;
    assert!(values.len() + SLACK <= indices.len() && values.len() + SLACK <= picked.len());
    let least: i64 = least.into();
    let (least32, least64) = (_mm512_set1_epi32(least as i32), _mm512_set1_epi64(least));
    let lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let mut count = 0;
    let mut first = 0;
    for some in values.chunks(AT_ONCE * lanes::<T>()) {
        let mut kept = [0u16; AT_ONCE];
        let full = some.len() / lanes::<T>();
        // A bit for each vector of which something is kept. Not read from `kept` by a vector: that would wait until all
        // stores before it, to memory too, are done.
        let mut vectors = 0u32;
        for (vector, kept) in kept.iter_mut().enumerate().take(full) {
            let at = vector * lanes::<T>();
            // SAFETY: the vector is inside `some`.
            *kept = unsafe { reaching(some.as_ptr().add(at), mask::<T>(lanes::<T>()), least32, least64) };
            vectors |= u32::from(*kept != 0) << vector;
        }
        if full * lanes::<T>() < some.len() {
            let (at, there) = (full * lanes::<T>(), mask::<T>(some.len() - full * lanes::<T>()));
            // SAFETY: the lanes of the mask are inside `some`.
            kept[full] = unsafe { reaching(some.as_ptr().add(at), there, least32, least64) };
            vectors |= u32::from(kept[full] != 0) << full;
        }
        while vectors != 0 {
            let vector = vectors.trailing_zeros() as usize;
            vectors &= vectors - 1;
            let (at, kept) = (vector * lanes::<T>(), kept[vector]);
            // SAFETY: kept lanes are inside `some`. `count` is at most the values passed, so both outputs hold a whole
            // vector more. A bit pattern of a value is stored as a value of the same size.
            unsafe {
                let (v, _) = load(some.as_ptr().add(at), kept);
                let to = picked.as_mut_ptr().add(count);
                match size_of::<T>() {
                    8 => _mm512_storeu_epi64(to.cast(), _mm512_maskz_compress_epi64(kept as u8, v)),
                    4 => _mm512_storeu_epi32(to.cast(), _mm512_maskz_compress_epi32(kept, v)),
                    _ => {
                        let squeezed = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(kept, v));
                        _mm256_storeu_epi16(to.cast(), squeezed);
                    }
                }
                let places = _mm512_add_epi32(lane, _mm512_set1_epi32((start + (first + at) as u32) as i32));
                let places = _mm512_maskz_compress_epi32(kept, places);
                _mm512_storeu_epi32(indices.as_mut_ptr().add(count).cast(), places);
            }
            count += kept.count_ones() as usize;
        }
        first += some.len();
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
    let mut rounds = values.chunks_exact(VECTORS * LANES);
    for round in &mut rounds {
        for (vector, group) in groups.iter_mut().enumerate() {
            for (part, max) in group.iter_mut().enumerate().take(parts) {
                let at = vector * LANES + part * lanes::<T>();
                // SAFETY: the vector is inside `round`.
                let (_, magnitude) = unsafe { load(round.as_ptr().add(at), mask::<T>(lanes::<T>())) };
                *max = match size_of::<T>() {
                    8 => _mm512_max_epi64(*max, magnitude),
                    _ => _mm512_max_epi32(*max, magnitude),
                };
            }
        }
    }
    let rest = rounds.remainder();
    for at in (0..rest.len()).step_by(lanes::<T>()) {
        let there = mask::<T>(rest.len() - at);
        // SAFETY: the lanes of `there` are inside `rest`.
        let (_, magnitude) = unsafe { load(rest.as_ptr().add(at), there) };
        let max = &mut groups[at / LANES][at % LANES / lanes::<T>()];
        *max = match size_of::<T>() {
            8 => _mm512_mask_max_epi64(*max, there as u8, *max, magnitude),
            _ => _mm512_mask_max_epi32(*max, there, *max, magnitude),
        };
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
