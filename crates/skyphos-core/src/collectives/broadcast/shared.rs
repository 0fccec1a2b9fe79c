//! A message in memory that the ranks of a host share: where its parts lie there, and how far it has come.

use super::message::{Layout, Parts, Room};
use crate::endpoint::Endpoint;
use crate::host_region::{HostCopy, Region};
use std::ops::Range;

/// Parts begin at multiples of it.
const ALIGNMENT: usize = 64;

/// Where parts of these lengths lie in memory, and its bytes.
pub(super) fn places(lengths: &[usize]) -> (Vec<Range<usize>>, usize) {
    let mut end = 0usize;
    let place = |len: &usize| {
        let start = end.next_multiple_of(ALIGNMENT);
        end = start + len;
        start..end
    };
    let places = lengths.iter().map(place).collect();
    (places, end)
}

/// Memory that a rank brings a message to, for its host.
pub(super) struct Shared {
    region: Region,
    layout: Layout,
    /// Where the parts are in it.
    pub(super) places: Vec<Range<usize>>,
    filled: usize,
}

impl Shared {
    /// For parts of these lengths and so many ranks, if there is memory to be had.
    pub(super) fn new(ep: &Endpoint, lengths: &[usize], users: u32) -> Option<Shared> {
        let (places, bytes) = places(lengths);
        let region = if ep.node().shares_memory() { ep.node().regions.take(bytes)? } else { return None };
        region.add_users(users);
        Some(Shared { region, layout: Layout::new(lengths.iter().copied()), places, filled: 0 })
    }

    /// One rank fewer than was expected uses it.
    pub(super) fn release(&self) {
        self.region.release();
    }

    /// Where the memory is, for the other ranks of the host.
    pub(super) fn offer(&self) -> impl AsRef<[u8]> + use<> {
        self.region.offer()
    }

    /// Bytes of the message that are there.
    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    fn in_region(&self, part: usize, here: &Range<usize>) -> Range<usize> {
        let start = self.places[part].start;
        start + here.start..start + here.end
    }

    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        for (part, here, range) in self.layout.pieces(at..at + bytes.len()) {
            let place = self.in_region(part, &here);
            self.region.bytes(place).copy_from_slice(&bytes[range]);
        }
        self.filled += bytes.len();
    }

    pub(super) fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        for (part, here, range) in self.layout.pieces(at..at + bytes.len()) {
            bytes[range].copy_from_slice(self.region.filled(self.in_region(part, &here)));
        }
    }

    /// Copies the next bytes of `parts`, in order; whether there were any.
    pub(super) fn take_from(&mut self, parts: &Parts<&[u8]>, most: usize) -> bool {
        let end = self.layout.total().min(self.filled + most);
        for (part, here, range) in self.layout.pieces(self.filled..end) {
            let (at, place) = (self.filled + range.start, self.in_region(part, &here));
            parts.copy_out(at, self.region.bytes(place));
        }
        std::mem::replace(&mut self.filled, end) < end
    }

    /// A copy for this rank, which was counted among the users.
    pub(super) fn own_copy(&self) -> Option<HostCopy> {
        self.region.own_copy()
    }

    /// Puts all into a room that has been made.
    pub(super) fn to_room(&self, room: &mut impl Room) {
        let mut at = 0;
        for place in &self.places {
            room.put(at, self.region.filled(place.clone()));
            at += place.len();
        }
    }

    /// For another message.
    pub(super) fn keep(self, ep: &Endpoint) {
        ep.node().regions.keep(self.region);
    }
}
