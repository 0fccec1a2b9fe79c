//! Where a message is on one rank: in the parts it came from, in memory that its host shares, or in a room of its own.

use super::message::{Layout, Parts, Room};
use super::shared::{Shared, places};
use crate::endpoint::Endpoint;
use crate::host_region::HostCopy;
use skyphos_types::Result;
use std::ops::Range;

/// See the module's text.
pub(super) struct Store<'a, R> {
    parts: Option<&'a Parts<&'a [u8]>>,
    room: Option<&'a mut R>,
    lengths: &'a [usize],
    /// Memory that this rank brings the message to, for its host.
    pub(super) shared: Option<Shared>,
    /// Memory to which another rank of its host has brought it.
    copy: Option<(HostCopy, Layout, Vec<Range<usize>>)>,
    made: bool,
}

impl<'a, R: Room> Store<'a, R> {
    /// The root's; without parts where there are only their lengths.
    pub(super) fn of(parts: Option<&'a Parts<&'a [u8]>>, lengths: &'a [usize]) -> Store<'a, R> {
        Store { parts, room: None, lengths, shared: None, copy: None, made: false }
    }

    /// Another's.
    pub(super) fn to(room: &'a mut R, lengths: &'a [usize]) -> Store<'a, R> {
        Store { parts: None, room: Some(room), lengths, shared: None, copy: None, made: false }
    }

    /// Makes room for what comes, unless it goes to memory that is shared.
    pub(super) fn make(&mut self) -> Result<()> {
        if self.shared.is_none() && !std::mem::replace(&mut self.made, true) {
            self.room.iter_mut().try_for_each(|room| room.make(self.lengths))?;
        }
        Ok(())
    }

    /// The message is in memory that another rank has filled.
    pub(super) fn found(&mut self, copy: HostCopy) {
        self.copy = Some((copy, Layout::new(self.lengths.iter().copied()), places(self.lengths).0));
    }

    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        match (&mut self.shared, &mut self.room) {
            (Some(shared), _) => shared.put(at, bytes),
            (None, Some(room)) => room.put(at, bytes),
            (None, None) => {}
        }
    }

    pub(super) fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        match (self.parts, &self.shared, &self.copy, &self.room) {
            (Some(parts), ..) => parts.copy_out(at, bytes),
            (_, Some(shared), ..) => shared.copy_out(at, bytes),
            (_, _, Some((copy, layout, places)), _) => {
                for (part, here, range) in layout.pieces(at..at + bytes.len()) {
                    let start = places[part].start;
                    // SAFETY: within the mapping, which nobody writes before the call is over.
                    let from = unsafe { copy.bytes(start + here.start..start + here.end) };
                    bytes[range].copy_from_slice(from);
                }
            }
            (.., Some(room)) => room.copy_out(at, bytes),
            (None, None, None, None) => {}
        }
    }

    /// Copies the next bytes of the root's parts to the memory that it shares; whether there were any.
    pub(super) fn share_some(&mut self, most: usize) -> bool {
        match (self.parts, &mut self.shared) {
            (Some(parts), Some(shared)) => shared.take_from(parts, most),
            _ => false,
        }
    }

    /// The message is complete: gives it to the room.
    pub(super) fn finish(self, ep: &Endpoint) -> Result<()> {
        let Some(room) = self.room else {
            self.shared.into_iter().for_each(|shared| shared.keep(ep));
            return Ok(());
        };
        if let Some((copy, _, places)) = self.copy {
            room.share(copy, places);
        } else if let Some(shared) = self.shared {
            match shared.own_copy() {
                Some(copy) => room.share(copy, shared.places.clone()),
                None => {
                    room.make(self.lengths)?;
                    shared.to_room(room);
                }
            }
            shared.keep(ep);
        }
        Ok(())
    }
}
