//! Point-to-point messages: which message goes to which receive.
//!
//! A send, a receive and a probe each have a box of their own, like a collective call. Between two ranks the messages of a
//! group are numbered, in each direction, so that both have one name for each: its [`MessageId`]. A receive has none until a
//! message fits it.
//!
//! - Messages of one sender are matched in the order in which they were sent, whatever overtakes what on the way.
//! - A message goes to the first receive, in the order of their calls, that takes its sender and its tag.
//! - A receive takes the first message that fits, in the order in which they have arrived.
//! - A message that nobody waits for stays here, up to the sender's window.

use super::{CallBox, Group, Mailbox, Reply, Stream};
use crate::frame::{CallKind, CallSig, Frame, FrameKind, Header};
use crate::slab::Payload;
use crate::transport::Loss;
use skyphos_types::Error;
use std::collections::{BTreeMap, VecDeque};

/// Calls from here on are point-to-point. Their numbers are this rank's own: no peer sees them.
const FIRST_LOCAL: u64 = 1 << 46;

/// In the name of every pair of ranks, so that no group has the same number.
const PAIR: u64 = 0x5041_4952;

/// How both ends of a message call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageId {
    /// The rank at the other end, in the transport.
    pub(crate) peer: u32,
    /// Number of the ordered pair of sender and receiver in their group; even, as no group's is.
    pub(crate) pair: u64,
    /// Number of the message of that pair.
    pub(crate) count: u64,
}

/// What a receive or a probe takes; `None`: any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    /// The sender, in the transport.
    pub(crate) source: Option<u32>,
    pub(crate) tag: Option<u32>,
}

impl Filter {
    /// That of a receive or probe.
    pub(crate) fn of(group: &Group, sig: CallSig) -> Filter {
        Filter {
            source: (sig.width != CallSig::ANY_SOURCE).then(|| group.ranks[sig.width as usize]),
            tag: (sig.flags & CallSig::ANY_TAG == 0).then_some(sig.extra),
        }
    }

    fn takes(&self, from: u32, tag: u32) -> bool {
        self.source.is_none_or(|source| source == from) && self.tag.is_none_or(|wanted| wanted == tag)
    }
}

/// What is known of a message before any of it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) id: MessageId,
    pub(crate) tag: u32,
    pub(crate) total: u64,
}

/// Whose point-to-point call a box is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Post {
    /// To this rank.
    Send(u32),
    Receive(Filter),
    Probe(Filter),
}

impl Post {
    /// Whether it may need something of a rank.
    fn needs(&self, rank: u32) -> bool {
        match self {
            Post::Send(to) => *to == rank,
            Post::Receive(filter) | Post::Probe(filter) => filter.source.is_none_or(|source| source == rank),
        }
    }
}

/// A message that has begun to arrive, and that no receive has taken.
struct Arrival {
    group: u64,
    envelope: Envelope,
    stream: Stream,
    /// The sender has given it up.
    failed: Option<Error>,
}

/// The messages of all groups.
#[derive(Default)]
pub(super) struct Messages {
    /// In the order in which they may be matched.
    arrivals: VecDeque<Arrival>,
    /// Those that have overtaken others of their sender.
    early: Vec<Arrival>,
    /// Receives without a message, in the order of their calls: group, call.
    receives: VecDeque<(u64, u64, Filter)>,
    /// By group and rank: messages sent to it, and messages of it that have been matched or wait in `arrivals`.
    sent: BTreeMap<(u64, u32), u64>,
    came: BTreeMap<(u64, u32), u64>,
    next_local: u64,
}

/// Whether a number is that of a pair of ranks, not of a group.
pub(super) fn is_pair(comm: u64) -> bool {
    comm != 0 && comm.is_multiple_of(2)
}

fn pair_of(group: u64, sender: u32, receiver: u32) -> u64 {
    let number = Group::number_of_some(group, PAIR, &[sender, receiver]) & !1;
    number.max(2)
}

impl Arrival {
    fn of(group: u64, from: u32, header: &Header, chunks: VecDeque<Payload>) -> Arrival {
        let id = MessageId { peer: from, pair: header.comm, count: header.call };
        let envelope = Envelope { id, tag: header.sig.extra, total: header.total };
        let stream = Stream { next_seq: 0, total: header.total, chunks };
        Arrival { group, envelope, stream, failed: None }
    }
}

impl Stream {
    /// Takes up the next chunk; `Err` says what came in its place.
    fn push(&mut self, from: u32, header: &Header, frame: Frame) -> Result<(), Error> {
        if header.seq != self.next_seq || header.total != self.total {
            let (seq, total, next, due) = (header.seq, header.total, self.next_seq, self.total);
            let message =
                format!("chunk {seq} of a message of {total} bytes where chunk {next} of {due} was due");
            return Err(Error::Corrupt { rank: from, message });
        }
        self.next_seq += 1;
        self.chunks.push_back(frame.payload);
        Ok(())
    }
}

impl Mailbox {
    /// A call of its own for something point-to-point; it fails at once where what it needs cannot come.
    fn begin_post(&mut self, group: &Group, sig: CallSig, post: Post) -> u64 {
        let call = FIRST_LOCAL + self.messages.next_local;
        self.messages.next_local += 1;
        let mut fresh = self.spare_calls.pop().unwrap_or_default();
        (fresh.comm, fresh.call, fresh.own, fresh.post) = (group.comm, call, Some(sig), Some(post));
        let over =
            self.over_in(group).find(|(rank, _)| post.needs(*rank)).map(|(_, over)| over.error.clone());
        let diverged = self.comm(group.comm).and_then(|state| state.diverged.clone());
        if let Some(error) = over {
            fresh.fail(error, true);
        }
        if let Some(error) = diverged {
            fresh.fail(error, false);
        }
        self.calls.push(fresh);
        call
    }

    /// Why a rank takes no message: it is gone. One that has left in order may have what a replica of this rank has sent
    /// (`is_replicated`).
    pub(crate) fn why_not_taken(&self, to: u32, sig: CallSig, is_replicated: bool) -> Option<Error> {
        let left = self.down.get(&to).is_some_and(|down| down.loss == Loss::Left);
        if left && is_replicated { None } else { self.lost(to, Some(sig)) }
    }

    /// This rank begins to send a message: its call, and how both ends name the message.
    pub(crate) fn begin_send(&mut self, group: &Group, to: u32, sig: CallSig) -> (u64, MessageId) {
        let me = group.ranks[group.me as usize];
        let call = self.begin_post(group, sig, Post::Send(to));
        let sent = self.messages.sent.entry((group.comm, to)).or_default();
        let id = MessageId { peer: to, pair: pair_of(group.comm, me, to), count: *sent };
        *sent += 1;
        self.calls.last_mut().expect("just pushed").message = Some(id);
        (call, id)
    }

    /// This rank begins to wait for a message.
    pub(crate) fn begin_receive(&mut self, group: &Group, sig: CallSig) -> u64 {
        let filter = Filter::of(group, sig);
        let call = self.begin_post(group, sig, Post::Receive(filter));
        match self.messages.position(group.comm, filter) {
            Some(place) => {
                let arrival = self.messages.arrivals.remove(place).expect("found");
                self.hand_over(call, arrival);
            }
            None => self.messages.receives.push_back((group.comm, call, filter)),
        }
        call
    }

    /// A receive fails with a send, if that fails before it has a message; `false`: the send is over.
    pub(crate) fn put_beside(&mut self, comm: u64, receive: u64, send: u64) -> bool {
        self.find(comm, receive).into_iter().for_each(|b| b.beside = Some(send));
        self.find(comm, send).is_some()
    }

    /// A send has failed: the receive beside it leaves its message to the next receive.
    pub(crate) fn fail_beside(&mut self, comm: u64, send: u64, error: &Error) {
        let waits = |b: &&mut CallBox| (b.comm, b.beside) == (comm, Some(send)) && !b.has_taken;
        self.calls.iter_mut().filter(waits).for_each(|b| b.fail(error.clone(), false));
    }

    /// This rank begins to wait until a message is there that it does not take.
    pub(crate) fn begin_probe(&mut self, group: &Group, sig: CallSig) -> u64 {
        self.begin_post(group, sig, Post::Probe(Filter::of(group, sig)))
    }

    /// The first message that a receive would take.
    pub(crate) fn peek(&self, comm: u64, filter: Filter) -> Option<Envelope> {
        let place = self.messages.position(comm, filter)?;
        Some(self.messages.arrivals[place].envelope)
    }

    /// The message that a receive has got: from now on it is no other's.
    pub(crate) fn take_message(&mut self, comm: u64, call: u64) -> Option<Envelope> {
        let b = self.find(comm, call)?;
        b.has_taken = b.envelope.is_some();
        b.envelope
    }

    /// Whether a message that fits may be one of a rank that is lost, rather than of one that has left in order.
    pub(crate) fn may_be_lost(&self, group: &Group, filter: Filter) -> bool {
        let lost = |rank: &u32| self.down.get(rank).is_some_and(|down| down.loss != Loss::Left);
        group.ranks.iter().any(|rank| filter.source.is_none_or(|source| source == *rank) && lost(rank))
    }

    /// Why a message that a receive or probe waits for cannot come: its sender is gone, or it may be from one that is lost, or
    /// nobody is left.
    pub(crate) fn why_none_comes(&self, group: &Group, filter: Filter, sig: CallSig) -> Option<Error> {
        let me = group.ranks[group.me as usize];
        if let Some(source) = filter.source {
            return self.lost(source, Some(sig));
        }
        let others = || group.ranks.iter().copied().filter(|rank| *rank != me);
        let lost = |rank: &u32| self.down.get(rank).is_some_and(|down| down.loss != Loss::Left);
        let all_left = || others().all(|rank| self.down.contains_key(&rank));
        let who = others().find(lost).or_else(|| others().next().filter(|_| all_left()));
        who.and_then(|rank| self.lost(rank, Some(sig)))
    }

    /// Gives a message that has begun to arrive to a receive.
    fn hand_over(&mut self, call: u64, arrival: Arrival) {
        let Arrival { group, envelope, stream, failed } = arrival;
        let Some(b) = self.find(group, call) else { return };
        b.message = Some(envelope.id);
        b.envelope = Some(envelope);
        b.places.push((0, envelope.id.peer, b.streams.len() as u32));
        b.streams.push(stream);
        b.version += 1;
        if let Some(error) = failed {
            b.fail_message(error, true);
        }
    }

    /// What a transport reports of a message.
    pub(super) fn deliver_message(&mut self, from: u32, frame: Frame) {
        let header = frame.header;
        let (pair, count) = (header.comm, header.call);
        if header.kind == FrameKind::Probe {
            return self.say_whether_present(from, &header);
        }
        let is_it = |id: &MessageId| (id.pair, id.count) == (pair, count);
        // A rank may be at both ends.
        let at_this_end = |b: &CallBox| match header.sig.flags {
            CallSig::SENDS => !b.is_send(),
            CallSig::RECEIVES => b.is_send(),
            _ => true,
        };
        let mut boxes = self.calls.iter_mut().filter(|b| b.message.as_ref().is_some_and(is_it));
        if let Some(b) = boxes.find(|b| at_this_end(b)) {
            return b.take_message_frame(from, frame);
        }
        let messages = &mut self.messages;
        let mut waiting = messages.arrivals.iter_mut().chain(&mut messages.early);
        if let Some(arrival) = waiting.find(|arrival| is_it(&arrival.envelope.id)) {
            return arrival.take_frame(from, frame);
        }
        // Late, or of a message that its receiver has left.
        let begins = match header.kind {
            FrameKind::Data => header.seq == 0,
            FrameKind::Abort => header.sig.flags == CallSig::SENDS,
            _ => false,
        };
        if header.sig.kind != CallKind::PointToPoint || !begins {
            return;
        }
        let group = header.sig.n;
        let next = messages.came.get(&(group, from)).copied().unwrap_or(0);
        if count < next {
            return;
        }
        if self.closed.contains(&group) {
            return self.refuse(from, &header);
        }
        let chunks = self.spare_chunks.pop().unwrap_or_default();
        let mut arrival = Arrival::of(group, from, &header, chunks);
        arrival.take_frame(from, frame);
        self.messages.early.push(arrival);
        self.match_due(group, from);
    }

    /// Matches the messages of a sender that are next in its order.
    fn match_due(&mut self, group: u64, from: u32) {
        loop {
            let Mailbox { messages: Messages { early, came, receives, arrivals, .. }, calls, .. } = self;
            let next = came.entry((group, from)).or_default();
            let is_due = |arrival: &Arrival| {
                let Envelope { id, .. } = arrival.envelope;
                (arrival.group, id.peer, id.count) == (group, from, *next)
            };
            let Some(place) = early.iter().position(is_due) else { return };
            let arrival = early.swap_remove(place);
            *next += 1;
            let goes_on =
                |call: u64| calls.iter().any(|b| (b.comm, b.call) == (group, call) && b.failed.is_none());
            let fits = |(of, call, filter): &(u64, u64, Filter)| {
                *of == group && filter.takes(from, arrival.envelope.tag) && goes_on(*call)
            };
            match receives.iter().position(fits) {
                Some(place) => {
                    let (_, call, _) = receives.remove(place).expect("found");
                    self.hand_over(call, arrival);
                }
                None => {
                    arrivals.push_back(arrival);
                    let probes = |b: &&mut CallBox| b.comm == group && matches!(b.post, Some(Post::Probe(_)));
                    self.calls.iter_mut().filter(probes).for_each(|b| b.version += 1);
                }
            }
        }
    }

    /// The sender of a message asks whether it is being received, or its receiver whether it is being sent.
    fn say_whether_present(&mut self, from: u32, header: &Header) {
        let (pair, count, group) = (header.comm, header.call, header.sig.n);
        let is_it =
            |arrival: &&Arrival| (arrival.envelope.id.pair, arrival.envelope.id.count) == (pair, count);
        let begun = match header.sig.flags == CallSig::SENDS {
            true => self.messages.came.get(&(group, from)),
            false => self.messages.sent.get(&(group, from)),
        };
        let is_here =
            begun.is_some_and(|begun| count < *begun) && !self.messages.arrivals.iter().any(|a| is_it(&a));
        if is_here {
            self.replies.push(Reply::about(from, FrameKind::Present, header));
        }
    }

    /// Tells a sender that nobody will take its message.
    fn refuse(&mut self, from: u32, header: &Header) {
        if header.kind == FrameKind::Data {
            let mut reply = Reply::about(from, FrameKind::Abort, header);
            let cause = "its Comm is closed, and a message has come for it".to_owned();
            reply.payload = Error::Aborted { rank: self.me, cause }.to_wire();
            self.replies.push(reply);
        }
    }

    /// A point-to-point call is over. A message that it has not begun to take is there for the next receive.
    pub(super) fn end_post(&mut self, done: &mut CallBox) {
        self.messages.receives.retain(|(of, posted, _)| (*of, *posted) != (done.comm, done.call));
        if let Some(envelope) = done.envelope.take_if(|_| !done.has_taken)
            && let Some(stream) = done.streams.pop()
        {
            self.messages.arrivals.push_front(Arrival { group: done.comm, envelope, stream, failed: None });
        }
    }

    /// A group is closed: nobody receives its messages.
    pub(super) fn close_messages(&mut self, comm: u64) {
        let Messages { arrivals, early, sent, came, .. } = &mut self.messages;
        arrivals.retain(|arrival| arrival.group != comm);
        early.retain(|arrival| arrival.group != comm);
        sent.retain(|(of, _), _| *of != comm);
        came.retain(|(of, _), _| *of != comm);
    }
}

impl Messages {
    /// The place of the first message in `arrivals` that fits.
    fn position(&self, group: u64, filter: Filter) -> Option<usize> {
        let fits = |arrival: &Arrival| {
            arrival.group == group && filter.takes(arrival.envelope.id.peer, arrival.envelope.tag)
        };
        self.arrivals.iter().position(fits)
    }
}

impl Arrival {
    fn take_frame(&mut self, from: u32, frame: Frame) {
        let header = frame.header;
        let failed = match header.kind {
            FrameKind::Data => self.stream.push(from, &header, frame).err(),
            FrameKind::Abort => Some(error_of(from, &frame)),
            _ => None,
        };
        self.failed = self.failed.take().or(failed);
    }
}

impl Reply {
    /// An answer from the other end of a message.
    fn about(to: u32, kind: FrameKind, asked: &Header) -> Reply {
        let flags = if asked.sig.flags == CallSig::SENDS { CallSig::RECEIVES } else { CallSig::SENDS };
        let header =
            Header { sig: CallSig { flags, ..asked.sig }, ..Header::control(kind, asked.comm, asked.call) };
        Reply { to, header, payload: Vec::new() }
    }
}

impl CallBox {
    pub(super) fn is_send(&self) -> bool {
        matches!(self.post, Some(Post::Send(_)))
    }

    /// Whether it is point-to-point and may need something of a rank: of the one at the other end, once that is known.
    pub(super) fn needs_of_message(&self, rank: u32) -> bool {
        match (self.message, self.post) {
            (Some(id), _) => id.peer == rank,
            (None, Some(post)) => post.needs(rank),
            (None, None) => false,
        }
    }

    /// A frame of the message that is being sent or received here.
    fn take_message_frame(&mut self, from: u32, frame: Frame) {
        let header = frame.header;
        if header.kind == FrameKind::Present {
            return self.present.push(from); // no progress
        }
        self.version += 1;
        match header.kind {
            FrameKind::Data => match self.streams.last_mut() {
                Some(stream) => {
                    if let Err(error) = stream.push(from, &header, frame) {
                        self.fail_message(error, false);
                    }
                }
                None => {
                    self.fail(Error::Corrupt { rank: from, message: "a message came back".to_owned() }, false)
                }
            },
            FrameKind::Credit => self.take_credit(from, header.round, header.total),
            FrameKind::Abort => self.fail_message(error_of(from, &frame), true),
            _ => {}
        }
    }

    /// The message has failed, so no other receive will get it.
    fn fail_message(&mut self, error: Error, remote: bool) {
        self.has_taken = true;
        self.fail(error, remote);
    }
}

fn error_of(from: u32, frame: &Frame) -> Error {
    Error::from_wire(frame.payload.as_bytes())
        .unwrap_or(Error::Aborted { rank: from, cause: "it did not say why".to_owned() })
}
