//! Dense allreduce by recursive halving and doubling (Rabenseifner 2004).
//!
//! Let 2^k be the largest power of two that is at most P. Before the exchanges each rank >= 2^k sends its array to a partner
//! below 2^k; after them the partner returns the result. Cost: 2 ⌈log2 P⌉ α (2 α more if P is not a power of two) and
//! 2 (P - 1)/P n β.

use super::{BITMAP, GATHER, REDUCE, finish, ranges};
use crate::clock::Effort;
use crate::collectives::ring_pipeline::numbers;
use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use skyphos_kernels::fold_all;
use skyphos_types::{Element, Error, GroupRank, ReduceOp, Result, Round};
use std::ops::Range;

/// Sends one range of `array` and receives another, which is added to the array if there is an operation, else copied.
async fn swap<T: Element>(
    ep: &Endpoint,
    round: Round,
    array: &mut [T],
    send: Option<(u32, Range<usize>)>,
    receive: Option<(u32, Range<usize>)>,
    op: Option<&ReduceOp>,
) -> Result<()> {
    let mut out = send.map(|(to, range)| {
        (Outgoing::new(GroupRank(to), round, (range.len() * size_of::<T>()) as u64), range)
    });
    let mut incoming = receive.map(|(from, range)| (Incoming::new(GroupRank(from), round), from, range, 0));
    loop {
        let mut moved = false;
        if let Some((send, range)) = &mut out {
            while let Some(bytes) = send.next_range(ep, size_of::<T>()) {
                let mut chunk = ep.chunk(bytes.len());
                let start = range.start + bytes.start / size_of::<T>();
                ep.spend(Effort::Dense { bytes: 2 * chunk.len() });
                chunk.as_slice_mut().copy_from_slice(&array[start..start + bytes.len() / size_of::<T>()]);
                send.push(ep, chunk);
                moved = true;
            }
        }
        if let Some((incoming, from, range, taken)) = &mut incoming {
            while let Some(chunk) = incoming.next(ep)? {
                let numbers = numbers::<T>(ep, *from, &chunk, *taken, range.len())?;
                let here = &mut array[range.start + *taken..][..numbers.len()];
                match op {
                    None => here.copy_from_slice(numbers),
                    Some(op) => fold_all(op, here, numbers)?,
                }
                *taken += numbers.len();
                moved = true;
            }
        }
        let received = incoming.as_ref().is_none_or(|(incoming, ..)| incoming.done());
        if out.as_ref().is_none_or(|(send, _)| send.done()) && received {
            return match incoming {
                Some((_, from, range, taken)) if taken != range.len() => Err(Error::Corrupt {
                    rank: ep.world_rank(GroupRank(from)).0,
                    message: format!("{taken} numbers, expected {}", range.len()),
                }),
                _ => Ok(()),
            };
        }
        if !moved {
            ep.progress().await?;
        }
    }
}

/// Reduces `array` of all ranks in place.
pub async fn rabenseifner<T: Element>(ep: &Endpoint, op: &ReduceOp, array: &mut [T]) -> Result<()> {
    halve_and_double(ep, (REDUCE, GATHER), op, array).await
}

/// Unites the bitmaps of all ranks in place, beside an allreduce of the same call.
pub(super) async fn unite(ep: &Endpoint, bits: &mut [u64]) -> Result<()> {
    halve_and_double(ep, (REDUCE + BITMAP, GATHER + BITMAP), &ReduceOp::Or, bits).await
}

async fn halve_and_double<T: Element>(
    ep: &Endpoint,
    (reduce, gather): (Round, Round),
    op: &ReduceOp,
    array: &mut [T],
) -> Result<()> {
    let (me, size) = (ep.rank().0, ep.size());
    let core = 1 << size.ilog2();
    let all = 0..array.len();
    if me >= core {
        swap(ep, reduce, array, Some((me - core, all.clone())), None, None).await?;
        return swap(ep, gather, array, None, Some((me - core, all)), None).await;
    }
    if me + core < size {
        swap(ep, reduce, array, None, Some((me + core, all.clone())), Some(op)).await?;
    }
    let parts = ranges(array.len(), core);
    let span = |first: u32, count: u32| parts[first as usize].start..parts[(first + count - 1) as usize].end;
    // The ranges that this rank reduces: half as many after each exchange.
    let (mut first, mut count, mut round) = (0, core, 1);
    while count > 1 {
        let (half, upper) = (count / 2, me & (count / 2) != 0);
        let (keep, give) = if upper { (first + half, first) } else { (first, first + half) };
        let (send, receive) = ((me ^ half, span(give, half)), (me ^ half, span(keep, half)));
        swap(ep, reduce + round, array, Some(send), Some(receive), Some(op)).await?;
        (first, count, round) = (keep, half, round + 1);
    }
    finish(op, &mut array[span(first, 1)], size);
    while count < core {
        let partners_first = first ^ count;
        let (send, receive) = ((me ^ count, span(first, count)), (me ^ count, span(partners_first, count)));
        swap(ep, gather + round, array, Some(send), Some(receive), None).await?;
        (first, count, round) = (first.min(partners_first), count * 2, round + 1);
    }
    if me + core < size {
        swap(ep, gather, array, Some((me + core, all)), None, None).await?;
    }
    Ok(())
}
