//! The mailbox's state: its groups, the boxes of their calls, and the ranks that are gone.

use super::absence::{Departure, LostPeer};
use super::call_box::CallBox;
use super::messages::Messages;
use super::outcomes::Outcomes;
use super::reply::Reply;
use crate::group::Group;
use crate::slab::Payload;
use skyphos_types::{CallNumber, CommId, Error, WorldRank};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// An open group.
pub(super) struct GroupState {
    pub(super) group: Arc<Group>,
    pub(super) next_call: CallNumber,
    /// Number of calls that failed because ranks had made different calls.
    pub(super) mismatches: u64,
    /// The last calls that failed here, in the order in which they ended.
    pub(super) failed_calls: VecDeque<CallNumber>,
    /// Outcomes of earlier calls, as far as this rank's program knows them.
    pub(super) outcomes: Outcomes,
    /// Set once a peer reports an error in a call that this rank has completed: no later call succeeds.
    pub(super) diverged: Option<Error>,
}

/// Frames of all groups of a process, matched to calls.
pub(crate) struct Mailbox {
    pub(super) calls: Vec<CallBox>,
    pub(super) spare_calls: Vec<CallBox>,
    pub(super) spare_chunks: Vec<VecDeque<Payload>>,
    pub(super) groups: Vec<GroupState>,
    pub(super) closed: Vec<CommId>,
    /// Ranks that are lost or have left.
    pub(super) lost_peers: BTreeMap<WorldRank, LostPeer>,
    /// Address of each peer, for errors.
    pub(super) addresses: Arc<[String]>,
    /// By group and rank: ranks that make no more calls in a group.
    pub(super) departed: BTreeMap<(CommId, WorldRank), Departure>,
    /// By peer: the error with which it left a call that was over here. If the peer is lost next, this is the reason.
    pub(super) last_errors: BTreeMap<WorldRank, Error>,
    pub(super) messages: Messages,
    /// This rank in the transport.
    pub(super) me: WorldRank,
    pub(crate) replies: Vec<Reply>,
}

impl Mailbox {
    pub(crate) fn new(me: WorldRank, addresses: Arc<[String]>) -> Mailbox {
        Mailbox {
            calls: Vec::new(),
            spare_calls: Vec::new(),
            spare_chunks: Vec::new(),
            groups: Vec::new(),
            closed: Vec::new(),
            lost_peers: BTreeMap::new(),
            departed: BTreeMap::new(),
            last_errors: BTreeMap::new(),
            messages: Messages::default(),
            me,
            addresses,
            replies: Vec::new(),
        }
    }

    pub(crate) fn open_comm(&mut self, group: Arc<Group>) {
        self.groups.push(GroupState {
            group,
            next_call: CallNumber(0),
            mismatches: 0,
            failed_calls: VecDeque::new(),
            outcomes: Outcomes::default(),
            diverged: None,
        });
    }

    pub(crate) fn close_comm(&mut self, comm: CommId) {
        let cause = "its Comm was closed before the call had ended".to_owned();
        let closed = Error::Aborted { rank: self.me.0, cause };
        let group = self.group(comm).map(|state| state.group.clone());
        let error = group.and_then(|group| self.reason_to_stop(&group)).unwrap_or(closed);
        self.close_messages(comm);
        self.groups.retain(|c| c.group.comm != comm);
        self.departed.retain(|(group, _), _| *group != comm);
        self.calls.retain(|b| b.comm != comm || b.own_sig.is_some());
        for b in self.calls.iter_mut().filter(|b| b.comm == comm) {
            b.fail(error.clone(), false);
        }
        self.closed.push(comm);
    }

    pub(crate) fn open_comms(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn group(&self, comm: CommId) -> Option<&GroupState> {
        self.groups.iter().find(|c| c.group.comm == comm)
    }

    /// This rank's number in the transport; `None` if the group is not open.
    pub(super) fn rank_in(&self, comm: CommId) -> Option<WorldRank> {
        self.group(comm).map(|state| state.group.world_rank(state.group.me))
    }

    /// Number of calls of a group that failed because ranks had made different calls.
    pub(crate) fn mismatches(&self, comm: CommId) -> u64 {
        self.group(comm).map_or(0, |state| state.mismatches)
    }

    pub(super) fn find(&mut self, comm: CommId, call: CallNumber) -> Option<&mut CallBox> {
        self.calls.iter_mut().find(|b| b.call == call && b.comm == comm)
    }

    /// The box of a call, made if the call has not begun; `None` if it is over.
    pub(super) fn box_of(&mut self, comm: CommId, call: CallNumber) -> Option<usize> {
        if let Some(k) = self.position(comm, call) {
            return Some(k);
        }
        let over = match self.group(comm) {
            Some(state) => call < state.next_call,
            None => self.closed.contains(&comm),
        };
        if over { None } else { Some(self.new_box(comm, call)) }
    }

    fn position(&self, comm: CommId, call: CallNumber) -> Option<usize> {
        self.calls.iter().position(|b| b.call == call && b.comm == comm)
    }

    /// The box of a call that this rank begins.
    pub(super) fn open_box(&mut self, comm: CommId, call: CallNumber) -> usize {
        self.position(comm, call).unwrap_or_else(|| self.new_box(comm, call))
    }

    fn new_box(&mut self, comm: CommId, call: CallNumber) -> usize {
        let mut fresh = self.spare_calls.pop().unwrap_or_default();
        (fresh.comm, fresh.call) = (comm, call);
        self.calls.push(fresh);
        self.calls.len() - 1
    }
}
