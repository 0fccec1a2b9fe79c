//! One simulated rank's end of the network.

use crate::costs::Costs;
use crate::world::{World, nanoseconds};
use skyphos_core::Topology;
use skyphos_core::clock::{Clock, VirtualClock};
use skyphos_core::frame::Frame;
use skyphos_core::slab::Pool;
use skyphos_core::transport::{Event, Transport, Waker};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What all ranks of a cluster share.
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
}

/// See the module's text.
pub(crate) struct Sim {
    pub(crate) rank: u32,
    pub(crate) shared: Arc<Shared>,
    pub(crate) clock: Arc<VirtualClock>,
    /// How many times as long work takes on this rank.
    pub(crate) slowness: f64,
}

impl Sim {
    /// A frame takes its time of the processor, at either end.
    fn handle(&self, frame: &Frame) {
        let seconds = self.shared.costs.frame(frame.header.round, frame.payload.len());
        self.clock.pass(nanoseconds(seconds * self.slowness));
    }
}

impl Transport for Sim {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.shared.addresses.len() as u32
    }

    fn name(&self) -> &'static str {
        "sim"
    }

    fn address(&self, rank: u32) -> String {
        self.shared.addresses[rank as usize].clone()
    }

    fn ranks_on_host(&self) -> usize {
        self.shared.ranks_on_host
    }

    fn addresses(&self) -> Arc<[String]> {
        self.shared.addresses.clone()
    }

    fn topology(&self) -> Topology {
        self.shared.topology.clone()
    }

    fn clock(&self) -> Clock {
        Clock::Virtual(self.clock.clone())
    }

    fn pool(&self) -> Pool {
        self.shared.pool.clone()
    }

    fn post(&mut self, to: u32, frame: Frame) {
        self.handle(&frame);
        self.shared.world().post(self.rank, to, self.clock.at(), frame);
    }

    fn backlog(&self, to: u32) -> usize {
        self.shared.world().backlog(self.rank, to)
    }

    /// What has come; it does not wait, for time passes only in [`crate::Cluster::run`].
    fn poll(&mut self, _wait: Duration, events: &mut Vec<Event>) {
        let first = events.len();
        {
            let mut world = self.shared.world();
            events.extend(std::iter::from_fn(|| world.take(self.rank)));
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

    fn close(&mut self, _wait: Duration) {}
}
