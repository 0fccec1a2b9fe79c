//! Dense allreduce by direct exchange: each rank reduces one range, which all ranks send to it and which it sends to all.
//!
//! The reduce-scatter and the allgather overlap: a block is sent as soon as it is reduced. Cost: 2 (P - 1) α and
//! 2 (P - 1)/P n β. Memory: chunks that wait for an earlier rank's, and reduced blocks not yet sent to the slowest peer.

use super::{GATHER, REDUCE, finish, one_round, ranges};
use crate::clock::Effort;
use crate::collectives::ring_pipeline::numbers;
use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::slab::Payload;
use skyphos_kernels::fold_all;
use skyphos_types::{Element, Error, GroupRank, ReduceOp, Result};
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes of a block, which is reduced and sent as a whole.
const BLOCK_BYTES: usize = 64 * 1024;

/// One peer's values of this rank's range.
struct PeerValues {
    incoming: Incoming,
    chunks: VecDeque<Payload>,
    /// Numbers received.
    received: usize,
    /// Numbers of the first chunk that have been reduced.
    used: usize,
}

/// Reduces `values` of all ranks into `out`.
pub async fn direct<T: Element>(ep: &Endpoint, op: &ReduceOp, values: &[T], out: &mut [T]) -> Result<()> {
    if one_round::applies(ep, op, size_of_val(values)) {
        return one_round::one_round(ep, op, values, out).await;
    }
    let (me, size) = (ep.rank().0, ep.size());
    let ranges = ranges(values.len(), size);
    let mine = ranges[me as usize].clone();
    let bytes = |range: &Range<usize>| (range.len() * size_of::<T>()) as u64;
    let peers: Vec<u32> = (1..size).map(|step| (me + step) % size).collect();
    let mut scatter: Vec<Outgoing> =
        peers.iter().map(|p| Outgoing::new(GroupRank(*p), REDUCE, bytes(&ranges[*p as usize]))).collect();
    let mut gather: Vec<(Outgoing, usize)> =
        peers.iter().map(|p| (Outgoing::new(GroupRank(*p), GATHER, bytes(&mine)), 0)).collect();
    let mut sources: Vec<Option<PeerValues>> = (0..size)
        .map(|rank| {
            (rank != me).then(|| PeerValues {
                incoming: Incoming::new(GroupRank(rank), REDUCE),
                chunks: VecDeque::new(),
                received: 0,
                used: 0,
            })
        })
        .collect();
    let mut results: Vec<(Incoming, usize)> =
        peers.iter().map(|p| (Incoming::new(GroupRank(*p), GATHER), 0)).collect();
    // Reduced blocks not yet sent to the slowest peer.
    let mut reduced: VecDeque<Payload> = VecDeque::new();
    let (mut first_block, mut done) = (0, 0);
    let block = (BLOCK_BYTES / size_of::<T>()).max(1);
    if mine.is_empty() {
        reduced.push_back(Payload::default());
    }
    loop {
        let mut moved = false;
        for (send, peer) in scatter.iter_mut().zip(&peers) {
            if let Some(range) = send.next_range(ep, size_of::<T>()) {
                let mut chunk = ep.chunk(range.len());
                let start = ranges[*peer as usize].start;
                let from = start + range.start / size_of::<T>()..start + range.end / size_of::<T>();
                ep.spend(Effort::Dense { bytes: 2 * chunk.len() });
                chunk.as_slice_mut().copy_from_slice(&values[from]);
                send.push(ep, chunk);
                moved = true;
            }
        }
        for (rank, source) in sources.iter_mut().enumerate() {
            let Some(source) = source else { continue };
            while let Some(chunk) = source.incoming.next(ep)? {
                source.received += numbers::<T>(ep, rank as u32, &chunk, source.received, mine.len())?.len();
                if !chunk.is_empty() {
                    source.chunks.push_back(chunk);
                }
                moved = true;
            }
        }
        // Reduces the blocks that all peers have sent.
        let ready = sources.iter().flatten().map(|s| s.received).min().unwrap_or(mine.len());
        while done < mine.len() && (ready == mine.len() || done + block <= ready) {
            let end = (done + block).min(mine.len());
            let acc = &mut out[mine.start + done..mine.start + end];
            for (rank, source) in sources.iter_mut().enumerate() {
                match source {
                    None if rank == 0 => acc.copy_from_slice(&values[mine.start + done..mine.start + end]),
                    None => fold_all(op, acc, &values[mine.start + done..mine.start + end])?,
                    Some(source) => source.take(op, acc, rank == 0)?,
                }
            }
            finish(op, acc, size);
            let mut chunk = ep.chunk(size_of_val(acc));
            chunk.as_slice_mut().copy_from_slice(acc);
            reduced.push_back(chunk.freeze());
            (done, moved) = (end, true);
        }
        for (send, next) in &mut gather {
            if *next < first_block + reduced.len() && send.may_send(ep) {
                send.push_shared(ep, reduced[*next - first_block].clone());
                *next += 1;
                moved = true;
            }
        }
        let sent = gather.iter().map(|(_, next)| *next).min().unwrap_or(first_block);
        reduced.drain(..sent - first_block);
        first_block = sent;
        for ((incoming, taken), peer) in results.iter_mut().zip(&peers) {
            let range = ranges[*peer as usize].clone();
            while let Some(chunk) = incoming.next(ep)? {
                let numbers = numbers::<T>(ep, *peer, &chunk, *taken, range.len())?;
                out[range.start + *taken..][..numbers.len()].copy_from_slice(numbers);
                *taken += numbers.len();
                moved = true;
            }
        }
        let sent = scatter.iter().all(Outgoing::done) && gather.iter().all(|(send, _)| send.done());
        if sent && done == mine.len() && results.iter().all(|(incoming, _)| incoming.done()) {
            let whole = results.iter().zip(&peers).all(|((_, taken), p)| *taken == ranges[*p as usize].len());
            return match whole {
                true => Ok(()),
                false => Err(Error::bad_input("the ranks' arrays differ in length")),
            };
        }
        if !moved {
            ep.progress().await?;
        }
    }
}

impl PeerValues {
    /// Reduces the next numbers into a block. The `first` rank's numbers are copied, the others' are added.
    fn take<T: Element>(&mut self, op: &ReduceOp, mut acc: &mut [T], first: bool) -> Result<()> {
        while !acc.is_empty() {
            let chunk = self.chunks.front().expect("as many numbers as were received");
            let numbers = &chunk.as_slice::<T>().expect("checked on arrival")[self.used..];
            let count = numbers.len().min(acc.len());
            let (here, rest) = acc.split_at_mut(count);
            match first {
                true => here.copy_from_slice(&numbers[..count]),
                false => fold_all(op, here, &numbers[..count])?,
            }
            acc = rest;
            self.used += count;
            if count == numbers.len() {
                self.chunks.pop_front();
                self.used = 0;
            }
        }
        Ok(())
    }
}
