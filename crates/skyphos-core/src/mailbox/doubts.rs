//! Doubts: a peer's program knows of other failed calls than this rank's (decision 0028).
//!
//! ```text
//! a frame's hash of outcomes differs:  exchange outcomes with the peer; the call makes no progress meanwhile
//! the peer's outcomes are here:        if both can be at the same place of one program, the call goes on;
//!                                      else it fails, and all later calls of the group
//! ```

use super::call_box::CallBox;
use super::calls::SHRINK_CALL;
use super::mismatch::mismatch;
use super::outcomes::Outcomes;
use super::reply::Reply;
use super::state::Mailbox;
use crate::frame::{CallSig, Frame, FrameKind, Header};
use skyphos_types::{CallNumber, CommId, Error, Round, WorldRank};

impl Mailbox {
    /// A peer's outcomes have arrived for a call: compares them, or keeps them until this rank enters the call.
    pub(super) fn deliver_outcomes(&mut self, from: WorldRank, frame: Frame) {
        let Header { comm, call, round, .. } = frame.header;
        let asks = round == Round(0);
        match self.box_of(comm, call) {
            Some(k) if self.calls[k].own.is_some() => {
                self.receive_outcomes(k, from, frame.payload.as_bytes(), asks)
            }
            Some(k) => {
                let early = &mut self.calls[k].early_outcomes;
                early.retain(|(peer, _)| *peer != from);
                early.push((from, frame.payload));
            }
            None if asks => self.send_outcomes(from, comm, call, Round(1)),
            None => {}
        }
    }

    /// Whether this rank's program never learns how a call ended: it has closed the group, or dropped the `Work`.
    pub(crate) fn is_unseen(&mut self, comm: CommId, call: CallNumber) -> bool {
        self.closed.contains(&comm)
            || self.outcomes_of(comm).is_some_and(|outcomes| outcomes.is_forgotten(call))
    }

    /// Outcomes of a group's calls, as far as this rank's program knows them.
    pub(super) fn outcomes_of(&mut self, comm: CommId) -> Option<&mut Outcomes> {
        self.groups.iter_mut().find(|c| c.group.comm == comm).map(|state| &mut state.outcomes)
    }

    /// Records that this rank's program gets the error of a call, which may change its next calls; `at_once`: before the call was
    /// under way. Losses are agreed on in their own way, and `shrink` may be repeated.
    pub(crate) fn report_failure(&mut self, comm: CommId, call: CallNumber, error: &Error, at_once: bool) {
        let begun = self.begun(comm);
        let Some(outcomes) = self.outcomes_of(comm).filter(|_| call != SHRINK_CALL) else { return };
        match error {
            Error::PeerLost { .. } => outcomes.forget(call),
            _ => outcomes.fail(call, begun, at_once),
        }
    }

    /// This rank's program learns that a collective has failed that consists of all calls from `first` on.
    pub(crate) fn report_failure_since(&mut self, comm: CommId, first: CallNumber) {
        let begun = self.begun(comm);
        if first < begun {
            self.outcomes_of(comm).into_iter().for_each(|outcomes| outcomes.fail_since(first, begun));
        }
    }

    /// This rank's program learns that a call has succeeded.
    pub(crate) fn report_success(&mut self, comm: CommId, call: CallNumber) {
        self.outcomes_of(comm).into_iter().for_each(|outcomes| outcomes.succeed(call));
    }

    /// This rank's program will not learn how a call ends.
    pub(crate) fn forget_outcome(&mut self, comm: CommId, call: CallNumber) {
        self.outcomes_of(comm).into_iter().for_each(|outcomes| outcomes.forget(call));
    }

    /// A peer has made a different call: it is at another place of its program, or runs another program.
    pub(super) fn disagree(&mut self, k: usize, own: (WorldRank, CallSig), other: (WorldRank, CallSig)) {
        let b = &mut self.calls[k];
        if own.1.outcomes == other.1.outcomes {
            let reply = b.disagree(own, other);
            return self.replies.extend(reply);
        }
        b.disputed.get_or_insert(mismatch(own, other));
        self.doubt(k, other.0);
    }

    /// This rank enters a call: doubts the peers whose frames arrived before with another hash of outcomes.
    pub(super) fn doubt_early(&mut self, k: usize, own: CallSig) {
        let b = &mut self.calls[k];
        let Some((_, first)) = b.first else { return };
        let early = std::mem::take(&mut b.early);
        if early.is_empty() && first.outcomes == own.outcomes {
            return;
        }
        let said = |peer: WorldRank| {
            early.iter().find(|(one, _)| *one == peer).map_or(first.outcomes, |(_, said)| *said)
        };
        let mut peers: Vec<WorldRank> = b.places.iter().map(|(_, from, _)| *from).collect();
        peers.sort_unstable();
        peers.dedup();
        peers.retain(|peer| said(*peer) != own.outcomes);
        let known = std::mem::take(&mut b.early_outcomes);
        for peer in peers {
            self.doubt(k, peer);
        }
        for (peer, outcomes) in known {
            self.receive_outcomes(k, peer, outcomes.as_bytes(), true);
        }
    }

    /// A peer's program knows of other failed calls than this rank's: exchanges outcomes with it.
    pub(super) fn doubt(&mut self, k: usize, peer: WorldRank) {
        let b = &mut self.calls[k];
        if !b.doubts.iter().any(|(one, _)| *one == peer) {
            b.doubts.push((peer, false));
            let (comm, call) = (b.comm, b.call);
            self.send_outcomes(peer, comm, call, Round(0));
        }
    }

    /// Sends a peer the outcomes that this rank's program knows; round 0 asks for the peer's.
    pub(super) fn send_outcomes(&mut self, peer: WorldRank, comm: CommId, call: CallNumber, round: Round) {
        let Some(outcomes) = self.outcomes_of(comm) else { return };
        let payload = outcomes.to_wire();
        let header = Header { round, ..Header::control(FrameKind::Outcomes, comm, call) };
        self.replies.push(Reply { to: peer, header, payload });
    }

    /// A peer's outcomes have arrived, in a call that this rank is in.
    pub(super) fn receive_outcomes(&mut self, k: usize, peer: WorldRank, bytes: &[u8], asks: bool) {
        let (comm, call) = (self.calls[k].comm, self.calls[k].call);
        let Some(own) = self.outcomes_of(comm) else { return };
        let error = match Outcomes::from_wire(bytes) {
            Some(theirs) if own.fit(&theirs, call) => None,
            Some(_) => Some(self.differs_from(comm, peer)),
            None => Some(Error::Corrupt { rank: peer.0, message: "malformed outcomes".to_owned() }),
        };
        let b = &mut self.calls[k];
        match b.doubts.iter_mut().find(|(one, _)| *one == peer) {
            Some((_, is_settled)) => *is_settled = true,
            None => b.doubts.push((peer, true)),
        }
        b.version += 1;
        if let Some(error) = error {
            b.fail(error.clone(), false);
            self.end_later_calls(comm, call, &error);
        } else if let Some(error) = b.disputed.clone().filter(|_| !b.has_doubts()) {
            b.fail(error, false);
        }
        if asks {
            self.send_outcomes(peer, comm, call, Round(1));
        }
    }

    /// The error of this rank and a peer whose programs know different outcomes.
    fn differs_from(&self, comm: CommId, peer: WorldRank) -> Error {
        diverged(self.rank_in(comm).unwrap_or(self.me), peer)
    }

    /// A peer that is gone can no longer send its outcomes: the calls that wait for them fail.
    pub(super) fn confirm_doubts(&mut self, peer: WorldRank, comm: Option<CommId>) {
        for k in 0..self.calls.len() {
            let b = &self.calls[k];
            if comm.is_none_or(|comm| comm == b.comm) && b.doubts.contains(&(peer, false)) {
                let error = self.differs_from(b.comm, peer);
                self.calls[k].fail(error, false);
            }
        }
    }

    /// A peer has left a call with an error. If this rank has completed that call, the ranks disagree about its outcome, and a
    /// program that repeats failed calls would from now on pair different calls. So no later call of the group succeeds, also
    /// none that has begun.
    pub(super) fn diverge(&mut self, comm: CommId, call: CallNumber, from: WorldRank, error: &Error) {
        let Some(state) = self.groups.iter_mut().find(|c| c.group.comm == comm) else { return };
        let me = state.group.world_rank(state.group.me);
        if state.failed_calls.contains(&call) {
            return;
        }
        let (left, right, why) = (
            state.group.named().group_number(from),
            state.group.named().me,
            state.group.with_group_ranks(error.clone()),
        );
        let cause =
            format!("rank {left} left call {call} with an error ({why}) just as rank {right} completed it");
        self.end_later_calls(comm, call, &Error::Diverged { left: from.0, right: me.0, cause });
    }

    /// Fails all calls of a group after one that has ended with [`Error::Diverged`].
    pub(super) fn end_later_calls(&mut self, comm: CommId, call: CallNumber, error: &Error) {
        let Some(state) = self.groups.iter_mut().find(|c| c.group.comm == comm) else { return };
        let error = state.diverged.get_or_insert(error.clone());
        let later = |b: &&mut CallBox| b.comm == comm && b.call > call && b.call != SHRINK_CALL;
        for b in self.calls.iter_mut().filter(later).filter(|b| b.own.is_some()) {
            b.fail(error.clone(), false);
        }
    }
}

fn diverged(one: WorldRank, other: WorldRank) -> Error {
    let cause = "a call failed on one of them just as the other completed it".to_owned();
    Error::Diverged { left: one.min(other).0, right: one.max(other).0, cause }
}
