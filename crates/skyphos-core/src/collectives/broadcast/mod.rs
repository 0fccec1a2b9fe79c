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

//!
//! Ranks that are lost are passed over, and who waited for one asks another that stands before it for what is missing
//! ([`completion`]). Where ranks are several processes a loss ends the call, for all of a rank's are gone then.

mod completion;
mod flow;
mod host;
#[allow(unsafe_code, reason = "chunks are written to memory that is not initialised, or shared by a host")]
mod message;
mod route;
mod shared;
#[allow(unsafe_code, reason = "memory shared by a host")]
mod store;
mod tree;

pub use crate::host_region::HostCopy;
pub use message::{Layout, Memory, Part, Parts, Room, Source};
pub use route::{Route, SHARED_BYTES, SMALL_BYTES, Way};
pub use tree::order;
#[cfg(feature = "fuzzing")]
pub use {completion::fuzz_word, message::fuzz_table};

use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use completion::{Came, Completion};
use flow::Flow;
use host::{Mate, Mates};
use message::Table;
use shared::Shared;
use skyphos_types::{Error, Result};
use std::time::Duration;
use store::Store;
use tree::legs;

/// Rounds of the table.
const TABLE: u32 = 0x100;
const TABLE_AGAIN: u32 = 0x101;

/// A root fills the memory of its host by so many bytes at a time.
const SHARED_AT_ONCE: usize = 1 << 20;

/// What a rank has or wants.
pub enum Side<'a, R> {
    /// The root: the parts, and what it decides for their bytes.
    Root(Source<'a>, Way),
    /// Another rank: where they go.
    Other(&'a mut R),
}

/// What a broadcast came to.
#[derive(Clone, Debug)]
pub struct Brought {
    /// How it went.
    pub way: Way,
    /// Bytes of the message.
    pub bytes: usize,
    /// The first of the ranks that were lost before they had it; all others have it.
    pub missed: Option<Error>,
}

/// Brings `root`'s parts to all ranks. `window`: how long the root waits for a rank to say that it has them while nothing moves.
///
/// # Errors
/// `Timeout` naming the ranks that have not said so; `Corrupt` if what comes is no such message; what `room` says if there is no room, on all ranks; `PeerLost` if what a lost rank
/// had cannot be had from another.
pub async fn broadcast<R: Room>(
    ep: &Endpoint,
    root: u32,
    side: Side<'_, R>,
    window: Duration,
) -> Result<Brought> {
    let order = order(ep.topology(), root);
    let mut completion = Completion::new(ep, &order, window);
    let (table, missed) = match side {
        Side::Root(source, way) => {
            let parts = source.vouched_parts(ep)?;
            let table = Table::new(way, source.lengths());
            let inside = match &parts {
                _ if !table.is_small() => Vec::new(),
                Some(parts) => parts.joined(),
                // Nobody looks at these few.
                None => vec![0; table.total()],
            };
            let mut tables = Tables::new(table.encode(&inside), &mut completion);
            let store = Store::<R>::of(parts.as_ref(), &table.lengths);
            let missed = bring(&mut completion, &table, &mut tables, store).await?;
            (table, missed)
        }
        Side::Other(room) => {
            ep.vouch(|_| {});
            let (bytes, from) = receive_table(&mut completion).await?;
            let wrong = || ep.corrupt(from, "what should be a table of a message's parts is none");
            let (table, inside) = Table::decode(&bytes).ok_or_else(wrong)?;
            if table.is_small() {
                if inside.len() != table.total() {
                    return Err(wrong());
                }
                room.make(&table.lengths)?;
                room.put(0, inside);
            }
            let mut tables = Tables::new(bytes, &mut completion);
            let missed = bring(&mut completion, &table, &mut tables, Store::to(room, &table.lengths)).await?;
            (table, missed)
        }
    };
    Ok(Brought {
        way: table.way,
        bytes: table.total(),
        missed: missed.map(|error| ep.group_and_call().0.with_group_ranks(error)),
    })
}

/// The table, and whom it came from.
async fn receive_table(completion: &mut Completion<'_>) -> Result<(Vec<u8>, u32)> {
    let mut from = completion.table_parent().expect("not the root");
    let (mut incoming, mut bytes) = (Incoming::new(from, TABLE), Vec::new());
    loop {
        let mut moved = completion.look()?;
        loop {
            match completion.take(from, &mut incoming)? {
                Came::Nothing => break,
                Came::Chunk(chunk) => {
                    bytes.extend(chunk.as_bytes());
                    if incoming.done() {
                        return Ok((bytes, from));
                    }
                }
                Came::Never(why) => {
                    from = completion.ask_for_table(why)?;
                    (incoming, bytes) = (Incoming::new(from, TABLE_AGAIN), Vec::new());
                }
            }
            moved = true;
        }
        if !moved {
            completion.ep.progress().await?;
        }
    }
}

/// The table, for others.
struct Tables(Vec<u8>);

impl Tables {
    /// Sends it down the tree.
    fn new(encoded: Vec<u8>, completion: &mut Completion<'_>) -> Tables {
        let tables = Tables(encoded);
        for child in completion.table_children() {
            tables.send(completion.ep, child, TABLE);
        }
        tables
    }

    /// To those who have asked for it.
    fn answer(&self, completion: &mut Completion<'_>) {
        for to in std::mem::take(&mut completion.of_table) {
            self.send(completion.ep, to, TABLE_AGAIN);
        }
    }

    /// It is short, and goes at once.
    fn send(&self, ep: &Endpoint, to: u32, round: u32) {
        let mut send = Outgoing::new(to, round, self.0.len() as u64);
        for chunk in self.0.chunks(ep.node().chunk_bytes()) {
            send.push_shared(ep, ep.node().pool().copy_of(chunk));
        }
    }
}

/// The bytes, once the table is here, and the end; who was missed.
async fn bring<R: Room>(
    completion: &mut Completion<'_>,
    table: &Table,
    tables: &mut Tables,
    mut store: Store<'_, R>,
) -> Result<Option<Error>> {
    let (ep, total, is_root) = (completion.ep, table.total(), completion.place() == 0);
    let mut flow = Flow::new(total, table.way.chunk_bytes.min(ep.node().chunk_bytes()));
    let mut mates = Mates::none();
    let mut mate = None;
    if is_root || table.is_small() {
        flow.has_all();
    }
    if !table.is_small() {
        let Hosts { leaders, place, others } = Hosts::of(ep, completion.order(), total);
        if leaders[place] == ep.rank() {
            if !others.is_empty() {
                let users = others.len() as u32 + u32::from(!is_root);
                store.shared = Shared::new(ep, &table.lengths, users);
                mates = Mates::new(ep, &others, store.shared.as_ref(), total);
            }
            store.make()?;
            if leaders.len() > 1 {
                flow.plan(legs(table.way.route, &leaders, place, total));
            }
        } else {
            mate = Some((leaders[place], Mate::new(leaders[place])));
        }
    }
    loop {
        let mut moved = completion.look()?;
        tables.answer(completion);
        if let Some((leader, mate)) = &mut mate {
            moved |= mate.step(*leader, completion, &mut flow, &mut store)?;
        }
        moved |= flow.step(completion, &mut store)?;
        moved |= mates.step(completion, &mut flow, store.shared.as_ref())?;
        if flow.is_complete() {
            completion.complete();
            if completion.is_over()? {
                break;
            }
        }
        // Its host's memory while the links are busy.
        moved = moved || store.share_some(SHARED_AT_ONCE);
        match moved {
            true => completion.moved(),
            false => ep.progress_until(completion.deadline()).await?,
        }
    }
    store.finish(ep)?;
    Ok(completion.first_missed())
}

/// Who takes part in the route, and for whom.
struct Hosts {
    /// Ranks that bring the message to their hosts, in order.
    leaders: Vec<u32>,
    /// Where the one for this rank stands among them.
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
}
