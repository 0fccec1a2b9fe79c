//! A message in memory that the ranks of a host share: the offsets of its parts, and how far it is filled.

use super::layout::{JoinedParts, Layout};
use super::receive_buffer::ReceiveBuffer;
use crate::endpoint::Endpoint;
use crate::shared_memory::host_region::{HostCopy, Region};
use std::ops::Range;

/// Each part begins at a multiple of this many bytes: a cache line.
const ALIGNMENT: usize = 64;

/// The ranges of parts of these lengths in shared memory, and the bytes they take with padding.
pub(super) fn aligned_ranges(lengths: &[usize]) -> (Vec<Range<usize>>, usize) {
    let mut end = 0usize;
    let aligned = |len: &usize| {
        let start = end.next_multiple_of(ALIGNMENT);
        end = start + len;
        start..end
    };
    let ranges = lengths.iter().map(aligned).collect();
    (ranges, end)
}

/// Shared memory that a host's leader receives a message into.
pub(super) struct Shared {
    region: Region,
    layout: Layout,
    /// The range of each part in the region.
    pub(super) ranges: Vec<Range<usize>>,
    filled: usize,
}

impl Shared {
    /// Allocates shared memory for parts of these lengths, used by `users` ranks; `None` if there is no such memory.
    pub(super) fn new(ep: &Endpoint, lengths: &[usize], users: u32) -> Option<Shared> {
        let (ranges, bytes) = aligned_ranges(lengths);
        let region = if ep.node().shares_memory() { ep.node().regions.take(bytes)? } else { return None };
        region.add_users(users);
        Some(Shared { region, layout: Layout::new(lengths.iter().copied()), ranges, filled: 0 })
    }

    /// Counts one user less.
    pub(super) fn release(&self) {
        self.region.release();
    }

    /// A description of the region, with which other ranks of the host can map it.
    pub(super) fn offer(&self) -> impl AsRef<[u8]> + use<> {
        self.region.offer()
    }

    /// Bytes of the message that have arrived.
    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    fn in_region(&self, part: usize, in_part: &Range<usize>) -> Range<usize> {
        let start = self.ranges[part].start;
        start + in_part.start..start + in_part.end
    }

    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        for (part, in_part, in_bytes) in self.layout.pieces(at..at + bytes.len()) {
            self.region.bytes_mut(self.in_region(part, &in_part)).copy_from_slice(&bytes[in_bytes]);
        }
        self.filled += bytes.len();
    }

    pub(super) fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        for (part, in_part, in_bytes) in self.layout.pieces(at..at + bytes.len()) {
            bytes[in_bytes].copy_from_slice(self.region.bytes(self.in_region(part, &in_part)));
        }
    }

    /// Copies the next bytes of `parts`, at most `max_bytes`. Returns whether it copied any.
    pub(super) fn take_from(&mut self, parts: &JoinedParts<&[u8]>, max_bytes: usize) -> bool {
        let end = self.layout.total().min(self.filled + max_bytes);
        for (part, in_part, in_copied) in self.layout.pieces(self.filled..end) {
            let at = self.filled + in_copied.start;
            parts.read(at, self.region.bytes_mut(self.in_region(part, &in_part)));
        }
        std::mem::replace(&mut self.filled, end) < end
    }

    /// A private copy-on-write mapping for this rank, which is one of the counted users.
    pub(super) fn own_copy(&self) -> Option<HostCopy> {
        self.region.own_copy()
    }

    /// Copies the whole message into a buffer of the right size.
    pub(super) fn copy_to(&self, buffer: &mut impl ReceiveBuffer) {
        let mut at = 0;
        for range in &self.ranges {
            buffer.write(at, self.region.bytes(range.clone()));
            at += range.len();
        }
    }

    /// Keeps the memory for a later message.
    pub(super) fn keep(self, ep: &Endpoint) {
        ep.node().regions.keep(self.region);
    }
}
