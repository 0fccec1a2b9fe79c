//! A group: its number, its ranks in order, and their topology.
//!
//! All members derive the same number, which identifies the group in frames.

use crate::topology::Topology;
use skyphos_types::{CallNumber, CommId, Error, GroupRank, NO_MEMBER, WorldRank};
use std::sync::Arc;

/// The ranks of a group, in group order, as ranks of the transport.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    /// The number, which is the same on all members.
    pub comm: CommId,
    /// Transport rank of each member.
    pub ranks: Vec<WorldRank>,
    /// This process's index in `ranks`.
    pub me: GroupRank,
    /// The topology of the ranks; the same on all members.
    pub topology: Topology,
    /// For a group that a call made internally: the group that users know, whose ranks error texts name.
    pub named_by: Option<Arc<Group>>,
}

impl Group {
    /// The number of a group that a call of group `comm` has made. Several groups of one call may share it if they exchange no messages.
    pub fn number_after(comm: CommId, call: CallNumber) -> CommId {
        let mixed = comm.0 ^ call.0.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        CommId((mixed ^ mixed >> 29).wrapping_mul(0xb7e1_5162_8aed_2a6b) | 1)
    }

    /// The number of a group of survivors. It depends on the ranks, because before a loss some ranks may have agreed on a larger
    /// group.
    pub fn number_with_ranks(comm: CommId, call: CallNumber, ranks: impl IntoIterator<Item = u32>) -> CommId {
        let first = Group::number_after(comm, call);
        ranks.into_iter().fold(first, |number, rank| Group::number_after(number, CallNumber(u64::from(rank))))
    }

    /// A group of ranks of unknown topology.
    pub fn new(comm: CommId, ranks: Vec<WorldRank>, me: GroupRank) -> Group {
        let topology = Topology::flat(ranks.len() as u32);
        Group { comm, ranks, me, topology, named_by: None }
    }

    /// The group whose ranks errors name.
    pub(crate) fn named(&self) -> &Group {
        self.named_by.as_deref().unwrap_or(self)
    }

    /// The group's number for a rank of the transport; `None` if the rank is not a member.
    pub(crate) fn group_rank(&self, rank: WorldRank) -> Option<GroupRank> {
        self.ranks.iter().position(|member| *member == rank).map(|index| GroupRank(index as u32))
    }

    /// [`Group::group_rank`] as a number for errors: [`NO_MEMBER`] for ranks that are not members.
    pub(crate) fn group_number(&self, rank: WorldRank) -> u32 {
        self.group_rank(rank).map_or(NO_MEMBER, |rank| rank.0)
    }

    /// The transport's number for a rank of the group.
    pub fn world_rank(&self, rank: GroupRank) -> WorldRank {
        self.ranks[rank.index()]
    }

    /// An error with the group's ranks, for its callers. Inside the core and on the wire errors have the transport's ranks.
    pub(crate) fn with_group_ranks(&self, error: Error) -> Error {
        error.renumbered(|rank| self.named().group_number(WorldRank(rank)))
    }

    /// The reverse of [`Group::with_group_ranks`].
    pub(crate) fn with_transport_ranks(&self, error: Error) -> Error {
        error.renumbered(|index| self.named().ranks.get(index as usize).map_or(index, |rank| rank.0))
    }
}
