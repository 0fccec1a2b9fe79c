//! The element types of values.

use crate::names::all_variants;
use bytemuck::Pod;
use strum::{FromRepr, IntoStaticStr, VariantArray};

/// The type of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromRepr, IntoStaticStr, VariantArray)]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary32.
    #[strum(serialize = "float32")]
    F32 = 1,
    /// IEEE 754 binary64.
    #[strum(serialize = "float64")]
    F64 = 2,
    /// Signed 32-bit integer.
    #[strum(serialize = "int32")]
    I32 = 3,
    /// Signed 64-bit integer.
    #[strum(serialize = "int64")]
    I64 = 4,
    /// Unsigned 8-bit integer (also booleans and bit sets).
    #[strum(serialize = "uint8")]
    U8 = 5,
    /// Unsigned 32-bit integer.
    #[strum(serialize = "uint32")]
    U32 = 6,
    /// Unsigned 64-bit integer.
    #[strum(serialize = "uint64")]
    U64 = 7,
    /// bfloat16: the upper half of a binary32.
    #[strum(serialize = "bfloat16")]
    BF16 = 8,
    /// IEEE 754 binary16.
    #[strum(serialize = "float16")]
    F16 = 9,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 9] = all_variants();

    /// Size of one number in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::BF16 | DType::F16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        }
    }

    /// NumPy's name of the type (for bfloat16, that of the package `ml_dtypes`).
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The type whose number in a frame's header is `code`.
    pub fn from_code(code: u8) -> Option<DType> {
        DType::from_repr(code)
    }

    /// Whether this is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::BF16 | DType::F16)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that is a [`DType`], with the arithmetic that reductions need.
///
/// Integers wrap on overflow, as NumPy's do. `least` and `greatest` propagate NaN, as
/// `numpy.minimum` does. The 16-bit floats compute in f32 and round each result to nearest, ties to
/// even: their sums, products and quotients are the correctly rounded ones. Bit operations on floats never run, because
/// [`crate::ReduceOp::check`] refuses them.
pub trait Element: Pod + Send + Sync + PartialEq + std::fmt::Debug {
    /// The type's tag.
    const DTYPE: DType;
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Identity of `least`.
    const HIGHEST: Self;
    /// Identity of `greatest`.
    const LOWEST: Self;
    /// All bits set: identity of `and`.
    const ALL_BITS: Self;
    /// −0.0, which changes no number when added to it, and which no sum of other numbers gives. Integers have no such
    /// number.
    const ABSENT: Option<Self>;
    /// Whether this is [`Element::ABSENT`], bit by bit.
    fn is_absent(self) -> bool;
    /// a + b.
    fn add(self, other: Self) -> Self;
    /// a · b.
    fn mul(self, other: Self) -> Self;
    /// The smaller, NaN if either is.
    fn least(self, other: Self) -> Self;
    /// The larger, NaN if either is.
    fn greatest(self, other: Self) -> Self;
    /// Bitwise or.
    fn or(self, other: Self) -> Self;
    /// Bitwise and.
    fn and(self, other: Self) -> Self;
    /// a / count, for the mean (floats only; integers divide and truncate).
    fn divide(self, count: u64) -> Self;
}

macro_rules! element_int {
    ($($t:ty => $d:ident),*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const HIGHEST: Self = <$t>::MAX;
            const LOWEST: Self = <$t>::MIN;
            const ALL_BITS: Self = !0;
            const ABSENT: Option<Self> = None;
            #[inline(always)]
            fn is_absent(self) -> bool { false }
            #[inline(always)]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn least(self, other: Self) -> Self { self.min(other) }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self { self.max(other) }
            #[inline(always)]
            fn or(self, other: Self) -> Self { self | other }
            #[inline(always)]
            fn and(self, other: Self) -> Self { self & other }
            #[inline(always)]
            fn divide(self, count: u64) -> Self { (self as i128 / count as i128) as $t }
        }
    )*};
}
element_int!(i32 => I32, i64 => I64, u8 => U8, u32 => U32, u64 => U64);

macro_rules! element_float {
    ($($t:ty => $d:ident),*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const HIGHEST: Self = <$t>::INFINITY;
            const LOWEST: Self = <$t>::NEG_INFINITY;
            const ALL_BITS: Self = 0.0;
            const ABSENT: Option<Self> = Some(-0.0);
            #[inline(always)]
            fn is_absent(self) -> bool { self.to_bits() == (-0.0 as $t).to_bits() }
            #[inline(always)]
            fn add(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                if self < other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn or(self, _: Self) -> Self { self }
            #[inline(always)]
            fn and(self, _: Self) -> Self { self }
            #[inline(always)]
            fn divide(self, count: u64) -> Self { self / count as $t }
        }
    )*};
}
element_float!(f32 => F32, f64 => F64);

/// A floating-point [`Element`], which can be quantised and has a magnitude.
pub trait Real: Element {
    /// The nearest f32, ties to even. Exact except for f64, whose large values become infinite.
    fn to_f32(self) -> f32;
    /// The nearest value of this type, ties to even.
    fn from_f32(value: f32) -> Self;
    /// The nearest value of this type; for types of 16 bits rounded to an f32 first.
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        Self::from_f32(value as f32)
    }
    /// a - b, rounded once.
    fn sub(self, other: Self) -> Self;
}

impl Real for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn sub(self, other: f32) -> f32 {
        self - other
    }
}

impl Real for f64 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }
    #[inline(always)]
    fn from_f32(value: f32) -> f64 {
        f64::from(value)
    }
    #[inline(always)]
    fn from_f64(value: f64) -> f64 {
        value
    }
    #[inline(always)]
    fn sub(self, other: f64) -> f64 {
        self - other
    }
}

/// Runs `$body` with `$t` bound to the Rust type of a [`DType`].
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::DType::I32 => {
                type $t = i32;
                $body
            }
            $crate::DType::I64 => {
                type $t = i64;
                $body
            }
            $crate::DType::U8 => {
                type $t = u8;
                $body
            }
            $crate::DType::U32 => {
                type $t = u32;
                $body
            }
            $crate::DType::U64 => {
                type $t = u64;
                $body
            }
            real => $crate::with_real!(real, $t => $body, else unreachable!("{real:?} is no integer")),
        }
    };
}

/// Runs `$body` with `$t` bound to the Rust type of a floating-point [`DType`], a [`Real`]; `$other` for integers.
#[macro_export]
macro_rules! with_real {
    ($dtype:expr, $t:ident => $body:expr, else $other:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::DType::F64 => {
                type $t = f64;
                $body
            }
            $crate::DType::BF16 => {
                type $t = $crate::bf16;
                $body
            }
            $crate::DType::F16 => {
                type $t = $crate::f16;
                $body
            }
            _ => $other,
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for d in DType::ALL {
            assert_eq!(DType::from_code(d as u8), Some(d));
            with_element!(d, T => assert_eq!((T::DTYPE, std::mem::size_of::<T>()), (d, d.size())));
            assert_eq!(with_real!(d, T => Some(T::DTYPE), else None), Some(d).filter(|d| d.is_float()));
        }
        assert_eq!(DType::from_code(0), None);
    }

    #[test]
    fn nan_propagates_through_min_and_max() {
        assert!(f64::NAN.least(1.0).is_nan() && Element::least(1.0, f64::NAN).is_nan());
        assert!(Element::greatest(f32::NAN, 1.0).is_nan() && Element::greatest(1.0, f32::NAN).is_nan());
    }
}
