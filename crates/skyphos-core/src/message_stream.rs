//! Messages as streams of chunks, out and in.
//!
//! A message is a stream of chunks on (call, round, peer). An [`Outgoing`] hands chunks to the transport while the peer's
//! window and the transport's backlog allow; an [`Incoming`] yields them as they come.

use crate::endpoint::Endpoint;
use crate::frame::{FrameKind, WINDOW_BYTES};
use crate::mailbox::Next;
use crate::slab::{Payload, PayloadMut};
use skyphos_types::{Error, GroupRank, Result, Round};
use std::sync::atomic::Ordering;

/// Backlog of the transport to one peer, in bytes, above which no more chunks are made.
const BACKLOG_BYTES: usize = 1 << 20;

/// A message on its way out.
#[derive(Debug)]
pub struct Outgoing {
    to: GroupRank,
    round: Round,
    total: u64,
    sent: u64,
    seq: u32,
}

impl Outgoing {
    /// A message of `total` bytes. An empty message is sent as one empty chunk, whose arrival shows the peer that this rank is in
    /// the call.
    pub fn new(to: GroupRank, round: Round, total: u64) -> Outgoing {
        Outgoing { to, round, total, sent: 0, seq: 0 }
    }

    /// A message of unknown length, whose own bytes mark its end.
    pub fn open(to: GroupRank, round: Round) -> Outgoing {
        Outgoing::new(to, round, u64::MAX)
    }

    /// Bytes that have been handed over.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether all of it has been handed over.
    pub fn done(&self) -> bool {
        self.seq > 0 && self.sent == self.total
    }

    /// The range of the next chunk's bytes, in whole rows; `None` if the chunk may not go now.
    pub fn next_range(&self, ep: &Endpoint, row_bytes: usize) -> Option<std::ops::Range<usize>> {
        if !self.may_send(ep) {
            return None;
        }
        let limit = (ep.node().chunk_bytes() / row_bytes).max(1) * row_bytes;
        let start = self.sent as usize;
        Some(start..start + (self.total - self.sent).min(limit as u64) as usize)
    }

    /// Whether the next chunk may go now.
    pub fn may_send(&self, ep: &Endpoint) -> bool {
        if self.done() {
            return false;
        }
        let peer = ep.world_rank(self.to);
        if self.sent >= WINDOW_BYTES {
            let (group, call) = ep.group_and_call();
            let consumed = ep.node().mail(|m| m.credit(group.comm, call, peer, self.round));
            if self.sent >= consumed.saturating_add(WINDOW_BYTES) {
                return false;
            }
        }
        self.sent == 0 || ep.node().backlog(peer) <= BACKLOG_BYTES
    }

    /// Hands over the chunk with the bytes of [`Outgoing::next_range`].
    pub fn push(&mut self, ep: &Endpoint, chunk: PayloadMut) {
        self.push_shared(ep, chunk.freeze());
    }

    /// Hands over a chunk that other ranks may get too.
    pub fn push_shared(&mut self, ep: &Endpoint, chunk: Payload) {
        let len = chunk.len();
        let header = ep.header(self.round, self.seq, self.total);
        ep.node().post(ep.world_rank(self.to), header, chunk);
        ep.sent_bytes.fetch_add(len as u64, Ordering::Relaxed);
        ep.sent_frames.fetch_add(1, Ordering::Relaxed);
        self.sent += len as u64;
        self.seq += 1;
    }
}

/// A message on its way in.
#[derive(Debug)]
pub struct Incoming {
    from: GroupRank,
    round: Round,
    total: Option<u64>,
    consumed: u64,
    credited: u64,
}

impl Incoming {
    /// The message that `from` sends in `round`.
    pub fn new(from: GroupRank, round: Round) -> Incoming {
        Incoming { from, round, total: None, consumed: 0, credited: 0 }
    }

    /// Its sender.
    pub fn from(&self) -> GroupRank {
        self.from
    }

    /// Whether all of it has been taken.
    pub fn done(&self) -> bool {
        self.total == Some(self.consumed)
    }

    /// Bytes of the whole message, as its first chunk claims; 0 before.
    pub fn total(&self) -> u64 {
        self.total.unwrap_or(0)
    }

    /// Whether some of it has arrived.
    pub fn begun(&self) -> bool {
        self.total.is_some()
    }

    /// The next chunk, if it has arrived. `Err` if the call failed or the peer can send no more.
    pub fn next(&mut self, ep: &Endpoint) -> Result<Option<Payload>> {
        if self.done() {
            return Ok(None);
        }
        let peer = ep.world_rank(self.from);
        let (group, call) = ep.group_and_call();
        let (chunk, total) = match ep.node().mail(|m| m.take(group.comm, call, peer, self.round))? {
            Next::Nothing => return Ok(None),
            Next::Chunk(chunk, total) => (chunk, total),
        };
        self.total = Some(total);
        self.consumed += chunk.len() as u64;
        if self.from != ep.rank() {
            ep.received_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        if self.consumed > total {
            let message = format!("{} bytes in a message of {total}", self.consumed);
            return Err(Error::Corrupt { rank: peer.0, message });
        }
        // Only messages larger than the window need credits; each credit grants a quarter of the window.
        if total > WINDOW_BYTES && self.consumed - self.credited >= WINDOW_BYTES / 4 && !self.done() {
            self.credited = self.consumed;
            let mut header = ep.control(FrameKind::Credit);
            header.round = self.round;
            header.total = self.consumed;
            ep.node().post(peer, header, Payload::default());
        }
        Ok(Some(chunk))
    }
}
