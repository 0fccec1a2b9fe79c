//! Stochastic quantisation: a few bits a number and one scale a bucket (QSGD; SparCML §6).
//!
//! A bucket of d consecutive values v has a scale S: their Euclidean norm, or their largest magnitude.
//! With s = 2^(bits-1) - 1 levels, v_i becomes one of the two nearest multiples of S/s, drawn so that
//! the expectation is v_i:
//!
//! ```text
//! q_i = ⌊v_i · s/S + u_i⌋,  u_i uniform in [0, 1);      Q(v)_i = q_i · S/s;      q_i in -s ..= s
//! ```
//!
//! **Variance.** For the Euclidean scale E|Q(v) - v|² ≤ min(d/s², √d/s)·|v|² (QSGD, lemma 3.1). The
//! proof holds for any scale not above the norm, hence for the largest magnitude. |Q(v)_i - v_i| < S/s always.
//!
//! **Bias** comes from rounding alone: below S/s · 2^-24 from cutting v_i · s/S and u to 24 binary digits, and
//! below |v_i| · 2^-21 from f32 products. Types other than f32 are converted to f32 first, and
//! results back to nearest: f64 loses digits, and 16-bit results are off by up to half a unit of the last
//! place (above the type's largest value: infinite).
//!
//! **Randomness** is a function of (seed, call, rank, bucket, position in the bucket) alone. It does not
//! depend on the instruction set, on threads, or on other values (`quantise/random.rs`).
//!
//! **Form**: for each bucket S as a little-endian f32, then q_i in two's complement of `bits` bits, the
//! first in the lowest bits, up to a whole byte.
//!
//! Cost: values are read once from memory (twice from the L1 cache), and a byte is written for every
//! 8/bits of them. O(d) work per bucket, no allocation.

mod codes;
mod random;

use crate::simd::{self, InstructionSet};
use codes::{BLOCK, bytes_of, levels_of, padded};
pub use random::Draw;
use random::Key;
use skyphos_types::{Error, Real, Result};

/// The unit of a bucket's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scale {
    /// The Euclidean norm, for the variance bound above.
    L2,
    /// The largest magnitude, for finer steps.
    Max,
}

/// Parameters of quantisation, the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantize {
    bits: u8,
    bucket: u32,
    scale: Scale,
    seed: u64,
}

impl Default for Quantize {
    /// 4 bits, buckets of 1,024, Euclidean scale, seed 0.
    fn default() -> Quantize {
        Quantize { bits: 4, bucket: 1024, scale: Scale::L2, seed: 0 }
    }
}

impl Quantize {
    /// `bits` is 2, 4 or 8; a bucket has 1 to 2^24 values.
    pub fn new(bits: u8, bucket: u32, scale: Scale, seed: u64) -> Result<Quantize> {
        if !matches!(bits, 2 | 4 | 8) {
            return Err(Error::bad_input(format!("values are quantised to 2, 4 or 8 bits, not {bits}")));
        }
        if !(1..=1 << 24).contains(&bucket) {
            return Err(Error::bad_input(format!("a bucket has 1 to 2^24 values, not {bucket}")));
        }
        Ok(Quantize { bits, bucket, scale, seed })
    }

    /// Bits per value.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Values per bucket.
    pub fn bucket(&self) -> usize {
        self.bucket as usize
    }

    /// The scale of a bucket.
    pub fn scale(&self) -> Scale {
        self.scale
    }

    /// Seed of all random numbers.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Steps from 0 to the scale, s.
    pub fn levels(&self) -> u32 {
        (1 << (self.bits - 1)) - 1
    }

    fn code_bytes(&self, values: usize) -> usize {
        (values * self.bits as usize).div_ceil(8)
    }
}

/// Bytes of a bucket's scale.
const SCALE_BYTES: usize = 4;

/// Accumulators of the sum of squares. Their number affects rounding, so it is the same on all processors.
const ACCUMULATORS: usize = 16;

/// Bytes that `values` numbers take.
pub fn quantised_bytes(values: usize, params: &Quantize) -> usize {
    let (whole, rest) = (values / params.bucket(), values % params.bucket());
    let last = if rest > 0 { SCALE_BYTES + params.code_bytes(rest) } else { 0 };
    whole * (SCALE_BYTES + params.code_bytes(params.bucket())) + last
}

/// Writes the quantised `values` to `out`, whose length must be [`quantised_bytes`].
///
/// NaN and infinite values are refused; the contents of `out` are then unspecified.
pub fn quantise<T: Real>(values: &[T], params: &Quantize, draw: Draw, out: &mut [u8]) -> Result<()> {
    let expected = quantised_bytes(values.len(), params);
    if out.len() != expected {
        let found = out.len();
        return Err(Error::bad_input(format!(
            "quantising these values takes {expected} bytes, but the buffer has {found}"
        )));
    }
    encode_at(simd::detected(), values, params, draw, out).map_err(|start| {
        let bad = values[start..].iter().position(|v| !v.to_f32().is_finite()).unwrap_or(0) + start;
        let value = values[bad];
        Error::bad_input(format!(
            "values[{bad}] = {value:?} cannot be quantised: values must be finite as float32"
        ))
    })
}

/// Writes the values that `bytes` encode to `out`; `bytes` must have the length for that many values.
///
/// Any bytes may be given: bytes that [`quantise`] did not write give an error or arbitrary numbers.
pub fn dequantise<T: Real>(
    bytes: &[u8],
    params: &Quantize,
    out: &mut [T],
) -> std::result::Result<(), &'static str> {
    decode_at(simd::detected(), bytes, params, out, |_, v| v)
}

/// Adds the values that `bytes` encode to `acc`, as [`dequantise`] and an addition of `T` would.
///
/// After an error some buckets have been added.
pub fn dequantise_and_add<T: Real>(
    bytes: &[u8],
    params: &Quantize,
    acc: &mut [T],
) -> std::result::Result<(), &'static str> {
    decode_at(simd::detected(), bytes, params, acc, T::add)
}

fn encode_at<T: Real>(
    isa: InstructionSet,
    values: &[T],
    params: &Quantize,
    draw: Draw,
    out: &mut [u8],
) -> std::result::Result<(), usize> {
    match params.bits {
        2 => simd::dispatch!(isa => encode::<T, 2>(values, params, draw, out)),
        4 => simd::dispatch!(isa => encode::<T, 4>(values, params, draw, out)),
        _ => simd::dispatch!(isa => encode::<T, 8>(values, params, draw, out)),
    }
}

fn decode_at<T: Real>(
    isa: InstructionSet,
    bytes: &[u8],
    params: &Quantize,
    out: &mut [T],
    combine: impl Fn(T, T) -> T + Copy,
) -> std::result::Result<(), &'static str> {
    if bytes.len() != quantised_bytes(out.len(), params) {
        return Err("the length of quantised values does not match their number");
    }
    match params.bits {
        2 => simd::dispatch!(isa => decode::<T, 2>(bytes, params, out, combine)),
        4 => simd::dispatch!(isa => decode::<T, 4>(bytes, params, out, combine)),
        _ => simd::dispatch!(isa => decode::<T, 8>(bytes, params, out, combine)),
    }
}

/// Encodes all buckets. An error is the start of the first bucket with a value that is not finite.
#[inline(always)]
fn encode<T: Real, const BITS: usize>(
    values: &[T],
    params: &Quantize,
    draw: Draw,
    out: &mut [u8],
) -> std::result::Result<(), usize> {
    let stream = Key::of_call(params.seed, draw);
    let stride = SCALE_BYTES + params.code_bytes(params.bucket());
    let buckets = values.chunks(params.bucket()).zip(out.chunks_mut(stride));
    for (number, (bucket, packed)) in buckets.enumerate() {
        let scale = match params.scale {
            Scale::L2 => norm(bucket),
            Scale::Max => largest_magnitude(bucket),
        };
        let scale = scale.ok_or(number * params.bucket())?;
        let (scale_bytes, codes) = packed.split_at_mut(SCALE_BYTES);
        scale_bytes.copy_from_slice(&scale.to_le_bytes());
        let to_levels = ToLevels::new(scale, params.levels());
        let key = Key::of_bucket(stream, draw.first_bucket.wrapping_add(number as u64));
        // An incomplete block may fill as many bytes as a complete one, so it is split off by its number of values.
        let (blocks, rest) = bucket.as_chunks::<BLOCK>();
        let (packs, last) = codes.split_at_mut(blocks.len() * (BLOCK * BITS / 8));
        let positions = (0..).step_by(BLOCK);
        for ((block, pack), position) in
            blocks.iter().zip(packs.chunks_exact_mut(BLOCK * BITS / 8)).zip(positions)
        {
            pack.copy_from_slice(
                &bytes_of::<BITS>(&draw_levels(block, to_levels, key, position))[..pack.len()],
            );
        }
        if !rest.is_empty() {
            let mut block = [T::ZERO; BLOCK];
            block[..rest.len()].copy_from_slice(rest);
            let position = (bucket.len() - rest.len()) as u32;
            last.copy_from_slice(
                &bytes_of::<BITS>(&draw_levels(&block, to_levels, key, position))[..last.len()],
            );
        }
    }
    Ok(())
}

/// The Euclidean norm, or `None` if a value is not finite. It is at least the largest magnitude.
#[inline(always)]
fn norm<T: Real>(bucket: &[T]) -> Option<f32> {
    // The square of an f32 is exact in f64, and no sum of them overflows.
    let square = |v: &T| f64::from(v.to_f32()) * f64::from(v.to_f32());
    let mut sums = [0.0f64; ACCUMULATORS];
    let mut chunks = bucket.chunks_exact(ACCUMULATORS);
    for chunk in &mut chunks {
        for (sum, v) in sums.iter_mut().zip(chunk) {
            *sum += square(v);
        }
    }
    for (sum, v) in sums.iter_mut().zip(chunks.remainder()) {
        *sum += square(v);
    }
    let total: f64 = sums.iter().sum();
    // A norm beyond f32 becomes the largest f32: any scale that is not below a magnitude is unbiased.
    total.is_finite().then(|| total.sqrt().min(f64::from(f32::MAX)) as f32)
}

/// The largest magnitude, or `None` if a value is not finite.
#[inline(always)]
fn largest_magnitude<T: Real>(bucket: &[T]) -> Option<f32> {
    // The bits of magnitudes order like the magnitudes; infinity and NaN come last.
    let top = bucket.iter().fold(0, |top, v| (v.to_f32().to_bits() & 0x7fff_ffff).max(top));
    let top = f32::from_bits(top);
    top.is_finite().then_some(top)
}

/// Bits of a level's fraction.
const FRACTION: u32 = 24;

/// Conversion from values to levels with [`FRACTION`] binary digits, by two factors, since s/S may exceed f32.
#[derive(Clone, Copy)]
struct ToLevels {
    prescale: f32,
    factor: f32,
}

impl ToLevels {
    fn new(scale: f32, levels: u32) -> ToLevels {
        let top = (levels << FRACTION) as f32;
        // A power of two loses no digit of a small value.
        let prescale = if scale < 2f32.powi(-64) { 2f32.powi(64) } else { 1.0 };
        if scale == 0.0 {
            return ToLevels { prescale, factor: 0.0 };
        }
        let mut factor = top / (scale * prescale);
        // No magnitude may exceed the last level, which is the largest that a code can hold.
        while scale * prescale * factor > top {
            factor = factor.next_down();
        }
        ToLevels { prescale, factor }
    }
}

/// The drawn levels of a block that begins at `position` in its bucket.
#[inline(always)]
fn draw_levels<T: Real>(block: &[T; BLOCK], to_levels: ToLevels, key: Key, position: u32) -> [i8; BLOCK] {
    let mut levels = [0i8; BLOCK];
    for ((level, v), at) in levels.iter_mut().zip(block).zip(position..) {
        let exact = v.to_f32() * to_levels.prescale * to_levels.factor;
        // SAFETY: `ToLevels` keeps |exact| within 127 · 2^24, and the scale of a bucket exists only if its values are finite.
        let exact: i32 = unsafe { exact.to_int_unchecked() };
        *level = ((exact + (key.random(at) >> (32 - FRACTION)) as i32) >> FRACTION) as i8;
    }
    levels
}

#[inline(always)]
fn decode<T: Real, const BITS: usize>(
    bytes: &[u8],
    params: &Quantize,
    out: &mut [T],
    combine: impl Fn(T, T) -> T + Copy,
) -> std::result::Result<(), &'static str> {
    let stride = SCALE_BYTES + params.code_bytes(params.bucket());
    let unit = 1.0 / params.levels() as f32;
    for (bucket, packed) in out.chunks_mut(params.bucket()).zip(bytes.chunks(stride)) {
        let (scale_bytes, codes) = packed.split_at(SCALE_BYTES);
        let scale = f32::from_le_bytes(scale_bytes.try_into().expect("4 bytes"));
        if !(scale.is_finite() && scale >= 0.0) {
            return Err("the scale of quantised values is negative or not finite");
        }
        let value = |level: i8| T::from_f32(f32::from(level) * unit * scale);
        let (blocks, rest) = bucket.as_chunks_mut::<BLOCK>();
        let (packs, last) = codes.split_at(blocks.len() * (BLOCK * BITS / 8));
        for (block, pack) in blocks.iter_mut().zip(packs.chunks_exact(BLOCK * BITS / 8)) {
            for (v, level) in block.iter_mut().zip(levels_of::<BITS>(&padded(pack))) {
                *v = combine(*v, value(level));
            }
        }
        for (v, level) in rest.iter_mut().zip(levels_of::<BITS>(&padded(last))) {
            *v = combine(*v, value(level));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
