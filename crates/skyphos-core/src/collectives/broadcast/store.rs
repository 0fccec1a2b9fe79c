//! The storage of a message on one rank: the root's parts, memory shared with the host's ranks, or the rank's own buffer.

use super::layout::{JoinedParts, Layout};
use super::receive_buffer::ReceiveBuffer;
use super::shared::{Shared, aligned_ranges};
use crate::endpoint::Endpoint;
use crate::shared_memory::host_region::HostCopy;
use skyphos_types::Result;
use std::ops::Range;

/// The storage of one message.
pub(super) struct Store<'a, R> {
    parts: Option<&'a JoinedParts<&'a [u8]>>,
    buffer: Option<&'a mut R>,
    lengths: &'a [usize],
    /// On a host's leader: memory that it shares with its followers.
    pub(super) shared: Option<Shared>,
    /// On a follower: its mapping of the leader's memory, and the range of each part there.
    copy: Option<(HostCopy, Layout, Vec<Range<usize>>)>,
    allocated: bool,
}

impl<'a, R: ReceiveBuffer> Store<'a, R> {
    /// The root's storage. In a simulation without data there are lengths, but no parts.
    pub(super) fn of_root(parts: Option<&'a JoinedParts<&'a [u8]>>, lengths: &'a [usize]) -> Store<'a, R> {
        Store { parts, buffer: None, lengths, shared: None, copy: None, allocated: false }
    }

    /// The storage of any other rank.
    pub(super) fn of_receiver(buffer: &'a mut R, lengths: &'a [usize]) -> Store<'a, R> {
        Store { parts: None, buffer: Some(buffer), lengths, shared: None, copy: None, allocated: false }
    }

    /// Allocates the rank's own buffer, unless the message goes to shared memory.
    pub(super) fn allocate_buffer(&mut self) -> Result<()> {
        if self.shared.is_none() && !std::mem::replace(&mut self.allocated, true) {
            self.buffer.iter_mut().try_for_each(|buffer| buffer.allocate(self.lengths))?;
        }
        Ok(())
    }

    /// Records that the whole message is in the leader's memory, which this rank has mapped.
    pub(super) fn set_copy(&mut self, copy: HostCopy) {
        self.copy = Some((copy, Layout::new(self.lengths.iter().copied()), aligned_ranges(self.lengths).0));
    }

    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        match (&mut self.shared, &mut self.buffer) {
            (Some(shared), _) => shared.put(at, bytes),
            (None, Some(buffer)) => buffer.write(at, bytes),
            (None, None) => {}
        }
    }

    pub(super) fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        match (self.parts, &self.shared, &self.copy, &self.buffer) {
            (Some(parts), ..) => parts.read(at, bytes),
            (_, Some(shared), ..) => shared.copy_out(at, bytes),
            (_, _, Some((copy, layout, ranges)), _) => {
                for (part, in_part, in_bytes) in layout.pieces(at..at + bytes.len()) {
                    let start = ranges[part].start;
                    let from = copy.bytes(start + in_part.start..start + in_part.end);
                    bytes[in_bytes].copy_from_slice(from);
                }
            }
            (.., Some(buffer)) => buffer.read(at, bytes),
            (None, None, None, None) => {}
        }
    }

    /// On a root that shares memory: copies the next bytes of its parts there, at most `max_bytes`. Returns whether any were left.
    pub(super) fn share_some(&mut self, max_bytes: usize) -> bool {
        match (self.parts, &mut self.shared) {
            (Some(parts), Some(shared)) => shared.take_from(parts, max_bytes),
            _ => false,
        }
    }

    /// Hands the complete message to the buffer.
    pub(super) fn finish(self, ep: &Endpoint) -> Result<()> {
        let Some(buffer) = self.buffer else {
            self.shared.into_iter().for_each(|shared| shared.keep(ep));
            return Ok(());
        };
        if let Some((copy, _, ranges)) = self.copy {
            buffer.set_shared(copy, ranges);
        } else if let Some(shared) = self.shared {
            match shared.own_copy() {
                Some(copy) => buffer.set_shared(copy, shared.ranges.clone()),
                None => {
                    buffer.allocate(self.lengths)?;
                    shared.copy_to(buffer);
                }
            }
            shared.keep(ep);
        }
        Ok(())
    }
}
