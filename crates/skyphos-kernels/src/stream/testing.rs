//! Helpers of the tests of streams.

use super::{Encoder, EntryIndices};
use crate::index::Index;
use bytemuck::Pod;

/// Ascending indices: index j is `start - 1` plus the sum of the first j + 1 `steps`.
pub(super) fn ascending(start: u64, steps: &[u64]) -> Vec<u64> {
    let sum = |sum: &mut u64, step: &u64| {
        *sum += step;
        Some(*sum - 1)
    };
    steps.iter().scan(start, sum).collect()
}

/// The segments of a stream.
pub(super) fn encode_all<T: Pod, I: Index>(
    indices: EntryIndices<'_, I>,
    values: &[T],
    width: usize,
    hi: u64,
    segment_bytes: usize,
) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(indices, values, width, hi, segment_bytes);
    let mut all = Vec::new();
    while let Some(next) = encoder.plan() {
        let mut bytes = vec![0xee; next.bytes()];
        encoder.write(&next, &mut bytes);
        all.push(bytes);
    }
    all
}
