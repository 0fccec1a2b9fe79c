//! Vectors from all ranks to all, to one, or from each to each; nothing is reduced.
//!
//! Vectors travel encoded and are passed on as they came, so every rank decodes each once, at the end. An item is
//! announced by a head that says how many segments follow.

mod arrays;
mod schedule;

pub use arrays::{
    allgather_arrays, alltoall_arrays, alltoall_uneven, gather_equal_arrays, message, scatter_arrays,
};
pub(crate) use arrays::{gather_arrays, scatter_blocks};
pub use schedule::{Parcel, Round, Schedule, rounds};

use crate::collectives::barrier::barrier_from;
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::exchange;
use skyphos_types::Result;
use std::collections::VecDeque;

/// Round from which ranks that need not hear from each other agree that all went well.
const END: u32 = 0x500;

/// One vector on the wire.
pub type Item = Vec<Payload>;

/// The items of a parcel, each after its head.
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

/// Reads a parcel of some items as its segments come.
struct Unpacker {
    /// Segments of the current item still due; `None`: a head is.
    due: Option<u64>,
    items: VecDeque<Item>,
    most: usize,
}

impl Unpacker {
    fn new(most: usize) -> Unpacker {
        Unpacker { due: None, items: VecDeque::new(), most }
    }

    fn push(&mut self, segment: Payload) -> std::result::Result<(), &'static str> {
        match self.due {
            None => {
                let head: [u8; 8] = segment.as_bytes().try_into().map_err(|_| "an item without its head")?;
                if self.items.len() == self.most {
                    return Err("more items than were due");
                }
                self.items.push_back(Vec::new());
                self.due = Some(u64::from_le_bytes(head)).filter(|due| *due > 0);
            }
            Some(due) => {
                self.items.back_mut().expect("its head has come").push(segment);
                self.due = Some(due - 1).filter(|due| *due > 0);
            }
        }
        Ok(())
    }

    fn complete(&self) -> bool {
        self.due.is_none() && self.items.len() == self.most
    }
}

/// One exchange of parcels; what came, by source.
async fn trade(
    ep: &Endpoint,
    round: u32,
    sends: &[(u32, Vec<Payload>)],
    sources: &[(u32, usize)],
) -> Result<Vec<VecDeque<Item>>> {
    let sends: Vec<(u32, &[Payload])> = sends.iter().map(|(to, parcel)| (*to, parcel.as_slice())).collect();
    let ranks: Vec<u32> = sources.iter().map(|(from, _)| *from).collect();
    let mut unpackers: Vec<Unpacker> = sources.iter().map(|(_, most)| Unpacker::new(*most)).collect();
    exchange(ep, round, &sends, &ranks, |k, segment| {
        unpackers[k].push(segment).map_err(|what| ep.corrupt(ranks[k], what))
    })
    .await?;
    if let Some(k) = unpackers.iter().position(|u| !u.complete()) {
        return Err(ep.corrupt(ranks[k], "fewer items than were due"));
    }
    Ok(unpackers.into_iter().map(|u| u.items).collect())
}

/// Every rank's item, in rank order.
pub async fn allgather(ep: &Endpoint, schedule: Schedule, own: Item) -> Result<Vec<Item>> {
    allgather_then(ep, 0, schedule, own, |_, _| Ok(())).await
}

/// The same from some round on; `came` sees those of other ranks as they come.
pub async fn allgather_then(
    ep: &Endpoint,
    first_round: u32,
    schedule: Schedule,
    own: Item,
    mut came: impl FnMut(u32, &Item) -> Result<()>,
) -> Result<Vec<Item>> {
    let mut held: Vec<Option<Item>> = (0..ep.size()).map(|_| None).collect();
    held[ep.rank() as usize] = Some(own);
    for (k, round) in rounds(schedule, ep.rank(), ep.size()).into_iter().enumerate() {
        let item = |rank: &u32| held[*rank as usize].as_ref().expect("the schedule sends only what is held");
        let sends: Vec<_> =
            round.sends.iter().map(|(to, items)| (*to, pack(ep, items.iter().map(item)))).collect();
        let sources: Vec<(u32, usize)> =
            round.receives.iter().map(|(from, items)| (*from, items.len())).collect();
        let parcels = trade(ep, first_round + k as u32, &sends, &sources).await?;
        for ((_, ranks), items) in round.receives.iter().zip(parcels) {
            for (rank, item) in ranks.iter().zip(items) {
                came(*rank, &item)?;
                held[*rank as usize] = Some(item);
            }
        }
    }
    Ok(held.into_iter().flatten().collect())
}

/// Every rank's item on `root`, in rank order; nothing elsewhere.
pub async fn gather(ep: &Endpoint, root: u32, own: Item) -> Result<Vec<Item>> {
    ep.announce();
    if ep.rank() != root {
        trade(ep, 0, &[(root, pack(ep, std::iter::once(&own)))], &[]).await?;
        barrier_from(ep, END).await?;
        return Ok(Vec::new());
    }
    let others: Vec<(u32, usize)> = (0..ep.size()).filter(|r| *r != root).map(|r| (r, 1)).collect();
    let mut all: Vec<Item> = trade(ep, 0, &[], &others).await?.into_iter().flatten().collect();
    all.insert(root as usize, own);
    barrier_from(ep, END).await?;
    Ok(all)
}

/// Item j of every rank on rank j, in rank order.
pub async fn alltoall(ep: &Endpoint, items: &[Item]) -> Result<Vec<Item>> {
    let (me, size) = (ep.rank(), ep.size());
    let sends: Vec<_> = (1..size)
        .map(|step| (me + step) % size)
        .map(|to| (to, pack(ep, std::iter::once(&items[to as usize]))))
        .collect();
    let others: Vec<(u32, usize)> = (0..size).filter(|r| *r != me).map(|r| (r, 1)).collect();
    let mut all: Vec<Item> = trade(ep, 0, &sends, &others).await?.into_iter().flatten().collect();
    all.insert(me as usize, items[me as usize].clone());
    Ok(all)
}

/// Item j of `root` on rank j.
pub async fn scatter(ep: &Endpoint, root: u32, items: &[Item]) -> Result<Item> {
    ep.announce();
    if ep.rank() != root {
        let mut came = trade(ep, 0, &[], &[(root, 1)]).await?;
        barrier_from(ep, END).await?;
        return Ok(came.remove(0).remove(0).expect("one item"));
    }
    let sends: Vec<_> = (0..ep.size())
        .filter(|r| *r != root)
        .map(|to| (to, pack(ep, std::iter::once(&items[to as usize]))))
        .collect();
    trade(ep, 0, &sends, &[]).await?;
    barrier_from(ep, END).await?;
    Ok(items[root as usize].clone())
}
