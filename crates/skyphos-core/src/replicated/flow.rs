//! Flow control of a replicated group's connections: bytes on their way, whether they move, and how many are allowed.
//!
//! Bytes handed to a connection delay the frames after them and cannot be taken back. So no more is handed over than leaves
//! within [`QUEUE`], plus the bytes that the link holds.

use skyphos_types::ProcessId;
use std::time::Duration;

/// After this time without movement bytes count as stuck: their receiver cannot be reached, or takes nothing. They fill no link.
const STUCK: Duration = Duration::from_millis(20);

/// Age at which an observation is stale.
const FRESH: Duration = Duration::from_millis(2);

/// The longest time that bytes may queue at this end.
const QUEUE: Duration = Duration::from_millis(6);

/// Bytes that may always be on their way.
const MIN_BYTES: f64 = 256.0 * 1024.0;

/// Shortest time over which a rate is measured, and the time in which the best rate decays.
const RATE_WINDOW: Duration = Duration::from_millis(20);
const RATE_DECAY: Duration = Duration::from_secs(1);

/// The bytes sent to a process.
#[derive(Clone, Copy, Default)]
struct Link {
    sent: u64,
    /// Bytes that have arrived.
    arrived: u64,
    /// When `arrived` last grew, or when bytes were sent after all had arrived.
    moved: Duration,
    /// Bytes up to the end of the last chunk.
    chunks: u64,
    /// Whether the next arrival measures the latency.
    timed: bool,
}

impl Link {
    /// Bytes on their way.
    fn in_flight(&self) -> u64 {
        self.sent - self.arrived
    }
}

/// The flow to all processes.
pub(super) struct Flow {
    links: Vec<Link>,
    /// Bytes that have arrived at all processes; the window's start, and the bytes at that time.
    arrived: u64,
    window: (Duration, u64),
    /// Best rate, in bytes a second.
    rate: f64,
    /// Shortest latency.
    latency: Duration,
    /// Time of the last update.
    updated: Duration,
}

impl Flow {
    pub(super) fn new(processes: usize) -> Flow {
        let window = (Duration::ZERO, 0);
        Flow {
            links: vec![Link::default(); processes],
            arrived: 0,
            window,
            rate: 0.0,
            latency: RATE_DECAY,
            updated: Duration::ZERO,
        }
    }

    /// Notes that bytes are sent to a process: a chunk, or a control frame.
    pub(super) fn send(&mut self, now: Duration, to: ProcessId, bytes: usize, chunk: bool) {
        let link = &mut self.links[to.index()];
        if link.in_flight() == 0 {
            (link.moved, link.timed) = (now, true);
        }
        link.sent += bytes as u64;
        if chunk {
            link.chunks = link.sent;
        }
    }

    /// Updates the bytes on their way to each process. True if chunks have arrived.
    pub(super) fn update(&mut self, now: Duration, in_flight: impl Fn(ProcessId) -> usize) -> bool {
        self.updated = now;
        let mut chunks_arrived = false;
        for (process, link) in (0..).zip(&mut self.links).filter(|(_, link)| link.in_flight() > 0) {
            let arrived = link.sent.saturating_sub(in_flight(ProcessId(process)) as u64);
            if arrived <= link.arrived {
                continue;
            }
            if std::mem::take(&mut link.timed) {
                self.latency = self.latency.min(now.saturating_sub(link.moved));
            }
            self.arrived += arrived - link.arrived;
            chunks_arrived |= link.arrived < link.chunks;
            (link.arrived, link.moved) = (arrived, now);
        }
        let (began, then) = self.window;
        let passed = now.saturating_sub(began);
        if passed >= RATE_WINDOW {
            let kept = self.rate * (1.0 - passed.as_secs_f64() / RATE_DECAY.as_secs_f64()).max(0.0);
            self.rate = kept.max((self.arrived - then) as f64 / passed.as_secs_f64());
            self.window = (now, self.arrived);
        }
        chunks_arrived
    }

    /// Bytes on their way to a process at the last update.
    pub(super) fn in_flight(&self, to: ProcessId) -> u64 {
        self.links[to.index()].in_flight()
    }

    /// Whether bytes are on their way to a process and do not arrive.
    pub(super) fn is_stuck(&self, now: Duration, to: ProcessId) -> bool {
        let link = &self.links[to.index()];
        link.in_flight() > 0 && self.updated + FRESH >= now && now >= link.moved + STUCK + 3 * self.latency
    }

    /// For how long none of the bytes on their way to a process has arrived.
    pub(super) fn stalled_for(&self, now: Duration, to: ProcessId) -> Duration {
        let link = &self.links[to.index()];
        if link.in_flight() > 0 { now.saturating_sub(link.moved) } else { Duration::ZERO }
    }

    /// Bytes that may be handed over now.
    pub(super) fn allowance(&self, now: Duration) -> usize {
        let moves = |link: &&Link| now < link.moved + STUCK;
        let in_flight: u64 = self.links.iter().filter(moves).map(Link::in_flight).sum();
        let by_rate = self.rate * (QUEUE + 2 * self.latency).as_secs_f64();
        (by_rate.max(MIN_BYTES) as usize).saturating_sub(in_flight as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn stalled_bytes_take_no_room() {
        let mut flow = Flow::new(3);
        let room = MIN_BYTES as usize;
        (1..3).for_each(|to| flow.send(100 * MS, ProcessId(to), 100_000, true));
        assert_eq!(flow.allowance(100 * MS), room - 200_000);
        let at = |bytes: [usize; 3]| move |process: ProcessId| bytes[process.index()];
        assert!(flow.update(110 * MS, at([0, 100_000, 40_000])));
        assert!(!flow.update(115 * MS, at([0, 100_000, 40_000])));
        assert_eq!((flow.arrived, flow.allowance(125 * MS)), (60_000, room - 40_000), "process 1 stalls");
        assert!(flow.update(126 * MS, at([0, 90_000, 40_000])));
        assert_eq!(flow.allowance(126 * MS), room - 130_000, "process 1 goes on");
    }

    #[test]
    fn room_follows_rate_and_latency() {
        // A link of 50 ms latency and 100 MB/s.
        let mut flow = Flow::new(2);
        let (mut sent, mut there) = (vec![0u64; 2000], 0);
        for k in 0..2000usize {
            let now = k as u32 * MS;
            there += sent[k.saturating_sub(50)].min(if k >= 50 { 100_000 } else { 0 });
            let in_flight = sent.iter().take(k).sum::<u64>() - there;
            flow.update(now, |_| in_flight as usize);
            sent[k] = (flow.allowance(now) as u64).min(100_000);
            flow.send(now, ProcessId(1), sent[k] as usize, true);
        }
        assert!(sent[1500..].iter().all(|bytes| *bytes == 100_000), "the link is full: {:?}", &sent[1990..]);
    }
}
