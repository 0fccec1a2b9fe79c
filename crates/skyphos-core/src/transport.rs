//! The trait of all transports. A transport carries frames between ranks; every other layer builds on it.
//!
//! A transport posts frames and yields frames. It does not match frames to calls, order frames of different peers, retry a call, or
//! know what a collective is: [`crate::node::Node`] does the matching. The smallest implementation is [`crate::local`]; read it
//! first. Methods of only some transports are in [`crate::extensions`].
//!
//! **Promised**: data frames from one peer arrive in the order they were posted (control frames may overtake them); a frame arrives
//! whole and unchanged, or its sender is reported down; `post` never blocks; `poll` returns within its wait.
//! **Not promised**: any order between peers; that a posted frame arrives if the peer goes down; memory bounds on posted frames
//! (callers check [`Transport::backlog`] and the windows of streams).

use crate::clock::Clock;
use crate::extensions::{NativeCollectives, Replication, UnderReplicas};
use crate::frame::Frame;
use crate::slab::{CHUNK_BYTES, Pool};
use crate::topology::Topology;
use skyphos_types::{Result, WorldRank};
use std::sync::Arc;
use std::time::Duration;

pub use crate::loss::{Health, Loss, goodbye_cause, reason_in};

/// An event that [`Transport::poll`] reports.
pub enum Event {
    /// A frame has arrived.
    Frame {
        /// Its sender.
        from: WorldRank,
        /// The frame.
        frame: Frame,
    },
    /// A peer is gone for good. Reported once; no frame of it follows.
    PeerDown {
        /// The peer.
        rank: WorldRank,
        /// The evidence of the loss, for error texts.
        cause: String,
        /// The kind of loss, as far as is known.
        loss: Loss,
    },
    /// The backlog to a peer has shrunk to at most half of its maximum since the last such event.
    Writable {
        /// The peer.
        rank: WorldRank,
    },
}

/// Properties of a transport, which do not change.
#[derive(Clone)]
pub struct Facts {
    /// "local", "tcp" …
    pub name: &'static str,
    /// Host and address of each rank, for error texts. Many nodes of one process may share them.
    pub addresses: Arc<[String]>,
    /// The hosts and racks of the ranks, as far as the transport knows; the same on all.
    pub topology: Topology,
    /// Ranks that share this host, this one included.
    pub ranks_on_host: usize,
    /// Whether all ranks share this host; the same on all.
    pub on_one_host: bool,
    /// The clock of this rank.
    pub clock: Clock,
    /// The pool of its buffers. Many nodes of one process may share it.
    pub pool: Pool,
    /// Most bytes of a message that go in one frame, unless a row takes more.
    pub chunk_bytes: usize,
    /// Whether all peers have proved that they belong to the group.
    pub is_authenticated: bool,
    /// Whether ranks of this host may share memory.
    pub shares_memory: bool,
    /// Whether only threads that are in a call may use the transport: then nothing moves while no thread waits.
    pub is_for_callers_only: bool,
    /// Polls in a row without an event after which all that has arrived was handed over: more than one where the system moves
    /// messages only while it is polled.
    pub quiet_polls: u32,
}

impl Facts {
    /// The facts of a transport with the default clock, pool and chunk size, whose ranks have an unknown topology.
    pub fn new(name: &'static str, addresses: Arc<[String]>, ranks_on_host: usize) -> Facts {
        Facts {
            name,
            topology: Topology::flat(addresses.len() as u32),
            ranks_on_host,
            on_one_host: ranks_on_host == addresses.len(),
            addresses,
            clock: Clock::real(),
            pool: Pool::default(),
            chunk_bytes: CHUNK_BYTES,
            is_authenticated: true,
            shares_memory: true,
            is_for_callers_only: false,
            quiet_polls: 1,
        }
    }
}

/// Ends a [`Transport::poll`] that is waiting in another thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Carries frames between the ranks of a group.
pub trait Transport: Send + NativeCollectives + Replication + UnderReplicas {
    /// This process's rank.
    fn rank(&self) -> WorldRank;
    /// Number of ranks.
    fn size(&self) -> u32;
    /// The transport's properties. Called once, before the first frame.
    fn facts(&self) -> Facts;
    /// Queues a frame for a peer (never for this rank itself) and starts sending it.
    fn post(&mut self, to: WorldRank, frame: Frame);
    /// While corked, posted frames may be kept back, so that several leave together.
    fn cork(&mut self, corked: bool) {
        let _ = corked;
    }
    /// Bytes queued for a peer and not yet handed to the system.
    fn backlog(&self, to: WorldRank) -> usize;
    /// Whether all that was posted is with the system, and no peer may ask for it again.
    fn is_idle(&self) -> bool {
        (0..self.size()).all(|rank| rank == self.rank().0 || self.backlog(WorldRank(rank)) == 0)
    }
    /// Moves bytes and appends events to `events`, waiting at most `wait` for the first. May return early without an event (after
    /// a signal, or by a [`Waker`]).
    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>);
    /// Ends a waiting `poll` from another thread.
    fn waker(&self) -> Waker;
    /// Notes the reason why this rank's program has failed, for the goodbyes of [`Transport::close`].
    fn set_failure_reason(&mut self, reason: &str) {
        let _ = reason;
    }
    /// Says goodbye to all peers and hands everything queued to the system, waiting at most `wait`. `Err`: calls that had ended
    /// were found to be wrong.
    fn close(&mut self, wait: Duration) -> Result<()>;
}
