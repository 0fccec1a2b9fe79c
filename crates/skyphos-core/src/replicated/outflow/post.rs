//! Posting of chunks to all replicas of a receiver, and their acknowledgements.

use super::queue::{Fallback, Queued};
use super::state::{Outflow, Pending};
use crate::frame::Header;
use crate::replicated::chunk::{Body, Chunk, ChunkMismatch};
use skyphos_types::{ProcessId, WorldRank};
use std::time::Duration;

impl<B: Body> Outflow<B> {
    /// Posts a chunk to all replicas of `to`. `prompt`: whether a process has sent anything lately. Returns a mismatch if a
    /// sibling has sent other bytes.
    pub fn post(
        &mut self,
        now: Duration,
        to: WorldRank,
        header: Header,
        body: B,
        prompt: impl Fn(ProcessId) -> bool,
    ) -> Option<ChunkMismatch> {
        let chunk = Chunk::of(&header, to);
        let mut receivers: Vec<ProcessId> = self.receivers(to, chunk.comm, chunk.call).collect();
        let mut mismatch = None;
        if let Some((has, sum, by)) = self.early_acks.remove(&chunk) {
            receivers.retain(|process| has & self.bit(*process) == 0);
            if sum != body.checksum() {
                mismatch = Some(ChunkMismatch { chunk, processes: (self.numbering.me(), ProcessId(by.0)) });
            }
        }
        if receivers.is_empty() {
            return mismatch;
        }
        let alone = self.numbering.siblings().all(|process| !self.is_active(process, &chunk));
        let bytes = body.bytes();
        let missing = receivers.iter().map(|process| self.bit(*process)).sum();
        let key = (chunk.comm, chunk.call, chunk.round);
        self.exchanges += u64::from(std::mem::replace(&mut self.last_exchange, key) != key);
        let exchange = self.exchanges;
        self.pending.insert(chunk, Pending { header, body, missing, exchange, since: now });
        if alone && receivers.len() > 1 {
            let mut first: Vec<ProcessId> =
                receivers.iter().copied().filter(|process| prompt(*process)).collect();
            if first.is_empty() {
                first.clone_from(&receivers);
            }
            let via = first[(chunk.seq.wrapping_add(chunk.round.0) as usize) % first.len()];
            self.queues[via.index()].push(Queued::Own { chunk, bytes, to_forward: true });
            for process in receivers.into_iter().filter(|process| *process != via) {
                self.queues[process.index()].fallback.push_back(Fallback { chunk, via: Some(via) });
            }
            return mismatch;
        }
        for process in receivers {
            let mine = self.owner(&chunk, process) == self.numbering.me();
            let queue = &mut self.queues[process.index()];
            match mine {
                true => queue.push(Queued::Own { chunk, bytes, to_forward: false }),
                false => queue.fallback.push_back(Fallback { chunk, via: None }),
            }
        }
        mismatch
    }

    /// Notes that process `at` has got a chunk with this checksum from `by`. Returns a mismatch if this process has other bytes.
    pub fn acknowledge(
        &mut self,
        now: Duration,
        at: ProcessId,
        chunk: Chunk,
        sum: u32,
        by: ProcessId,
        over: bool,
    ) -> Option<ChunkMismatch> {
        self.clear_late(by);
        self.last_delivery.insert(by, now);
        let bit = self.bit(at);
        let Some(pending) = self.pending.get_mut(&chunk) else {
            if !over {
                let early = self.early_acks.entry(chunk).or_insert((0, sum, by));
                early.0 |= bit;
                if early.1 != sum {
                    return Some(ChunkMismatch { chunk, processes: (early.2, by) });
                }
            }
            return None;
        };
        let mismatch = (pending.body.checksum() != sum)
            .then(|| ChunkMismatch { chunk, processes: (self.numbering.me(), by) });
        if pending.missing & bit != 0 {
            pending.missing &= !bit;
            if by != self.numbering.me() {
                self.delay.add(now.saturating_sub(pending.since.max(self.last_progress)));
            }
            if pending.missing == 0 {
                self.pending.remove(&chunk);
            }
        }
        mismatch
    }
}
