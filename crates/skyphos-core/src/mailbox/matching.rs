//! Matching of point-to-point messages with receives.
//!
//! A send, a receive and a probe each have a box, like a collective call. The messages of a group between two ranks are
//! numbered in each direction, so both ends give a message the same [`MessageId`]. A receive gets its id once it is matched.
//!
//! - Messages of one sender are matched in the order in which they were sent, also if frames overtake each other.
//! - A message goes to the first receive, in the order of calls, that accepts its sender and tag.
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
        (fresh.comm, fresh.call, fresh.own_sig, fresh.post) = (group.comm, call, Some(sig), Some(post));
        let needed = self.departures_in(group).find(|(rank, _)| post.needs(*rank));
        let departed = needed.map(|(_, departure)| departure.error.clone());
        let diverged = self.group(group.comm).and_then(|state| state.diverged.clone());
        if let Some(error) = departed {
            fresh.fail(error, true);
        }
        if let Some(error) = diverged {
            fresh.fail(error, false);
        }
        self.calls.push(fresh);
        call
    }

    /// The reason why a rank receives no message: it is gone. If this rank `is_replicated`, a rank that has left in order may have got the
    /// message from a replica.
    pub(crate) fn reason_not_received(
        &self,
        to: WorldRank,
        sig: CallSig,
        is_replicated: bool,
    ) -> Option<Error> {
        let left = self.lost_peers.get(&to).is_some_and(|down| down.loss == Loss::Left);
        if left && is_replicated { None } else { self.loss_error(to, Some(sig)) }
    }

    /// This rank begins to send a message. Returns the call, and the message's identifier.
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
            Some(index) => {
                let arrival = self.messages.arrivals.remove(index).expect("found");
                self.hand_over(call, arrival);
            }
            None => self.messages.receives.push_back((group.comm, call, filter)),
        }
        call
    }

    /// Lets a receive fail if a send fails before the receive has taken a message. Returns `false` if the send is over.
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
        let index = self.messages.position(comm, filter)?;
        Some(self.messages.arrivals[index].envelope)
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

    /// The reason why a receive or probe can get no message: its sender is gone, or a possible sender is lost, or all have
    /// left.
    pub(crate) fn reason_for_no_message(&self, group: &Group, filter: Filter, sig: CallSig) -> Option<Error> {
        let me = group.world_rank(group.me);
        if let Some(source) = filter.source {
            return self.loss_error(source, Some(sig));
        }
        let others = || group.ranks.iter().copied().filter(|rank| *rank != me);
        let lost = |rank: &WorldRank| self.lost_peers.get(rank).is_some_and(|down| down.loss != Loss::Left);
        let all_left = || others().all(|rank| self.lost_peers.contains_key(&rank));
        let absent_sender = others().find(lost).or_else(|| others().next().filter(|_| all_left()));
        absent_sender.and_then(|rank| self.loss_error(rank, Some(sig)))
    }

    /// Gives an arrived message to a receive.
    fn hand_over(&mut self, call: CallNumber, arrival: Arrival) {
        let Arrival { group, envelope, stream, failed } = arrival;
        let Some(b) = self.find(group, call) else { return };
        b.message = Some(envelope.id);
        b.envelope = Some(envelope);
        b.stream_index.push((Round(0), envelope.id.peer, b.streams.len() as u32));
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
            return self.answer_message_probe(from, &header);
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
        // An unknown message begins with its first chunk or its sender's abort. Other frames are late, or their receive was dropped.
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
            let Some(index) = early.iter().position(is_due) else { return };
            let arrival = early.swap_remove(index);
            next.advance();
            let goes_on = |call: CallNumber| {
                calls.iter().any(|b| (b.comm, b.call) == (group, call) && b.failed.is_none())
            };
            let fits = |(comm, call, filter): &(CommId, CallNumber, Filter)| {
                *comm == group && filter.takes(from, arrival.envelope.tag) && goes_on(*call)
            };
            match receives.iter().position(fits) {
                Some(index) => {
                    let (_, call, _) = receives.remove(index).expect("found");
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

    /// Answers a probe of a message: to its sender, whether it is being received; to its receiver, whether it is being sent.
    fn answer_message_probe(&mut self, from: WorldRank, header: &Header) {
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

    /// Sends an abort to a message's sender, because the message will not be received.
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
        self.messages.receives.retain(|(comm, call, _)| (*comm, *call) != (done.comm, done.call));
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
        sent.retain(|(group, _), _| *group != comm);
        matched.retain(|(group, _), _| *group != comm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Pool;
    use crate::transport::Event;
    use proptest::prelude::*;
    use skyphos_types::GroupRank;
    use std::sync::Arc;

    const GROUP: CommId = CommId(7);

    /// Rank 0 of three.
    fn rank_0() -> (Mailbox, Arc<Group>) {
        let mut mail = Mailbox::new(WorldRank(0), (0..3).map(|rank| format!("host {rank}")).collect());
        let group = Arc::new(Group::new(GROUP, (0..3).map(WorldRank).collect(), GroupRank(0)));
        mail.open_comm(group.clone());
        (mail, group)
    }

    fn receive_of(source: Option<u32>, tag: Option<u32>) -> CallSig {
        CallSig::of_message(GROUP, CallSig::RECEIVES, source, tag)
    }

    /// The only data frame of a message to rank 0.
    fn message(sender: u32, count: u64, tag: u32) -> Event {
        let sig = CallSig::of_message(GROUP, CallSig::SENDS, Some(0), Some(tag));
        let pair = pair_of(GROUP, WorldRank(sender), WorldRank(0));
        let header = Header { sig, total: 1, ..Header::control(FrameKind::Data, pair, CallNumber(count)) };
        Event::Frame {
            from: WorldRank(sender),
            frame: Frame { header, payload: Pool::default().copy_of(&[1]) },
        }
    }

    /// Sender and number of the message that a receive was matched with.
    fn matched(mail: &mut Mailbox, call: CallNumber) -> Option<(u32, u64)> {
        let Envelope { id, .. } = mail.find(GROUP, call)?.envelope?;
        Some((id.peer.0, id.count.0))
    }

    fn is_failed(mail: &mut Mailbox, call: CallNumber) -> bool {
        mail.look(GROUP, call).is_err()
    }

    /// Matching in a few lines: messages in the order of each sender, receives in the order of their calls.
    #[derive(Default)]
    struct Oracle {
        /// Sender, number, tag.
        early: Vec<(u32, u64, u32)>,
        next: [u64; 3],
        waiting: Vec<(u32, u64, u32)>,
        receives: Vec<(usize, Option<u32>, Option<u32>)>,
        matched: Vec<Option<(u32, u64)>>,
    }

    impl Oracle {
        fn accepts((_, source, tag): &(usize, Option<u32>, Option<u32>), message: &(u32, u64, u32)) -> bool {
            source.is_none_or(|source| source == message.0) && tag.is_none_or(|tag| tag == message.2)
        }

        fn arrive(&mut self, message: (u32, u64, u32)) {
            self.early.push(message);
            while let Some(k) = self.early.iter().position(|m| m.1 == self.next[m.0 as usize]) {
                let due = self.early.remove(k);
                self.next[due.0 as usize] += 1;
                match self.receives.iter().position(|receive| Oracle::accepts(receive, &due)) {
                    Some(k) => self.matched[self.receives.remove(k).0] = Some((due.0, due.1)),
                    None => self.waiting.push(due),
                }
            }
        }

        fn receive(&mut self, source: Option<u32>, tag: Option<u32>) {
            let receive = (self.matched.len(), source, tag);
            let found = self.waiting.iter().position(|message| Oracle::accepts(&receive, message));
            self.matched.push(found.map(|k| self.waiting.remove(k)).map(|m| (m.0, m.1)));
            if found.is_none() {
                self.receives.push(receive);
            }
        }
    }

    proptest! {
        #[test]
        fn messages_and_receives_are_matched_as_by_the_oracle(
            sent in prop::collection::vec((1u32..3, 0u32..3), 0..16),
            receives in prop::collection::vec((prop::option::of(1u32..3), prop::option::of(0u32..3)), 0..16),
            order in prop::collection::vec(any::<u32>(), 32),
        ) {
            let (mut mail, group) = rank_0();
            let (mut oracle, mut calls, mut counts) = (Oracle::default(), Vec::new(), [0; 3]);
            let messages: Vec<_> = sent
                .into_iter()
                .map(|(sender, tag)| {
                    counts[sender as usize] += 1;
                    Ok((sender, counts[sender as usize] - 1, tag))
                })
                .collect();
            // Messages overtake each other; receives begin in their order at random moments.
            let mut steps: Vec<_> = messages.into_iter().chain(receives.into_iter().map(Err)).zip(order).collect();
            steps.sort_by_key(|(_, key)| *key);
            for (step, _) in steps {
                match step {
                    Ok((sender, count, tag)) => {
                        mail.deliver(message(sender, count, tag));
                        oracle.arrive((sender, count, tag));
                    }
                    Err((source, tag)) => {
                        calls.push(mail.begin_receive(&group, receive_of(source, tag)));
                        oracle.receive(source, tag);
                    }
                }
                let got: Vec<_> = calls.iter().map(|call| matched(&mut mail, *call)).collect();
                prop_assert_eq!(&got, &oracle.matched);
            }
        }
    }

    #[test]
    fn a_message_that_a_receive_has_not_taken_goes_to_the_next_one() {
        for takes in [false, true] {
            let (mut mail, group) = rank_0();
            let first = mail.begin_receive(&group, receive_of(Some(1), None));
            mail.deliver(message(1, 0, 5));
            if takes {
                assert_eq!(mail.take_message(GROUP, first).map(|envelope| envelope.tag), Some(5));
            }
            mail.end(GROUP, first, false);
            let next = mail.begin_receive(&group, receive_of(Some(1), None));
            assert_eq!(matched(&mut mail, next), (!takes).then_some((1, 0)), "taken: {takes}");
        }
    }

    #[test]
    fn a_receive_that_has_failed_gets_no_message() {
        let (mut mail, group) = rank_0();
        let failed = mail.begin_receive(&group, receive_of(None, None));
        mail.fail(GROUP, failed, Error::Interrupted);
        let waiting = mail.begin_receive(&group, receive_of(None, None));
        mail.deliver(message(2, 0, 0));
        assert_eq!((matched(&mut mail, failed), matched(&mut mail, waiting)), (None, Some((2, 0))));
    }

    #[test]
    fn a_receive_fails_with_the_send_it_is_paired_with_unless_it_has_taken_a_message() {
        for (arrives, takes) in [(false, false), (true, false), (true, true)] {
            let (mut mail, group) = rank_0();
            let sends = CallSig::of_message(GROUP, CallSig::SENDS, Some(1), Some(0));
            let (send, _) = mail.begin_send(&group, WorldRank(1), sends);
            let receive = mail.begin_receive(&group, receive_of(Some(2), None));
            assert!(mail.pair_with_send(GROUP, receive, send));
            if arrives {
                mail.deliver(message(2, 0, 0));
            }
            if takes {
                mail.take_message(GROUP, receive);
            }
            mail.fail_paired_receive(GROUP, send, &Error::bad_input("no such rank"));
            assert_eq!(is_failed(&mut mail, receive), !takes, "arrived: {arrives}, taken: {takes}");
            mail.end(GROUP, send, false);
            assert!(!mail.pair_with_send(GROUP, receive, send), "the send is over");
        }
    }

    #[test]
    fn a_probe_leaves_the_message_for_a_receive() {
        let (mut mail, group) = rank_0();
        let any = Filter { source: None, tag: None };
        let probe = mail.begin_probe(&group, CallSig::of_message(GROUP, 0, None, None));
        assert_eq!(mail.peek(GROUP, any), None);
        mail.deliver(message(1, 0, 9));
        assert_eq!(mail.peek(GROUP, any).map(|envelope| (envelope.id.peer.0, envelope.tag)), Some((1, 9)));
        mail.end(GROUP, probe, true);
        let receive = mail.begin_receive(&group, receive_of(Some(1), Some(9)));
        assert_eq!((matched(&mut mail, receive), mail.peek(GROUP, any)), (Some((1, 0)), None));
    }

    #[test]
    fn a_message_for_a_closed_group_is_refused() {
        let (mut mail, _) = rank_0();
        mail.close_comm(GROUP);
        mail.deliver(message(1, 0, 0));
        let [reply] = &mail.replies[..] else { panic!("{} replies", mail.replies.len()) };
        assert_eq!((reply.to, reply.header.kind), (WorldRank(1), FrameKind::Abort));
    }

    #[test]
    fn a_probe_of_a_message_is_answered_if_the_message_is_being_received() {
        for (begun, present) in [(false, false), (true, true)] {
            let (mut mail, group) = rank_0();
            if begun {
                mail.begin_receive(&group, receive_of(Some(1), None));
            }
            mail.deliver(message(1, 0, 0));
            let Event::Frame { from, mut frame } = message(1, 0, 0) else { unreachable!() };
            frame.header.kind = FrameKind::Probe;
            mail.deliver(Event::Frame { from, frame });
            let kinds: Vec<_> = mail.replies.iter().map(|reply| reply.header.kind).collect();
            assert_eq!(kinds.contains(&FrameKind::Present), present, "{kinds:?}");
        }
    }

    #[test]
    fn receives_end_if_their_possible_senders_are_gone() {
        let lost = |mail: &mut Mailbox, rank, loss| {
            mail.deliver(Event::PeerDown { rank: WorldRank(rank), cause: "cut".to_owned(), loss });
        };
        let table = [
            // ranks 1 and 2, the filter's source, whether the receive can go on
            ([None, None], None, true),
            ([Some(Loss::Left), None], None, true),
            ([Some(Loss::Left), None], Some(1), false),
            ([Some(Loss::Left), Some(Loss::Left)], None, false),
            ([Some(Loss::Ended), None], None, false),
            ([Some(Loss::Ended), None], Some(2), true),
        ];
        for (losses, source, goes_on) in table {
            let (mut mail, group) = rank_0();
            for (rank, loss) in (1..).zip(losses).filter_map(|(rank, loss)| Some((rank, loss?))) {
                lost(&mut mail, rank, loss);
            }
            let sig = receive_of(source, None);
            let filter = Filter::of(&group, sig);
            let reason = mail.reason_for_no_message(&group, filter, sig);
            assert_eq!(reason.is_none(), goes_on, "{losses:?} {source:?}: {reason:?}");
            let broken = |rank: u32| losses[rank as usize - 1] == Some(Loss::Ended);
            let may_be_lost = [1, 2].into_iter().any(|rank| source.is_none_or(|s| s == rank) && broken(rank));
            assert_eq!(mail.may_be_lost(&group, filter), may_be_lost, "{losses:?} {source:?}");
        }
    }
}
