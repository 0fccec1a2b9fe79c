//! Uninitialised memory for selected values and their indices.

use std::mem::MaybeUninit;

/// What a vector store may write past the last kept value.
pub(super) const SLACK: usize = 16;

/// Keys that are compared at once.
pub(super) const LANES: usize = 16;

/// Where kept values go: room for all values and [`SLACK`] in both.
pub(super) struct Slots<'a, T> {
    pub(super) indices: &'a mut [MaybeUninit<u32>],
    pub(super) picked: &'a mut [MaybeUninit<T>],
}
