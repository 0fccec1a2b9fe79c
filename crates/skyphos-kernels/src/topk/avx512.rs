//! The loops of selection with AVX-512, for values of 2, 4 and 8 bytes; the size is known at compile time.

use super::magnitude::{Key, Magnitude};
use super::slots::{LANES, OVERRUN, Slots};
use std::arch::x86_64::*;

/// Values per vector; those of 2 bytes are widened.
const fn lanes<T>() -> usize {
    assert!(size_of::<T>() == 2 || size_of::<T>() == 4 || size_of::<T>() == 8);
    if size_of::<T>() == 8 { 8 } else { 16 }
}

/// Mask of the lanes that hold `left` remaining values.
#[inline(always)]
const fn mask<T>(left: usize) -> u16 {
    if left < lanes::<T>() { (1 << left) - 1 } else { u16::MAX }
}

/// Loads the values in the lanes of a mask, with zero in the other lanes, and returns them and their magnitudes.
///
/// # Safety
/// The values of the mask must be readable.
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

/// Vectors that are compared together, before values are kept: one for each bit of a lane.
const BATCH: usize = 32;

/// The single bits of a lane.
const BITS: [u32; BATCH] = {
    let mut bits = [0; BATCH];
    let mut bit = 0;
    while bit < BATCH {
        bits[bit] = 1 << bit;
        bit += 1;
    }
    bits
};

/// For each lane, a bit for each of up to [`BATCH`] vectors, set if the vector's value in that lane reaches the threshold. All
/// intermediate results stay in vector registers.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
fn reaching<T>(batch: &[T], threshold32: __m512i, threshold64: __m512i) -> __m512i {
    let mut reached = _mm512_setzero_si512();
    let mut compare = |from: *const T, bit: u32, valid: u16| {
        // SAFETY: the lanes of `valid` are inside `batch`.
        let (_, magnitude) = unsafe { load(from, valid) };
        reached = match size_of::<T>() {
            8 => {
                let kept = _mm512_mask_cmpge_epi64_mask(valid as u8, magnitude, threshold64);
                _mm512_mask_or_epi64(reached, kept, reached, _mm512_set1_epi64(i64::from(bit)))
            }
            _ => {
                let kept = _mm512_mask_cmpge_epi32_mask(valid, magnitude, threshold32);
                _mm512_mask_or_epi32(reached, kept, reached, _mm512_set1_epi32(bit as i32))
            }
        };
    };
    let full = mask::<T>(lanes::<T>());
    if batch.len() == BATCH * lanes::<T>() {
        // The usual case, without a check between vectors.
        for (vector, bit) in BITS.into_iter().enumerate() {
            compare(batch[vector * lanes::<T>()..].as_ptr(), bit, full);
        }
        return reached;
    }
    let mut vectors = batch.chunks_exact(lanes::<T>());
    for (vector, bit) in (&mut vectors).zip(BITS) {
        compare(vector.as_ptr(), bit, full);
    }
    let rest = vectors.remainder();
    if !rest.is_empty() {
        compare(rest.as_ptr(), BITS[batch.len() / lanes::<T>()], mask::<T>(rest.len()));
    }
    reached
}

/// [`super::loops::Loops::collect`]. Few vectors have a value that is kept. These are found first, 32 vectors at a time, so that
/// the others cost one comparison each.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(super) fn collect<T: Magnitude>(
    values: &[T],
    start: u32,
    threshold: T::Key,
    Slots { indices, picked }: Slots<'_, T>,
) -> usize {
    assert!(values.len() + OVERRUN <= indices.len() && values.len() + OVERRUN <= picked.len());
    let threshold: i64 = threshold.into();
    let (threshold32, threshold64) = (_mm512_set1_epi32(threshold as i32), _mm512_set1_epi64(threshold));
    let lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let mut count = 0;
    let mut first = 0;
    for batch in values.chunks(BATCH * lanes::<T>()) {
        let reached = reaching(batch, threshold32, threshold64);
        // In lanes of 64 bits the upper 32 bits are zero.
        let mut vectors = _mm512_reduce_or_epi32(reached) as u32;
        while vectors != 0 {
            let vector = vectors.trailing_zeros() as usize;
            let bit = vectors & vectors.wrapping_neg();
            vectors ^= bit;
            let at = vector * lanes::<T>();
            let kept = match size_of::<T>() {
                8 => u16::from(_mm512_test_epi64_mask(reached, _mm512_set1_epi64(i64::from(bit)))),
                _ => _mm512_test_epi32_mask(reached, _mm512_set1_epi32(bit as i32)),
            };
            // SAFETY: kept lanes are inside `batch`. `count` is at most the number of values searched so far, so a whole vector
            // fits both outputs. A value is stored as the bit pattern that was loaded.
            unsafe {
                let (v, _) = load(batch.as_ptr().add(at), kept);
                let to = picked.as_mut_ptr().add(count);
                match size_of::<T>() {
                    8 => _mm512_storeu_epi64(to.cast(), _mm512_maskz_compress_epi64(kept as u8, v)),
                    4 => _mm512_storeu_epi32(to.cast(), _mm512_maskz_compress_epi32(kept, v)),
                    _ => {
                        let narrow = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(kept, v));
                        _mm256_storeu_epi16(to.cast(), narrow);
                    }
                }
                let positions =
                    _mm512_add_epi32(lane, _mm512_set1_epi32((start + (first + at) as u32) as i32));
                let positions = _mm512_maskz_compress_epi32(kept, positions);
                _mm512_storeu_epi32(indices.as_mut_ptr().add(count).cast(), positions);
            }
            count += kept.count_ones() as usize;
        }
        first += batch.len();
    }
    count
}

/// [`super::loops::Loops::maxima`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(super) fn maxima<T: Magnitude, const VECTORS: usize>(values: &[T]) -> [[i16; LANES]; VECTORS] {
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
        let valid = mask::<T>(rest.len() - at);
        // SAFETY: the lanes of `valid` are inside `rest`.
        let (_, magnitude) = unsafe { load(rest.as_ptr().add(at), valid) };
        let max = &mut groups[at / LANES][at % LANES / lanes::<T>()];
        *max = match size_of::<T>() {
            8 => _mm512_mask_max_epi64(*max, valid as u8, *max, magnitude),
            _ => _mm512_mask_max_epi32(*max, valid, *max, magnitude),
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

/// [`super::loops::Loops::kth_of_pairs`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(super) fn kth_of_pairs<T: Magnitude>(values: &[T], k: usize) -> T::Key {
    let none = _mm512_set1_epi32(-1);
    let mut pairs = [[none; 2]; 2];
    let mut take = |part: usize, magnitude: __m512i| {
        let [first, second] = pairs[part];
        let [max, less] = in_order::<T>(first, magnitude);
        pairs[part] = [max, in_order::<T>(second, less)[0]];
    };
    let parts = LANES / lanes::<T>();
    let mut rounds = values.chunks_exact(LANES);
    for round in &mut rounds {
        for part in 0..parts {
            // SAFETY: the vector is inside `round`.
            let (_, magnitude) =
                unsafe { load(round.as_ptr().add(part * lanes::<T>()), mask::<T>(lanes::<T>())) };
            take(part, magnitude);
        }
    }
    for (part, rest) in rounds.remainder().chunks(lanes::<T>()).enumerate() {
        let valid = mask::<T>(rest.len());
        // SAFETY: the lanes of `valid` are inside `rest`.
        let (_, magnitude) = unsafe { load(rest.as_ptr(), valid) };
        // Lanes without a value get -1, below every magnitude.
        let magnitude = match size_of::<T>() {
            8 => _mm512_mask_mov_epi64(none, valid as u8, magnitude),
            _ => _mm512_mask_mov_epi32(none, valid, magnitude),
        };
        take(part, magnitude);
    }
    // Each lane holds a sorted list of its largest values. Lists are merged across lanes until all lanes hold the same one.
    let [a1, a2] = pairs[0];
    let [b1, b2] = if parts == 2 { pairs[1] } else { [halves(a1), halves(a2)] };
    let ([largest, a], [b, smallest]) = (in_order::<T>(a1, b1), in_order::<T>(a2, b2));
    let [a, b] = in_order::<T>(a, b);
    let mut top = [largest, a, b, smallest];
    for step in 0..3 {
        let other = match (parts, step) {
            (2, 0) => top.map(|v| halves(v)),
            (2, 1) | (1, 0) => top.map(|v| quarters(v)),
            (2, _) | (1, 1) => top.map(|v| _mm512_shuffle_epi32::<_MM_PERM_BADC>(v)),
            _ => top.map(|v| _mm512_shuffle_epi32::<_MM_PERM_CDAB>(v)),
        };
        // The four largest of both lists form a bitonic sequence, which two compare steps sort.
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| in_order::<T>(top[i], other[3 - i])[0]);
        let ([a, c], [b, d]) = (in_order::<T>(a, c), in_order::<T>(b, d));
        let ([a, b], [c, d]) = (in_order::<T>(a, b), in_order::<T>(c, d));
        top = [a, b, c, d];
    }
    T::Key::from_i64(match size_of::<T>() {
        8 => _mm_cvtsi128_si64(_mm512_castsi512_si128(top[k - 1])),
        _ => i64::from(_mm_cvtsi128_si32(_mm512_castsi512_si128(top[k - 1]))),
    })
}

/// The larger and the smaller number of each lane of two vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
fn in_order<T>(a: __m512i, b: __m512i) -> [__m512i; 2] {
    match size_of::<T>() {
        8 => [_mm512_max_epi64(a, b), _mm512_min_epi64(a, b)],
        _ => [_mm512_max_epi32(a, b), _mm512_min_epi32(a, b)],
    }
}

/// The vector with its halves exchanged.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
fn halves(v: __m512i) -> __m512i {
    _mm512_shuffle_i64x2::<0b01_00_11_10>(v, v)
}

/// The vector with the quarters of each half exchanged.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
fn quarters(v: __m512i) -> __m512i {
    _mm512_shuffle_i64x2::<0b10_11_00_01>(v, v)
}

/// The least of 32 numbers of 2 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
fn least_of_32(numbers: __m512i) -> i16 {
    let least = _mm256_min_epi16(_mm512_castsi512_si256(numbers), _mm512_extracti64x4_epi64::<1>(numbers));
    let least = _mm_min_epi16(_mm256_castsi256_si128(least), _mm256_extracti128_si256::<1>(least));
    // The instruction takes unsigned numbers.
    let sign = _mm_set1_epi16(i16::MIN);
    (_mm_extract_epi16::<0>(_mm_minpos_epu16(_mm_xor_si128(least, sign))) as u16 ^ 0x8000) as i16
}

/// [`super::loops::Loops::kth_of_few`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(super) fn kth_of_few<K: Key>(keys: &[[K; LANES]], k: usize) -> K {
    macro_rules! body {
        ($key:ty, $lanes:expr, $set1:ident, $load:ident, $least:ident, $sub:ident, $sign:expr, $add:ident,
         $less:ident, $min:ident) => {{
            let keys: &[$key] = bytemuck::cast_slice(keys.as_flattened());
            let mut kths = $set1(<$key>::MAX);
            for own in keys.chunks_exact($lanes) {
                // SAFETY: as many keys as a vector has lanes.
                let own = unsafe { $load(own.as_ptr().cast()) };
                let mut larger = $set1(0);
                for key in keys {
                    // No key is below -1, so the difference cannot overflow, and its sign says which key is larger.
                    larger = $add(larger, $sign($sub(own, $set1(*key))));
                }
                kths = $min(kths, $less(larger, $set1(k as $key)), kths, own);
            }
            K::from_i64(i64::from($least(kths)))
        }};
    }
    match size_of::<K>() {
        8 => body!(
            i64,
            8,
            _mm512_set1_epi64,
            _mm512_loadu_si512,
            _mm512_reduce_min_epi64,
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
            _mm512_reduce_min_epi32,
            _mm512_sub_epi32,
            _mm512_srli_epi32::<31>,
            _mm512_add_epi32,
            _mm512_cmplt_epi32_mask,
            _mm512_mask_min_epi32
        ),
        _ => body!(
            i16,
            32,
            _mm512_set1_epi16,
            _mm512_loadu_si512,
            least_of_32,
            _mm512_sub_epi16,
            _mm512_srli_epi16::<15>,
            _mm512_add_epi16,
            _mm512_cmplt_epi16_mask,
            _mm512_mask_min_epi16
        ),
    }
}
