//! A peer's connection, with the frames that wait to be sent and the frame that is being received.

use crate::receive::Inbox;
use crate::send::Outbox;
use crate::sockets::{self, failure_cause};
use crate::wire::Wire;
use skyphos_core::frame::{Frame, FrameKind, Header};
use skyphos_core::slab::Payload;
use skyphos_core::transport::{Event, Loss};
use skyphos_types::{CallNumber, CommId, WorldRank};
use std::net::Shutdown;

/// A peer, or this rank itself, which has no wire.
pub(crate) struct Peer {
    /// The connection, until it is closed.
    pub(crate) wire: Option<Wire>,
    pub(crate) outbox: Outbox,
    pub(crate) inbox: Inbox,
    /// The peer is in `Tcp::unread`.
    pub(crate) unread: bool,
    /// The peer has closed its side, or the socket has an error: read to the end of the stream.
    pub(crate) ending: bool,
    /// The loss and cause of a failed write. The peer's earlier frames are read before it is reported.
    pub(crate) broken: Option<(Loss, String)>,
    /// The peer is lost but may live. It is still being notified; its frames are not read any more.
    pub(crate) given_up: bool,
}

impl Peer {
    pub(crate) fn new(wire: Option<Wire>, outbox: Outbox, inbox: Inbox) -> Peer {
        Peer { wire, outbox, inbox, unread: false, ending: false, broken: None, given_up: false }
    }

    /// Whether bytes wait to be sent, in the outbox or in the wire, where TLS may have messages of its own.
    pub(crate) fn has_unsent_bytes(&self) -> bool {
        !self.outbox.is_empty() || self.wire.as_ref().is_some_and(|wire| !wire.is_flushed())
    }

    /// Writes as much as possible. After a failure the queue is empty; the next poll reads the peer's earlier frames, then reports it
    /// as lost.
    pub(crate) fn write(&mut self) {
        let Some(wire) = &mut self.wire else { return };
        if let Err(e) = self.outbox.write(wire) {
            self.outbox.clear();
            self.broken.get_or_insert_with(|| (sockets::loss_of(&e), failure_cause(&e)));
        } else if self.given_up && self.outbox.is_empty() {
            // Not closed: with unread input the kernel would reset the connection, and drop the last frame.
            let _ = wire.stream.shutdown(Shutdown::Write);
        }
    }

    /// Reports this peer, which is `rank`, as lost, and closes its connection. A peer that may live is notified first, if possible:
    /// without the notice it would think that this process has ended.
    pub(crate) fn lose(&mut self, rank: u32, cause: &str, loss: Loss, events: &mut Vec<Event>) {
        if self.wire.is_none() || std::mem::replace(&mut self.given_up, true) {
            return;
        }
        events.push(Event::PeerDown { rank: WorldRank(rank), cause: cause.to_owned(), loss });
        if loss == Loss::Silent && self.broken.is_none() {
            self.outbox.drop_rest();
            self.outbox.push(&last_frame(FrameKind::GivenUp));
            self.write();
            if self.broken.is_none() {
                return;
            }
        }
        self.outbox.clear();
        self.wire = None;
    }
}

/// A frame after which no other follows.
pub(crate) fn last_frame(kind: FrameKind) -> Frame {
    Frame { header: Header::control(kind, CommId(0), CallNumber(0)), payload: Payload::default() }
}
