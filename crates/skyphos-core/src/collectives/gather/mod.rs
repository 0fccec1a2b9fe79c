//! Allgather, gather, scatter and all-to-all of encoded vectors; nothing is reduced.
//!
//! Vectors are forwarded as they are, so every rank decodes each vector once, at the end. On the wire a vector follows a
//! head, which has the number of its segments.

mod arrays;
mod schedule;

pub use arrays::{
    allgather_arrays, alltoall_arrays, alltoall_uneven, gather_equal_arrays, message, scatter_arrays,
};
pub(crate) use arrays::{alltoall_blocks, gather_arrays};
pub use schedule::{Parcel, Schedule, ScheduleRound, rounds};

use crate::collectives::barrier::barrier_from;
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::exchange;
use skyphos_types::{GroupRank, Result, Round};
use std::collections::VecDeque;

/// First round of the closing barrier, in collectives where some ranks get no message from others.
const END: Round = Round(0x500);

/// One vector on the wire.
pub type Item = Vec<Payload>;

/// The segments of a parcel of items: each item after its head.
fn pack<'a>(ep: &Endpoint, items: impl Iterator<Item = &'a Item>) -> Vec<Payload> {
    let mut all = Vec::new();
    for item in items {
        let mut head = ep.chunk(8);
        head.as_bytes_mut().copy_from_slice(&(item.len() as u64).to_le_bytes());
        all.push(head.freeze());
        all.extend(item.iter().cloned());
    }
    all
}

/// Reads a parcel as its segments arrive.
struct Unpacker {
    /// Missing segments of the current item; `None` if a head is next.
    missing: Option<u64>,
    items: VecDeque<Item>,
    expected: usize,
}

impl Unpacker {
    fn new(expected: usize) -> Unpacker {
        Unpacker { missing: None, items: VecDeque::new(), expected }
    }

    fn push(&mut self, segment: Payload) -> std::result::Result<(), &'static str> {
        match self.missing {
            None => {
                let head: [u8; 8] = segment.as_bytes().try_into().map_err(|_| "an item without its head")?;
                if self.items.len() == self.expected {
                    return Err("more items than expected");
                }
                self.items.push_back(Vec::new());
                self.missing = Some(u64::from_le_bytes(head)).filter(|missing| *missing > 0);
            }
            Some(missing) => {
                self.items.back_mut().expect("an item after its head").push(segment);
                self.missing = Some(missing - 1).filter(|missing| *missing > 0);
            }
        }
        Ok(())
    }

    fn complete(&self) -> bool {
        self.missing.is_none() && self.items.len() == self.expected
    }
}

/// Exchanges parcels in one round. `sources`: the sending ranks, and how many items each sends. Returns the items by source.
async fn exchange_parcels(
    ep: &Endpoint,
    round: Round,
    sends: &[(u32, Vec<Payload>)],
    sources: &[(u32, usize)],
) -> Result<Vec<VecDeque<Item>>> {
    let sends: Vec<(u32, &[Payload])> = sends.iter().map(|(to, parcel)| (*to, parcel.as_slice())).collect();
    let ranks: Vec<u32> = sources.iter().map(|(from, _)| *from).collect();
    let mut unpackers: Vec<Unpacker> = sources.iter().map(|(_, expected)| Unpacker::new(*expected)).collect();
    exchange(ep, round, &sends, &ranks, |k, segment| {
        unpackers[k].push(segment).map_err(|what| ep.corrupt(GroupRank(ranks[k]), what))
    })
    .await?;
    if let Some(k) = unpackers.iter().position(|u| !u.complete()) {
        return Err(ep.corrupt(GroupRank(ranks[k]), "fewer items than expected"));
    }
    Ok(unpackers.into_iter().map(|u| u.items).collect())
}

/// Gathers every rank's item on all ranks, in rank order.
pub async fn allgather(ep: &Endpoint, schedule: Schedule, own: Item) -> Result<Vec<Item>> {
    allgather_then(ep, Round(0), schedule, own, |_, _| Ok(())).await
}

/// [`allgather`] with rounds from `first_round` on. `on_item` gets each item of another rank as it arrives.
pub async fn allgather_then(
    ep: &Endpoint,
    first_round: Round,
    schedule: Schedule,
    own: Item,
    mut on_item: impl FnMut(u32, &Item) -> Result<()>,
) -> Result<Vec<Item>> {
    let mut items: Vec<Option<Item>> = (0..ep.size()).map(|_| None).collect();
    items[ep.rank().index()] = Some(own);
    for (k, round) in rounds(schedule, ep.rank().0, ep.size()).into_iter().enumerate() {
        let item =
            |rank: &u32| items[*rank as usize].as_ref().expect("the schedule sends items received before");
        let sends: Vec<_> =
            round.sends.iter().map(|(to, ranks)| (*to, pack(ep, ranks.iter().map(item)))).collect();
        let sources: Vec<(u32, usize)> =
            round.receives.iter().map(|(from, ranks)| (*from, ranks.len())).collect();
        let parcels = exchange_parcels(ep, first_round + k as u32, &sends, &sources).await?;
        for ((_, ranks), parcel) in round.receives.iter().zip(parcels) {
            for (rank, item) in ranks.iter().zip(parcel) {
                on_item(*rank, &item)?;
                items[*rank as usize] = Some(item);
            }
        }
    }
    Ok(items.into_iter().flatten().collect())
}

/// Gathers every rank's item on `root`, in rank order. Returns an empty list on other ranks.
pub async fn gather(ep: &Endpoint, root: u32, own: Item) -> Result<Vec<Item>> {
    ep.announce();
    if ep.rank().0 != root {
        exchange_parcels(ep, Round(0), &[(root, pack(ep, std::iter::once(&own)))], &[]).await?;
        barrier_from(ep, END).await?;
        return Ok(Vec::new());
    }
    let others: Vec<(u32, usize)> = (0..ep.size()).filter(|r| *r != root).map(|r| (r, 1)).collect();
    let mut all: Vec<Item> =
        exchange_parcels(ep, Round(0), &[], &others).await?.into_iter().flatten().collect();
    all.insert(root as usize, own);
    barrier_from(ep, END).await?;
    Ok(all)
}

/// All-to-all: rank j gets item j of every rank, in rank order.
pub async fn alltoall(ep: &Endpoint, items: &[Item]) -> Result<Vec<Item>> {
    let (me, size) = (ep.rank().0, ep.size());
    let sends: Vec<_> = (1..size)
        .map(|step| (me + step) % size)
        .map(|to| (to, pack(ep, std::iter::once(&items[to as usize]))))
        .collect();
    let others: Vec<(u32, usize)> = (0..size).filter(|r| *r != me).map(|r| (r, 1)).collect();
    let mut all: Vec<Item> =
        exchange_parcels(ep, Round(0), &sends, &others).await?.into_iter().flatten().collect();
    all.insert(me as usize, items[me as usize].clone());
    Ok(all)
}

/// Scatter: rank j gets item j of `root`. `items` is empty on other ranks.
pub async fn scatter(ep: &Endpoint, root: u32, items: &[Item]) -> Result<Item> {
    ep.announce();
    if ep.rank().0 != root {
        let mut parcels = exchange_parcels(ep, Round(0), &[], &[(root, 1)]).await?;
        barrier_from(ep, END).await?;
        return Ok(parcels.remove(0).remove(0).expect("one item"));
    }
    let sends: Vec<_> = (0..ep.size())
        .filter(|r| *r != root)
        .map(|to| (to, pack(ep, std::iter::once(&items[to as usize]))))
        .collect();
    exchange_parcels(ep, Round(0), &sends, &[]).await?;
    barrier_from(ep, END).await?;
    Ok(items[root as usize].clone())
}
