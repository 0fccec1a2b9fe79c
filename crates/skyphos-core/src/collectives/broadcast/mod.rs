//! Broadcast of a message of several parts, n bytes in all. Only the root knows the number and the lengths of the parts beforehand.
//!
//! | route | root sends | last byte arrives after the link time of | right for |
//! |---|---|---|---|
//! | `Chain` | once | n + (P - 2) chunks | large messages (*Twister* §4.4) |
//! | `ScatterAllgather` | once | about 2 n (van de Geijn) | large messages, many ranks |
//! | `Binomial` | ⌈log2 P⌉ times | ⌈log2 P⌉ n | small messages |
//! | `Simple` | P - 1 times | (P - 1) n | comparison |
//!
//! A table of the parts goes first, down a binomial tree; a small message travels with it. The ranks are in the topology's
//! order, the root's host and rack first, so a chain crosses each link between hosts, and between racks, once.
//!
//! Lost ranks are skipped: a rank that waits for a lost one requests the missing bytes from an earlier rank
//! ([`completion`]). In a group with replicas a lost rank ends the call, since all its replicas are lost then.

mod completion;
mod flow;
mod host;
mod layout;
mod receive_buffer;
mod root_message;
mod route;
mod shared;
mod store;
mod table;
mod tree;

pub use crate::shared_memory::host_region::HostCopy;
pub use layout::Layout;
pub use receive_buffer::{MessageBuffer, ReceiveBuffer, ReceivedPart};
pub use root_message::RootMessage;
pub use route::{Route, RouteChoice, SHARED_BYTES, SMALL_BYTES};
pub use tree::order;
#[cfg(feature = "fuzzing")]
pub use {completion::fuzz_control, table::fuzz_table};

use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use completion::{Completion, Polled};
use flow::Flow;
use host::{Follower, Followers};
use shared::Shared;
use skyphos_types::{Error, GroupRank, Result, Round};
use std::time::Duration;
use store::Store;
use table::Table;
use tree::relays;

/// Rounds of the table: down the tree, and on request.
const TABLE: Round = Round(0x100);
const TABLE_REQUESTED: Round = Round(0x101);

/// Bytes that a root copies into its host's shared memory between two looks at the network.
const SHARE_STEP_BYTES: usize = 1 << 20;

/// One rank's role, with its arguments.
pub enum Role<'a, R> {
    /// The root: its message, and its choice of route.
    Root(RootMessage<'a>, RouteChoice),
    /// Any other rank: the memory that takes the message.
    Receiver(&'a mut R),
}

/// The outcome of a broadcast.
#[derive(Clone, Debug)]
pub struct BroadcastOutcome {
    /// The root's choice of route.
    pub choice: RouteChoice,
    /// Bytes of the message.
    pub bytes: usize,
    /// `PeerLost` naming the first rank that was lost before it had the message. All remaining ranks have the message.
    pub missed: Option<Error>,
}

/// Sends the parts of `root` to all ranks. `ack_timeout` is the longest that the collector waits for acknowledgements
/// without progress.
///
/// # Errors
/// `Timeout` naming the ranks that have not acknowledged; `Corrupt` if received bytes are not a broadcast's message;
/// on all ranks, an error of `buffer`; `PeerLost` if only lost ranks had some of the bytes.
pub async fn broadcast<R: ReceiveBuffer>(
    ep: &Endpoint,
    root: u32,
    role: Role<'_, R>,
    ack_timeout: Duration,
) -> Result<BroadcastOutcome> {
    let order = order(ep.topology(), root);
    let mut completion = Completion::new(ep, &order, ack_timeout);
    let (table, missed) = match role {
        Role::Root(source, choice) => {
            let parts = source.checksummed_parts(ep)?;
            let table = Table::new(choice, source.lengths());
            let small = match &parts {
                _ if !table.is_small() => Vec::new(),
                Some(parts) => parts.joined(),
                // In a simulation without data, receivers look only at the length.
                None => vec![0; table.total()],
            };
            let mut sender = TableSender::new(table.encode(&small), &mut completion);
            let store = Store::<R>::of_root(parts.as_ref(), &table.lengths);
            let missed = send_parts(&mut completion, &table, &mut sender, store).await?;
            (table, missed)
        }
        Role::Receiver(buffer) => {
            ep.checksum_input(|_| {});
            let (bytes, from) = receive_table(&mut completion).await?;
            let damaged = || ep.corrupt(GroupRank(from), "not a table of a broadcast's parts");
            let (table, small) = Table::decode(&bytes).ok_or_else(damaged)?;
            if table.is_small() {
                if small.len() != table.total() {
                    return Err(damaged());
                }
                buffer.allocate(&table.lengths)?;
                buffer.write(0, small);
            }
            let mut sender = TableSender::new(bytes, &mut completion);
            let store = Store::of_receiver(buffer, &table.lengths);
            let missed = send_parts(&mut completion, &table, &mut sender, store).await?;
            (table, missed)
        }
    };
    Ok(BroadcastOutcome {
        choice: table.choice,
        bytes: table.total(),
        missed: missed.map(|error| ep.group_and_call().0.with_group_ranks(error)),
    })
}

/// Receives the table. Returns it with its sender.
async fn receive_table(completion: &mut Completion<'_>) -> Result<(Vec<u8>, u32)> {
    let mut from = completion.table_parent().expect("not the root");
    let (mut incoming, mut bytes) = (Incoming::new(GroupRank(from), TABLE), Vec::new());
    loop {
        let mut moved = completion.poll()?;
        loop {
            match completion.poll_stream(from, &mut incoming)? {
                Polled::Pending => break,
                Polled::Chunk(chunk) => {
                    bytes.extend(chunk.as_bytes());
                    if incoming.done() {
                        return Ok((bytes, from));
                    }
                }
                Polled::SenderLost(error) => {
                    from = completion.request_table(error)?;
                    (incoming, bytes) = (Incoming::new(GroupRank(from), TABLE_REQUESTED), Vec::new());
                }
            }
            moved = true;
        }
        if !moved {
            completion.ep.progress().await?;
        }
    }
}

/// The encoded table, to be sent to other ranks.
struct TableSender(Vec<u8>);

impl TableSender {
    /// Sends the table down the tree.
    fn new(encoded: Vec<u8>, completion: &mut Completion<'_>) -> TableSender {
        let sender = TableSender(encoded);
        for child in completion.table_children() {
            sender.send(completion.ep, child, TABLE);
        }
        sender
    }

    /// Sends the table to ranks that have requested it.
    fn answer_requests(&self, completion: &mut Completion<'_>) {
        for to in std::mem::take(&mut completion.table_requests) {
            self.send(completion.ep, to, TABLE_REQUESTED);
        }
    }

    /// Sends all chunks at once, without waiting for credit: the table is short.
    fn send(&self, ep: &Endpoint, to: u32, round: Round) {
        let mut send = Outgoing::new(GroupRank(to), round, self.0.len() as u64);
        for chunk in self.0.chunks(ep.node().chunk_bytes()) {
            send.push_shared(ep, ep.node().pool().copy_of(chunk));
        }
    }
}

/// Sends, receives and forwards the parts after the table has arrived, until all ranks agree on the end. Returns an error that
/// names the first rank that missed the message, if any.
async fn send_parts<R: ReceiveBuffer>(
    completion: &mut Completion<'_>,
    table: &Table,
    sender: &mut TableSender,
    mut store: Store<'_, R>,
) -> Result<Option<Error>> {
    let (ep, total, is_root) = (completion.ep, table.total(), completion.vrank() == 0);
    let mut flow = Flow::new(total, table.choice.chunk_bytes.min(ep.node().chunk_bytes()));
    let mut followers = Followers::none();
    let mut follower = None;
    if is_root || table.is_small() {
        flow.complete();
    }
    if !table.is_small() {
        let Hosts { leaders, index, others } = Hosts::of(ep, completion.order(), total);
        if leaders[index] == ep.rank().0 {
            if !others.is_empty() {
                let users = others.len() as u32 + u32::from(!is_root);
                store.shared = Shared::new(ep, &table.lengths, users);
                followers = Followers::new(ep, &others, store.shared.as_ref(), total);
            }
            store.allocate_buffer()?;
            if leaders.len() > 1 {
                flow.add_route(relays(table.choice.route, &leaders, index, total));
            }
        } else {
            follower = Some((leaders[index], Follower::new(leaders[index])));
        }
    }
    loop {
        let mut moved = completion.poll()?;
        sender.answer_requests(completion);
        if let Some((leader, follower)) = &mut follower {
            moved |= follower.step(*leader, completion, &mut flow, &mut store)?;
        }
        moved |= flow.step(completion, &mut store)?;
        moved |= followers.step(completion, &mut flow, store.shared.as_ref())?;
        if flow.is_complete() {
            completion.acknowledge();
            if completion.is_over()? {
                break;
            }
        }
        // Copies into the host's shared memory only while this rank would otherwise wait for the links.
        moved = moved || store.share_some(SHARE_STEP_BYTES);
        match moved {
            true => completion.progressed(),
            false => ep.progress_until(completion.deadline()).await?,
        }
    }
    store.finish(ep)?;
    Ok(completion.first_missed())
}

/// The ranks on the route: one leader per host, or every rank where hosts do not share the message.
struct Hosts {
    /// The leaders in broadcast order.
    leaders: Vec<u32>,
    /// The index of this host's leader.
    index: usize,
    /// The other ranks of this host.
    others: Vec<u32>,
}

impl Hosts {
    /// A host's leader is its first rank in broadcast order.
    fn of(ep: &Endpoint, order: &[u32], total: usize) -> Hosts {
        let me = ep.rank().0;
        if total < SHARED_BYTES || !ep.node().knows_hosts() {
            let index = order.iter().position(|rank| *rank == me).expect("a rank of the group");
            return Hosts { leaders: order.to_vec(), index, others: Vec::new() };
        }
        let host = |rank: u32| ep.topology().hosts()[rank as usize];
        let mut leaders: Vec<u32> = Vec::new();
        for rank in order {
            // Ranks of a host follow each other.
            if leaders.last().is_none_or(|leader| host(*leader) != host(*rank)) {
                leaders.push(*rank);
            }
        }
        let index = leaders.iter().position(|leader| host(*leader) == host(me)).expect("its host");
        let others = order.iter().copied();
        let others = others.filter(|rank| host(*rank) == host(me) && *rank != leaders[index]).collect();
        Hosts { index, others, leaders }
    }
}
