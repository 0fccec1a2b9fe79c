//! The state of the chunks that replicas of a rank send.

use super::queue::{Fallback, Queue, Queued};
use crate::frame::Header;
use crate::replicated::chunk::{Body, Chunk};
use crate::replicated::delay::DelayEstimate;
use crate::replicated::numbering::Numbering;
use skyphos_types::{CallNumber, CommId, ProcessId, Round, WorldRank};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A chunk that some receivers may not have yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pending<B> {
    pub(super) header: Header,
    pub(super) body: B,
    /// A bit for each replica of the receiver that has not acknowledged it.
    pub(super) missing: u32,
    /// Number of its exchange, in the order in which exchanges begin.
    pub(super) exchange: u64,
    pub(super) since: Duration,
}

/// Chunks to be sent, and chunks that siblings should send.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outflow<B> {
    pub(super) numbering: Numbering,
    /// Lost processes.
    pub(super) lost: BTreeSet<ProcessId>,
    /// Siblings that have not sent their chunks in time.
    pub(super) late: BTreeSet<ProcessId>,
    /// Chunks sent in place of late siblings, since the first of them became late.
    pub(super) sent_instead: usize,
    /// Group, call and process: processes that have left a call.
    pub(super) left: BTreeSet<(CommId, CallNumber, ProcessId)>,
    pub(super) queues: Vec<Queue<B>>,
    pub(super) pending: BTreeMap<Chunk, Pending<B>>,
    /// The exchange of the chunk that was posted last, and its number.
    pub(super) last_exchange: (CommId, CallNumber, Round),
    pub(super) exchanges: u64,
    /// Acknowledged chunks that this process has not posted yet: bits of the receivers, checksum, and sender.
    pub(super) early_acks: BTreeMap<Chunk, (u32, u32, ProcessId)>,
    /// When a frame of this process last moved: siblings' frames will be moving too.
    pub(super) last_progress: Duration,
    /// By sibling: when one of its chunks was last acknowledged.
    pub(super) last_delivery: BTreeMap<ProcessId, Duration>,
    /// When siblings were last checked for being late.
    pub(super) last_check: Duration,
    pub(super) delay: DelayEstimate,
}

impl<B: Body> Outflow<B> {
    /// An empty state.
    pub fn new(numbering: Numbering) -> Outflow<B> {
        Outflow {
            numbering,
            lost: BTreeSet::new(),
            late: BTreeSet::new(),
            sent_instead: 0,
            left: BTreeSet::new(),
            queues: (0..numbering.processes()).map(|_| Queue::default()).collect(),
            pending: BTreeMap::new(),
            last_exchange: Default::default(),
            exchanges: 0,
            early_acks: BTreeMap::new(),
            last_progress: Duration::ZERO,
            last_delivery: BTreeMap::new(),
            last_check: Duration::ZERO,
            delay: DelayEstimate::default(),
        }
    }

    /// Processes of a rank that take part in a call.
    pub(super) fn receivers(
        &self,
        rank: WorldRank,
        comm: CommId,
        call: CallNumber,
    ) -> impl Iterator<Item = ProcessId> + use<'_, B> {
        let here = move |p: &ProcessId| !self.lost.contains(p) && !self.left.contains(&(comm, call, *p));
        self.numbering.processes_of(rank).filter(here)
    }

    /// Whether a replica of this rank sends its chunks.
    pub(super) fn is_active(&self, process: ProcessId, chunk: &Chunk) -> bool {
        process == self.numbering.me()
            || !self.lost.contains(&process)
                && !self.late.contains(&process)
                && !self.left.contains(&(chunk.comm, chunk.call, process))
    }

    /// The replica of this rank that owns a chunk to a process.
    pub(super) fn owner(&self, chunk: &Chunk, to: ProcessId) -> ProcessId {
        let all = self.numbering.processes_of(self.numbering.rank());
        let count = all.clone().count() as u32;
        // Messages of one chunk are spread too.
        let words = [chunk.round.0, chunk.rank.0, self.numbering.replica_of(to)];
        let turn = words.into_iter().fold(chunk.seq, u32::wrapping_add);
        let in_turn = all.clone().skip((turn % count) as usize).chain(all.take((turn % count) as usize));
        in_turn.into_iter().find(|process| self.is_active(*process, chunk)).unwrap_or(self.numbering.me())
    }

    pub(super) fn bit(&self, process: ProcessId) -> u32 {
        1 << self.numbering.replica_of(process)
    }

    /// Counts a process as late no more: it has sent a chunk, or is lost.
    pub(super) fn clear_late(&mut self, process: ProcessId) {
        if self.late.remove(&process) && self.late.is_empty() {
            self.sent_instead = 0;
        }
    }

    /// Forwards another rank's chunk to a sibling.
    pub fn forward(&mut self, to: ProcessId, header: Header, body: B) {
        if !self.lost.contains(&to) {
            self.queues[to.index()].push(Queued::Forwarded(header, body));
        }
    }

    /// Whether this process may have to send a sibling's chunks, or chunks that a receiver should forward.
    pub(super) fn has_missing_sender(&self) -> bool {
        !self.late.is_empty() || !self.left.is_empty() || !self.lost.is_empty()
    }

    pub(super) fn is_missing(&self, chunk: &Chunk, bit: u32) -> bool {
        self.pending.get(chunk).is_some_and(|pending| pending.missing & bit != 0)
    }

    /// The first chunk to a process that another one should send.
    pub(super) fn first_fallback(&mut self, to: ProcessId) -> Option<Fallback> {
        let bit = self.bit(to);
        while let Some(front) = self.queues[to.index()].fallback.front()
            && !self.is_missing(&front.chunk, bit)
        {
            self.queues[to.index()].fallback.pop_front();
        }
        self.queues[to.index()].fallback.front().copied()
    }

    /// Bytes queued for a process.
    pub fn bytes(&self, to: ProcessId) -> usize {
        self.queues[to.index()].bytes
    }

    /// Whether nothing is queued or pending.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.queues.iter().all(|queue| queue.queued.is_empty())
    }

    /// Whether a sibling is late.
    pub fn is_late(&self, process: ProcessId) -> bool {
        self.late.contains(&process)
    }
}
