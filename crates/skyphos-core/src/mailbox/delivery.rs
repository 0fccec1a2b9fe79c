//! Delivery: each event of the transport goes to the calls that it concerns.
//!
//! ```text
//! frame of a message:    to the message's send or receive (`matching`)
//! probe:                 answer, if this rank has begun the call
//! outcomes:              compare, or keep until this rank enters the call (`doubts`)
//! call is over here:     answer or note late data and aborts, drop the rest
//! else:                  into the call's box: data to its stream, credits, aborts, arguments, presence
//! peer down, writable:   to each call that the peer is in
//! ```

use super::absence::{Absence, Departure, LostPeer};
use super::calls::SHRINK_CALL;
use super::messages::{error_in, is_pair};
use super::mismatch::{mismatch, mismatch_named};
use super::reply::Reply;
use super::state::Mailbox;
use super::stream::Stream;
use crate::frame::{CallKind, CallSig, Frame, FrameKind, Header};
use crate::group::Group;
use crate::transport::{Event, Loss};
use skyphos_types::{CallNumber, CommId, Error, Round, WorldRank};

/// Round of an abort whose sender's program does not learn of the failure.
pub(crate) const UNSEEN: Round = Round(1);

impl Mailbox {
    /// Delivers one event.
    pub(crate) fn deliver(&mut self, event: Event) {
        match event {
            Event::Frame { from, frame } => self.deliver_frame(from, frame),
            Event::Writable { rank } => {
                for b in &mut self.calls {
                    if self.groups.iter().any(|g| g.group.comm == b.comm && g.group.ranks.contains(&rank)) {
                        b.version += 1;
                    }
                }
            }
            Event::PeerDown { rank, cause, loss } => self.deliver_loss(rank, cause, loss),
        }
    }

    /// Fails the calls that need a rank that is gone.
    fn deliver_loss(&mut self, rank: WorldRank, cause: String, loss: Loss) {
        self.lost_peers.insert(rank, LostPeer { cause, loss });
        self.confirm_doubts(rank, None);
        for k in 0..self.calls.len() {
            let b = &self.calls[k];
            let Some(sig) = b.own_sig else { continue };
            let needs_it = match b.post {
                // A receive may still complete: it has its message, or may get one from another rank.
                Some(_) => b.is_send() && b.message_needs(rank),
                None => self.group(b.comm).is_some_and(|g| g.group.ranks.contains(&rank)),
            };
            let ends = needs_it && self.lost_peers[&rank].ends(sig);
            let error = if ends { self.loss_error(rank, Some(sig)) } else { None };
            let b = &mut self.calls[k];
            b.version += 1;
            if let Some(error) = error {
                b.fail(error, false);
            }
        }
    }

    fn deliver_frame(&mut self, from: WorldRank, frame: Frame) {
        let Header { comm, call, kind, .. } = frame.header;
        if is_pair(comm) {
            return self.deliver_message(from, frame);
        }
        match kind {
            FrameKind::Probe => self.answer_probe(from, comm, call),
            FrameKind::Outcomes => self.deliver_outcomes(from, frame),
            _ => match self.box_of(comm, call) {
                Some(k) => self.deliver_to_box(k, from, frame),
                None => self.deliver_late(from, frame),
            },
        }
    }

    fn answer_probe(&mut self, from: WorldRank, comm: CommId, call: CallNumber) {
        let over = self.group(comm).is_some_and(|g| call < g.next_call) || self.closed.contains(&comm);
        if over || self.find(comm, call).is_some_and(|b| b.own_sig.is_some()) {
            self.replies.push(Reply::control(from, FrameKind::Present, comm, call));
        }
    }

    /// Handles a frame of a call that is over here. Only two kinds matter: the sender has lost a rank, or has left with an error.
    fn deliver_late(&mut self, from: WorldRank, frame: Frame) {
        let Header { comm, call, round, sig, kind, .. } = frame.header;
        if kind == FrameKind::Data && sig.kind != CallKind::Shrink && sig.outlives_losses() {
            self.replies.push(Reply::control(from, FrameKind::Past, comm, call));
        }
        // A replicated transport fails a call with an abort in this rank's own name. If that call has completed meanwhile, the
        // transport learns that soon, and fails the next call.
        if kind == FrameKind::Abort
            && from != self.me
            && let Some(error) = Error::from_wire(frame.payload.as_bytes())
        {
            // If this rank has agreed on a new group in this call, the sender will make no calls in that group.
            let departure = Departure { error: error.clone(), begun: Some(CallNumber(0)) };
            self.end_calls_of(from, Group::number_after(comm, call), departure);
            match error {
                Error::PeerLost { rank, .. } => self.note_lost_elsewhere(WorldRank(rank), &error),
                Error::Diverged { .. } => self.end_later_calls(comm, call, &error),
                // A program that does not learn of the error repeats no call, so all ranks still pair the same calls.
                _ if round == UNSEEN => {}
                _ => self.diverge(comm, call, from, &error),
            }
            self.last_errors.insert(from, error);
        }
    }

    fn deliver_to_box(&mut self, k: usize, from: WorldRank, frame: Frame) {
        let Header { comm, call, round, total, sig, kind, .. } = frame.header;
        let me = self.rank_in(comm);
        let b = &mut self.calls[k];
        if kind != FrameKind::Present {
            b.version += 1; // an answer to a probe is no progress
        }
        match kind {
            FrameKind::Data => {
                self.last_errors.remove(&from); // the peer has continued
                if self.check_signature(k, from, sig) {
                    self.deliver_chunk(k, from, frame);
                }
            }
            FrameKind::Credit => b.take_credit(from, round, total),
            FrameKind::Abort => {
                let error = error_in(from, &frame);
                // In a shrink each rank has a time-out of its own, and may try again.
                if call == SHRINK_CALL {
                    return self.end_calls_of(
                        from,
                        comm,
                        Departure { error, begun: Some(CallNumber(total)) },
                    );
                }
                b.fail(error.clone(), true);
                if matches!(error, Error::Diverged { .. }) {
                    self.end_later_calls(comm, call, &error);
                }
            }
            FrameKind::Arguments => {
                if let (Some(own), Some(me)) = (b.own_sig, me) {
                    let differences = b.arguments.differences(frame.payload.as_bytes());
                    b.fail(mismatch_named((me, own), (from, sig), differences), false);
                }
            }
            FrameKind::Present => b.present.push(from),
            FrameKind::Past => b.set_absent(from, Absence::Past),
            // The transport consumes these, or they need no action here.
            FrameKind::Probe | FrameKind::Bye | FrameKind::GivenUp | FrameKind::Outcomes => {}
            FrameKind::Acknowledge | FrameKind::Forward | FrameKind::Forwarded | FrameKind::InputChecksum => {
            }
        }
    }

    /// Compares the signature of a data frame with this rank's own, or with the first that arrived. Returns `false` if the peer has
    /// made a different call.
    fn check_signature(&mut self, k: usize, from: WorldRank, sig: CallSig) -> bool {
        let me = self.rank_in(self.calls[k].comm);
        let b = &mut self.calls[k];
        match (b.own_sig, b.first_sig) {
            (Some(own), _) if !own.fits(&sig) => {
                if let Some(me) = me {
                    self.disagree(k, (me, own), (from, sig));
                    return false;
                }
            }
            (Some(own), _) if own.outcomes != sig.outcomes && own.is_same_call(&sig) => self.doubt(k, from),
            (Some(_), _) => {}
            (None, None) => b.first_sig = Some((from, sig)),
            (None, Some((_, first))) if first == sig => b.first_sig = Some((from, sig)),
            (None, Some((_, first))) if first.is_same_call(&sig) => {
                b.early.retain(|(peer, _)| *peer != from);
                b.early.push((from, sig.outcomes));
            }
            // Which arguments or outcomes differ is found once this rank has entered.
            (None, Some((_, first))) if first.differs_in_hash(&sig) || first.outcomes != sig.outcomes => {
                b.differing_sig = Some((from, sig));
            }
            (None, Some(first)) => b.fail(mismatch(first, (from, sig)), false),
        }
        true
    }

    /// Appends a chunk to its stream.
    fn deliver_chunk(&mut self, k: usize, from: WorldRank, frame: Frame) {
        let Header { round, total, .. } = frame.header;
        let b = &mut self.calls[k];
        let stream = match b.find_stream(from, round) {
            Ok(index) => &mut b.streams[b.stream_index[index].2 as usize],
            Err(index) => {
                b.stream_index.insert(index, (round, from, b.streams.len() as u32));
                b.streams.push(Stream::new(total, self.spare_chunks.pop().unwrap_or_default()));
                b.streams.last_mut().expect("just pushed")
            }
        };
        let header = frame.header;
        if let Err(error) = stream.push(from, &header, frame) {
            b.fail(error, false);
        }
    }
}
