//! What is with the connections, whether it moves, and how much should be there.
//!
//! More than a link can carry soon makes news late that follows it, and cannot be taken back. So no more is handed over than moves
//! within [`QUEUE`], beside what the way there holds at once.

use std::time::Duration;

/// What has not moved for so long fills no link: its receiver cannot be reached, or takes nothing.
const STUCK: Duration = Duration::from_millis(20);

/// What was seen longer ago is not known any more.
const FRESH: Duration = Duration::from_millis(2);

/// The longest queue at this end.
const QUEUE: Duration = Duration::from_millis(6);

/// So many bytes may always be on their way.
const LEAST_BYTES: f64 = 256.0 * 1024.0;

/// Rates are measured over so much time at least, and the best one is forgotten in the course of so much.
const WINDOW: Duration = Duration::from_millis(20);
const MEMORY: Duration = Duration::from_secs(1);

/// What went to a process.
#[derive(Clone, Copy, Default)]
struct Way {
    sent: u64,
    /// Bytes that are there.
    come: u64,
    /// When that changed last, or when something was sent after all was there.
    moved: Duration,
    /// Bytes up to the end of the last chunk.
    chunks: u64,
    /// Whether the next change tells how long the way is.
    timed: bool,
}

impl Way {
    /// Bytes that are on their way.
    fn left(&self) -> u64 {
        self.sent - self.come
    }
}

/// See the module's text.
pub(super) struct Flow {
    ways: Vec<Way>,
    /// Bytes that are there, of all; when the window began, and how many there were then.
    come: u64,
    window: (Duration, u64),
    /// Bytes a second, at best.
    rate: f64,
    /// The shortest time in which something was there.
    least: Duration,
    /// When it was looked last.
    looked: Duration,
}

impl Flow {
    pub(super) fn new(processes: usize) -> Flow {
        let window = (Duration::ZERO, 0);
        Flow {
            ways: vec![Way::default(); processes],
            come: 0,
            window,
            rate: 0.0,
            least: MEMORY,
            looked: Duration::ZERO,
        }
    }

    /// Something goes to a process: a chunk, or a word about some.
    pub(super) fn send(&mut self, now: Duration, to: u32, bytes: usize, chunk: bool) {
        let way = &mut self.ways[to as usize];
        if way.left() == 0 {
            (way.moved, way.timed) = (now, true);
        }
        way.sent += bytes as u64;
        if chunk {
            way.chunks = way.sent;
        }
    }

    /// Looks how much is on its way to each process; whether chunks have moved.
    pub(super) fn look(&mut self, now: Duration, on_way: impl Fn(u32) -> usize) -> bool {
        self.looked = now;
        let mut chunks = false;
        for (process, way) in (0..).zip(&mut self.ways).filter(|(_, way)| way.left() > 0) {
            let come = way.sent.saturating_sub(on_way(process) as u64);
            if come <= way.come {
                continue;
            }
            if std::mem::take(&mut way.timed) {
                self.least = self.least.min(now.saturating_sub(way.moved));
            }
            self.come += come - way.come;
            chunks |= way.come < way.chunks;
            (way.come, way.moved) = (come, now);
        }
        let (began, then) = self.window;
        let passed = now.saturating_sub(began);
        if passed >= WINDOW {
            let kept = self.rate * (1.0 - passed.as_secs_f64() / MEMORY.as_secs_f64()).max(0.0);
            self.rate = kept.max((self.come - then) as f64 / passed.as_secs_f64());
            self.window = (now, self.come);
        }
        chunks
    }

    /// Bytes that are on their way to a process, as was seen last.
    pub(super) fn on_way(&self, to: u32) -> u64 {
        self.ways[to as usize].left()
    }

    /// Whether something is on its way to a process and does not come there.
    pub(super) fn is_stuck(&self, now: Duration, to: u32) -> bool {
        let way = &self.ways[to as usize];
        way.left() > 0 && self.looked + FRESH >= now && now >= way.moved + STUCK + 3 * self.least
    }

    /// For how long nothing has come to a process of what is on its way there.
    pub(super) fn stands_still(&self, now: Duration, to: u32) -> Duration {
        let way = &self.ways[to as usize];
        if way.left() > 0 { now.saturating_sub(way.moved) } else { Duration::ZERO }
    }

    /// Bytes that may be handed over now.
    pub(super) fn room(&self, now: Duration) -> usize {
        let moves = |way: &&Way| now < way.moved + STUCK;
        let on_way: u64 = self.ways.iter().filter(moves).map(Way::left).sum();
        let most = self.rate * (QUEUE + 2 * self.least).as_secs_f64();
        (most.max(LEAST_BYTES) as usize).saturating_sub(on_way as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_stands_still_takes_no_room() {
        let mut flow = Flow::new(3);
        let least = LEAST_BYTES as usize;
        (1..3).for_each(|to| flow.send(100 * MS, to, 100_000, true));
        assert_eq!(flow.room(100 * MS), least - 200_000);
        let at = |bytes: [usize; 3]| move |process: u32| bytes[process as usize];
        assert!(flow.look(110 * MS, at([0, 100_000, 40_000])));
        assert!(!flow.look(115 * MS, at([0, 100_000, 40_000])));
        assert_eq!((flow.come, flow.room(125 * MS)), (60_000, least - 40_000), "the first stands still");
        assert!(flow.look(126 * MS, at([0, 90_000, 40_000])));
        assert_eq!(flow.room(126 * MS), least - 130_000, "and goes on");
    }

    #[test]
    fn room_follows_the_rate_and_the_way() {
        // A way of 50 ms that carries 100 MB/s: what is sent is there 50 ms later.
        let mut flow = Flow::new(2);
        let (mut sent, mut there) = (vec![0u64; 2000], 0);
        for k in 0..2000usize {
            let now = k as u32 * MS;
            there += sent[k.saturating_sub(50)].min(if k >= 50 { 100_000 } else { 0 });
            let on_way = sent.iter().take(k).sum::<u64>() - there;
            flow.look(now, |_| on_way as usize);
            sent[k] = (flow.room(now) as u64).min(100_000);
            flow.send(now, 1, sent[k] as usize, true);
        }
        assert!(sent[1500..].iter().all(|bytes| *bytes == 100_000), "the link is full: {:?}", &sent[1990..]);
    }
}
