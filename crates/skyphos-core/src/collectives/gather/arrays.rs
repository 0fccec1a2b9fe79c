//! Allgather, gather, scatter and all-to-all of dense arrays, whose lengths all ranks know.
//!
//! An array that comes from all ranks, or goes to all, has one block per rank. Nothing is encoded: each byte is copied once from the sender's array into a chunk, and
//! once from the chunk into the receiver's array.

use super::{END, Parcel, Schedule, rounds};
use crate::collectives::barrier::barrier_from;
use crate::collectives::ring_pipeline::{Closures, RingNeighbours, ring_pipeline};
use crate::endpoint::Endpoint;
use crate::frame::ARRAYS;
use crate::message_stream::{Incoming, Outgoing};
use crate::slab::Payload;
use skyphos_types::{Error, GroupRank, Result, Round, WorldRank};
use std::ops::Range;

/// The round of scatter, all-to-all and messages. The gather has a round of its own, because it may follow a collective in the
/// same call; the allgather numbers its rounds from 0.
const ROUND: Round = Round(ARRAYS | 0x400);
const TO_ROOT: Round = Round(ARRAYS | 0x401);

/// An array's bytes, and the range of each rank's block.
struct Blocks<A, F> {
    bytes: A,
    range_of: F,
}

impl<A, F: Fn(u32) -> Range<usize>> Blocks<A, F> {
    /// Total bytes of some blocks.
    fn total(&self, blocks: &[u32]) -> usize {
        blocks.iter().map(|rank| (self.range_of)(*rank).len()).sum()
    }

    /// Ranges of the array that hold the range `bytes` of a message; the message consists of `blocks` one after the other.
    fn pieces(&self, blocks: &[u32], bytes: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<A, F> {
        let mut before = 0;
        let in_array = |rank: &u32| {
            let block = (self.range_of)(*rank);
            let (start, end) = (bytes.start.max(before), bytes.end.min(before + block.len()));
            let piece = block.start + start.saturating_sub(before)..block.start + end.saturating_sub(before);
            before += block.len();
            (start < end).then_some(piece)
        };
        let pieces: Vec<Range<usize>> = blocks.iter().filter_map(in_array).collect();
        pieces.into_iter()
    }
}

/// Sends blocks of `from` (of `out`, if `from` has no bytes) to some ranks, and receives blocks of `out` from some.
async fn exchange_ranges<F: Fn(u32) -> Range<usize>>(
    ep: &Endpoint,
    round: Round,
    from: Blocks<Option<&[u8]>, impl Fn(u32) -> Range<usize>>,
    out: &mut Blocks<&mut [u8], F>,
    sends: &[Parcel],
    receives: &[Parcel],
) -> Result<()> {
    let outgoing = |(to, blocks): &Parcel| Outgoing::new(GroupRank(*to), round, from.total(blocks) as u64);
    let mut outs: Vec<Outgoing> = sends.iter().map(outgoing).collect();
    let incoming =
        |(source, blocks): &Parcel| (Incoming::new(GroupRank(*source), round), *source, out.total(blocks), 0);
    let mut ins: Vec<(Incoming, u32, usize, usize)> = receives.iter().map(incoming).collect();
    let wrong_length = |source: u32, found: usize, due: usize| -> Error {
        ep.corrupt(GroupRank(source), &format!("{found} bytes of an array, expected {due}"))
    };
    loop {
        let mut moved = false;
        for (send, (_, blocks)) in outs.iter_mut().zip(sends) {
            if let Some(bytes) = send.next_range(ep, 1) {
                let mut chunk = ep.chunk(bytes.len());
                let mut rest = chunk.as_bytes_mut();
                for piece in from.pieces(blocks, bytes) {
                    let (here, after) = std::mem::take(&mut rest).split_at_mut(piece.len());
                    here.copy_from_slice(&from.bytes.unwrap_or(out.bytes)[piece]);
                    rest = after;
                }
                send.push(ep, chunk);
                moved = true;
            }
        }
        for ((incoming, source, due, taken), (_, blocks)) in ins.iter_mut().zip(receives) {
            while let Some(chunk) = incoming.next(ep)? {
                if chunk.len() > *due - *taken {
                    return Err(wrong_length(*source, *taken + chunk.len(), *due));
                }
                let mut rest = chunk.as_bytes();
                for piece in out.pieces(blocks, *taken..*taken + chunk.len()) {
                    let (here, after) = rest.split_at(piece.len());
                    out.bytes[piece].copy_from_slice(here);
                    rest = after;
                }
                *taken += chunk.len();
                moved = true;
            }
        }
        if outs.iter().all(Outgoing::done) && ins.iter().all(|(incoming, ..)| incoming.done()) {
            let short = ins.iter().find(|(_, _, due, taken)| taken != due);
            return short.map_or(Ok(()), |(_, source, due, taken)| Err(wrong_length(*source, *taken, *due)));
        }
        if !moved {
            ep.progress().await?;
        }
    }
}

/// The other ranks, this rank's successor first, so that the ranks do not all send to the same rank at once.
fn others(ep: &Endpoint) -> impl Iterator<Item = u32> + use<> {
    let (me, size) = (ep.rank().0, ep.size());
    (1..size).map(move |step| (me + step) % size)
}

/// Blocks of equal lengths.
fn even(bytes: usize) -> impl Fn(u32) -> Range<usize> + Copy {
    move |rank| rank as usize * bytes..(rank as usize + 1) * bytes
}

/// Gathers every rank's array on all ranks, as the block of its rank.
pub async fn allgather_arrays(ep: &Endpoint, schedule: Schedule, own: &[u8], out: &mut [u8]) -> Result<()> {
    let block = even(own.len());
    let (me, size) = (ep.rank().0, ep.size());
    out[block(me)].copy_from_slice(own);
    if schedule == Schedule::Ring {
        let sent_range = |step: usize| block((me + 2 * size - step as u32) % size);
        let first = block(me).start;
        return ring_pipeline::<u8>(
            ep,
            RingNeighbours::by_rank(ep),
            size as usize - 1,
            |step| Round(step as u32),
            sent_range,
            Closures(
                |range: Range<usize>, chunk: &mut [u8]| {
                    chunk.copy_from_slice(&own[range.start - first..range.end - first]);
                    Ok(())
                },
                |_, chunk: Payload, range: Range<usize>| {
                    out[range].copy_from_slice(chunk.as_bytes());
                    Ok(chunk)
                },
            ),
        )
        .await;
    }
    for (k, round) in rounds(schedule, me, size).into_iter().enumerate() {
        let mut all = Blocks { bytes: &mut *out, range_of: block };
        let from_out = Blocks { bytes: None, range_of: block };
        exchange_ranges(ep, Round(k as u32), from_out, &mut all, &round.sends, &round.receives).await?;
    }
    Ok(())
}

/// Gathers every rank's array on `root`, as the block of its rank. `out` is empty on other ranks.
pub async fn gather_arrays(
    ep: &Endpoint,
    root: u32,
    own: &[u8],
    out: &mut [u8],
    block: impl Fn(u32) -> Range<usize>,
) -> Result<()> {
    ep.announce();
    let me = ep.rank().0;
    let from = Blocks { bytes: Some(own), range_of: |_| 0..own.len() };
    if me == root {
        out[block(me)].copy_from_slice(own);
        let receives: Vec<Parcel> = others(ep).map(|rank| (rank, vec![rank])).collect();
        exchange_ranges(ep, TO_ROOT, from, &mut Blocks { bytes: out, range_of: block }, &[], &receives)
            .await?;
    } else {
        exchange_ranges(
            ep,
            TO_ROOT,
            from,
            &mut Blocks { bytes: out, range_of: block },
            &[(root, vec![me])],
            &[],
        )
        .await?;
    }
    barrier_from(ep, END).await
}

/// Like [`gather_arrays`], for arrays of the same length.
pub async fn gather_equal_arrays(ep: &Endpoint, root: u32, own: &[u8], out: &mut [u8]) -> Result<()> {
    gather_arrays(ep, root, own, out, even(own.len())).await
}

/// All-to-all of blocks of equal length: block j of rank i's array becomes block i of rank j's.
pub async fn alltoall_arrays(ep: &Endpoint, from: &[u8], out: &mut [u8]) -> Result<()> {
    alltoall_blocks(ep, from, out, even(from.len() / ep.size() as usize)).await
}

/// Like [`alltoall_arrays`], where block j of each array is `block(j)`. Received blocks have the length of this rank's own block.
pub(crate) async fn alltoall_blocks(
    ep: &Endpoint,
    from: &[u8],
    out: &mut [u8],
    block: impl Fn(u32) -> Range<usize>,
) -> Result<()> {
    let mine = block(ep.rank().0);
    let received = even(mine.len());
    out[received(ep.rank().0)].copy_from_slice(&from[mine]);
    let parcels: Vec<Parcel> = others(ep).map(|rank| (rank, vec![rank])).collect();
    let from = Blocks { bytes: Some(from), range_of: block };
    exchange_ranges(ep, ROUND, from, &mut Blocks { bytes: out, range_of: received }, &parcels, &parcels).await
}

/// Scatters the array of `root`: block j goes to rank j. `from` is empty on other ranks.
pub async fn scatter_arrays(ep: &Endpoint, root: u32, from: &[u8], out: &mut [u8]) -> Result<()> {
    ep.announce();
    let block = even(out.len());
    let own = Blocks { bytes: Some(from), range_of: block };
    if ep.rank().0 == root {
        out.copy_from_slice(&from[block(root)]);
        let sends: Vec<Parcel> = others(ep).map(|rank| (rank, vec![rank])).collect();
        exchange_ranges(ep, ROUND, own, &mut Blocks { bytes: out, range_of: block }, &sends, &[]).await?;
    } else {
        exchange_ranges(ep, ROUND, own, &mut Blocks { bytes: out, range_of: block }, &[], &[(root, vec![0])])
            .await?;
    }
    barrier_from(ep, END).await
}

/// Sends an array from rank 0 to rank 1 of two. Rank 0 returns once the transport has all bytes. Beyond the first window it
/// waits until rank 1 takes bytes, so two ranks that exchange long messages must not both send first.
pub async fn message(ep: &Endpoint, from: &[u8], out: &mut [u8]) -> Result<()> {
    let whole = |bytes: usize| move |_: u32| 0..bytes;
    let own = Blocks { bytes: Some(from), range_of: whole(from.len()) };
    let range_of = whole(out.len());
    let (sends, receives): (&[Parcel], &[Parcel]) = match ep.rank().0 {
        0 => (&[(1, vec![1])], &[]),
        _ => (&[], &[(0, vec![1])]),
    };
    exchange_ranges(ep, ROUND, own, &mut Blocks { bytes: out, range_of }, sends, receives).await
}

/// All-to-all with a length for each pair of ranks: block j of `from`, of `sends[j]` bytes, goes to rank j; block j of `out`,
/// of `receives[j]` bytes, comes from rank j. Only a receiver can notice a wrong length, so a barrier ends the call.
pub async fn alltoall_uneven(
    ep: &Endpoint,
    from: &[u8],
    out: &mut [u8],
    sends: &[usize],
    receives: &[usize],
) -> Result<()> {
    ep.announce();
    let (sent, received) = (ranges(sends), ranges(receives));
    let me = ep.rank().index();
    let whole = sent.last().is_some_and(|last| last.end == from.len()) && sent.len() == ep.size() as usize;
    if !whole || received.last().is_none_or(|last| last.end != out.len()) || received.len() != sent.len() {
        return Err(Error::bad_input("the lengths of blocks do not add up to the lengths of the arrays"));
    }
    if sent[me].len() != received[me].len() {
        let message =
            format!("rank {me} sends itself {} bytes and expects {}", sent[me].len(), received[me].len());
        return Err(Error::bad_input(message));
    }
    out[received[me].clone()].copy_from_slice(&from[sent[me].clone()]);
    let parcels: Vec<Parcel> = others(ep).map(|rank| (rank, vec![rank])).collect();
    let from = Blocks { bytes: Some(from), range_of: |rank: u32| sent[rank as usize].clone() };
    let mut to = Blocks { bytes: out, range_of: |rank: u32| received[rank as usize].clone() };
    exchange_ranges(ep, ROUND, from, &mut to, &parcels, &parcels).await.map_err(|error| match error {
        Error::Corrupt { rank, message } => {
            let rank = ep.group_and_call().0.group_number(WorldRank(rank));
            Error::bad_input(format!("rank {rank} sends rank {me} {message}"))
        }
        other => other,
    })?;
    barrier_from(ep, END).await
}

/// The ranges of adjacent blocks of these lengths.
fn ranges(lengths: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let range = |len: &usize| {
        end += len;
        end - len..end
    };
    lengths.iter().map(range).collect()
}
