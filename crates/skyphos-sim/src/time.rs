//! Virtual time, in nanoseconds since the beginning of a simulation.

/// Longest simulation in years. Five times its nanoseconds still fit 64 bits.
pub(crate) const MAX_YEARS: u64 = 100;
/// Longest simulation in nanoseconds.
pub(crate) const MAX_NS: u64 = MAX_YEARS * 365 * 86_400 * 1_000_000_000;

/// Seconds in nanoseconds, at most [`MAX_NS`].
pub(crate) fn nanoseconds(seconds: f64) -> u64 {
    ((seconds * 1e9).round() as u64).min(MAX_NS)
}
