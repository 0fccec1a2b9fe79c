//! Quantities with their unit as a type. Mixing a duration, a number of bytes and a bare number does not compile.

use std::ops::{Div, Mul, Sub};

/// A duration that was predicted or measured, in seconds; infinite where there is no measurement yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

/// Bytes that were moved, or that a buffer holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Seconds {
    /// Longer than every measurement.
    pub const INFINITE: Seconds = Seconds(f64::INFINITY);

    /// Whether it is a number and not infinite.
    pub fn is_finite(self) -> bool {
        self.0.is_finite()
    }

    /// The shorter of two durations.
    pub fn min(self, other: Seconds) -> Seconds {
        Seconds(self.0.min(other.0))
    }

    /// A total order, for sorting.
    pub fn total_cmp(&self, other: &Seconds) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Sub for Seconds {
    type Output = Seconds;

    fn sub(self, other: Seconds) -> Seconds {
        Seconds(self.0 - other.0)
    }
}

impl Mul<Seconds> for f64 {
    type Output = Seconds;

    fn mul(self, duration: Seconds) -> Seconds {
        Seconds(self * duration.0)
    }
}

/// How many times as long.
impl Div for Seconds {
    type Output = f64;

    fn div(self, other: Seconds) -> f64 {
        self.0 / other.0
    }
}

/// Bytes a second.
impl Div<Seconds> for Bytes {
    type Output = f64;

    fn div(self, duration: Seconds) -> f64 {
        self.0 as f64 / duration.0
    }
}
