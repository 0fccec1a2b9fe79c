//! Magnitudes: a value's bits without its sign, as an integer that orders like the absolute value.

use bytemuck::Pod;
use skyphos_types::{Real, bf16, f16};

/// An integer type of magnitudes.
pub trait Key: Pod + Ord + std::fmt::Debug + Into<i64> {
    /// The largest number.
    const MAX: Self;
    /// The lower bits of a number, as many as this type has.
    fn from_i64(number: i64) -> Self;
}

macro_rules! numbers {
    ($($t:ty),*) => {$(
        impl Key for $t {
            const MAX: $t = <$t>::MAX;
            #[inline(always)]
            fn from_i64(number: i64) -> $t {
                number as $t
            }
        }
    )*};
}
numbers!(i16, i32, i64);

/// A number type whose magnitudes order like integers.
pub trait Magnitude: Real {
    /// The type of magnitudes, which are never negative.
    type Key: Key;
    /// The value's bits without the sign.
    fn magnitude(self) -> Self::Key;

    /// The upper 16 bits of the magnitude, in the same order.
    #[inline(always)]
    fn upper(self) -> i16 {
        (self.magnitude().into() >> Self::LOWER_BITS) as i16
    }

    /// Number of bits below the upper 16.
    const LOWER_BITS: usize = (size_of::<Self>() - 2) * 8;
}

impl Magnitude for f32 {
    type Key = i32;
    #[inline(always)]
    fn magnitude(self) -> i32 {
        self.abs().to_bits() as i32
    }
}

impl Magnitude for f64 {
    type Key = i64;
    #[inline(always)]
    fn magnitude(self) -> i64 {
        self.abs().to_bits() as i64
    }
}

impl Magnitude for bf16 {
    type Key = i32;
    #[inline(always)]
    fn magnitude(self) -> i32 {
        i32::from(self.to_bits() & 0x7fff)
    }
}

impl Magnitude for f16 {
    type Key = i32;
    #[inline(always)]
    fn magnitude(self) -> i32 {
        i32::from(self.to_bits() & 0x7fff)
    }
}

/// The k-th largest magnitude, by selection among all.
pub(super) fn kth_of_all<T: Magnitude>(values: &[T], k: usize) -> Option<T::Key> {
    let mut keys: Vec<T::Key> = values.iter().map(|v| v.magnitude()).collect();
    (k <= keys.len()).then(|| *keys.select_nth_unstable_by(k - 1, |a, b| b.cmp(a)).1)
}
