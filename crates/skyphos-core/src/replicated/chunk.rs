//! Chunks of messages, and calls that are over: the terms in which replicas agree.

use crate::frame::Header;
use crate::slab::Payload;
use std::collections::{BTreeMap, BTreeSet};

/// The name of a chunk: the same on all replicas of its sender and of its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk {
    /// Group and call.
    pub comm: u64,
    /// The call's number in the group.
    pub call: u64,
    /// Exchange of the call.
    pub round: u32,
    /// The rank at the other end.
    pub rank: u32,
    /// Its number in the message.
    pub seq: u32,
}

impl Chunk {
    /// The chunk of a frame to or from `rank`.
    pub fn of(header: &Header, rank: u32) -> Chunk {
        let Header { comm, call, round, seq, .. } = *header;
        Chunk { comm, call, round, rank, seq }
    }
}

/// The data of a chunk.
pub trait Body: Clone {
    /// Its length.
    fn bytes(&self) -> usize;
    /// Equal for equal bytes, and almost never for others.
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
    /// The chunk; its rank is the sender's, or the receiver's if a sender finds it.
    pub chunk: Chunk,
    /// The two processes.
    pub processes: (u32, u32),
}

/// Calls that are over here. They end in about the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Over(BTreeMap<u64, (u64, BTreeSet<u64>)>);

impl Over {
    /// A call has ended.
    pub fn end(&mut self, comm: u64, call: u64) {
        let (below, above) = self.0.entry(comm).or_default();
        above.insert(call);
        while above.remove(below) {
            *below += 1;
        }
    }

    /// Whether a call has ended.
    pub fn has(&self, comm: u64, call: u64) -> bool {
        self.0.get(&comm).is_some_and(|(below, above)| call < *below || above.contains(&call))
    }

    /// The first call of a group that has not ended.
    pub fn first_open(&self, comm: u64) -> u64 {
        self.0.get(&comm).map_or(0, |(below, _)| *below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_end_in_any_order() {
        let mut over = Over::default();
        assert!(!over.has(7, 0) && over.first_open(7) == 0);
        [1, 0, 4].into_iter().for_each(|call| over.end(7, call));
        let ended: Vec<u64> = (0..6).filter(|call| over.has(7, *call)).collect();
        assert_eq!((ended, over.first_open(7)), (vec![0, 1, 4], 2));
        [3, 2].into_iter().for_each(|call| over.end(7, call));
        assert_eq!(over.first_open(7), 5);
        assert!(!over.has(8, 0));
    }
}
