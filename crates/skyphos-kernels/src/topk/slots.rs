//! Uninitialised memory for selected values and their indices.

use std::mem::MaybeUninit;

/// Values that a vector store may write beyond the last kept one.
pub(super) const OVERRUN: usize = 16;

/// Keys that are compared together.
pub(super) const LANES: usize = 16;

/// Memory for kept indices and values: both hold all values that are searched and [`OVERRUN`] more.
pub(super) struct Slots<'a, T> {
    pub(super) indices: &'a mut [MaybeUninit<u32>],
    pub(super) picked: &'a mut [MaybeUninit<T>],
}
