//! A transport whose process ends at a given frame.

use skyphos::{Loss, Result, Transport};
use skyphos_core::extensions::{NativeCollectives, Replication, UnderReplicas};
use skyphos_core::frame::Frame;
use skyphos_core::transport::{Event, Facts, Waker};
use skyphos_types::WorldRank;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The moment at which a process ends, and whether it has ended.
#[derive(Clone, Default)]
pub struct Fuse {
    /// Frames that it sends before.
    left: Arc<AtomicU64>,
    blown: Arc<AtomicBool>,
}

impl Fuse {
    pub fn after(frames: u64) -> Fuse {
        Fuse { left: Arc::new(AtomicU64::new(frames)), blown: Arc::default() }
    }

    pub fn is_blown(&self) -> bool {
        self.blown.load(Ordering::Acquire)
    }
}

/// A transport with a [`Fuse`]. To other processes it looks killed; to this process all others are lost.
pub struct Fragile {
    inner: Option<Box<dyn Transport>>,
    fuse: Fuse,
    told: bool,
    rank: WorldRank,
    facts: Facts,
}

impl Fragile {
    pub fn boxed(inner: Box<dyn Transport>, fuse: Fuse) -> Box<dyn Transport> {
        let (rank, known) = (inner.rank(), inner.facts());
        let facts =
            Facts { topology: known.topology, ..Facts::new("fragile", known.addresses, known.ranks_on_host) };
        Box::new(Fragile { inner: Some(inner), fuse, told: false, rank, facts })
    }
}

impl NativeCollectives for Fragile {}

impl Replication for Fragile {}

impl UnderReplicas for Fragile {
    fn limit_ahead(&mut self, bytes: usize) {
        self.inner.iter_mut().for_each(|inner| inner.limit_ahead(bytes));
    }
}

impl Transport for Fragile {
    fn rank(&self) -> WorldRank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.facts.addresses.len() as u32
    }

    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    fn post(&mut self, to: WorldRank, frame: Frame) {
        if self.fuse.left.load(Ordering::Acquire) == 0 {
            self.fuse.blown.store(true, Ordering::Release);
            self.inner = None;
        }
        if let Some(inner) = &mut self.inner {
            self.fuse.left.fetch_sub(1, Ordering::AcqRel);
            inner.post(to, frame);
        }
    }

    fn cork(&mut self, corked: bool) {
        self.inner.iter_mut().for_each(|inner| inner.cork(corked));
    }

    fn backlog(&self, to: WorldRank) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.backlog(to))
    }

    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>) {
        match &mut self.inner {
            Some(inner) => inner.poll(wait, events),
            None if std::mem::replace(&mut self.told, true) => {
                std::thread::sleep(wait.min(Duration::from_millis(1)));
            }
            None => {
                let others = (0..self.size()).map(WorldRank).filter(|rank| *rank != self.rank);
                let down = |rank| {
                    let cause = "this process has ended".to_owned();
                    Event::PeerDown { rank, cause, loss: Loss::Ended }
                };
                events.extend(others.map(down));
            }
        }
    }

    fn waker(&self) -> Waker {
        self.inner.as_ref().map_or(Arc::new(|| {}), |inner| inner.waker())
    }

    fn close(&mut self, wait: Duration) -> Result<()> {
        self.inner.iter_mut().try_for_each(|inner| inner.close(wait))
    }
}
