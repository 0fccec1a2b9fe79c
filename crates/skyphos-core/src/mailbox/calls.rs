//! The life of a call in the mailbox, from its beginning to its end, and a collective's reads from its call's box.

use super::absence::Absence;
use super::call_box::CallBox;
use super::state::Mailbox;
use crate::arguments::Arguments;
use crate::frame::{CallKind, CallSig};
use crate::group::Group;
use crate::slab::Payload;
use skyphos_types::{CallNumber, CommId, Error, GroupRank, Round, WorldRank};
use std::sync::Arc;

/// Number of the call in which the survivors agree on the new group. It is outside of the sequence of calls, since survivors enter it
/// from different calls.
pub(crate) const SHRINK_CALL: CallNumber = CallNumber(1 << 47);

/// Failed calls that a group remembers. A peer reports an error of its own in such a call at most once, soon after.
const FAILED_CALLS: usize = 1024;

/// The result of a read from a stream.
pub(crate) enum Next {
    /// A chunk, and the length of its message.
    Chunk(Payload, u64),
    Nothing,
}

impl Mailbox {
    /// This rank enters its next call. Returns the call's number, and the signature that its frames carry.
    pub(crate) fn begin(
        &mut self,
        group: &Arc<Group>,
        sig: CallSig,
        arguments: Arguments,
    ) -> (CallNumber, CallSig) {
        let state = self.groups.iter_mut().find(|g| g.group.comm == group.comm).expect("group is open");
        let is_shrink = sig.kind == CallKind::Shrink;
        let (call, outcomes) = match is_shrink {
            true => (SHRINK_CALL, 0),
            false => (state.next_call.advance(), state.outcomes.hash()),
        };
        if !is_shrink {
            state.outcomes.begin(call);
        }
        let diverged = state.diverged.clone().filter(|_| !is_shrink);
        let sig = CallSig { outcomes, ..sig };
        let k = self.open_box(group.comm, call);
        let b = &mut self.calls[k];
        (b.own_sig, b.arguments) = (Some(sig), arguments);
        let me = group.world_rank(group.me);
        for (peer, theirs) in [b.first_sig, b.differing_sig].into_iter().flatten() {
            if !theirs.fits(&sig) {
                self.disagree(k, (me, sig), (peer, theirs));
            }
        }
        let ended = self.lost_peers.iter().find(|(rank, peer)| peer.ends(sig) && group.ranks.contains(rank));
        if let Some(error) = ended.and_then(|(rank, _)| self.loss_error(*rank, Some(sig))) {
            self.calls[k].fail(error, false);
        }
        if !is_shrink {
            self.begin_without_departed(k, group, sig);
        }
        if let Some(error) = diverged {
            self.calls[k].fail(error, false);
        }
        self.doubt_early(k, sig);
        (call, sig)
    }

    /// Ranks that make no more calls in the group are absent from this one, or end it.
    fn begin_without_departed(&mut self, k: usize, group: &Group, sig: CallSig) {
        let Mailbox { departed, calls, .. } = self;
        let (b, all) =
            (&mut calls[k], departed.range((group.comm, WorldRank(0))..=(group.comm, WorldRank(u32::MAX))));
        for ((_, rank), departure) in all.filter(|((_, rank), _)| group.ranks.contains(rank)) {
            if departure.ends(b.call, sig) {
                b.fail(departure.error.clone(), true);
            }
            if let Some(why) = departure.absence(b.call).filter(|_| sig.outlives_losses()) {
                b.set_absent(*rank, why);
            }
        }
    }

    /// How many calls of a group this rank has begun.
    pub(crate) fn begun(&self, comm: CommId) -> CallNumber {
        self.group(comm).map_or(CallNumber(0), |state| state.next_call)
    }

    /// The next message of any rank of the group in a round of a call, and its sender's rank in the group.
    pub(crate) fn take_from_any(
        &mut self,
        group: &Group,
        call: CallNumber,
        round: Round,
    ) -> Option<(GroupRank, Payload)> {
        let b = self.find(group.comm, call)?;
        let first = b.stream_index.partition_point(|(at, ..)| *at < round);
        let of_round = b.stream_index[first..].iter().take_while(|(at, ..)| *at == round);
        for (_, from, stream) in of_round {
            if let Some(chunk) = b.streams[*stream as usize].chunks.pop_front() {
                let from = group.group_rank(*from)?;
                return Some((from, chunk));
            }
        }
        None
    }

    /// Ends a call here, completed or failed. Later frames of it are dropped.
    pub(crate) fn end(&mut self, comm: CommId, call: CallNumber, completed: bool) {
        let Some(k) = self.calls.iter().position(|b| b.call == call && b.comm == comm) else { return };
        if call == SHRINK_CALL {
            // The call may be entered again, and then continues.
            (self.calls[k].own_sig, self.calls[k].failed) = (None, None);
            return;
        }
        let mut done = self.calls.swap_remove(k);
        if done.post.is_some() {
            self.end_post(&mut done);
        } else {
            if !completed {
                self.note_failed_call(&done);
            }
            if let Some((error @ Error::PeerLost { rank, .. }, _)) = &done.failed {
                self.note_lost_elsewhere(WorldRank(*rank), error);
            }
        }
        self.spare_chunks.extend(done.take_chunks());
        self.spare_calls.push(done.cleared());
    }

    fn note_failed_call(&mut self, done: &CallBox) {
        let Some(state) = self.groups.iter_mut().find(|g| g.group.comm == done.comm) else { return };
        state.mismatches += u64::from(matches!(done.failed, Some((Error::Mismatch { .. }, _))));
        if state.failed_calls.len() == FAILED_CALLS {
            state.failed_calls.pop_front();
        }
        state.failed_calls.push_back(done.call);
    }

    /// Number of events of a call. `Err`: the error with which it failed, and whether another rank sent it.
    pub(crate) fn look(&mut self, comm: CommId, call: CallNumber) -> Result<u64, (Error, bool)> {
        let b = self.find(comm, call).expect("an open call");
        match &b.failed {
            Some(failed) => Err(failed.clone()),
            None => Ok(b.version),
        }
    }

    /// Number of events of a call; `None` if it failed or is over.
    pub(crate) fn version(&mut self, comm: CommId, call: CallNumber) -> Option<u64> {
        self.find(comm, call).filter(|b| b.failed.is_none()).map(|b| b.version)
    }

    /// Counts an event of a call that no frame has caused.
    pub(crate) fn touch(&mut self, comm: CommId, call: CallNumber) {
        self.find(comm, call).into_iter().for_each(|b| b.version += 1);
    }

    /// Ends a call with an error found on this rank.
    pub(crate) fn fail(&mut self, comm: CommId, call: CallNumber, error: Error) {
        if let Some(b) = self.find(comm, call) {
            b.fail(error, false);
        }
    }

    /// The next chunk of a stream and its message's length, if it has arrived.
    pub(crate) fn take(
        &mut self,
        comm: CommId,
        call: CallNumber,
        from: WorldRank,
        round: Round,
    ) -> Result<Next, Error> {
        let b = self.find(comm, call).expect("an open call");
        if let Some((error, _)) = &b.failed {
            return Err(error.clone());
        }
        if b.is_in_doubt() {
            return Ok(Next::Nothing); // the call may still fail
        }
        if let Ok(index) = b.find_stream(from, round) {
            let stream = &mut b.streams[b.stream_index[index].2 as usize];
            if let Some(chunk) = stream.chunks.pop_front() {
                return Ok(Next::Chunk(chunk, stream.total));
            }
        }
        let own = b.own_sig;
        self.loss_error(from, own).map_or(Ok(Next::Nothing), Err)
    }

    /// Bytes that a peer has consumed of the stream to it. Unlimited for a peer that is gone, since frames to it are dropped.
    pub(crate) fn credit(&mut self, comm: CommId, call: CallNumber, peer: WorldRank, round: Round) -> u64 {
        if self.lost_peers.contains_key(&peer) {
            return u64::MAX / 2;
        }
        let b = self.find(comm, call).expect("an open call");
        b.credits.iter().find(|(p, r, _)| (*p, *r) == (peer, round)).map_or(0, |(_, _, bytes)| *bytes)
    }

    /// The error for a peer that has made a different call and has not sent its arguments yet. The call makes no progress meanwhile.
    pub(crate) fn disputed(&mut self, comm: CommId, call: CallNumber) -> Option<Error> {
        self.find(comm, call)?.disputed.clone()
    }

    /// Whether a call that is done here may end: `Err` if it failed, `false` while it waits for a peer's arguments or outcomes.
    pub(crate) fn may_end(&mut self, comm: CommId, call: CallNumber) -> Result<bool, Error> {
        let b = self.find(comm, call).expect("an open call");
        match &b.failed {
            Some((error, _)) => Err(error.clone()),
            None => Ok(!b.is_in_doubt()),
        }
    }

    /// Ranks that have answered a probe of this call.
    pub(crate) fn present(&mut self, comm: CommId, call: CallNumber) -> Vec<WorldRank> {
        self.find(comm, call).map_or(Vec::new(), |b| b.present.clone())
    }

    /// Ranks that are absent from a call that outlives losses, as ranks of the group.
    pub(crate) fn absences(&mut self, group: &Group, call: CallNumber) -> Vec<(GroupRank, Absence)> {
        let absent = self.find(group.comm, call).map_or(Vec::new(), |b| b.absent.clone());
        let all = self.lost_peers.iter().map(|(rank, peer)| (*rank, peer.absence())).chain(absent);
        all.filter_map(|(rank, why)| Some((group.group_rank(rank)?, why))).collect()
    }

    /// The length of [`Mailbox::absences`], other groups' ranks included.
    pub(crate) fn count_absences(&mut self, group: &Group, call: CallNumber) -> usize {
        let lost = self.lost_peers.len();
        lost + self.find(group.comm, call).map_or(0, |b| b.absent.len())
    }
}
