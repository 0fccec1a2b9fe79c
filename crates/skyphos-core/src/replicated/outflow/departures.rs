//! Departures: lost processes, processes that leave a call, and the end of a call.

use super::queue::{Queue, Queued};
use super::state::Outflow;
use crate::replicated::chunk::{Body, Chunk};
use skyphos_types::{CallNumber, CommId, ProcessId};
use std::collections::{BTreeMap, BTreeSet};

impl<B: Body> Outflow<B> {
    /// Notes that a process is lost.
    pub fn lose(&mut self, process: ProcessId) {
        if !self.lost.insert(process) {
            return;
        }
        self.clear_late(process);
        let queue = &mut self.queues[process.index()];
        (queue.queued, queue.fallback, queue.bytes) = Default::default();
        for fallback in self.queues.iter_mut().flat_map(|queue| queue.fallback.iter_mut()) {
            fallback.via = fallback.via.filter(|via| *via != process);
        }
        let (rank, bit) = (self.numbering.rank_of(process), self.bit(process));
        self.pending.retain(|chunk, pending| {
            pending.missing &= if chunk.rank == rank { !bit } else { !0 };
            pending.missing != 0
        });
        self.forward_if_alone();
    }

    /// If this process is the only active one of its rank: lets a receiver forward this process's unsent chunks to the receiver's
    /// siblings, which would have got them from a sibling of this process.
    pub(super) fn forward_if_alone(&mut self) {
        let missing = |process: ProcessId| self.lost.contains(&process) || self.late.contains(&process);
        if !self.numbering.siblings().all(missing) {
            return;
        }
        let own = |(to, queue): (usize, &Queue<B>)| -> Vec<(Chunk, u32)> {
            let chunk = |queued: &Queued<B>| match queued {
                Queued::Own { chunk, .. } => Some((*chunk, to as u32)),
                Queued::Forwarded(..) => None,
            };
            queue.queued.iter().filter_map(chunk).collect()
        };
        let queued: BTreeMap<Chunk, u32> = self.queues.iter().enumerate().flat_map(own).collect();
        let mut forwarded = BTreeSet::new();
        for fallback in self.queues.iter_mut().flat_map(|queue| queue.fallback.iter_mut()) {
            if let Some(via) = queued.get(&fallback.chunk).filter(|_| fallback.via.is_none()) {
                fallback.via = Some(ProcessId(*via));
                forwarded.insert((fallback.chunk, *via));
            }
        }
        for (to, queue) in self.queues.iter_mut().enumerate() {
            for queued in &mut queue.queued {
                if let Queued::Own { chunk, to_forward, .. } = queued {
                    *to_forward |= forwarded.contains(&(*chunk, to as u32));
                }
            }
        }
    }

    /// Notes that a process has left a call, in which it sends and receives nothing more.
    pub fn leave(&mut self, process: ProcessId, comm: CommId, call: CallNumber) {
        self.left.insert((comm, call, process));
        let (rank, bit) = (self.numbering.rank_of(process), self.bit(process));
        self.pending.retain(|chunk, pending| {
            if (chunk.comm, chunk.call, chunk.rank) == (comm, call, rank) {
                pending.missing &= !bit;
            }
            pending.missing != 0
        });
    }

    /// Notes that a call is over here; if it has `failed`, drops its unsent chunks. `over`: whether any given call is over.
    pub fn end(
        &mut self,
        comm: CommId,
        call: CallNumber,
        failed: bool,
        over: impl Fn(CommId, CallNumber) -> bool,
    ) {
        let is_it = |chunk: &Chunk| (chunk.comm, chunk.call) == (comm, call);
        self.early_acks.retain(|chunk, _| !is_it(chunk));
        if failed {
            self.pending.retain(|chunk, _| !is_it(chunk));
        }
        if !self.left.is_empty() {
            let pending: BTreeSet<(CommId, CallNumber)> =
                self.pending.keys().map(|chunk| (chunk.comm, chunk.call)).collect();
            self.left.retain(|(comm, call, _)| !over(*comm, *call) || pending.contains(&(*comm, *call)));
        }
    }
}
