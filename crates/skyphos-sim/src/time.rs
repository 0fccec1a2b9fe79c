//! Virtual time, in nanoseconds since the beginning of a simulation.

/// Longest simulation in years. Six times its nanoseconds still fit 64 bits.
pub(crate) const MOST_YEARS: u64 = 100;
/// Longest simulation in nanoseconds.
pub(crate) const MOST_NS: u64 = MOST_YEARS * 365 * 86_400 * 1_000_000_000;

/// Seconds in nanoseconds, at most [`MOST_NS`].
pub(crate) fn nanoseconds(seconds: f64) -> u64 {
    ((seconds * 1e9).round() as u64).min(MOST_NS)
}
