//! The rounds of a measurement.

/// The opening barrier.
pub(super) const BEGIN_ROUND: u32 = 0;

/// The messages that are measured.
pub(super) const DATA_ROUND: u32 = 0x100;

/// The closing barrier.
pub(super) const END_ROUND: u32 = 0x200;
