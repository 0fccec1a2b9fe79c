//! Sequences of messages of one size. All messages of a direction are one stream, so the mailbox looks up its key only once.

use super::rounds::DATA_ROUND;
use skyphos_core::slab::{CHUNK_BYTES, Payload};
use skyphos_core::{Endpoint, Incoming, Outgoing};
use skyphos_types::{GroupRank, Result};

/// The chunks of a message, whose memory all messages share.
struct Chunks {
    /// Chunks of a message that is not the last.
    more: Vec<Payload>,
    /// Chunks of the last message.
    last: Vec<Payload>,
}

impl Chunks {
    fn new(ep: &Endpoint, bytes: usize) -> Chunks {
        let message = |flag: u8| {
            let starts = (0..bytes).step_by(CHUNK_BYTES);
            let chunk = |start: usize| {
                let mut slab = ep.chunk((bytes - start).min(CHUNK_BYTES));
                slab.as_bytes_mut().fill(0);
                slab.as_bytes_mut()[0] = flag;
                slab.freeze()
            };
            starts.map(chunk).collect()
        };
        Chunks { more: message(0), last: message(1) }
    }
}

/// Messages of one size to a peer.
pub(super) struct Sender<'a> {
    ep: &'a Endpoint,
    chunks: Chunks,
    out: Outgoing,
    /// The next chunk of the current message.
    next: usize,
    /// Whether the current message is the last.
    pub(super) last: bool,
}

impl<'a> Sender<'a> {
    pub(super) fn new(ep: &'a Endpoint, to: u32, bytes: usize) -> Sender<'a> {
        let (chunks, out) = (Chunks::new(ep, bytes), Outgoing::open(GroupRank(to), DATA_ROUND));
        Sender { ep, chunks, out, next: 0, last: false }
    }

    fn message(&self) -> &[Payload] {
        if self.last { &self.chunks.last } else { &self.chunks.more }
    }

    /// Sends the chunks that may go now. Returns whether the whole message is sent.
    pub(super) fn push(&mut self) -> bool {
        while self.next < self.message().len() && self.out.may_send(self.ep) {
            let chunk = self.message()[self.next].clone();
            self.out.push_shared(self.ep, chunk);
            self.next += 1;
        }
        self.next == self.message().len()
    }

    /// Makes a new message the current one.
    pub(super) fn begin(&mut self, last: bool) {
        (self.next, self.last) = (0, last);
    }

    /// Sends a message.
    pub(super) async fn send(&mut self, last: bool) -> Result<()> {
        self.begin(last);
        self.send_rest().await
    }

    /// Sends the rest of the current message.
    pub(super) async fn send_rest(&mut self) -> Result<()> {
        while !self.push() {
            self.ep.progress().await?;
        }
        Ok(())
    }
}

/// Messages of one size from a peer.
pub(super) struct Receiver<'a> {
    pub(super) ep: &'a Endpoint,
    pub(super) from: u32,
    bytes: usize,
    into: Incoming,
    /// Bytes received of the current message.
    received: usize,
    /// Whether the current message is the last.
    pub(super) last: bool,
}

impl<'a> Receiver<'a> {
    pub(super) fn new(ep: &'a Endpoint, from: u32, bytes: usize) -> Receiver<'a> {
        Receiver {
            ep,
            from,
            bytes,
            into: Incoming::new(GroupRank(from), DATA_ROUND),
            received: 0,
            last: false,
        }
    }

    /// Takes the next chunk, if it has arrived. Returns its bytes, and whether the message is complete.
    pub(super) fn take(&mut self) -> Result<Option<(usize, bool)>> {
        let Some(chunk) = self.into.next(self.ep)? else { return Ok(None) };
        if self.received == 0 {
            self.last = chunk.as_bytes().first() == Some(&1);
        }
        self.received += chunk.len();
        if self.received > self.bytes || chunk.is_empty() {
            return Err(self
                .ep
                .corrupt(GroupRank(self.from), "a chunk that does not fit a message of the measurement"));
        }
        let complete = self.received == self.bytes;
        if complete {
            self.received = 0;
        }
        Ok(Some((chunk.len(), complete)))
    }

    /// Receives a message. Returns whether it is the last.
    pub(super) async fn receive(&mut self) -> Result<bool> {
        loop {
            match self.take()? {
                Some((_, true)) => return Ok(self.last),
                Some(_) => {}
                None => self.ep.progress().await?,
            }
        }
    }
}
