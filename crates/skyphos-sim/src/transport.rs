//! The transport of one simulated rank.

use crate::coroutine;
use crate::costs::Costs;
use crate::time::nanoseconds;
use crate::world::World;
use skyphos_core::Topology;
use skyphos_core::clock::{Clock, VirtualClock};
use skyphos_core::extensions::{NativeCollectives, Replication, UnderReplicas};
use skyphos_core::frame::Frame;
use skyphos_core::slab::Pool;
use skyphos_core::transport::{Event, Facts, Transport, Waker};
use skyphos_types::{Result, WorldRank};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The state that all ranks of a cluster share.
pub(crate) struct Shared {
    pub(crate) world: Mutex<World>,
    pub(crate) addresses: Arc<[String]>,
    pub(crate) topology: Topology,
    pub(crate) pool: Pool,
    pub(crate) costs: Costs,
    pub(crate) ranks_on_host: usize,
}

impl Shared {
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_crashed(&self, process: u32) -> bool {
        self.world().faults.as_ref().is_some_and(|faults| faults.is_crashed(process))
    }
}

/// The transport of one simulated rank.
pub(crate) struct Sim {
    pub(crate) rank: u32,
    pub(crate) shared: Arc<Shared>,
    pub(crate) clock: Arc<VirtualClock>,
    /// The factor by which work is slower on this rank.
    pub(crate) slowness: Arc<Slowness>,
    /// The number of the group that the transport belongs to. A play may form several groups in turn.
    pub(crate) generation: u32,
    /// Whether a poll waits, as in a real process; if not, the cluster decides when a rank polls.
    pub(crate) waits: bool,
}

/// The factor by which work is slower on a rank. It may change.
pub(crate) struct Slowness(AtomicU64);

impl Slowness {
    pub(crate) fn new(times: f64) -> Arc<Slowness> {
        Arc::new(Slowness(AtomicU64::new(times.to_bits())))
    }

    pub(crate) fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn multiply(&self, times: f64) {
        self.0.store((self.get() * times).to_bits(), Ordering::Relaxed);
    }
}

impl Sim {
    /// Accounts for the processor time of a frame, at either end.
    fn handle(&self, frame: &Frame) {
        let seconds = self.shared.costs.frame(frame.header.round, frame.payload.len());
        self.clock.advance_by(nanoseconds(seconds * self.slowness.get()));
    }

    fn take(&self, events: &mut Vec<Event>) {
        events.extend(self.shared.world().take(self.rank));
    }
}

impl NativeCollectives for Sim {}

impl Replication for Sim {}

impl UnderReplicas for Sim {
    fn unacknowledged(&self, to: WorldRank) -> Option<usize> {
        Some(self.shared.world().unacknowledged(self.rank, to.0))
    }

    fn give_up(&mut self, peer: WorldRank, cause: &str) {
        let mut world = self.shared.world();
        // Without faults no process is stopped.
        if world.faults.is_some() {
            world.give_up(self.rank, peer.0, cause.to_owned(), self.clock.at());
        }
    }
}

impl Transport for Sim {
    fn rank(&self) -> WorldRank {
        WorldRank(self.rank)
    }

    fn size(&self) -> u32 {
        self.shared.addresses.len() as u32
    }

    fn facts(&self) -> Facts {
        Facts {
            topology: self.shared.topology.clone(),
            clock: Clock::Virtual(self.clock.clone()),
            pool: self.shared.pool.clone(),
            ..Facts::new("sim", self.shared.addresses.clone(), self.shared.ranks_on_host)
        }
    }

    fn post(&mut self, to: WorldRank, frame: Frame) {
        self.handle(&frame);
        self.shared.world().post(self.rank, to.0, self.clock.at(), frame, self.generation);
    }

    fn backlog(&self, to: WorldRank) -> usize {
        self.shared.world().backlog(self.rank, to.0)
    }

    /// Takes the events that have arrived. Time passes only in [`crate::Cluster::run`], which polls a rank when an event arrives for
    /// it, and in [`crate::Cluster::play`], which runs other processes while one waits here.
    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>) {
        let first = events.len();
        self.take(events);
        if self.waits && events.len() == first && !wait.is_zero() {
            let until = self.clock.at().saturating_add(nanoseconds(wait.as_secs_f64()));
            self.shared.world().wake(self.rank, until);
            coroutine::park();
            self.take(events);
        }
        if self.waits && self.shared.is_crashed(self.rank) {
            crash();
        }
        for event in &events[first..] {
            if let Event::Frame { frame, .. } = event {
                self.handle(frame);
            }
        }
    }

    fn waker(&self) -> Waker {
        Arc::new(|| {})
    }

    fn close(&mut self, _wait: Duration) -> Result<()> {
        if self.waits {
            self.shared.world().close(self.rank, self.clock.at(), self.generation);
        }
        Ok(())
    }
}

/// Ends a simulated process at this point. No other process sees anything of it afterwards.
fn crash() {
    if !std::thread::panicking() {
        std::panic::resume_unwind(Box::new(Crashed));
    }
}

/// The panic that unwinds a crashed process.
pub(crate) struct Crashed;
