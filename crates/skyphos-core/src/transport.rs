//! The ground everything stands on: something that carries frames between ranks.
//!
//! A transport posts frames and yields frames. It does not match, order across peers, retry a call,
//! or know what a collective is: [`crate::node::Node`] does the matching. The smallest
//! implementation is [`crate::local`]; read it first.
//!
//! **Promised**: data frames from one peer arrive in the order they were posted (control frames may
//! overtake them); a frame arrives whole
//! and unchanged or its sender is reported down; `post` never blocks; `poll` returns within its wait.
//! **Not promised**: any order between peers; that a posted frame arrives if the peer goes down;
//! memory bounds on what is posted (callers look at [`Transport::backlog`] and at stream windows).

use crate::clock::Clock;
use crate::frame::{Frame, Header};
use crate::slab::{CHUNK_BYTES, Payload, Pool, SlabMut};
use crate::topology::Topology;
use skyphos_types::{DType, ReduceOp, Result};
use std::sync::Arc;
use std::time::Duration;

/// How a peer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Loss {
    /// It said goodbye.
    Left,
    /// Its process has ended.
    Ended,
    /// Nothing was heard of it, or it heard nothing: it may live.
    Silent,
}

/// How a process of a replicated group is.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// Its number in the transport, its rank, and which replica of that rank it is.
    pub process: u32,
    /// See `process`.
    pub rank: u32,
    /// See `process`.
    pub replica: u32,
    /// Host and address.
    pub address: String,
    /// How it was lost, and how that was noticed.
    pub lost: Option<(Loss, String)>,
    /// It did not bring in time what it owed: this process, a replica of the same rank, sends in its place.
    pub late: bool,
    /// For how long nothing has come from it; unknown where ranks are no replicas.
    pub silent: Option<Duration>,
    /// Chunks of which this process got the first copy from it, and a later one.
    pub won: u64,
    /// See `won`.
    pub lost_races: u64,
}

/// What [`Transport::poll`] reports.
pub enum Event {
    /// A frame came.
    Frame {
        /// Its sender.
        from: u32,
        /// The frame.
        frame: Frame,
    },
    /// A peer is gone for good. Reported once; no frame of it follows.
    PeerDown {
        /// Which.
        rank: u32,
        /// How it was noticed.
        cause: String,
        /// What became of it, as far as is known.
        loss: Loss,
    },
    /// The backlog to a peer has shrunk to half or less of what it was.
    Writable {
        /// Which.
        rank: u32,
    },
}

/// Characters of the reason for which a program failed that peers are told.
const WHY_BYTES: usize = 1024;

/// The reason in the payload of a goodbye; empty: the peer has left in order.
pub fn why_of(payload: &Payload) -> String {
    let bytes = payload.as_bytes();
    String::from_utf8_lossy(&bytes[..bytes.len().min(WHY_BYTES)]).into_owned()
}

/// What the peers are told of a rank that has said goodbye, with the reason that it gave. It has done its part in the calls
/// before: whoever needs no more of it goes on.
pub fn leaving(why: &str) -> &str {
    if why.is_empty() { "it has closed its Comm" } else { why }
}

/// Ends a [`Transport::poll`] that is waiting in another thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Carries frames between the ranks of a group.
pub trait Transport: Send {
    /// This process's rank.
    fn rank(&self) -> u32;
    /// Number of ranks.
    fn size(&self) -> u32;
    /// "local", "tcp" …
    fn name(&self) -> &'static str;
    /// Host and address of a rank, for messages to people.
    fn address(&self, rank: u32) -> String;
    /// How many ranks, this one included, share this host.
    fn ranks_on_host(&self) -> usize;
    /// Whether all ranks share this host; the same on all.
    fn on_one_host(&self) -> bool {
        self.ranks_on_host() == self.size() as usize
    }
    /// Where the ranks are, as far as the transport knows; the same on all.
    fn topology(&self) -> Topology {
        Topology::flat(self.size())
    }
    /// The addresses of all ranks; many nodes of one process may share them.
    fn addresses(&self) -> Arc<[String]> {
        (0..self.size()).map(|rank| self.address(rank)).collect()
    }
    /// What time goes by here.
    fn clock(&self) -> Clock {
        Clock::real()
    }
    /// Where buffers come from; many nodes of one process may share them.
    fn pool(&self) -> Pool {
        Pool::default()
    }
    /// Queues a frame for a peer (never for this rank itself) and starts sending it.
    fn post(&mut self, to: u32, frame: Frame);
    /// While corked, posted frames may be kept back, so that several leave at once.
    fn cork(&mut self, corked: bool) {
        let _ = corked;
    }
    /// Bytes queued for a peer and not yet handed to the system.
    fn backlog(&self, to: u32) -> usize;
    /// Bytes posted to a peer of which its system has not said that they are there; never fewer than the backlog.
    fn on_way(&self, to: u32) -> usize {
        self.backlog(to)
    }
    /// Leaves about so many bytes to the system ahead of what a peer has taken: what is not there can be taken back.
    fn hold_back(&mut self, bytes: usize) {
        let _ = bytes;
    }
    /// Takes a peer that may live for lost, which the next poll reports, and tells it so if that can be. Asked only by replicas.
    fn give_up(&mut self, peer: u32, cause: &str) {
        let _ = (peer, cause);
    }
    /// The most bytes of a message that go in one frame, unless a row takes more.
    fn chunk_bytes(&self) -> usize {
        CHUNK_BYTES
    }
    /// Whether it has work when no call is under way: then it is polled all the time, and told of calls that end.
    fn goes_on(&self) -> bool {
        false
    }
    /// Whether all peers have proved that they belong to the group: what they send may be taken for this program's own words.
    fn is_proven(&self) -> bool {
        true
    }
    /// Whether ranks of this host may have memory in common.
    fn shares_memory(&self) -> bool {
        true
    }
    /// Whether only threads that are in a call may use it: then nothing goes on while nobody waits.
    fn is_for_callers_only(&self) -> bool {
        false
    }
    /// Whether all that was posted is with the system, and nobody may ask for it again.
    fn is_idle(&self) -> bool {
        (0..self.size()).all(|rank| rank == self.rank() || self.backlog(rank) == 0)
    }
    /// A call is over on this rank, `failed` or not.
    fn end(&mut self, comm: u64, call: u64, failed: bool) {
        let _ = (comm, call, failed);
    }
    /// A call begins on this rank, whose data has this checksum. Asked only by replicas.
    fn vouch(&mut self, comm: u64, call: u64, sum: u64) {
        let _ = (comm, call, sum);
    }
    /// Whether it has an allreduce of its own, of numbers like these of all ranks. The same on all.
    fn has_allreduce(&self, op: &ReduceOp, dtype: DType) -> bool {
        let _ = (op, dtype);
        false
    }
    /// Begins such an allreduce of one chunk; the result comes as a frame from this rank, with this header, and results in the
    /// order in which they were begun. All ranks begin the same ones in the same order, and none can be taken back. Asked only
    /// where there is one.
    fn begin_allreduce(&mut self, header: Header, op: &ReduceOp, dtype: DType, part: SlabMut) {
        let _ = (header, op, dtype, part);
        unreachable!("this transport has no allreduce of its own");
    }
    /// This process's number, and how many there are: more than ranks, where those are replicated.
    fn place(&self) -> (u32, u32) {
        (self.rank(), self.size())
    }
    /// How the processes of a replicated group are.
    fn health(&self) -> Option<Vec<Health>> {
        None
    }
    /// Moves bytes and appends what happened to `events`, waiting at most `wait` for the first. May
    /// return early with none (a signal, a [`Waker`]).
    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>);
    /// Polls in a row that find nothing once all that has arrived has been handed over: more than one where the system moves
    /// messages only while it is asked.
    fn quiet_polls(&self) -> u32 {
        1
    }
    /// What ends a waiting `poll` from another thread.
    fn waker(&self) -> Waker;
    /// Why this rank leaves, if its program has failed: [`Transport::close`] tells the peers.
    fn say_why(&mut self, why: &str) {
        let _ = why;
    }
    /// Says goodbye to all peers and hands everything queued to the system, waiting at most `wait`. `Err`: what was found wrong
    /// with calls that had ended.
    fn close(&mut self, wait: Duration) -> Result<()>;
}
