//! Messages from one rank to another, in several parts.
//!
//! ```text
//! send:     number of parts, their lengths, the parts, as one stream
//! receive:  wait for a message of the given sender and tag;  read the lengths;  copy each part to its memory as it arrives
//! ```
//!
//! A message of up to [`WINDOW_BYTES`] is sent even if its receiver has not begun to receive; the rest of a larger message waits
//! for the receiver. Cost: α + β bytes; the data is copied once on each side.

use crate::call_guard::{CallGuard, Outcome};
use crate::endpoint::Endpoint;
use crate::frame::{CallSig, WINDOW_BYTES};
use crate::group::Group;
use crate::mailbox::{Envelope, Filter};
use crate::message_stream::{Incoming, Outgoing};
use crate::node::Node;
use crate::slab::Payload;
use crate::work::Call;
use skyphos_types::{Error, GroupRank, Result, Round};
use std::sync::Arc;

/// The only exchange of a message.
const ROUND: Round = Round(0);

/// Upper bound on the parts of a message.
const MAX_PARTS: u64 = 1 << 20;

/// Bytes of a number.
const WORD_BYTES: usize = size_of::<u64>();

/// A message's sender, tag and size, known before it is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its sender.
    pub source: u32,
    /// Its tag.
    pub tag: u32,
    /// Bytes of all its parts and their lengths.
    pub bytes: u64,
}

impl Status {
    pub(crate) fn of(group: &Group, envelope: Envelope) -> Status {
        let index = group.ranks.iter().position(|rank| *rank == envelope.id.peer);
        let source = index.expect("messages of a group are from its ranks") as u32;
        Status { source, tag: envelope.tag, bytes: envelope.total }
    }
}

/// Memory for the second part of a message that begins with a given part.
pub struct ReceiveInto<M> {
    /// The required first part.
    pub first: Vec<u8>,
    /// The memory, which is used if the second part has its length.
    pub memory: M,
}

/// A received message.
pub struct ReceivedMessage<M> {
    /// Its sender, tag and size.
    pub status: Status,
    /// Its parts, except for a part that is in memory that the caller supplied.
    pub parts: Vec<Vec<u8>>,
    /// That memory, if it holds the second part.
    pub memory: Option<M>,
}

/// Sends parts to a rank of the group. The call is a send to that rank.
pub async fn send(ep: &Endpoint, dest: u32, parts: &[impl AsRef<[u8]>]) -> Result<()> {
    let lengths = parts.iter().map(|part| part.as_ref().len() as u64);
    let table: Vec<u8> = [parts.len() as u64].into_iter().chain(lengths).flat_map(u64::to_le_bytes).collect();
    let mut pieces = vec![&table[..]];
    pieces.extend(parts.iter().map(AsRef::as_ref));
    ep.checksum_input(|checksum| pieces.iter().for_each(|piece| checksum.add(piece)));
    let total: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut out = Outgoing::new(GroupRank(dest), ROUND, total as u64);
    let mut pieces = pieces.into_iter();
    let mut piece = pieces.next().unwrap_or_default();
    loop {
        ep.check_receiver(dest)?;
        while let Some(range) = out.next_range(ep, 1) {
            let mut chunk = ep.chunk(range.len());
            let mut rest = chunk.as_bytes_mut();
            while !rest.is_empty() {
                while piece.is_empty() {
                    piece = pieces.next().expect("as many bytes as were counted");
                }
                let len = piece.len().min(rest.len());
                let (here, after) = piece.split_at(len);
                let (to, left) = rest.split_at_mut(len);
                to.copy_from_slice(here);
                (piece, rest) = (after, left);
            }
            out.push(ep, chunk);
        }
        if out.done() {
            // A lost peer has unlimited credit, so a message that it has not received completely is an error.
            return ep.check_receiver(dest);
        }
        ep.progress().await?;
    }
}

/// Receives the message that this call, a receive, is matched with. If `destination` fits the message, its second part is stored there.
pub async fn receive<M: AsMut<[u8]>>(
    ep: &Endpoint,
    mut destination: Option<ReceiveInto<M>>,
) -> Result<ReceivedMessage<M>> {
    let status = ep.matched_message().await?;
    let Status { source, bytes, .. } = status;
    let mut stream =
        Stream { incoming: Incoming::new(GroupRank(source), ROUND), chunk: Payload::default(), at: 0 };
    let mut number = [0; WORD_BYTES];
    stream.read(ep, &mut number).await?;
    let count = u64::from_le_bytes(number);
    let malformed =
        || ep.corrupt(GroupRank(source), &format!("a message of {bytes} bytes and {count} parts"));
    if count > MAX_PARTS {
        return Err(malformed());
    }
    let mut rest = bytes.checked_sub(WORD_BYTES as u64 * (1 + count)).ok_or_else(malformed)?;
    let mut lengths = Vec::with_capacity(count as usize);
    for _ in 0..count {
        stream.read(ep, &mut number).await?;
        let len = u64::from_le_bytes(number);
        rest = rest.checked_sub(len).ok_or_else(|| {
            ep.corrupt(GroupRank(source), &format!("parts of more than the {bytes} bytes of their message"))
        })?;
        lengths.push(len);
    }
    if rest != 0 {
        return Err(
            ep.corrupt(GroupRank(source), &format!("{rest} bytes behind the parts of a message of {bytes}"))
        );
    }
    let mut parts: Vec<Vec<u8>> = Vec::with_capacity(lengths.len());
    let mut memory = None;
    for (index, len) in lengths.iter().enumerate() {
        let fits = |destination: &mut ReceiveInto<M>| {
            index == 1
                && lengths.len() == 2
                && destination.first == parts[0]
                && destination.memory.as_mut().len() as u64 == *len
        };
        if let Some(mut destination) = destination.take_if(fits) {
            stream.read(ep, destination.memory.as_mut()).await?;
            memory = Some(destination.memory);
        } else {
            parts.push(stream.read_part(ep, *len).await?);
        }
    }
    Ok(ReceivedMessage { status, parts, memory })
}

/// Waits until there is a message that a receive would get.
pub async fn probe(ep: &Endpoint) -> Result<Status> {
    ep.waiting_message().await
}

/// The bytes of a message, read in order.
struct Stream {
    incoming: Incoming,
    chunk: Payload,
    /// Bytes of the chunk that were read.
    at: usize,
}

impl Stream {
    /// The bytes that have arrived and were not read, at least one.
    async fn next(&mut self, ep: &Endpoint) -> Result<&[u8]> {
        while self.at == self.chunk.len() {
            match self.incoming.next(ep)? {
                Some(chunk) => (self.chunk, self.at) = (chunk, 0),
                None if self.incoming.done() => {
                    let (from, bytes) = (self.incoming.from(), self.incoming.total());
                    return Err(
                        ep.corrupt(from, &format!("a message of {bytes} bytes that ends within its parts"))
                    );
                }
                None => ep.progress().await?,
            }
        }
        Ok(&self.chunk.as_bytes()[self.at..])
    }

    async fn read(&mut self, ep: &Endpoint, mut to: &mut [u8]) -> Result<()> {
        while !to.is_empty() {
            let here = self.next(ep).await?;
            let len = here.len().min(to.len());
            let (now, later) = to.split_at_mut(len);
            now.copy_from_slice(&here[..len]);
            (self.at, to) = (self.at + len, later);
        }
        Ok(())
    }

    /// The next part. At most a window is allocated for the length that the sender claims; the buffer grows as bytes arrive.
    async fn read_part(&mut self, ep: &Endpoint, len: u64) -> Result<Vec<u8>> {
        let mut part = Vec::with_capacity(len.min(WINDOW_BYTES) as usize);
        while (part.len() as u64) < len {
            let here = self.next(ep).await?;
            let more = here.len().min(usize::try_from(len - part.len() as u64).unwrap_or(usize::MAX));
            part.extend_from_slice(&here[..more]);
            self.at += more;
        }
        Ok(part)
    }
}

impl Node {
    /// Prepares the call of this signature: a message to a rank of the group, a receive or a probe ([`CallSig::of_message`]).
    pub fn prepare_message<R: Send + 'static, F: Future<Output = Result<R>> + Send + 'static>(
        self: &Arc<Node>,
        group: &Arc<Group>,
        sig: CallSig,
        body: impl FnOnce(Arc<Endpoint>) -> F,
    ) -> Call<R> {
        let ep = Arc::new(self.begin_message(group, sig));
        Call::new(ep.clone(), Box::pin(body(ep)), false)
    }

    /// The first message that a probe would find now.
    pub fn look_for_message(&self, group: &Group, sig: CallSig) -> Result<Option<Status>> {
        self.file_arrivals();
        let filter = Filter::of(group, sig);
        self.mail(|m| match m.peek(group.comm, filter) {
            Some(envelope) => Ok(Some(Status::of(group, envelope))),
            None if m.may_be_lost(group, filter) => m
                .reason_for_no_message(group, filter, sig)
                .map_or(Ok(None), |error| Err(group.with_group_ranks(error))),
            None => Ok(None),
        })
    }

    fn begin_message(self: &Arc<Node>, group: &Arc<Group>, sig: CallSig) -> Endpoint {
        let endpoint = |call| Endpoint::new(self.clone(), group.clone(), call, sig);
        if sig.flags == CallSig::SENDS {
            self.file_arrivals(); // its receiver may have left, which no call has seen yet
            let to = group.ranks[sig.width as usize];
            let (call, id) = self.mail(|m| m.begin_send(group, to, sig));
            return endpoint(call).of_message(id);
        }
        endpoint(self.mail(|m| match sig.flags & CallSig::PROBES {
            0 => m.begin_receive(group, sig),
            _ => m.begin_probe(group, sig),
        }))
    }

    /// Sends a rank this error in place of a message.
    pub fn fail_message(self: &Arc<Node>, group: &Arc<Group>, to: u32, tag: u32, error: Error) -> Error {
        let sig = CallSig::of_message(group.comm, CallSig::SENDS, Some(to), Some(tag));
        let ep = self.begin_message(group, sig);
        let outcome = Outcome::Failed(group.with_transport_ranks(error.clone()));
        drop(CallGuard { ep: &ep, outcome, is_reported: true });
        Node::flush_abort(&ep);
        error
    }
}

impl Endpoint {
    /// Completes when a receive is matched with a message. `Err`: no message can arrive.
    async fn matched_message(&self) -> Result<Status> {
        let (filter, (group, call)) = (self.filter().expect("a receive"), self.group_and_call());
        loop {
            let taken = self.node().mail(|m| match m.take_message(group.comm, call) {
                Some(envelope) => Ok(Some(envelope)),
                None => m.reason_for_no_message(group, filter, self.sig()).map_or(Ok(None), Err),
            })?;
            if let Some(envelope) = taken {
                self.message.get_or_init(|| envelope.id);
                return Ok(Status::of(group, envelope));
            }
            self.progress().await?;
        }
    }

    /// Completes when there is a message that a receive would get, without receiving it.
    async fn waiting_message(&self) -> Result<Status> {
        let (filter, (group, _)) = (self.filter().expect("a probe"), self.group_and_call());
        loop {
            let seen = self.node().mail(|m| match m.peek(group.comm, filter) {
                Some(envelope) => Ok(Some(envelope)),
                None => m.reason_for_no_message(group, filter, self.sig()).map_or(Ok(None), Err),
            })?;
            if let Some(envelope) = seen {
                return Ok(Status::of(group, envelope));
            }
            self.progress().await?;
        }
    }

    /// `Err` if a message's receiver is gone.
    fn check_receiver(&self, rank: u32) -> Result<()> {
        let (world, is_replicated) = (self.world_rank(GroupRank(rank)), self.node().is_replicated());
        self.node().mail(|m| m.reason_not_received(world, self.sig(), is_replicated)).map_or(Ok(()), Err)
    }
}
