//! The names of chunks, and the set of calls that are over. Both are the same on all replicas of a rank.

use crate::frame::Header;
use crate::slab::Payload;
use skyphos_types::{CallNumber, CommId, ProcessId, Round, WorldRank};
use std::collections::{BTreeMap, BTreeSet};

/// The name of a chunk: the same on all replicas of its sender and of its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk {
    /// The group.
    pub comm: CommId,
    /// The call's number in the group.
    pub call: CallNumber,
    /// Number of the exchange in the call.
    pub round: Round,
    /// The rank at the other end.
    pub rank: WorldRank,
    /// Its number in the message.
    pub seq: u32,
}

impl Chunk {
    /// The chunk of a frame to or from `rank`.
    pub fn of(header: &Header, rank: WorldRank) -> Chunk {
        let Header { comm, call, round, seq, .. } = *header;
        Chunk { comm, call, round, rank, seq }
    }
}

/// The data of a chunk.
pub trait Body: Clone {
    /// Its length.
    fn bytes(&self) -> usize;
    /// The checksum of its bytes.
    fn checksum(&self) -> u32;
}

impl Body for Payload {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn checksum(&self) -> u32 {
        crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, self.as_bytes()) as u32
    }
}

/// Two replicas of a rank sent different bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkMismatch {
    /// The chunk; its rank is the sender's, or the receiver's if a sender finds the mismatch.
    pub chunk: Chunk,
    /// The two processes.
    pub processes: (ProcessId, ProcessId),
}

/// Calls that are over here. They end in about the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndedCalls(BTreeMap<CommId, (CallNumber, BTreeSet<CallNumber>)>);

impl EndedCalls {
    /// Notes that a call has ended.
    pub fn end(&mut self, comm: CommId, call: CallNumber) {
        let (below, above) = self.0.entry(comm).or_default();
        above.insert(call);
        while above.remove(below) {
            below.advance();
        }
    }

    /// Whether a call has ended.
    pub fn has(&self, comm: CommId, call: CallNumber) -> bool {
        self.0.get(&comm).is_some_and(|(below, above)| call < *below || above.contains(&call))
    }

    /// The first call of a group that has not ended.
    pub fn first_open(&self, comm: CommId) -> CallNumber {
        self.0.get(&comm).map_or(CallNumber(0), |(below, _)| *below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_end_in_any_order() {
        let mut over = EndedCalls::default();
        assert!(!over.has(CommId(7), CallNumber(0)) && over.first_open(CommId(7)) == CallNumber(0));
        [1, 0, 4].into_iter().for_each(|call| over.end(CommId(7), CallNumber(call)));
        let ended: Vec<u64> = (0..6).filter(|call| over.has(CommId(7), CallNumber(*call))).collect();
        assert_eq!((ended, over.first_open(CommId(7))), (vec![0, 1, 4], CallNumber(2)));
        [3, 2].into_iter().for_each(|call| over.end(CommId(7), CallNumber(call)));
        assert_eq!(over.first_open(CommId(7)), CallNumber(5));
        assert!(!over.has(CommId(8), CallNumber(0)));
    }
}
