//! Point-to-point messages: their names, what a receive takes, and those that have arrived.

use super::stream::Stream;
use crate::frame::{CallSig, Frame, FrameKind, Header};
use crate::group::Group;
use crate::slab::Payload;
use skyphos_types::Error;
use std::collections::{BTreeMap, VecDeque};

/// Calls from here on are point-to-point. Their numbers are this rank's own: no peer sees them.
pub(super) const FIRST_LOCAL: u64 = 1 << 46;

/// In the name of every pair of ranks, so that no group has the same number.
pub(super) const PAIR: u64 = 0x5041_4952;

/// The name that both ends have for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageId {
    /// The rank at the other end, in the transport.
    pub(crate) peer: u32,
    /// Number of the ordered pair of sender and receiver in their group; even, as no group's is.
    pub(crate) pair: u64,
    /// Number of the message of that pair.
    pub(crate) count: u64,
}

/// The messages that a receive or probe accepts; `None`: any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    /// The sender, in the transport.
    pub(crate) source: Option<u32>,
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

    pub(super) fn takes(&self, from: u32, tag: u32) -> bool {
        self.source.is_none_or(|source| source == from) && self.tag.is_none_or(|wanted| wanted == tag)
    }
}

/// What is known of a message before its data is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) id: MessageId,
    pub(crate) tag: u32,
    pub(crate) total: u64,
}

/// The kind of a point-to-point call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Post {
    /// To this rank.
    Send(u32),
    Receive(Filter),
    Probe(Filter),
}

impl Post {
    /// Whether the call may need a rank.
    pub(super) fn needs(&self, rank: u32) -> bool {
        match self {
            Post::Send(to) => *to == rank,
            Post::Receive(filter) | Post::Probe(filter) => filter.source.is_none_or(|source| source == rank),
        }
    }
}

/// A message that has begun to arrive and that no receive has got.
pub(super) struct Arrival {
    pub(super) group: u64,
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
    /// Receives without a message, in the order of their calls: group, call.
    pub(super) receives: VecDeque<(u64, u64, Filter)>,
    /// By group and rank: messages sent to it, and messages from it that were matched or wait in `arrivals`.
    pub(super) sent: BTreeMap<(u64, u32), u64>,
    pub(super) came: BTreeMap<(u64, u32), u64>,
    pub(super) next_local: u64,
}

/// Whether a number is that of a pair of ranks, not of a group.
pub(super) fn is_pair(comm: u64) -> bool {
    comm != 0 && comm.is_multiple_of(2)
}

pub(super) fn pair_of(group: u64, sender: u32, receiver: u32) -> u64 {
    let number = Group::number_of_some(group, PAIR, &[sender, receiver]) & !1;
    number.max(2)
}

impl Arrival {
    pub(super) fn of(group: u64, from: u32, header: &Header, chunks: VecDeque<Payload>) -> Arrival {
        let id = MessageId { peer: from, pair: header.comm, count: header.call };
        let envelope = Envelope { id, tag: header.sig.extra, total: header.total };
        let stream = Stream { next_seq: 0, total: header.total, chunks };
        Arrival { group, envelope, stream, failed: None }
    }
}

impl Messages {
    /// The index of the first message in `arrivals` that a filter accepts.
    pub(super) fn position(&self, group: u64, filter: Filter) -> Option<usize> {
        let fits = |arrival: &Arrival| {
            arrival.group == group && filter.takes(arrival.envelope.id.peer, arrival.envelope.tag)
        };
        self.arrivals.iter().position(fits)
    }
}

impl Arrival {
    pub(super) fn take_frame(&mut self, from: u32, frame: Frame) {
        let header = frame.header;
        let failed = match header.kind {
            FrameKind::Data => self.stream.push(from, &header, frame).err(),
            FrameKind::Abort => Some(error_in(from, &frame)),
            _ => None,
        };
        self.failed = self.failed.take().or(failed);
    }
}

pub(super) fn error_in(from: u32, frame: &Frame) -> Error {
    Error::from_wire(frame.payload.as_bytes())
        .unwrap_or(Error::Aborted { rank: from, cause: "it did not say why".to_owned() })
}
