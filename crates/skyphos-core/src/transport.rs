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
use crate::frame::Frame;
use crate::slab::Pool;
use crate::topology::Topology;
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
    /// Moves bytes and appends what happened to `events`, waiting at most `wait` for the first. May
    /// return early with none (a signal, a [`Waker`]).
    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>);
    /// What ends a waiting `poll` from another thread.
    fn waker(&self) -> Waker;
    /// Says goodbye to all peers and hands everything queued to the system, waiting at most `wait`.
    fn close(&mut self, wait: Duration);
}
