//! The box of a call: everything that has arrived for it.

use super::absence::Absence;
use super::messages::{Envelope, MessageId, Post, error_in};
use super::mismatch::mismatch;
use super::reply::Reply;
use super::stream::Stream;
use crate::arguments::Arguments;
use crate::frame::{CallSig, Frame, FrameKind, Header};
use crate::slab::Payload;
use skyphos_types::{CallNumber, CommId, Error, Round, WorldRank};
use std::collections::VecDeque;

/// Everything that has arrived for one call.
#[derive(Default)]
pub(super) struct CallBox {
    pub(super) comm: CommId,
    pub(super) call: CallNumber,
    /// This rank's signature; `None` until this rank enters the call.
    pub(super) own_sig: Option<CallSig>,
    /// The arguments whose hash is in `own_sig`.
    pub(super) arguments: Arguments,
    /// The first signature that arrived before this rank entered, with its sender, and one that differs from it.
    pub(super) first_sig: Option<(WorldRank, CallSig)>,
    pub(super) differing_sig: Option<(WorldRank, CallSig)>,
    /// The error for a peer whose arguments have another hash, until the peer reports which argument differs.
    pub(super) disputed: Option<Error>,
    /// Peers whose programs know of other failed calls, and whether their outcomes have been compared.
    pub(super) doubts: Vec<(WorldRank, bool)>,
    /// What arrived before this rank entered: hashes of outcomes that differ from the one in `first_sig`, and outcomes themselves.
    pub(super) early: Vec<(WorldRank, u16)>,
    pub(super) early_outcomes: Vec<(WorldRank, Payload)>,
    pub(super) streams: Vec<Stream>,
    /// (round, sender, index of the stream), sorted: a rank may receive from thousands.
    pub(super) stream_index: Vec<(Round, WorldRank, u32)>,
    /// (peer, round, bytes that the peer has consumed)
    pub(super) credits: Vec<(WorldRank, Round, u64)>,
    /// The error that ended the call, and whether it came from another rank.
    pub(super) failed: Option<(Error, bool)>,
    /// Ranks that answered a probe.
    pub(super) present: Vec<WorldRank>,
    /// Ranks that take no more part in the call, though they are not lost.
    pub(super) absent: Vec<(WorldRank, Absence)>,
    /// Number of events of the call. A waiting thread compares it.
    pub(super) version: u64,
    /// The send, receive or probe, if the call is point-to-point.
    pub(super) post: Option<Post>,
    /// The message that is sent or received, once it is known.
    pub(super) message: Option<MessageId>,
    /// The message that a receive was matched with, and whether the receive has begun to take it.
    pub(super) envelope: Option<Envelope>,
    pub(super) has_taken: bool,
    /// The send whose failure fails this receive, if no message has been taken before.
    pub(super) paired_send: Option<CallNumber>,
}

impl CallBox {
    /// The storage of all streams, emptied.
    pub(super) fn take_chunks(&mut self) -> impl Iterator<Item = VecDeque<Payload>> {
        self.streams.drain(..).map(|mut stream| {
            stream.chunks.clear();
            stream.chunks
        })
    }

    /// An empty box that reuses the storage.
    pub(super) fn cleared(self) -> CallBox {
        let CallBox {
            mut doubts,
            mut early,
            mut early_outcomes,
            mut streams,
            mut stream_index,
            mut credits,
            mut present,
            mut absent,
            ..
        } = self;
        doubts.clear();
        early.clear();
        early_outcomes.clear();
        streams.clear();
        stream_index.clear();
        credits.clear();
        present.clear();
        absent.clear();
        CallBox {
            doubts,
            early,
            early_outcomes,
            streams,
            stream_index,
            credits,
            present,
            absent,
            ..CallBox::default()
        }
    }

    /// The index of a stream in `stream_index`. `Err`: the index at which it belongs.
    pub(super) fn find_stream(&self, from: WorldRank, round: Round) -> Result<usize, usize> {
        self.stream_index.binary_search_by_key(&(round, from), |(round, from, _)| (*round, *from))
    }

    /// A peer has made a different call, and its program knows of the same failed calls. If only hashes of arguments differ, the reply
    /// sends this rank's arguments to the peer, which then reports to all ranks which one differs.
    pub(super) fn disagree(
        &mut self,
        own: (WorldRank, CallSig),
        other: (WorldRank, CallSig),
    ) -> Option<Reply> {
        let error = mismatch(own, other);
        let payload = self.arguments.to_wire().filter(|_| own.1.differs_in_hash(&other.1));
        match payload {
            Some(payload) if self.disputed.is_none() => {
                self.disputed = Some(error);
                let header =
                    Header { sig: own.1, ..Header::control(FrameKind::Arguments, self.comm, self.call) };
                return Some(Reply { to: other.0, header, payload });
            }
            Some(_) => {}
            None => self.fail(error, false),
        }
        None
    }

    /// Notes how many bytes of a stream a peer has consumed.
    pub(super) fn take_credit(&mut self, from: WorldRank, round: Round, consumed: u64) {
        match self.credits.iter_mut().find(|(p, r, _)| (*p, *r) == (from, round)) {
            Some((_, _, bytes)) => *bytes = (*bytes).max(consumed),
            None => self.credits.push((from, round, consumed)),
        }
    }

    /// Notes that a rank is absent.
    pub(super) fn set_absent(&mut self, rank: WorldRank, why: Absence) {
        self.version += 1;
        if !self.absent.contains(&(rank, why)) {
            self.absent.push((rank, why));
        }
    }

    /// Ends the call with an error, `remote` if another rank sent it. The first error counts.
    pub(super) fn fail(&mut self, error: Error, remote: bool) {
        self.version += 1;
        if self.failed.is_none() {
            self.failed = Some((error, remote));
        }
    }

    pub(super) fn is_send(&self) -> bool {
        matches!(self.post, Some(Post::Send(_)))
    }

    /// Whether the call is point-to-point and may need a rank: the rank at the other end, once it is known.
    pub(super) fn message_needs(&self, rank: WorldRank) -> bool {
        match (self.message, self.post) {
            (Some(id), _) => id.peer == rank,
            (None, Some(post)) => post.needs(rank),
            (None, None) => false,
        }
    }

    /// Takes a frame of the message that is sent or received here.
    pub(super) fn take_message_frame(&mut self, from: WorldRank, frame: Frame) {
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
                None => self.fail(
                    Error::Corrupt {
                        rank: from.0,
                        message: "it sent data of a message that it receives".to_owned(),
                    },
                    false,
                ),
            },
            FrameKind::Credit => self.take_credit(from, header.round, header.total),
            FrameKind::Abort => self.fail_message(error_in(from, &frame), true),
            _ => {}
        }
    }

    /// Fails the call and its message, which no other receive gets.
    pub(super) fn fail_message(&mut self, error: Error, remote: bool) {
        self.has_taken = true;
        self.fail(error, remote);
    }

    /// Whether a peer has not sent its outcomes yet.
    pub(super) fn has_doubts(&self) -> bool {
        self.doubts.iter().any(|(_, is_settled)| !is_settled)
    }

    /// Whether the call waits for a peer's arguments or outcomes.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.disputed.is_some() || self.has_doubts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::CallKind;

    const DENSE: CallSig = CallSig::plain(CallKind::AllreduceDense);

    fn failure(b: &CallBox) -> Option<String> {
        b.failed.as_ref().map(|(error, _)| error.to_string())
    }

    #[test]
    fn the_largest_credit_of_a_stream_counts() {
        let mut b = CallBox::default();
        for (from, round, consumed) in [(1, 0, 10), (1, 0, 30), (1, 0, 20), (1, 7, 5), (2, 0, 1)] {
            b.take_credit(WorldRank(from), Round(round), consumed);
        }
        let credits = [(1, 0, 30), (1, 7, 5), (2, 0, 1)];
        assert_eq!(b.credits, credits.map(|(from, round, bytes)| (WorldRank(from), Round(round), bytes)));
    }

    #[test]
    fn the_first_error_counts_and_each_is_an_event() {
        let mut b = CallBox::default();
        b.fail(Error::bad_input("first"), false);
        b.fail(Error::bad_input("second"), true);
        assert_eq!(b.version, 2);
        assert!(failure(&b).unwrap().contains("first") && !b.failed.unwrap().1);
    }

    #[test]
    fn different_hashes_of_arguments_are_resolved_before_the_call_fails() {
        let (own, other) = (CallSig { extra: 1, ..DENSE }, CallSig { extra: 2, ..DENSE });
        let arguments = Arguments::given(|| vec![("degrees".to_owned(), "4x2".to_owned())]);
        let mut b = CallBox { arguments, ..CallBox::default() };
        let reply = b.disagree((WorldRank(0), own), (WorldRank(3), other)).expect("arguments for the peer");
        assert_eq!((reply.to, reply.header.kind), (WorldRank(3), FrameKind::Arguments));
        assert!(b.is_in_doubt() && b.failed.is_none());
        assert!(b.disagree((WorldRank(0), own), (WorldRank(4), other)).is_none(), "one peer is enough");
    }

    #[test]
    fn a_different_call_fails_at_once() {
        let mut b = CallBox::default();
        let other = CallSig::plain(CallKind::Split);
        assert!(b.disagree((WorldRank(2), DENSE), (WorldRank(1), other)).is_none());
        let text = failure(&b).unwrap();
        assert!(text.contains("split(") && text.contains("allreduce of dense arrays("), "{text}");
    }

    #[test]
    fn a_cleared_box_is_empty() {
        let mut b = CallBox {
            comm: CommId(7),
            call: CallNumber(3),
            own_sig: Some(DENSE),
            has_taken: true,
            ..CallBox::default()
        };
        b.set_absent(WorldRank(2), Absence::Lost);
        b.take_credit(WorldRank(1), Round(0), 5);
        b.present.push(WorldRank(1));
        b.doubts.push((WorldRank(1), false));
        b.fail(Error::Interrupted, false);
        let b = b.cleared();
        assert!(b.absent.is_empty() && b.credits.is_empty() && b.present.is_empty() && !b.is_in_doubt());
        assert!(b.own_sig.is_none() && b.failed.is_none() && !b.has_taken && b.version == 0);
    }
}
