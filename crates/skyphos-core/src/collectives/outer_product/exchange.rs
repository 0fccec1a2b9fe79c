//! Direct exchange of factors: each rank sends every owner the slices that the owner's block needs.

use super::factors::{Factors, copy_slices};
use super::tiles::Tiles;
use super::{BlockAssignment, FACTORS, Pairs, ProductShape};
use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::slab::Payload;
use skyphos_kernels::product::Factor;
use skyphos_types::{GroupRank, Result};

/// Stores a chunk of a rank's factors.
pub(super) fn store_chunk<T: Factor>(
    ep: &Endpoint,
    from: u32,
    chunk: &Payload,
    factors: &mut Factors<T::Sum>,
) -> Result<()> {
    let count = chunk.len() / size_of::<T>();
    let fits = chunk.len() == count * size_of::<T>() && factors.received(from) + count <= factors.due(from);
    let numbers = chunk.as_slice::<T>().filter(|_| fits);
    let misfit = || format!("a chunk of {} bytes of factors is too long, or no whole numbers", chunk.len());
    let numbers = numbers.ok_or_else(|| ep.corrupt(GroupRank(from), &misfit()))?;
    ep.spend(Effort::Dense { bytes: chunk.len() + count * size_of::<T::Sum>() });
    factors.put(from, numbers, count);
    Ok(())
}

/// Stores the slices of this rank's own factors.
pub(super) fn store_own<T: Factor>(
    ep: &Endpoint,
    shape: &ProductShape,
    assignment: &BlockAssignment,
    own: Pairs<'_, T>,
    factors: &mut Factors<T::Sum>,
) {
    let me = ep.rank().0;
    let (block, pairs) = (&assignment.blocks[me as usize], shape.pairs[me as usize]);
    let due = factors.due(me);
    if ep.is_sized() {
        return factors.put::<T>(me, &[], due);
    }
    let mut piece = vec![T::ZERO; due.min(16 * 1024)];
    let mut at = 0;
    while at < due {
        let count = piece.len().min(due - at);
        copy_slices(own, (shape.n, shape.m), block, pairs, at..at + count, &mut piece[..count]);
        factors.put(me, &piece[..count], count);
        at += count;
    }
}

/// Sends all others their slices, receives the slices that this rank's block needs, and computes its tiles in between.
pub(super) async fn exchange<T: Factor>(
    ep: &Endpoint,
    shape: &ProductShape,
    assignment: &BlockAssignment,
    own: Pairs<'_, T>,
    factors: &mut Factors<T::Sum>,
    tiles: &mut Option<Tiles<'_, T>>,
) -> Result<()> {
    let (me, size) = (ep.rank().0, ep.size());
    let peers: Vec<u32> = (1..size).map(|step| (me + step) % size).collect();
    let pairs = shape.pairs[me as usize];
    let bytes = |rank: u32| (pairs * assignment.blocks[rank as usize].pair_len() * size_of::<T>()) as u64;
    let mut sends: Vec<Outgoing> =
        peers.iter().map(|to| Outgoing::new(GroupRank(*to), FACTORS, bytes(*to))).collect();
    let mut receives: Vec<Incoming> =
        peers.iter().map(|from| Incoming::new(GroupRank(*from), FACTORS)).collect();
    loop {
        let mut moved = false;
        for (send, to) in sends.iter_mut().zip(&peers) {
            if let Some(bytes) = send.next_range(ep, size_of::<T>()) {
                let mut chunk = ep.chunk(bytes.len());
                ep.spend(Effort::Dense { bytes: 2 * chunk.len() });
                if !ep.is_sized() {
                    let numbers = bytes.start / size_of::<T>()..bytes.end / size_of::<T>();
                    let block = &assignment.blocks[*to as usize];
                    copy_slices(own, (shape.n, shape.m), block, pairs, numbers, chunk.as_slice_mut());
                }
                send.push(ep, chunk);
                moved = true;
            }
        }
        for (receive, from) in receives.iter_mut().zip(&peers) {
            while let Some(chunk) = receive.next(ep)? {
                store_chunk::<T>(ep, *from, &chunk, factors)?;
                moved = true;
            }
        }
        if sends.iter().all(Outgoing::done) && receives.iter().all(Incoming::done) {
            return check_complete(ep, factors);
        }
        let ready = factors.ready();
        if tiles.as_mut().is_some_and(|tiles| tiles.step(ep, factors, ready)) {
            ep.pump();
        } else if !moved {
            ep.progress().await?;
        }
    }
}

/// Refuses incomplete factors, after all messages have arrived.
pub(super) fn check_complete<S>(ep: &Endpoint, factors: &Factors<S>) -> Result<()> {
    match (0..ep.size()).find(|rank| factors.received(*rank) < factors.due(*rank)) {
        Some(rank) => {
            let (received, due) = (factors.received(rank), factors.due(rank));
            Err(ep.corrupt(GroupRank(rank), &format!("{received} numbers of factors, expected {due}")))
        }
        None => Ok(()),
    }
}
