//! Extensions that only some transports offer. Each method's default means "not offered".

use crate::frame::Header;
use crate::loss::Health;
use crate::slab::PayloadMut;
use skyphos_types::{CallNumber, CommId, DType, ProcessId, ReduceOp, WorldRank};

/// Collectives of the transport's own, which work on numbers in buffers of the pool.
pub trait NativeCollectives {
    /// Whether there is an allreduce of all ranks for numbers of this type. The same on all ranks.
    fn has_allreduce(&self, op: &ReduceOp, dtype: DType) -> bool {
        let _ = (op, dtype);
        false
    }

    /// Begins an allreduce of one chunk. The result comes as a frame from this rank with this header; results come in the order
    /// in which the allreduces were begun. All ranks begin the same allreduces in the same order, and cannot cancel any.
    fn begin_allreduce(&mut self, header: Header, op: &ReduceOp, dtype: DType, part: PayloadMut) {
        let _ = (header, op, dtype, part);
        unreachable!("this transport has no allreduce of its own");
    }
}

/// A transport whose ranks are several processes each. It is polled all the time, also while no call is under way.
pub trait Replication {
    /// This process's number, and the number of processes.
    fn process(&self) -> Option<(ProcessId, u32)> {
        None
    }

    /// The health of all processes.
    fn health(&self) -> Option<Vec<Health>> {
        None
    }

    /// Notes that a call begins on this rank, with this checksum of its input.
    fn set_input_checksum(&mut self, comm: CommId, call: CallNumber, sum: u64) {
        let _ = (comm, call, sum);
    }

    /// Notes that a call has ended on this rank, `failed` or not.
    fn end_call(&mut self, comm: CommId, call: CallNumber, failed: bool) {
        let _ = (comm, call, failed);
    }
}

/// Methods that a replicated group needs of the transport below it.
pub trait UnderReplicas {
    /// Bytes posted to a peer that its system has not acknowledged, the backlog included; `None`: unknown.
    fn unacknowledged(&self, to: WorldRank) -> Option<usize> {
        let _ = to;
        None
    }

    /// From now on hands at most about `bytes` bytes to the system beyond those that the peer has taken. Later frames stay
    /// queued here, where they can be cancelled.
    fn limit_ahead(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Declares a peer lost, although it may be alive; notifies it if possible, and reports the loss at the next poll.
    fn give_up(&mut self, peer: WorldRank, cause: &str) {
        let _ = (peer, cause);
    }
}
