//! Peers whose programs have seen other calls fail, and what becomes of a call with them.
//!
//! ```text
//! a frame says so:  ask the peer what its program knows, and take nothing more out of the call's box meanwhile
//! it has answered:  go on, if both can be of one program;  else end this call and all later ones of the group
//! ```
//!
//! What programs know is in [`Outcomes`]. Decision 0028.

use super::{CallBox, Mailbox, Outcomes, Reply, SHRINK_CALL, mismatch};
use crate::frame::{CallSig, FrameKind, Header};
use skyphos_types::Error;

impl Mailbox {
    /// What the program knows of the calls of a group.
    pub(super) fn outcomes_of(&mut self, comm: u64) -> Option<&mut Outcomes> {
        self.comms.iter_mut().find(|c| c.group.comm == comm).map(|state| &mut state.outcomes)
    }

    /// This rank's program is told that a call has failed: what it does from now on may depend on that. A loss has rules of
    /// its own, and `shrink` may be tried again. `at_once`: before it was under way.
    pub(crate) fn see_failure(&mut self, comm: u64, call: u64, error: &Error, at_once: bool) {
        let begun = self.begun(comm);
        let Some(outcomes) = self.outcomes_of(comm).filter(|_| call != SHRINK_CALL) else { return };
        match error {
            Error::PeerLost { .. } => outcomes.forget(call),
            _ => outcomes.fail(call, begun, at_once),
        }
    }

    /// This rank's program is told that a collective has failed that consists of all calls from `first` on.
    pub(crate) fn see_failure_since(&mut self, comm: u64, first: u64) {
        let begun = self.begun(comm);
        if first < begun {
            self.outcomes_of(comm).into_iter().for_each(|outcomes| outcomes.fail_since(first, begun));
        }
    }

    /// This rank's program is told that a call went well.
    pub(crate) fn see_success(&mut self, comm: u64, call: u64) {
        self.outcomes_of(comm).into_iter().for_each(|outcomes| outcomes.succeed(call));
    }

    /// Nobody will be told how a call ends.
    pub(crate) fn see_nothing(&mut self, comm: u64, call: u64) {
        self.outcomes_of(comm).into_iter().for_each(|outcomes| outcomes.forget(call));
    }

    /// A peer has called something else: it is at another place of its program, or its program is another one.
    pub(super) fn disagree(&mut self, k: usize, own: (u32, CallSig), other: (u32, CallSig)) {
        let b = &mut self.calls[k];
        if own.1.outcomes == other.1.outcomes {
            let reply = b.disagree(own, other);
            return self.replies.extend(reply);
        }
        b.disputed.get_or_insert(mismatch(own, other));
        self.doubt(k, other.0);
    }

    /// This rank enters a call: looks at what has come for it from programs that have seen other calls fail.
    pub(super) fn doubt_all(&mut self, k: usize, own: CallSig) {
        let b = &mut self.calls[k];
        let Some((_, first)) = b.first else { return };
        let early = std::mem::take(&mut b.early);
        if early.is_empty() && first.outcomes == own.outcomes {
            return;
        }
        let said =
            |peer: u32| early.iter().find(|(one, _)| *one == peer).map_or(first.outcomes, |(_, said)| *said);
        let mut peers: Vec<u32> = b.places.iter().map(|(_, from, _)| *from).collect();
        peers.sort_unstable();
        peers.dedup();
        peers.retain(|peer| said(*peer) != own.outcomes);
        let known = std::mem::take(&mut b.early_outcomes);
        for peer in peers {
            self.doubt(k, peer);
        }
        for (peer, outcomes) in known {
            self.hear_outcomes(k, peer, outcomes.as_bytes(), true);
        }
    }

    /// A peer's program has seen other calls fail than this one: asks which.
    pub(super) fn doubt(&mut self, k: usize, peer: u32) {
        let b = &mut self.calls[k];
        if !b.doubts.iter().any(|(one, _)| *one == peer) {
            b.doubts.push((peer, false));
            let (comm, call) = (b.comm, b.call);
            self.tell_outcomes(peer, comm, call, 0);
        }
    }

    /// Sends a peer what this rank's program knows.
    pub(super) fn tell_outcomes(&mut self, peer: u32, comm: u64, call: u64, round: u32) {
        let Some(outcomes) = self.outcomes_of(comm) else { return };
        let payload = outcomes.to_wire();
        let header = Header { round, ..Header::control(FrameKind::Outcomes, comm, call) };
        self.replies.push(Reply { to: peer, header, payload });
    }

    /// A peer says what its program knows of the calls before one that this rank is in.
    pub(super) fn hear_outcomes(&mut self, k: usize, peer: u32, bytes: &[u8], asks: bool) {
        let (comm, call) = (self.calls[k].comm, self.calls[k].call);
        let Some(own) = self.outcomes_of(comm) else { return };
        let error = match Outcomes::from_wire(bytes) {
            Some(theirs) if own.fit(&theirs, call) => None,
            Some(_) => Some(self.differs_from(comm, peer)),
            None => Some(Error::Corrupt { rank: peer, message: "outcomes that make no sense".to_owned() }),
        };
        let b = &mut self.calls[k];
        match b.doubts.iter_mut().find(|(one, _)| *one == peer) {
            Some((_, is_settled)) => *is_settled = true,
            None => b.doubts.push((peer, true)),
        }
        b.version += 1;
        if let Some(error) = error {
            b.fail(error.clone(), false);
            self.part(comm, call, &error);
        } else if let Some(error) = b.disputed.clone().filter(|_| !b.has_doubts()) {
            b.fail(error, false);
        }
        if asks {
            self.tell_outcomes(peer, comm, call, 1);
        }
    }

    /// The error of two ranks whose programs do not know the same.
    fn differs_from(&self, comm: u64, peer: u32) -> Error {
        let me = self.comm(comm).map_or(self.me, |state| state.group.ranks[state.group.me as usize]);
        diverged(me, peer)
    }

    /// A peer that says no more has not said what its program knows of the calls before.
    pub(super) fn doubt_for_good(&mut self, peer: u32, comm: Option<u64>) {
        for k in 0..self.calls.len() {
            let b = &self.calls[k];
            if comm.is_none_or(|comm| comm == b.comm) && b.doubts.contains(&(peer, false)) {
                let error = self.differs_from(b.comm, peer);
                self.calls[k].fail(error, false);
            }
        }
    }

    /// A peer has left a call with an error. If this rank has completed that call, ranks disagree about its outcome: a
    /// program that repeats failed calls would from now on pair different calls. So no later call of the group succeeds,
    /// those included that have begun.
    pub(super) fn diverge(&mut self, comm: u64, call: u64, from: u32, error: &Error) {
        let Some(state) = self.comms.iter_mut().find(|c| c.group.comm == comm) else { return };
        let me = state.group.ranks[state.group.me as usize];
        if state.failed_calls.contains(&call) {
            return;
        }
        let (left, right, why) = (
            state.group.named().place_of(from),
            state.group.named().me,
            state.group.with_group_ranks(error.clone()),
        );
        let cause =
            format!("rank {left} left call {call} with an error ({why}) just as rank {right} completed it");
        self.part(comm, call, &Error::Diverged { left: from, right: me, cause });
    }

    /// After a call that has ended with [`Error::Diverged`] no later one of the group succeeds.
    pub(super) fn part(&mut self, comm: u64, call: u64, error: &Error) {
        let Some(state) = self.comms.iter_mut().find(|c| c.group.comm == comm) else { return };
        let error = state.diverged.get_or_insert(error.clone());
        let later = |b: &&mut CallBox| b.comm == comm && b.call > call && b.call != SHRINK_CALL;
        for b in self.calls.iter_mut().filter(later).filter(|b| b.own.is_some()) {
            b.fail(error.clone(), false);
        }
    }
}

impl CallBox {
    /// Whether a peer is to say first what its program knows.
    fn has_doubts(&self) -> bool {
        self.doubts.iter().any(|(_, is_settled)| !is_settled)
    }

    /// Whether a peer is to say first why it has called something else, or seen other calls fail.
    pub(super) fn waits_for_word(&self) -> bool {
        self.disputed.is_some() || self.has_doubts()
    }
}

fn diverged(one: u32, other: u32) -> Error {
    let cause = "a call failed on one of them just as the other completed it".to_owned();
    Error::Diverged { left: one.min(other), right: one.max(other), cause }
}
