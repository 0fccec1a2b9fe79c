//! A transport whose process crashes at a given frame.

use skyphos::{Loss, Result, Transport};
use skyphos_core::extensions::{NativeCollectives, Replication, UnderReplicas};
use skyphos_core::frame::Frame;
use skyphos_core::transport::{Event, Facts, Waker};
use skyphos_types::WorldRank;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The frame at which a process crashes, and whether it has crashed.
#[derive(Clone, Default)]
pub struct Crash {
    /// Frames that it sends before.
    frames_left: Arc<AtomicU64>,
    crashed: Arc<AtomicBool>,
}

impl Crash {
    pub fn after(frames: u64) -> Crash {
        Crash { frames_left: Arc::new(AtomicU64::new(frames)), crashed: Arc::default() }
    }

    pub fn has_happened(&self) -> bool {
        self.crashed.load(Ordering::Acquire)
    }
}

/// A transport that ends at a [`Crash`]. Other processes see a killed process; this process sees that all others are lost.
pub struct CrashingTransport {
    inner: Option<Box<dyn Transport>>,
    crash: Crash,
    reported: bool,
    rank: WorldRank,
    facts: Facts,
}

impl CrashingTransport {
    pub fn boxed(inner: Box<dyn Transport>, crash: Crash) -> Box<dyn Transport> {
        let (rank, known) = (inner.rank(), inner.facts());
        let facts = Facts {
            topology: known.topology,
            ..Facts::new("crashing", known.addresses, known.ranks_on_host)
        };
        Box::new(CrashingTransport { inner: Some(inner), crash, reported: false, rank, facts })
    }
}

impl NativeCollectives for CrashingTransport {}

impl Replication for CrashingTransport {}

impl UnderReplicas for CrashingTransport {
    fn limit_ahead(&mut self, bytes: usize) {
        self.inner.iter_mut().for_each(|inner| inner.limit_ahead(bytes));
    }
}

impl Transport for CrashingTransport {
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
        if self.crash.frames_left.load(Ordering::Acquire) == 0 {
            self.crash.crashed.store(true, Ordering::Release);
            self.inner = None;
        }
        if let Some(inner) = &mut self.inner {
            self.crash.frames_left.fetch_sub(1, Ordering::AcqRel);
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
            None if std::mem::replace(&mut self.reported, true) => {
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
