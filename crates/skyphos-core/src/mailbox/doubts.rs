//! Doubts: a peer's program knows of other failed calls than this rank's (decision 0028).
//!
//! ```text
//! a frame's hash of outcomes differs:  exchange outcomes with the peer; the call makes no progress meanwhile
//! the peer's outcomes are here:        if both can be at the same point of one program, the call goes on;
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
        let wants_reply = round == Round(0);
        match self.box_of(comm, call) {
            Some(k) if self.calls[k].own_sig.is_some() => {
                self.receive_outcomes(k, from, frame.payload.as_bytes(), wants_reply)
            }
            Some(k) => {
                let early = &mut self.calls[k].early_outcomes;
                early.retain(|(peer, _)| *peer != from);
                early.push((from, frame.payload));
            }
            None if wants_reply => self.send_outcomes(from, comm, call, Round(1)),
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

    /// Records that this rank's program gets the error of a call, which may change its next calls. `at_once`: it gets the error
    /// before the call was under way, and may skip later calls. Losses are agreed on in their own way, and `shrink` may be
    /// repeated.
    pub(crate) fn report_failure(&mut self, comm: CommId, call: CallNumber, error: &Error, at_once: bool) {
        let begun = self.begun(comm);
        let Some(outcomes) = self.outcomes_of(comm).filter(|_| call != SHRINK_CALL) else { return };
        match error {
            Error::PeerLost { .. } => outcomes.forget(call),
            _ => outcomes.fail(call, begun, at_once),
        }
    }

    /// Records that this rank's program has the error of a collective that consists of all calls from `first` on.
    pub(crate) fn report_failure_since(&mut self, comm: CommId, first: CallNumber) {
        let begun = self.begun(comm);
        if first < begun {
            self.outcomes_of(comm).into_iter().for_each(|outcomes| outcomes.fail_since(first, begun));
        }
    }

    /// Records that this rank's program knows that a call has succeeded.
    pub(crate) fn report_success(&mut self, comm: CommId, call: CallNumber) {
        self.outcomes_of(comm).into_iter().for_each(|outcomes| outcomes.succeed(call));
    }

    /// Records that this rank's program will not learn how a call ends.
    pub(crate) fn forget_outcome(&mut self, comm: CommId, call: CallNumber) {
        self.outcomes_of(comm).into_iter().for_each(|outcomes| outcomes.forget(call));
    }

    /// A peer has made a different call: it is at another point of its program, or runs another program.
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
        let Some((_, first)) = b.first_sig else { return };
        let early = std::mem::take(&mut b.early);
        if early.is_empty() && first.outcomes == own.outcomes {
            return;
        }
        let hash_of = |peer: WorldRank| {
            early.iter().find(|(one, _)| *one == peer).map_or(first.outcomes, |(_, hash)| *hash)
        };
        let mut peers: Vec<WorldRank> = b.stream_index.iter().map(|(_, from, _)| *from).collect();
        peers.sort_unstable();
        peers.dedup();
        peers.retain(|peer| hash_of(*peer) != own.outcomes);
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

    /// Sends a peer the outcomes that this rank's program knows; round 0 requests the peer's.
    pub(super) fn send_outcomes(&mut self, peer: WorldRank, comm: CommId, call: CallNumber, round: Round) {
        let Some(outcomes) = self.outcomes_of(comm) else { return };
        let payload = outcomes.to_wire();
        let header = Header { round, ..Header::control(FrameKind::Outcomes, comm, call) };
        self.replies.push(Reply { to: peer, header, payload });
    }

    /// A peer's outcomes have arrived, in a call that this rank is in.
    pub(super) fn receive_outcomes(&mut self, k: usize, peer: WorldRank, bytes: &[u8], wants_reply: bool) {
        let (comm, call) = (self.calls[k].comm, self.calls[k].call);
        let Some(own) = self.outcomes_of(comm) else { return };
        let error = match Outcomes::from_wire(bytes) {
            Some(theirs) if own.fit(&theirs, call) => None,
            Some(_) => Some(self.divergence_from(comm, peer)),
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
        if wants_reply {
            self.send_outcomes(peer, comm, call, Round(1));
        }
    }

    /// The error of this rank and a peer whose programs know different outcomes.
    fn divergence_from(&self, comm: CommId, peer: WorldRank) -> Error {
        diverged(self.rank_in(comm).unwrap_or(self.me), peer)
    }

    /// A peer that is gone can no longer send its outcomes: the calls that wait for them fail.
    pub(super) fn confirm_doubts(&mut self, peer: WorldRank, comm: Option<CommId>) {
        for k in 0..self.calls.len() {
            let b = &self.calls[k];
            if comm.is_none_or(|comm| comm == b.comm) && b.doubts.contains(&(peer, false)) {
                let error = self.divergence_from(b.comm, peer);
                self.calls[k].fail(error, false);
            }
        }
    }

    /// A peer has left a call with an error. If this rank has completed that call, the ranks disagree about its outcome, and a
    /// program that repeats failed calls would from now on pair different calls. So no later call of the group succeeds, not
    /// even a call that has begun.
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
        for b in self.calls.iter_mut().filter(later).filter(|b| b.own_sig.is_some()) {
            b.fail(error.clone(), false);
        }
    }
}

fn diverged(one: WorldRank, other: WorldRank) -> Error {
    let cause = "a call failed on one of them just as the other completed it".to_owned();
    Error::Diverged { left: one.min(other).0, right: one.max(other).0, cause }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use crate::frame::CallKind;
    use crate::group::Group;
    use crate::slab::Pool;
    use crate::transport::{Event, Loss};
    use skyphos_types::GroupRank;
    use std::sync::Arc;

    const GROUP: CommId = CommId(7);

    /// The knowledge of a rank's program about its first call when it makes the second.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Knows {
        Success,
        Failure,
        /// The call failed at once, before it was under way.
        FailureAtOnce,
        /// The call is under way.
        NotYet,
        /// The program never reads the outcome.
        Never,
    }
    use Knows::*;

    /// Two ranks without a network: the test moves their frames.
    struct Pair {
        mails: [Mailbox; 2],
        groups: [Arc<Group>; 2],
        /// The second call's signature on each rank.
        sigs: [Option<CallSig>; 2],
    }

    impl Pair {
        fn new(known: [Knows; 2]) -> Pair {
            let group = |me| Arc::new(Group::new(GROUP, vec![WorldRank(0), WorldRank(1)], GroupRank(me)));
            let groups = [group(0), group(1)];
            let addresses: Arc<[String]> = ["host 0".to_owned(), "host 1".to_owned()].into();
            let mut mails = [0, 1].map(|rank| Mailbox::new(WorldRank(rank), addresses.clone()));
            for (mail, (group, knows)) in mails.iter_mut().zip(groups.iter().zip(known)) {
                mail.open_comm(group.clone());
                let (call, _) = mail.begin(group, CallSig::plain(CallKind::Barrier), Arguments::None);
                let error = Error::bad_input("the first call failed");
                match knows {
                    Success => mail.report_success(GROUP, call),
                    Failure => mail.report_failure(GROUP, call, &error, false),
                    FailureAtOnce => mail.report_failure(GROUP, call, &error, true),
                    NotYet => {}
                    Never => mail.forget_outcome(GROUP, call),
                }
            }
            Pair { mails, groups, sigs: [None, None] }
        }

        fn enter(&mut self, rank: usize) {
            let sig = CallSig::plain(CallKind::Barrier);
            let (call, sig) = self.mails[rank].begin(&self.groups[rank], sig, Arguments::None);
            assert_eq!(call, CallNumber(1));
            self.sigs[rank] = Some(sig);
        }

        /// Delivers a frame of the second call from a rank to the other one.
        fn send(&mut self, from: usize) {
            let sig = self.sigs[from].expect("the rank is in the call");
            let header = Header { sig, ..Header::control(FrameKind::Data, GROUP, CallNumber(1)) };
            let frame = Frame { header, payload: Pool::default().copy_of(&[]) };
            self.mails[1 - from].deliver(Event::Frame { from: WorldRank(from as u32), frame });
        }

        /// Delivers replies until neither rank has any.
        fn exchange(&mut self) {
            while self.mails.iter().any(|mail| !mail.replies.is_empty()) {
                for from in [0, 1] {
                    for Reply { to, header, payload } in std::mem::take(&mut self.mails[from].replies) {
                        assert_eq!(to, WorldRank(1 - from as u32));
                        let frame = Frame { header, payload: Pool::default().copy_of(&payload) };
                        self.mails[1 - from].deliver(Event::Frame { from: WorldRank(from as u32), frame });
                    }
                }
            }
        }

        fn errors(&mut self) -> [Option<Error>; 2] {
            self.mails.each_mut().map(|mail| mail.look(GROUP, CallNumber(1)).err().map(|(error, _)| error))
        }
    }

    #[test]
    fn calls_go_on_only_if_both_programs_can_be_at_the_same_point() {
        let table = [
            ([Success, Success], true),
            ([Failure, Failure], true),
            ([Success, Failure], false),
            ([NotYet, Failure], true),
            ([NotYet, FailureAtOnce], false),
            ([Never, Failure], true),
            ([FailureAtOnce, Failure], true),
            ([Never, NotYet], true),
        ];
        for (known, goes_on) in table.into_iter().flat_map(|([a, b], on)| [([a, b], on), ([b, a], on)]) {
            // Frames of rank 0 arrive before rank 1 has entered the call, and after.
            for early in [false, true] {
                let mut pair = Pair::new(known);
                pair.enter(0);
                if early {
                    pair.send(0);
                    pair.exchange();
                }
                pair.enter(1);
                if !early {
                    pair.send(0);
                }
                pair.send(1);
                pair.exchange();
                for error in pair.errors() {
                    let diverged = matches!(error, Some(Error::Diverged { left: 0, right: 1, .. }));
                    assert_eq!(
                        (error.is_none(), diverged),
                        (goes_on, !goes_on),
                        "{known:?}, early: {early}: {error:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn after_a_divergence_no_later_call_succeeds() {
        let mut pair = Pair::new([Success, Failure]);
        pair.enter(0);
        pair.enter(1);
        pair.send(0);
        pair.exchange();
        for (mail, group) in pair.mails.iter_mut().zip(&pair.groups) {
            let (later, _) = mail.begin(group, CallSig::plain(CallKind::Barrier), Arguments::None);
            assert!(matches!(mail.look(GROUP, later), Err((Error::Diverged { .. }, _))));
        }
    }

    #[test]
    fn a_late_abort_from_this_ranks_own_transport_ends_no_later_call() {
        let mut pair = Pair::new([Success, Success]);
        pair.enter(0);
        let [mail, _] = &mut pair.mails;
        mail.end(GROUP, CallNumber(0), true);
        let error = Error::Corrupt { rank: 1, message: "its replicas sent different bytes".to_owned() };
        let mut abort_from = |rank| {
            let header = Header::control(FrameKind::Abort, GROUP, CallNumber(0));
            let frame = Frame { header, payload: Pool::default().copy_of(&error.to_wire()) };
            mail.deliver(Event::Frame { from: WorldRank(rank), frame });
            mail.look(GROUP, CallNumber(1)).err()
        };
        assert!(abort_from(0).is_none());
        let error = abort_from(1);
        assert!(matches!(error, Some((Error::Diverged { .. }, _))), "{error:?}");
    }

    #[test]
    fn a_doubted_peer_that_is_lost_ends_the_call() {
        let mut pair = Pair::new([Success, Failure]);
        pair.enter(0);
        pair.enter(1);
        pair.send(1);
        let [mail, _] = &mut pair.mails;
        let down = Event::PeerDown { rank: WorldRank(1), cause: "it has left".to_owned(), loss: Loss::Left };
        mail.deliver(down);
        assert!(matches!(mail.look(GROUP, CallNumber(1)), Err((Error::Diverged { .. }, _))));
    }

    #[test]
    fn malformed_outcomes_end_the_call_with_their_sender() {
        let mut pair = Pair::new([Success, Success]);
        pair.enter(0);
        let header = Header::control(FrameKind::Outcomes, GROUP, CallNumber(1));
        let frame = Frame { header, payload: Pool::default().copy_of(&[1, 2, 3]) };
        pair.mails[0].deliver(Event::Frame { from: WorldRank(1), frame });
        let error = pair.mails[0].look(GROUP, CallNumber(1)).err();
        assert!(matches!(error, Some((Error::Corrupt { rank: 1, .. }, _))), "{error:?}");
    }
}
