//! The flow of a message's bytes through one rank.
//!
//! A chunk that arrives is forwarded at once, in its buffer, to every rank that has all bytes before it. A rank that lags,
//! because its first sender was lost, is sent copies of the bytes that are stored here.

use super::completion::{Completion, Polled};
use super::receive_buffer::ReceiveBuffer;
use super::store::Store;
use super::tree::Relay;
use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::frame::ARRAYS;
use crate::message_stream::{Incoming, Outgoing};
use crate::ranges::Ranges;
use skyphos_types::{Error, GroupRank, Result, Round};
use std::ops::Range;

/// Rounds of streams: those of the route, and those that a rank requested after a loss.
const ROUTED: Round = Round(ARRAYS | 0x200);
const REQUESTED: Round = Round(ARRAYS | 0x0100_0000);

/// A range of the message on its way to this rank.
struct Inbound {
    from: u32,
    incoming: Incoming,
    /// The bytes that have not arrived, and how many there were at first.
    rest: Range<usize>,
    total: usize,
    /// Index in [`Flow::outbound`] of the stream that forwards them.
    forward: Option<usize>,
}

impl Inbound {
    fn new(from: u32, round: Round, rest: Range<usize>, forward: Option<usize>) -> Inbound {
        Inbound { from, incoming: Incoming::new(GroupRank(from), round), total: rest.len(), rest, forward }
    }
}

/// A range of the message on its way to one or more ranks, each of which has received the same part of it.
struct Outbound {
    rest: Range<usize>,
    sends: Vec<(u32, Outgoing)>,
}

impl Outbound {
    fn new(to: &[u32], round: Round, rest: Range<usize>) -> Outbound {
        let sends =
            to.iter().map(|to| (*to, Outgoing::new(GroupRank(*to), round, rest.len() as u64))).collect();
        Outbound { rest, sends }
    }

    fn may_send(&self, ep: &Endpoint) -> bool {
        self.sends.iter().all(|(_, send)| send.may_send(ep))
    }

    /// Sends the next chunk to all its ranks, copied once, if its bytes are stored. Returns whether it did.
    fn send_stored<R: ReceiveBuffer>(
        &mut self,
        stored: &Ranges,
        chunk_bytes: usize,
        ep: &Endpoint,
        store: &Store<'_, R>,
    ) -> bool {
        let len = chunk_bytes.min(self.rest.len());
        let range = self.rest.start..self.rest.start + len;
        if self.sends.is_empty() || !stored.covers(&range) || !self.may_send(ep) {
            return false;
        }
        let mut chunk = ep.chunk(len);
        ep.spend(Effort::Dense { bytes: 2 * len });
        if !ep.is_sized() {
            store.copy_out(range.start, chunk.as_bytes_mut());
        }
        let chunk = chunk.freeze();
        self.sends.iter_mut().for_each(|(_, send)| send.push_shared(ep, chunk.clone()));
        self.rest.start = range.end;
        true
    }
}

/// The streams of a message through one rank.
pub(super) struct Flow {
    total: usize,
    chunk_bytes: usize,
    stored: Ranges,
    inbound: Vec<Inbound>,
    outbound: Vec<Outbound>,
}

impl Flow {
    /// The flow of a message of `total` bytes, sent in chunks of `chunk_bytes`.
    pub(super) fn new(total: usize, chunk_bytes: usize) -> Flow {
        Flow { total, chunk_bytes, stored: Ranges::default(), inbound: Vec::new(), outbound: Vec::new() }
    }

    /// Records that the whole message is stored here.
    pub(super) fn complete(&mut self) {
        self.stored.add(0..self.total);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.stored.covers(&(0..self.total))
    }

    /// Adds the streams of a route.
    pub(super) fn add_route(&mut self, relays: Vec<Relay>) {
        for Relay { range, stream, from, to, onward } in relays {
            let forward = (!to.is_empty()).then(|| {
                self.outbound.push(Outbound::new(&to, ROUTED + onward, range.clone()));
                self.outbound.len() - 1
            });
            self.inbound.extend(from.map(|from| Inbound::new(from, ROUTED + stream, range, forward)));
        }
    }

    /// Adds a stream of the whole message from a rank, outside the route.
    pub(super) fn receive_all_from(&mut self, from: u32) {
        self.inbound.push(Inbound::new(from, ROUTED, 0..self.total, None));
    }

    /// Adds a stream of the whole message to a rank, outside the route.
    pub(super) fn send_all_to(&mut self, to: u32) {
        self.outbound.push(Outbound::new(&[to], ROUTED, 0..self.total));
    }

    /// Requests the whole message after its sender was lost. `lost`: the error that names the sender.
    pub(super) fn request_all(&mut self, completion: &mut Completion<'_>, lost: Error) -> Result<()> {
        let (from, stream) = completion.request_data(0..self.total, lost)?;
        self.inbound.push(Inbound::new(from, REQUESTED + stream, 0..self.total, None));
        Ok(())
    }

    /// Takes the chunks that have arrived and sends those that may go. Returns whether anything moved.
    pub(super) fn step<R: ReceiveBuffer>(
        &mut self,
        completion: &mut Completion<'_>,
        store: &mut Store<'_, R>,
    ) -> Result<bool> {
        for (to, stream, range) in std::mem::take(&mut completion.data_requests) {
            if range.end > self.total {
                return Err(completion
                    .ep
                    .corrupt(GroupRank(to), "it requests bytes beyond the end of a broadcast"));
            }
            self.outbound.push(Outbound::new(&[to], REQUESTED + stream, range));
        }
        let mut moved = false;
        for k in 0..self.inbound.len() {
            moved |= self.receive(k, completion, store)?;
        }
        for out in &mut self.outbound {
            if !out.rest.is_empty() {
                out.sends.retain(|(to, _)| !completion.is_gone(*to));
                moved |= out.send_stored(&self.stored, self.chunk_bytes, completion.ep, store);
            }
        }
        Ok(moved)
    }

    /// Takes the chunks of one stream. While the next rank of the route cannot take a chunk, the chunk stays with the transport.
    /// So a slow link slows every stream between the root and itself, and no rank accumulates chunks.
    fn receive<R: ReceiveBuffer>(
        &mut self,
        k: usize,
        completion: &mut Completion<'_>,
        store: &mut Store<'_, R>,
    ) -> Result<bool> {
        let (stream, ep, mut moved) = (&mut self.inbound[k], completion.ep, false);
        while !stream.rest.is_empty() {
            let in_step = |out: &&mut Outbound| out.rest.start == stream.rest.start;
            let forward = stream.forward.map(|out| &mut self.outbound[out]).filter(in_step);
            if forward.as_ref().is_some_and(|out| !out.may_send(ep)) {
                break;
            }
            let chunk = match completion.poll_stream(stream.from, &mut stream.incoming)? {
                Polled::Chunk(chunk) => chunk,
                Polled::Pending => break,
                Polled::SenderLost(error) => {
                    let (from, number) = completion.request_data(stream.rest.clone(), error)?;
                    *stream = Inbound::new(from, REQUESTED + number, stream.rest.clone(), stream.forward);
                    moved = true;
                    continue;
                }
            };
            let (at, rest) = (stream.rest.start, stream.rest.len());
            if stream.incoming.total() != stream.total as u64 || chunk.is_empty() || chunk.len() > rest {
                let (len, announced, total) = (chunk.len(), stream.incoming.total(), stream.total);
                let what = format!(
                    "a chunk of {len} bytes, in a stream of {announced}; {rest} of {total} bytes are missing"
                );
                return Err(ep.corrupt(GroupRank(stream.from), &what));
            }
            ep.spend(Effort::Dense { bytes: 2 * chunk.len() });
            if !ep.is_sized() {
                store.put(at, chunk.as_bytes());
            }
            stream.rest.start += chunk.len();
            self.stored.add(at..stream.rest.start);
            if let Some(out) = forward {
                out.rest.start += chunk.len();
                out.sends.iter_mut().for_each(|(_, send)| send.push_shared(ep, chunk.clone()));
            }
            moved = true;
        }
        Ok(moved)
    }
}
