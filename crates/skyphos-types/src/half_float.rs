//! Arithmetic of 16-bit floats: convert to f32, compute, round to nearest, ties to even.
//!
//! An f32 has 24 binary digits, at least twice as many as either type (11 and 8) and two more, so rounding the f32 result
//! gives the correctly rounded sum, product or quotient, as in NumPy's float16 and `ml_dtypes`' bfloat16.
//!
//! The crate `half` checks the processor's instructions for each number, so compilers cannot vectorise its conversions. The
//! conversions here are a few integer operations without a branch: compilers vectorise loops over them for any instruction set,
//! and the resulting bits are the same on all of them (NaN included).

use crate::{DType, Element, Real};
use half::{bf16, f16};

/// Exponent and fraction, without the sign.
const MAGNITUDE: u32 = 0x7fff_ffff;
/// Bits of an infinite f32.
const INFINITE: u32 = 0x7f80_0000;

/// The value, exactly.
#[inline(always)]
fn f32_of_bf16(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// The nearest bf16; too large values become infinite, a NaN stays a NaN.
#[inline(always)]
fn bf16_of_f32(x: f32) -> bf16 {
    let bits = x.to_bits();
    let half_less_one = 0x7fff + (bits >> 16 & 1);
    let rounded = bits.wrapping_add(half_less_one) >> 16;
    let quiet = bits >> 16 | 0x40;
    bf16::from_bits(if bits & MAGNITUDE > INFINITE { quiet } else { rounded } as u16)
}

/// The value, exactly.
#[inline(always)]
fn f32_of_f16(x: f16) -> f32 {
    /// Difference of the exponents' biases, in place.
    const REBIAS: u32 = (127 - 15) << 23;
    /// 2^-14, the least normal f16.
    const LEAST_NORMAL: u32 = (127 - 14) << 23;
    let bits = u32::from(x.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    // Below the least normal, the fraction counts units of 2^-24: put it under 2^-14, then subtract 2^-14.
    let small = (f32::from_bits(magnitude + LEAST_NORMAL) - f32::from_bits(LEAST_NORMAL)).to_bits();
    let normal = magnitude + REBIAS;
    let special = magnitude | INFINITE;
    let value = if magnitude < 1 << 23 { small } else { normal };
    let value = if magnitude >= 31 << 23 { special } else { value };
    f32::from_bits(value | (bits & 0x8000) << 16)
}

/// The nearest f16; too large values become infinite, a NaN stays a NaN.
#[inline(always)]
fn f16_of_f32(x: f32) -> f16 {
    /// 2^-14, the least normal f16.
    const LEAST_NORMAL: u32 = (127 - 14) << 23;
    /// 2^16, above everything finite.
    const TOO_LARGE: u32 = (127 + 16) << 23;
    let bits = x.to_bits();
    let magnitude = bits & MAGNITUDE;
    // Above 0.5 an f32 has units of 2^-24, like a subnormal f16: the addition itself rounds.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let half_less_one = 0xfff + (magnitude >> 13 & 1);
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(half_less_one) >> 13;
    let nan = 0x7e00 | magnitude >> 13 & 0x1ff;
    let special = if magnitude > INFINITE { nan } else { 0x7c00 };
    let value = if magnitude < LEAST_NORMAL { small } else { normal };
    let value = if magnitude >= TOO_LARGE { special } else { value };
    f16::from_bits((value | bits >> 16 & 0x8000) as u16)
}

macro_rules! element_half {
    ($t:ty, $d:ident, $widen:ident, $narrow:ident) => {
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            const ZERO: Self = <$t>::ZERO;
            const ONE: Self = <$t>::ONE;
            const HIGHEST: Self = <$t>::INFINITY;
            const LOWEST: Self = <$t>::NEG_INFINITY;
            const ALL_BITS: Self = <$t>::ZERO;
            const ABSENT: Option<Self> = Some(<$t>::NEG_ZERO);
            #[inline(always)]
            fn is_absent(self) -> bool {
                self.to_bits() == <$t>::NEG_ZERO.to_bits()
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                $narrow($widen(self) + $widen(other))
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                $narrow($widen(self) * $widen(other))
            }
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                let (a, b) = ($widen(self), $widen(other));
                if a < b || a.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                let (a, b) = ($widen(self), $widen(other));
                if a > b || a.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn or(self, _: Self) -> Self {
                self
            }
            #[inline(always)]
            fn and(self, _: Self) -> Self {
                self
            }
            #[inline(always)]
            fn divide(self, count: u64) -> Self {
                $narrow($widen(self) / count as f32)
            }
        }

        impl Real for $t {
            #[inline(always)]
            fn to_f32(self) -> f32 {
                $widen(self)
            }
            #[inline(always)]
            fn from_f32(value: f32) -> $t {
                $narrow(value)
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                $narrow($widen(self) - $widen(other))
            }
        }
    };
}
element_half!(bf16, BF16, f32_of_bf16, bf16_of_f32);
element_half!(f16, F16, f32_of_f16, f16_of_f32);

#[cfg(test)]
mod tests {
    use super::*;

    /// f32 values around every 16-bit value and halfway between neighbours.
    fn probes() -> impl Iterator<Item = f32> {
        let around = |bits: u32| [bits.wrapping_sub(1), bits, bits + 1].map(f32::from_bits);
        let halves = (0..=u16::MAX).flat_map(move |h| {
            let f = f16::from_bits(h).to_f32().to_bits();
            [around(f), around(f + (1 << 12))].concat()
        });
        let steps = (0..=u32::MAX).step_by(10_007).map(f32::from_bits);
        let upper = (0..=u16::MAX).flat_map(move |h| {
            let f = u32::from(h) << 16;
            [around(f), around(f | 0x8000)].concat()
        });
        // Subnormal f16 values are multiples of 2^-24: these are the values themselves and those halfway between them.
        let small = (0..2100).flat_map(move |k| around((k as f32 * 0.5f32.powi(25)).to_bits()));
        halves.chain(steps).chain(upper).chain(small)
    }

    #[test]
    fn widening_agrees_with_the_crate_half() {
        for bits in 0..=u16::MAX {
            let (b, h) = (bf16::from_bits(bits), f16::from_bits(bits));
            if b.is_nan() {
                assert!(f32_of_bf16(b).is_nan());
            } else {
                assert_eq!(f32_of_bf16(b).to_bits(), b.to_f32().to_bits(), "{bits:#x}");
            }
            if h.is_nan() {
                assert!(f32_of_f16(h).is_nan());
            } else {
                assert_eq!(f32_of_f16(h).to_bits(), h.to_f32().to_bits(), "{bits:#x}");
            }
        }
    }

    #[test]
    fn narrowing_agrees_with_the_crate_half() {
        for x in probes() {
            let (b, h) = (bf16_of_f32(x), f16_of_f32(x));
            if x.is_nan() {
                assert!(b.is_nan() && h.is_nan(), "{:#x}", x.to_bits());
            } else {
                assert_eq!(b.to_bits(), bf16::from_f32(x).to_bits(), "{:#x}", x.to_bits());
                assert_eq!(h.to_bits(), f16::from_f32(x).to_bits(), "{:#x}", x.to_bits());
            }
        }
    }

    #[test]
    fn arithmetic_rounds_to_nearest_even() {
        let b = bf16::from_f32;
        // 256 + 1 lies halfway between 256 and 258; the even fraction wins, as for 258 + 1.
        assert_eq!(b(256.0).add(b(1.0)), b(256.0));
        assert_eq!(b(258.0).add(b(1.0)), b(260.0));
        assert_eq!(f16::from_f32(2048.0).add(f16::ONE), f16::from_f32(2048.0));
        assert_eq!(f16::from_f32(60000.0).add(f16::from_f32(60000.0)), f16::INFINITY);
        assert_eq!(b(1.0).divide(3), b(1.0 / 3.0));
        assert_eq!(f16::ONE.divide(3), f16::from_f32(1.0 / 3.0));
    }

    #[test]
    fn nan_propagates() {
        {
            let (nan, one) = (bf16::NAN, bf16::ONE);
            assert!(nan.least(one).is_nan() && one.least(nan).is_nan() && one.greatest(nan).is_nan());
            assert!(nan.add(one).is_nan() && bf16::INFINITY.add(bf16::NEG_INFINITY).is_nan());
        }
        let (nan, one) = (f16::NAN, f16::ONE);
        assert!(nan.least(one).is_nan() && one.least(nan).is_nan() && one.greatest(nan).is_nan());
        assert!(nan.add(one).is_nan() && f16::INFINITY.add(f16::NEG_INFINITY).is_nan());
    }
}
