//! Uninitialised memory for selected values and their indices.

use std::mem::MaybeUninit;

/// Values that a vector store may write past the last kept one.
pub(super) const SLACK: usize = 16;

/// Keys that are compared together.
pub(super) const LANES: usize = 16;

/// Memory for kept indices and values: for all values and [`SLACK`] more in both.
pub(super) struct Slots<'a, T> {
    pub(super) indices: &'a mut [MaybeUninit<u32>],
    pub(super) picked: &'a mut [MaybeUninit<T>],
}
