//! The same for arrays of lengths that all ranks know, without an encoding: chunks are cut from one array and go into
//! the other.
//!
//! An array is seen as one block a rank. Cost: each byte is copied once on its way out and once on its way in.

use super::{END, Parcel, Schedule, rounds};
use crate::collectives::around::{By, Circle, around};
use crate::collectives::barrier::barrier_from;
use crate::endpoint::Endpoint;
use crate::frame::ARRAYS;
use crate::message_stream::{Incoming, Outgoing};
use crate::slab::Payload;
use skyphos_types::{Error, Result};
use std::ops::Range;

/// The one round of the collectives that have one; what goes to a root may follow something else.
const ROUND: u32 = ARRAYS | 0x400;
const TO_ROOT: u32 = ARRAYS | 0x401;

/// Bytes of an array and where each rank's block of them lies.
struct Blocks<A, F> {
    bytes: A,
    of: F,
}

impl<A, F: Fn(u32) -> Range<usize>> Blocks<A, F> {
    /// Bytes of some blocks.
    fn total(&self, blocks: &[u32]) -> usize {
        blocks.iter().map(|rank| (self.of)(*rank).len()).sum()
    }

    /// Where bytes `part` of a message of these blocks lie.
    fn pieces(&self, blocks: &[u32], part: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<A, F> {
        let mut before = 0;
        let place = |rank: &u32| {
            let block = (self.of)(*rank);
            let (start, end) = (part.start.max(before), part.end.min(before + block.len()));
            let piece = block.start + start.saturating_sub(before)..block.start + end.saturating_sub(before);
            before += block.len();
            (start < end).then_some(piece)
        };
        let pieces: Vec<Range<usize>> = blocks.iter().filter_map(place).collect();
        pieces.into_iter()
    }
}

/// Sends blocks of `from` (of `out`, if it is `None`) to some ranks, and takes blocks of `out` from some.
async fn trade<F: Fn(u32) -> Range<usize>>(
    ep: &Endpoint,
    round: u32,
    from: Blocks<Option<&[u8]>, impl Fn(u32) -> Range<usize>>,
    out: &mut Blocks<&mut [u8], F>,
    sends: &[Parcel],
    receives: &[Parcel],
) -> Result<()> {
    let outgoing = |(to, blocks): &Parcel| Outgoing::new(*to, round, from.total(blocks) as u64);
    let mut outs: Vec<Outgoing> = sends.iter().map(outgoing).collect();
    let incoming = |(source, blocks): &Parcel| (Incoming::new(*source, round), *source, out.total(blocks), 0);
    let mut ins: Vec<(Incoming, u32, usize, usize)> = receives.iter().map(incoming).collect();
    let wrong = |source: u32, found: usize, due: usize| -> Error {
        ep.corrupt(source, &format!("{found} bytes of an array where {due} are due"))
    };
    loop {
        let mut moved = false;
        for (send, (_, blocks)) in outs.iter_mut().zip(sends) {
            if let Some(part) = send.next_range(ep, 1) {
                let mut chunk = ep.chunk(part.len());
                let mut rest = chunk.as_bytes_mut();
                for piece in from.pieces(blocks, part) {
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
                    return Err(wrong(*source, *taken + chunk.len(), *due));
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
            return short.map_or(Ok(()), |(_, source, due, taken)| Err(wrong(*source, *taken, *due)));
        }
        if !moved {
            ep.progress().await?;
        }
    }
}

/// The other ranks, this one's successor first, so that no one is sent to by all at once.
fn others(ep: &Endpoint) -> impl Iterator<Item = u32> + use<> {
    let (me, size) = (ep.rank(), ep.size());
    (1..size).map(move |step| (me + step) % size)
}

/// Blocks of equal lengths.
fn even(bytes: usize) -> impl Fn(u32) -> Range<usize> + Copy {
    move |rank| rank as usize * bytes..(rank as usize + 1) * bytes
}

/// Every rank's array, as block of its number.
pub async fn allgather_arrays(ep: &Endpoint, schedule: Schedule, own: &[u8], out: &mut [u8]) -> Result<()> {
    let block = even(own.len());
    let (me, size) = (ep.rank(), ep.size());
    out[block(me)].copy_from_slice(own);
    if schedule == Schedule::Ring {
        let of = |step: usize| block((me + 2 * size - step as u32) % size);
        let first = block(me).start;
        return around::<u8>(
            ep,
            Circle::of_all(ep),
            size as usize - 1,
            |step| step as u32,
            of,
            By(
                |place: Range<usize>, chunk: &mut [u8]| {
                    chunk.copy_from_slice(&own[place.start - first..place.end - first]);
                    Ok(())
                },
                |_, chunk: Payload, place: Range<usize>| {
                    out[place].copy_from_slice(chunk.as_bytes());
                    Ok(chunk)
                },
            ),
        )
        .await;
    }
    for (k, round) in rounds(schedule, me, size).into_iter().enumerate() {
        let mut all = Blocks { bytes: &mut *out, of: block };
        let held = Blocks { bytes: None, of: block };
        trade(ep, k as u32, held, &mut all, &round.sends, &round.receives).await?;
    }
    Ok(())
}

/// Every rank's array on `root`, as its block of `out`, which is empty elsewhere.
pub async fn gather_arrays(
    ep: &Endpoint,
    root: u32,
    own: &[u8],
    out: &mut [u8],
    block: impl Fn(u32) -> Range<usize>,
) -> Result<()> {
    ep.announce();
    let me = ep.rank();
    let from = Blocks { bytes: Some(own), of: |_| 0..own.len() };
    if me == root {
        out[block(me)].copy_from_slice(own);
        let receives: Vec<Parcel> = others(ep).map(|rank| (rank, vec![rank])).collect();
        trade(ep, TO_ROOT, from, &mut Blocks { bytes: out, of: block }, &[], &receives).await?;
    } else {
        trade(ep, TO_ROOT, from, &mut Blocks { bytes: out, of: block }, &[(root, vec![me])], &[]).await?;
    }
    barrier_from(ep, END).await
}

/// Every rank's array on `root`, all of the same length.
pub async fn gather_equal_arrays(ep: &Endpoint, root: u32, own: &[u8], out: &mut [u8]) -> Result<()> {
    gather_arrays(ep, root, own, out, even(own.len())).await
}

/// Block j of every rank's array on rank j, as block of the number of the rank it is from.
pub async fn alltoall_arrays(ep: &Endpoint, from: &[u8], out: &mut [u8]) -> Result<()> {
    scatter_blocks(ep, from, out, even(from.len() / ep.size() as usize)).await
}

/// The same where block j lies at `block(j)` of each array; what comes has the length of this rank's own.
pub(crate) async fn scatter_blocks(
    ep: &Endpoint,
    from: &[u8],
    out: &mut [u8],
    block: impl Fn(u32) -> Range<usize>,
) -> Result<()> {
    let mine = block(ep.rank());
    let came = even(mine.len());
    out[came(ep.rank())].copy_from_slice(&from[mine]);
    let parcels: Vec<Parcel> = others(ep).map(|rank| (rank, vec![rank])).collect();
    let from = Blocks { bytes: Some(from), of: block };
    trade(ep, ROUND, from, &mut Blocks { bytes: out, of: came }, &parcels, &parcels).await
}

/// Block j of `root`'s array on rank j; `from` is empty elsewhere.
pub async fn scatter_arrays(ep: &Endpoint, root: u32, from: &[u8], out: &mut [u8]) -> Result<()> {
    ep.announce();
    let block = even(out.len());
    let own = Blocks { bytes: Some(from), of: block };
    if ep.rank() == root {
        out.copy_from_slice(&from[block(root)]);
        let sends: Vec<Parcel> = others(ep).map(|rank| (rank, vec![rank])).collect();
        trade(ep, ROUND, own, &mut Blocks { bytes: out, of: block }, &sends, &[]).await?;
    } else {
        trade(ep, ROUND, own, &mut Blocks { bytes: out, of: block }, &[], &[(root, vec![0])]).await?;
    }
    barrier_from(ep, END).await
}

/// An array of rank 0 on rank 1, of two. It is over on rank 0 once all bytes are handed over, of a long one those that
/// fit the window and what rank 1 has taken: messages of other calls may be waited for in another order.
pub async fn message(ep: &Endpoint, from: &[u8], out: &mut [u8]) -> Result<()> {
    let whole = |bytes: usize| move |_: u32| 0..bytes;
    let own = Blocks { bytes: Some(from), of: whole(from.len()) };
    let of = whole(out.len());
    let (sends, receives): (&[Parcel], &[Parcel]) = match ep.rank() {
        0 => (&[(1, vec![1])], &[]),
        _ => (&[], &[(0, vec![1])]),
    };
    trade(ep, ROUND, own, &mut Blocks { bytes: out, of }, sends, receives).await
}

/// Blocks of other lengths for each pair of ranks: block j of `from` has `sends[j]` bytes and goes to rank j, whose block
/// comes with `receives[j]`. Only who gets a block knows whether its length was expected, so the end is agreed on.
pub async fn alltoall_uneven(
    ep: &Endpoint,
    from: &[u8],
    out: &mut [u8],
    sends: &[usize],
    receives: &[usize],
) -> Result<()> {
    ep.announce();
    let (gone, came) = (ranges(sends), ranges(receives));
    let me = ep.rank() as usize;
    let whole = gone.last().is_some_and(|last| last.end == from.len()) && gone.len() == ep.size() as usize;
    if !whole || came.last().is_none_or(|last| last.end != out.len()) || came.len() != gone.len() {
        return Err(Error::bad_input("blocks to and from each rank do not make up the arrays"));
    }
    if gone[me].len() != came[me].len() {
        let message =
            format!("rank {me} sends itself {} bytes and expects {}", gone[me].len(), came[me].len());
        return Err(Error::bad_input(message));
    }
    out[came[me].clone()].copy_from_slice(&from[gone[me].clone()]);
    let parcels: Vec<Parcel> = others(ep).map(|rank| (rank, vec![rank])).collect();
    let from = Blocks { bytes: Some(from), of: |rank: u32| gone[rank as usize].clone() };
    let mut to = Blocks { bytes: out, of: |rank: u32| came[rank as usize].clone() };
    trade(ep, ROUND, from, &mut to, &parcels, &parcels).await.map_err(|error| match error {
        Error::Corrupt { rank, message } => {
            let rank = ep.group_and_call().0.group_rank(rank);
            Error::bad_input(format!("rank {rank} sends rank {me} {message}"))
        }
        other => other,
    })?;
    barrier_from(ep, END).await
}

/// Where blocks of these lengths lie, one after the other.
fn ranges(lengths: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let place = |len: &usize| {
        end += len;
        end - len..end
    };
    lengths.iter().map(place).collect()
}
