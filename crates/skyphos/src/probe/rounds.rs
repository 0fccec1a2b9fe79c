//! The rounds of a measurement.

use skyphos_types::Round;

/// The opening barrier.
pub(super) const BEGIN_ROUND: Round = Round(0);

/// The messages that are measured.
pub(super) const DATA_ROUND: Round = Round(0x100);

/// The closing barrier.
pub(super) const END_ROUND: Round = Round(0x200);
