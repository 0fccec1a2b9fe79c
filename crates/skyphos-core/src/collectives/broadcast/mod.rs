//! Broadcast of a message of several parts, of which only the root knows how many and how long they are.
//!
//! | route | root sends | last byte arrives after | right for |
//! |---|---|---|---|
//! | `Chain` | once | n + (P - 2) chunks | large messages (*Twister* §4.4) |
//! | `ScatterAllgather` | once | about 2 n (van de Geijn) | large ones, where a chain is long |
//! | `Binomial` | ⌈log2 P⌉ times | ⌈log2 P⌉ n | small ones |
//! | `Simple` | P - 1 times | (P - 1) n | comparison |
//!
//! First a table of the parts goes down a binomial tree, and with it all of a small message. Ranks stand in the topology's order,
//! the root's rack and host first, so that a chain crosses each link between hosts, and between racks, once.

mod host;
mod message;
mod relay;
mod scatter_allgather;

pub use host::HostCopy;
pub(crate) use host::Regions;
pub use message::{Layout, Memory, Part, Parts, Room, Source};

use crate::collectives::barrier::barrier_from;
use crate::endpoint::Endpoint;
use crate::frame::ARRAYS;
use crate::topology::Topology;
use host::{Leader, map_offer, places, wait_until_filled};
use message::{Held, Table};
use relay::{pass_on, send_down};
use scatter_allgather::scatter_allgather;
use skyphos_types::{Error, Result};

/// Rounds: of the table, of the parts, and of the end.
const TABLE: u32 = 0x100;
const DATA: u32 = ARRAYS | 0x200;
const END: u32 = 0x500;

/// Messages up to this size go with their table.
pub const SMALL_BYTES: usize = 32 * 1024;

/// Messages from this size on go to each host once, whose ranks share them.
pub const SHARED_BYTES: usize = 256 * 1024;

/// How the parts go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Route {
    /// Chunk by chunk from each rank to the next.
    Chain = 1,
    /// Down a binomial tree.
    Binomial = 2,
    /// A range to each rank, which then go around a ring.
    ScatterAllgather = 3,
    /// From the root to each other rank.
    Simple = 4,
}

impl Route {
    /// All of them.
    pub const ALL: [Route; 4] = [Route::Chain, Route::Binomial, Route::ScatterAllgather, Route::Simple];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Route::Chain => "chain",
            Route::Binomial => "binomial",
            Route::ScatterAllgather => "scatter_allgather",
            Route::Simple => "simple",
        }
    }

    fn from_code(code: u8) -> Option<Route> {
        Route::ALL.into_iter().find(|route| *route as u8 == code)
    }
}

/// What the root decides once it knows how much there is: the route, and the most bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The route.
    pub route: Route,
    /// A chunk has at most so many bytes, and never more than a frame.
    pub chunk_bytes: usize,
}

/// Ranks as a broadcast from `root` goes through them: the root, the others of its host, of its rack, and all others, those of
/// a host and of a rack one after the other.
pub fn order(topology: &Topology, root: u32) -> Vec<u32> {
    let (hosts, racks) = (topology.hosts(), topology.racks());
    let mut ranks: Vec<u32> = (0..hosts.len() as u32).collect();
    let (host, rack) = (hosts[root as usize], racks[root as usize]);
    ranks.sort_by_key(|rank_| {
        let k = *rank_ as usize;
        (*rank_ != root, hosts[k] != host, racks[k] != rack, racks[k], hosts[k], *rank_)
    });
    ranks
}

/// Where this rank stands in a tree over an order.
struct Place {
    parent: Option<u32>,
    children: Vec<u32>,
}

/// A binomial tree: who stands in place k gets it from k without its highest bit. Children with more below them first.
fn binomial(order: &[u32], place: usize) -> Place {
    let (size, rounds) = (order.len(), order.len().next_power_of_two().ilog2());
    let parent = (place > 0).then(|| order[place - (1 << place.ilog2())]);
    let first = if place == 0 { 0 } else { place.ilog2() + 1 };
    let children = (first..rounds).map(|bit| place + (1 << bit)).filter(|child| *child < size);
    Place { parent, children: children.map(|child| order[child]).collect() }
}

fn chain(order: &[u32], place: usize) -> Place {
    let parent = place.checked_sub(1).map(|before| order[before]);
    Place { parent, children: order.get(place + 1).copied().into_iter().collect() }
}

fn simple(order: &[u32], place: usize) -> Place {
    match place {
        0 => Place { parent: None, children: order[1..].to_vec() },
        _ => Place { parent: Some(order[0]), children: Vec::new() },
    }
}

/// Where who stands in a place of the order is in a route's tree; `None` if it has none.
fn tree(route: Route, order: &[u32], place: usize) -> Option<Place> {
    match route {
        Route::Chain => Some(chain(order, place)),
        Route::Binomial => Some(binomial(order, place)),
        Route::Simple => Some(simple(order, place)),
        Route::ScatterAllgather => None,
    }
}

/// What a rank has or wants.
pub enum Side<'a, R> {
    /// The root: the parts, and what it decides for their bytes.
    Root(&'a [&'a [u8]], Way),
    /// Another rank: where they go.
    Other(&'a mut R),
}

/// Brings `root`'s parts to all ranks; returns how, and how many bytes there were.
///
/// # Errors
/// `Corrupt` if what comes is no such message; what `room` says if there is no room, on all ranks.
pub async fn broadcast<R: Room>(ep: &Endpoint, root: u32, side: Side<'_, R>) -> Result<(Way, usize)> {
    let order = order(ep.topology(), root);
    let place = order.iter().position(|rank| *rank == ep.rank()).expect("a rank of the group");
    let done = match side {
        Side::Root(parts, way) => from_root(ep, &order, parts, way).await?,
        Side::Other(room) => to_other(ep, &order, place, room).await?,
    };
    // None returns before all have it, so that an error of one is an error of all.
    barrier_from(ep, END).await?;
    Ok(done)
}

/// Who takes part in the route, and for whom.
struct Hosts {
    /// Ranks that bring the message to their hosts, in order.
    leaders: Vec<u32>,
    /// Who does so for this rank, and where it stands among them.
    place: usize,
    /// The others of its host.
    others: Vec<u32>,
}

impl Hosts {
    /// The first of each host in the order, where a host's ranks share the message; else each for itself.
    fn of(ep: &Endpoint, order: &[u32], total: usize) -> Hosts {
        let me = ep.rank();
        if total < SHARED_BYTES || !ep.node().knows_hosts() {
            let place = order.iter().position(|rank| *rank == me).expect("a rank of the group");
            return Hosts { leaders: order.to_vec(), place, others: Vec::new() };
        }
        let host = |rank: u32| ep.topology().hosts()[rank as usize];
        let mut leaders: Vec<u32> = Vec::new();
        for rank in order {
            // Ranks of a host follow each other.
            if leaders.last().is_none_or(|leader| host(*leader) != host(*rank)) {
                leaders.push(*rank);
            }
        }
        let place = leaders.iter().position(|leader| host(*leader) == host(me)).expect("its host");
        let others = order.iter().copied();
        let others = others.filter(|rank| host(*rank) == host(me) && *rank != leaders[place]).collect();
        Hosts { place, others, leaders }
    }

    fn leader(&self) -> u32 {
        self.leaders[self.place]
    }
}

async fn from_root(ep: &Endpoint, order: &[u32], parts: &[&[u8]], way: Way) -> Result<(Way, usize)> {
    ep.vouch(|sum| parts.iter().for_each(|part| sum.bytes(part)));
    let table = Table::new(way, parts.iter().map(|part| part.len()).collect());
    let (parts, total) = (Parts::of(parts), table.total());
    let inside = if total <= SMALL_BYTES { parts.joined() } else { Vec::new() };
    let encoded = table.encode(&inside);
    let Place { children, .. } = binomial(order, 0);
    let to = children.iter().map(|child| (*child, ep.message_of(&encoded))).collect();
    ep.exchange(TABLE, to, &[]).await?;
    if total <= SMALL_BYTES {
        return Ok((way, total));
    }
    let Hosts { leaders, others, .. } = Hosts::of(ep, order, total);
    let mut host = None;
    if !others.is_empty() {
        let host = host.insert(Leader::new(ep, &others, &table.lengths, false).await?);
        host.fill(&parts);
    }
    if leaders.len() > 1 {
        match tree(way.route, &leaders, 0) {
            Some(Place { children, .. }) => send_down(ep, &parts, way, &children).await?,
            None => scatter_allgather::<NoRoom>(ep, &leaders, 0, total, Err(&parts)).await?,
        }
    }
    if let Some(host) = host {
        host.finish(Some(&parts), way, false).await?;
    }
    Ok((way, total))
}

/// A leader's or a lone rank's part of the route.
async fn along<R: Room>(
    ep: &Endpoint,
    leaders: &[u32],
    place: usize,
    (way, total): (Way, usize),
    room: &mut R,
) -> Result<()> {
    match tree(way.route, leaders, place) {
        Some(place) => pass_on(ep, total, room, &place).await,
        None => scatter_allgather(ep, leaders, place, total, Ok(room)).await,
    }
}

async fn to_other<R: Room>(ep: &Endpoint, order: &[u32], place: usize, room: &mut R) -> Result<(Way, usize)> {
    ep.vouch(|_| {});
    let Place { parent, children } = binomial(order, place);
    let parent = parent.expect("not the root");
    let came = ep.exchange(TABLE, Vec::new(), &[parent]).await?;
    let bytes = came[0].as_bytes();
    let wrong = || ep.corrupt(parent, "what should be a table of a message's parts is none");
    let (table, inside) = Table::decode(bytes).ok_or_else(wrong)?;
    let to = children.iter().map(|child| (*child, ep.message_of(bytes))).collect();
    ep.exchange(TABLE, to, &[]).await?;
    let (way, total) = (table.way, table.total());
    if total <= SMALL_BYTES {
        room.make(&table.lengths)?;
        if inside.len() != total {
            return Err(wrong());
        }
        room.put(0, inside);
        return Ok((way, total));
    }
    let hosts = Hosts::of(ep, order, total);
    let Hosts { leaders, place, others } = &hosts;
    let leader = hosts.leader();
    if leader != ep.rank() {
        match map_offer(ep, leader).await? {
            Some(copy) => {
                wait_until_filled(ep, leader).await?;
                room.share(copy, places(&table.lengths).0);
            }
            None => {
                room.make(&table.lengths)?;
                pass_on(ep, total, room, &Place { parent: Some(leader), children: Vec::new() }).await?;
            }
        }
    } else if others.is_empty() {
        room.make(&table.lengths)?;
        along(ep, leaders, *place, (way, total), room).await?;
    } else {
        let mut host = Leader::new(ep, others, &table.lengths, true).await?;
        if host.has_memory() {
            along(ep, leaders, *place, (way, total), &mut host).await?;
            match host.finish(None::<&Held<'_, R>>, way, true).await? {
                Some((copy, parts)) => room.share(copy, parts),
                None => return Err(Error::bad_input("memory that is shared could not be mapped")),
            }
        } else {
            room.make(&table.lengths)?;
            along(ep, leaders, *place, (way, total), room).await?;
            host.finish(Some(&Held(&*room, total)), way, false).await?;
        }
    }
    Ok((way, total))
}

/// A root has no room, for it has the parts.
struct NoRoom;

impl Room for NoRoom {
    fn make(&mut self, _: &[usize]) -> Result<()> {
        Err(Error::bad_input("the root of a broadcast has all parts"))
    }

    fn put(&mut self, _: usize, _: &[u8]) {}

    fn copy_out(&self, _: usize, _: &mut [u8]) {}

    fn share(&mut self, _: HostCopy, _: Vec<std::ops::Range<usize>>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_reach_each_rank_once() {
        for size in 1..40usize {
            let order: Vec<u32> = (0..size as u32).rev().collect();
            for tree in [binomial, chain, simple] {
                let mut seen = vec![0; size];
                for place in 0..size {
                    let Place { parent, children } = tree(&order, place);
                    assert_eq!(parent.is_none(), place == 0);
                    for child in children {
                        seen[child as usize] += 1;
                        let at = order.iter().position(|rank| *rank == child).unwrap();
                        assert_eq!(tree(&order, at).parent, Some(order[place]));
                    }
                }
                let root = order[0] as usize;
                assert!(seen.iter().enumerate().all(|(rank, times)| *times == usize::from(rank != root)));
            }
        }
    }

    #[test]
    fn hosts_and_racks_stand_together_after_the_roots() {
        let topology = Topology::new(&[0, 1, 2, 3, 0, 1, 2, 3], &[0, 1, 0, 1, 0, 1, 0, 1]).unwrap();
        assert_eq!(order(&topology, 6), [6, 2, 0, 4, 1, 5, 3, 7]);
        assert_eq!(order(&Topology::flat(4), 2), [2, 0, 1, 3]);
    }
}
