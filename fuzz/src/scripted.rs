//! A transport whose peers follow a script, with a virtual clock that advances when a rank waits.

use skyphos_core::clock::{Clock, VirtualClock};
use skyphos_core::extensions::{NativeCollectives, Replication, UnderReplicas};
use skyphos_core::frame::Frame;
use skyphos_core::slab::Pool;
use skyphos_core::transport::{Event, Facts, Loss, Transport, Waker};
use skyphos_types::WorldRank;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Polls without an event after which all peers are lost, so that no rank waits for ever.
const MAX_QUIET_POLLS: u32 = 40;

/// The events to come from the peers, and the number of frames posted to them.
pub struct Script {
    /// Events that no poll has delivered yet.
    pub events: VecDeque<Event>,
    /// Number of frames that were posted.
    pub posted: usize,
    down: Vec<bool>,
    /// Whether all peers are lost after the script.
    ends: bool,
    quiet: u32,
}

/// The transport.
#[derive(Clone)]
pub struct Scripted {
    rank: u32,
    size: u32,
    clock: Arc<VirtualClock>,
    pool: Pool,
    script: Arc<Mutex<Script>>,
}

impl Scripted {
    /// The transport of rank `rank` of `size`. `ends`: all other ranks are lost after the script.
    pub fn new(rank: u32, size: u32, ends: bool) -> Scripted {
        let down = vec![false; size as usize];
        let script = Script { events: VecDeque::new(), posted: 0, down, ends, quiet: 0 };
        let clock = Arc::new(VirtualClock::new(0, |_| 0, false));
        Scripted { rank, size, clock, pool: Pool::default(), script: Arc::new(Mutex::new(script)) }
    }

    /// The script, to append events to.
    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().expect("one thread")
    }
}

impl NativeCollectives for Scripted {}

impl Replication for Scripted {}

impl UnderReplicas for Scripted {}

impl Transport for Scripted {
    fn rank(&self) -> WorldRank {
        WorldRank(self.rank)
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn facts(&self) -> Facts {
        let addresses = (0..self.size).map(|rank| format!("address {rank}")).collect();
        Facts {
            clock: Clock::Virtual(self.clock.clone()),
            pool: self.pool.clone(),
            ..Facts::new("scripted", addresses, 1)
        }
    }

    fn post(&mut self, to: WorldRank, _frame: Frame) {
        assert!(to < WorldRank(self.size) && to != WorldRank(self.rank), "posted to a rank that is no peer");
        self.script().posted += 1;
    }

    fn backlog(&self, _to: WorldRank) -> usize {
        0
    }

    /// Delivers one event per poll.
    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>) {
        self.clock.advance_by(wait.min(Duration::from_secs(1)).as_nanos() as u64 + 1000);
        let mut script = self.script();
        while let Some(event) = script.events.pop_front() {
            // A lost rank sends nothing.
            match event {
                Event::Frame { from, .. } if script.down[from.index()] => continue,
                Event::PeerDown { rank, .. } if std::mem::replace(&mut script.down[rank.index()], true) => {
                    continue;
                }
                event => events.push(event),
            }
            script.quiet = 0;
            return;
        }
        script.quiet += 1;
        if script.ends && script.quiet > MAX_QUIET_POLLS {
            for rank in (0..self.size).filter(|rank| *rank != self.rank) {
                if !std::mem::replace(&mut script.down[rank as usize], true) {
                    events.push(Event::PeerDown {
                        rank: WorldRank(rank),
                        cause: "the end".to_owned(),
                        loss: Loss::Ended,
                    });
                }
            }
        }
    }

    fn waker(&self) -> Waker {
        Arc::new(|| {})
    }

    fn close(&mut self, _wait: Duration) -> skyphos_types::Result<()> {
        Ok(())
    }
}
