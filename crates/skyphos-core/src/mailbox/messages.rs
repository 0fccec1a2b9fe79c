//! Point-to-point messages: their identifiers, the filters of receives, and messages that wait for a receive.

use super::stream::Stream;
use crate::frame::{CallSig, Frame, FrameKind, Header};
use crate::group::Group;
use crate::slab::Payload;
use skyphos_types::{CallNumber, CommId, Error, WorldRank};
use std::collections::{BTreeMap, VecDeque};

/// Calls from here on are point-to-point. Their numbers are this rank's own: no peer sees them.
pub(super) const FIRST_LOCAL: CallNumber = CallNumber(1 << 46);

/// Part of the number of every pair of ranks, so that no group has the same number: "PAIR" in ASCII.
pub(super) const PAIR: CallNumber = CallNumber(0x5041_4952);

/// The identifier of a message. Both ends have the same one, except for `peer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageId {
    /// The rank at the other end, in the transport.
    pub(crate) peer: WorldRank,
    /// Number of the ordered pair of sender and receiver in their group. It is even, while the numbers of groups are odd.
    pub(crate) pair: CommId,
    /// Number of the message of that pair.
    pub(crate) count: CallNumber,
}

/// The messages that a receive or probe accepts; `None`: any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    /// The sender, in the transport.
    pub(crate) source: Option<WorldRank>,
    pub(crate) tag: Option<u32>,
}

impl Filter {
    /// The filter of a receive or probe.
    pub(crate) fn of(group: &Group, sig: CallSig) -> Filter {
        Filter {
            source: (sig.width != CallSig::ANY_SOURCE).then(|| group.ranks[sig.width as usize]),
            tag: (sig.flags & CallSig::ANY_TAG == 0).then_some(sig.extra),
        }
    }

    pub(super) fn takes(&self, from: WorldRank, tag: u32) -> bool {
        self.source.is_none_or(|source| source == from) && self.tag.is_none_or(|wanted| wanted == tag)
    }
}

/// The properties of a message that are known before its data is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) id: MessageId,
    pub(crate) tag: u32,
    pub(crate) total: u64,
}

/// The kind of a point-to-point call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Post {
    /// A send to this rank.
    Send(WorldRank),
    Receive(Filter),
    Probe(Filter),
}

impl Post {
    /// Whether the call may need a rank.
    pub(super) fn needs(&self, rank: WorldRank) -> bool {
        match self {
            Post::Send(to) => *to == rank,
            Post::Receive(filter) | Post::Probe(filter) => filter.source.is_none_or(|source| source == rank),
        }
    }
}

/// A message that has begun to arrive and is not matched with a receive.
pub(super) struct Arrival {
    pub(super) group: CommId,
    pub(super) envelope: Envelope,
    pub(super) stream: Stream,
    /// The error with which its sender failed.
    pub(super) failed: Option<Error>,
}

/// The messages of all groups.
#[derive(Default)]
pub(super) struct Messages {
    /// Messages that wait for a receive, in the order in which they are matched.
    pub(super) arrivals: VecDeque<Arrival>,
    /// Messages that have overtaken earlier ones of their sender.
    pub(super) early: Vec<Arrival>,
    /// Receives without a message, in the order of their calls: group, call, filter.
    pub(super) receives: VecDeque<(CommId, CallNumber, Filter)>,
    /// By group and rank: how many messages were sent to it, and how many from it were matched or wait in `arrivals`.
    pub(super) sent: BTreeMap<(CommId, WorldRank), CallNumber>,
    pub(super) matched: BTreeMap<(CommId, WorldRank), CallNumber>,
    pub(super) local_calls: u64,
}

/// Whether a number is that of a pair of ranks, not of a group.
pub(super) fn is_pair(comm: CommId) -> bool {
    comm != CommId(0) && comm.0.is_multiple_of(2)
}

/// The number of an ordered pair of ranks of a group.
pub(super) fn pair_of(group: CommId, sender: WorldRank, receiver: WorldRank) -> CommId {
    let CommId(number) = Group::number_with_ranks(group, PAIR, [sender.0, receiver.0]);
    CommId((number & !1).max(2))
}

impl Arrival {
    pub(super) fn of(group: CommId, from: WorldRank, header: &Header, chunks: VecDeque<Payload>) -> Arrival {
        let id = MessageId { peer: from, pair: header.comm, count: header.call };
        let envelope = Envelope { id, tag: header.sig.extra, total: header.total };
        let stream = Stream { next_seq: 0, total: header.total, chunks };
        Arrival { group, envelope, stream, failed: None }
    }
}

impl Messages {
    /// The index of the first message in `arrivals` that a filter accepts.
    pub(super) fn position(&self, group: CommId, filter: Filter) -> Option<usize> {
        let fits = |arrival: &Arrival| {
            arrival.group == group && filter.takes(arrival.envelope.id.peer, arrival.envelope.tag)
        };
        self.arrivals.iter().position(fits)
    }
}

impl Arrival {
    /// Takes a frame of the message.
    pub(super) fn take_frame(&mut self, from: WorldRank, frame: Frame) {
        let header = frame.header;
        let failed = match header.kind {
            FrameKind::Data => self.stream.push(from, &header, frame).err(),
            FrameKind::Abort => Some(error_in(from, &frame)),
            _ => None,
        };
        self.failed = self.failed.take().or(failed);
    }
}

/// The error in an abort frame.
pub(super) fn error_in(from: WorldRank, frame: &Frame) -> Error {
    Error::from_wire(frame.payload.as_bytes())
        .unwrap_or(Error::Aborted { rank: from.0, cause: "it sent no cause".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::CallKind;
    use crate::slab::Pool;
    use skyphos_types::GroupRank;

    const GROUP: CommId = CommId(7);

    fn message(sender: WorldRank, tag: u32) -> Arrival {
        let sig = CallSig { extra: tag, ..CallSig::plain(CallKind::PointToPoint) };
        let header = Header {
            sig,
            total: 1,
            ..Header::control(FrameKind::Data, pair_of(GROUP, sender, WorldRank(0)), CallNumber(0))
        };
        Arrival::of(GROUP, sender, &header, VecDeque::new())
    }

    #[test]
    fn a_receive_gets_the_first_message_that_its_filter_accepts() {
        let mut messages = Messages::default();
        messages.arrivals.extend([
            message(WorldRank(1), 5),
            message(WorldRank(2), 5),
            message(WorldRank(2), 6),
        ]);
        let table = [
            // source, tag, index
            (None, None, Some(0)),
            (Some(2), None, Some(1)),
            (Some(2), Some(6), Some(2)),
            (None, Some(6), Some(2)),
            (Some(1), Some(6), None),
            (Some(3), None, None),
        ];
        for (source, tag, index) in table {
            let source = source.map(WorldRank);
            assert_eq!(messages.position(GROUP, Filter { source, tag }), index, "{source:?} {tag:?}");
        }
        assert_eq!(
            messages.position(CommId(GROUP.0 + 2), Filter { source: None, tag: None }),
            None,
            "another group"
        );
    }

    #[test]
    fn a_filter_is_read_from_the_calls_signature() {
        let group = Group::new(GROUP, (10..13).map(WorldRank).collect(), GroupRank(0));
        let sig = |rank, tag| CallSig::of_message(GROUP, CallSig::RECEIVES, rank, tag);
        for (rank, tag, source) in
            [(Some(2), Some(5), Some(12)), (None, Some(0), None), (Some(0), None, Some(10))]
        {
            assert_eq!(Filter::of(&group, sig(rank, tag)), Filter { source: source.map(WorldRank), tag });
        }
    }

    #[test]
    fn a_call_needs_the_rank_at_its_other_end() {
        let from = |source| Filter { source, tag: None };
        for (post, rank, needed) in [
            (Post::Send(WorldRank(1)), 1, true),
            (Post::Send(WorldRank(1)), 2, false),
            (Post::Receive(from(Some(WorldRank(1)))), 1, true),
            (Post::Receive(from(Some(WorldRank(1)))), 2, false),
            (Post::Receive(from(None)), 2, true),
            (Post::Probe(from(None)), 2, true),
        ] {
            assert_eq!(post.needs(WorldRank(rank)), needed, "{post:?} {rank}");
        }
    }

    #[test]
    fn numbers_of_pairs_are_even_and_differ_by_direction() {
        assert_ne!(pair_of(GROUP, WorldRank(1), WorldRank(2)), pair_of(GROUP, WorldRank(2), WorldRank(1)));
        for (one, other) in [(0, 1), (1, 0), (5, 5)] {
            assert!(is_pair(pair_of(GROUP, WorldRank(one), WorldRank(other))));
        }
        assert!(!is_pair(CommId(0)) && !is_pair(Group::number_after(GROUP, CallNumber(3))));
    }

    #[test]
    fn the_first_error_of_a_message_counts() {
        let mut arrival = message(WorldRank(1), 5);
        let frame = |kind, seq, payload: &[u8]| {
            let header = Header { seq, total: 1, ..Header::control(kind, CommId(12), CallNumber(0)) };
            Frame { header, payload: Pool::default().copy_of(payload) }
        };
        arrival.take_frame(WorldRank(1), frame(FrameKind::Data, 0, &[1]));
        assert!(arrival.failed.is_none() && arrival.stream.chunks.len() == 1);
        arrival.take_frame(WorldRank(1), frame(FrameKind::Abort, 0, &Error::bad_input("first").to_wire()));
        arrival.take_frame(WorldRank(1), frame(FrameKind::Abort, 0, &[]));
        assert!(arrival.failed.unwrap().to_string().contains("first"));
    }
}
