//! Tests of the replicated transport with single frames.

use super::Replicated;
use super::transport::SHARED_BYTES;
use crate::extensions::{NativeCollectives, Replication, UnderReplicas};
use crate::frame::{Frame, FrameKind, HEADER_BYTES, Header};
use crate::local::{Local, local_group};
use crate::slab::Pool;
use crate::transport::{Event, Facts, Transport, Waker};
use skyphos_types::{CallNumber, CommId, Error, Result, WorldRank};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Connections that take all posted frames. While `full` is set, no frame is acknowledged.
struct Network {
    inner: Local,
    posted: Vec<usize>,
    full: Arc<AtomicBool>,
}

impl NativeCollectives for Network {}

impl Replication for Network {}

impl UnderReplicas for Network {
    fn unacknowledged(&self, to: WorldRank) -> Option<usize> {
        Some(if self.full.load(Ordering::Acquire) { self.posted[to.index()] } else { 0 })
    }
}

impl Transport for Network {
    fn rank(&self) -> WorldRank {
        self.inner.rank()
    }
    fn size(&self) -> u32 {
        self.inner.size()
    }
    fn facts(&self) -> Facts {
        self.inner.facts()
    }
    fn post(&mut self, to: WorldRank, frame: Frame) {
        self.posted[to.index()] += HEADER_BYTES + frame.payload.len();
        self.inner.post(to, frame);
    }
    fn backlog(&self, _to: WorldRank) -> usize {
        0
    }
    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>) {
        self.inner.poll(wait, events);
    }
    fn waker(&self) -> Waker {
        self.inner.waker()
    }
    fn close(&mut self, wait: Duration) -> Result<()> {
        self.inner.close(wait)
    }
}

#[test]
fn a_shorter_backlog_is_reported_as_writable() {
    // The connections take the frames at once, so they report no `Writable`.
    let (inner, full) = (local_group(4).swap_remove(0), Arc::new(AtomicBool::new(true)));
    let network = Network { inner, posted: vec![0; 4], full: full.clone() };
    let mut replicated = Replicated::new(Box::new(network), 2, true, Vec::new()).unwrap();
    let chunk = Pool::default().copy_of(&[7; SHARED_BYTES]);
    let (mut seq, mut events) = (0, Vec::new());
    while replicated.backlog(WorldRank(1)) <= 4 * SHARED_BYTES && seq < 1000 {
        let header =
            Header { seq, total: u64::MAX, ..Header::control(FrameKind::Data, CommId(0), CallNumber(0)) };
        replicated.post(WorldRank(1), Frame { header, payload: chunk.clone() });
        seq += 1;
    }
    full.store(false, Ordering::Release);
    let begun = std::time::Instant::now();
    while !events.iter().any(|event| matches!(event, Event::Writable { rank: WorldRank(1) })) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} bytes wait", replicated.backlog(WorldRank(1)));
        replicated.poll(Duration::from_secs(1), &mut events);
    }
    assert!(replicated.backlog(WorldRank(1)) <= 2 * SHARED_BYTES);
}

#[test]
fn chunks_of_this_rank_from_a_sibling_are_refused() {
    // Processes 0 and 2 are rank 0. Process 0 takes no chunks that process 2 has sent for their own rank.
    for (kind, origin) in
        [(FrameKind::Data, 0), (FrameKind::Forward, 0), (FrameKind::Forwarded, 0), (FrameKind::Forwarded, 2)]
    {
        let mut processes = local_group(4);
        let mut sibling = processes.swap_remove(2);
        let inner = Box::new(processes.swap_remove(0));
        let mut replicated = Replicated::new(inner, 2, true, Vec::new()).unwrap();
        let header = Header { origin, total: 5000, ..Header::control(kind, CommId(0), CallNumber(0)) };
        let payload = Pool::default().copy_of(&[7; 5000]);
        sibling.post(WorldRank(0), Frame { header, payload });
        let mut events = Vec::new();
        replicated.poll(Duration::ZERO, &mut events);
        let [Event::Frame { from: WorldRank(0), frame }] = &events[..] else {
            panic!("{} events", events.len())
        };
        let error = Error::from_wire(frame.payload.as_bytes()).unwrap().to_string();
        assert!(error.contains("whose origin is not a process of another rank"), "{error}");
    }
}
