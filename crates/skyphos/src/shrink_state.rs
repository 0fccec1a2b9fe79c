//! The progress of a group's shrink, which later attempts continue.

use skyphos_core::collectives::shrink::Shrinking;

/// The progress of [`Comm::shrink`](crate::Comm::shrink).
#[derive(Default)]
pub(crate) enum ShrinkState {
    /// Shrink was not called.
    #[default]
    Whole,
    /// An attempt ended before the ranks had decided. The next one continues from this state.
    Undecided(Box<Shrinking>),
    /// The ranks have decided, and this group ended.
    Decided,
}
