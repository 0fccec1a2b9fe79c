//! Matching of point-to-point messages with receives.
//!
//! A send, a receive and a probe each have a box, like a collective call. The messages of a group between two ranks are
//! numbered in each direction, so both ends name a message alike: its [`MessageId`]. A receive gets one once it is matched.
//!
//! - Messages of one sender are matched in the order in which they were sent, also if frames overtake each other.
//! - A message goes to the first receive, in the order of their calls, that accepts its sender and tag.
//! - A receive gets the first message that it accepts, in the order in which they have arrived.
//! - A message that no receive waits for stays here, up to the sender's window.

use super::call_box::CallBox;
use super::messages::{Arrival, Envelope, FIRST_LOCAL, Filter, MessageId, Messages, Post, pair_of};
use super::reply::Reply;
use super::state::Mailbox;
use crate::frame::{CallKind, CallSig, Frame, FrameKind, Header};
use crate::group::Group;
use crate::transport::Loss;
use skyphos_types::{CallNumber, CommId, Error, Round, WorldRank};

impl Mailbox {
    /// Begins a point-to-point call. It fails at once if a rank that it needs makes no more calls.
    fn begin_post(&mut self, group: &Group, sig: CallSig, post: Post) -> CallNumber {
        let call = CallNumber(FIRST_LOCAL.0 + self.messages.local_calls);
        self.messages.local_calls += 1;
        let mut fresh = self.spare_calls.pop().unwrap_or_default();
        (fresh.comm, fresh.call, fresh.own, fresh.post) = (group.comm, call, Some(sig), Some(post));
        let over =
            self.departures_in(group).find(|(rank, _)| post.needs(*rank)).map(|(_, over)| over.error.clone());
        let diverged = self.group(group.comm).and_then(|state| state.diverged.clone());
        if let Some(error) = over {
            fresh.fail(error, true);
        }
        if let Some(error) = diverged {
            fresh.fail(error, false);
        }
        self.calls.push(fresh);
        call
    }

    /// Why a rank receives no message: it is gone. If this rank `is_replicated`, a rank that has left in order may have got the
    /// message from a replica.
    pub(crate) fn reason_not_received(
        &self,
        to: WorldRank,
        sig: CallSig,
        is_replicated: bool,
    ) -> Option<Error> {
        let left = self.lost_peers.get(&to).is_some_and(|down| down.loss == Loss::Left);
        if left && is_replicated { None } else { self.lost(to, Some(sig)) }
    }

    /// This rank begins to send a message. Returns the call, and the message's name.
    pub(crate) fn begin_send(
        &mut self,
        group: &Group,
        to: WorldRank,
        sig: CallSig,
    ) -> (CallNumber, MessageId) {
        let me = group.world_rank(group.me);
        let call = self.begin_post(group, sig, Post::Send(to));
        let sent = self.messages.sent.entry((group.comm, to)).or_default();
        let id = MessageId { peer: to, pair: pair_of(group.comm, me, to), count: sent.advance() };
        self.calls.last_mut().expect("just pushed").message = Some(id);
        (call, id)
    }

    /// This rank begins to wait for a message.
    pub(crate) fn begin_receive(&mut self, group: &Group, sig: CallSig) -> CallNumber {
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

    /// Lets a receive fail with a send, if that fails before the receive has taken a message. `false`: the send is over.
    pub(crate) fn pair_with_send(&mut self, comm: CommId, receive: CallNumber, send: CallNumber) -> bool {
        self.find(comm, receive).into_iter().for_each(|b| b.paired_send = Some(send));
        self.find(comm, send).is_some()
    }

    /// A send has failed: fails the receive that is paired with it, whose message goes to the next receive.
    pub(crate) fn fail_paired_receive(&mut self, comm: CommId, send: CallNumber, error: &Error) {
        let waits = |b: &&mut CallBox| (b.comm, b.paired_send) == (comm, Some(send)) && !b.has_taken;
        self.calls.iter_mut().filter(waits).for_each(|b| b.fail(error.clone(), false));
    }

    /// This rank begins to wait for a message without receiving it.
    pub(crate) fn begin_probe(&mut self, group: &Group, sig: CallSig) -> CallNumber {
        self.begin_post(group, sig, Post::Probe(Filter::of(group, sig)))
    }

    /// The message that a receive would get now.
    pub(crate) fn peek(&self, comm: CommId, filter: Filter) -> Option<Envelope> {
        let place = self.messages.position(comm, filter)?;
        Some(self.messages.arrivals[place].envelope)
    }

    /// The message that a receive was matched with. From now on no other receive gets it.
    pub(crate) fn take_message(&mut self, comm: CommId, call: CallNumber) -> Option<Envelope> {
        let b = self.find(comm, call)?;
        b.has_taken = b.envelope.is_some();
        b.envelope
    }

    /// Whether a sender that the filter accepts is lost; ranks that have left in order do not count.
    pub(crate) fn may_be_lost(&self, group: &Group, filter: Filter) -> bool {
        let lost = |rank: &WorldRank| self.lost_peers.get(rank).is_some_and(|down| down.loss != Loss::Left);
        group.ranks.iter().any(|rank| filter.source.is_none_or(|source| source == *rank) && lost(rank))
    }

    /// Why no message can come that a receive or probe waits for: its sender is gone, or a possible sender is lost, or all have
    /// left.
    pub(crate) fn reason_for_no_message(&self, group: &Group, filter: Filter, sig: CallSig) -> Option<Error> {
        let me = group.world_rank(group.me);
        if let Some(source) = filter.source {
            return self.lost(source, Some(sig));
        }
        let others = || group.ranks.iter().copied().filter(|rank| *rank != me);
        let lost = |rank: &WorldRank| self.lost_peers.get(rank).is_some_and(|down| down.loss != Loss::Left);
        let all_left = || others().all(|rank| self.lost_peers.contains_key(&rank));
        let who = others().find(lost).or_else(|| others().next().filter(|_| all_left()));
        who.and_then(|rank| self.lost(rank, Some(sig)))
    }

    /// Gives an arrived message to a receive.
    fn hand_over(&mut self, call: CallNumber, arrival: Arrival) {
        let Arrival { group, envelope, stream, failed } = arrival;
        let Some(b) = self.find(group, call) else { return };
        b.message = Some(envelope.id);
        b.envelope = Some(envelope);
        b.places.push((Round(0), envelope.id.peer, b.streams.len() as u32));
        b.streams.push(stream);
        b.version += 1;
        if let Some(error) = failed {
            b.fail_message(error, true);
        }
    }

    /// Files a frame of a message.
    pub(super) fn deliver_message(&mut self, from: WorldRank, frame: Frame) {
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
        // Else the frame is late, or of a message that its receiver has dropped.
        let begins = match header.kind {
            FrameKind::Data => header.seq == 0,
            FrameKind::Abort => header.sig.flags == CallSig::SENDS,
            _ => false,
        };
        if header.sig.kind != CallKind::PointToPoint || !begins {
            return;
        }
        let group = CommId(header.sig.n);
        let next = messages.matched.get(&(group, from)).copied().unwrap_or_default();
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
    fn match_due(&mut self, group: CommId, from: WorldRank) {
        loop {
            let Mailbox { messages: Messages { early, matched, receives, arrivals, .. }, calls, .. } = self;
            let next = matched.entry((group, from)).or_default();
            let is_due = |arrival: &Arrival| {
                let Envelope { id, .. } = arrival.envelope;
                (arrival.group, id.peer, id.count) == (group, from, *next)
            };
            let Some(place) = early.iter().position(is_due) else { return };
            let arrival = early.swap_remove(place);
            next.advance();
            let goes_on = |call: CallNumber| {
                calls.iter().any(|b| (b.comm, b.call) == (group, call) && b.failed.is_none())
            };
            let fits = |(of, call, filter): &(CommId, CallNumber, Filter)| {
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

    /// Answers a message's sender that asks whether it is being received, or its receiver that asks whether it is being sent.
    fn say_whether_present(&mut self, from: WorldRank, header: &Header) {
        let (pair, count, group) = (header.comm, header.call, CommId(header.sig.n));
        let is_it =
            |arrival: &&Arrival| (arrival.envelope.id.pair, arrival.envelope.id.count) == (pair, count);
        let begun = match header.sig.flags == CallSig::SENDS {
            true => self.messages.matched.get(&(group, from)),
            false => self.messages.sent.get(&(group, from)),
        };
        let is_here =
            begun.is_some_and(|begun| count < *begun) && !self.messages.arrivals.iter().any(|a| is_it(&a));
        if is_here {
            self.replies.push(Reply::about(from, FrameKind::Present, header));
        }
    }

    /// Tells a sender that its message will not be received.
    fn refuse(&mut self, from: WorldRank, header: &Header) {
        if header.kind == FrameKind::Data {
            let mut reply = Reply::about(from, FrameKind::Abort, header);
            let cause = "its Comm is closed, and a message has come for it".to_owned();
            reply.payload = Error::Aborted { rank: self.me.0, cause }.to_wire();
            self.replies.push(reply);
        }
    }

    /// Ends a point-to-point call. A message that it was matched with and has not taken goes to the next receive.
    pub(super) fn end_post(&mut self, done: &mut CallBox) {
        self.messages.receives.retain(|(of, posted, _)| (*of, *posted) != (done.comm, done.call));
        if let Some(envelope) = done.envelope.take_if(|_| !done.has_taken)
            && let Some(stream) = done.streams.pop()
        {
            self.messages.arrivals.push_front(Arrival { group: done.comm, envelope, stream, failed: None });
        }
    }

    /// Drops the messages of a group that is closed.
    pub(super) fn close_messages(&mut self, comm: CommId) {
        let Messages { arrivals, early, sent, matched, .. } = &mut self.messages;
        arrivals.retain(|arrival| arrival.group != comm);
        early.retain(|arrival| arrival.group != comm);
        sent.retain(|(of, _), _| *of != comm);
        matched.retain(|(of, _), _| *of != comm);
    }
}
