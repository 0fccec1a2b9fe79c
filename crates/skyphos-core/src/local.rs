//! Ranks of one process: the smallest transport, for tests, notebooks and examples.
//!
//! Each rank has an [`Inbox`]; posting moves a frame into the peer's inbox. Payloads are shared, not copied.

mod inbox;
mod sync;

use crate::extensions::{NativeCollectives, Replication, UnderReplicas};
use crate::frame::Frame;
use crate::topology::Topology;
use crate::transport::{Event, Facts, Loss, Transport, Waker, goodbye_cause};
use inbox::Inbox;
use skyphos_types::{Result, WorldRank};
use std::sync::Arc;
use std::time::Duration;

/// The inboxes of all ranks.
struct Hub {
    inboxes: Vec<Inbox<Event>>,
}

/// One rank of an in-process group.
pub struct Local {
    hub: Arc<Hub>,
    rank: WorldRank,
    closed: bool,
    /// The reason why this rank's program has failed; else empty.
    failure_reason: String,
}

/// A group of `size` ranks in this process.
pub fn local_group(size: u32) -> Vec<Local> {
    let inboxes = (0..size).map(|_| Inbox::default()).collect();
    let hub = Arc::new(Hub { inboxes });
    (0..size)
        .map(|rank| Local {
            hub: hub.clone(),
            rank: WorldRank(rank),
            closed: false,
            failure_reason: String::new(),
        })
        .collect()
}

impl Local {
    /// Reports the end of this rank to all others, once.
    fn leave(&mut self, loss: Loss, cause: &str) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        for (peer, inbox) in self.hub.inboxes.iter().enumerate() {
            if peer != self.rank.index() {
                inbox.put(Event::PeerDown { rank: self.rank, cause: cause.to_owned(), loss });
            }
        }
    }
}

impl Transport for Local {
    fn rank(&self) -> WorldRank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.hub.inboxes.len() as u32
    }

    fn facts(&self) -> Facts {
        let size = self.hub.inboxes.len();
        let addresses = (0..size).map(|rank| format!("this process, task {rank}")).collect();
        let zeros = vec![0; size];
        let topology = Topology::new(&zeros, &zeros).expect("one host in one rack");
        Facts { topology, ..Facts::new("local", addresses, size) }
    }

    fn post(&mut self, to: WorldRank, frame: Frame) {
        self.hub.inboxes[to.index()].put(Event::Frame { from: self.rank, frame });
    }

    fn backlog(&self, _to: WorldRank) -> usize {
        0
    }

    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>) {
        self.hub.inboxes[self.rank.index()].take_all(wait, events);
    }

    fn waker(&self) -> Waker {
        let (hub, rank) = (self.hub.clone(), self.rank.index());
        Arc::new(move || hub.inboxes[rank].wake())
    }

    fn set_failure_reason(&mut self, reason: &str) {
        reason.clone_into(&mut self.failure_reason);
    }

    fn close(&mut self, _wait: Duration) -> Result<()> {
        let reason = std::mem::take(&mut self.failure_reason);
        self.leave(Loss::Left, goodbye_cause(&reason));
        Ok(())
    }
}

impl NativeCollectives for Local {}

impl Replication for Local {}

impl UnderReplicas for Local {
    fn give_up(&mut self, peer: WorldRank, cause: &str) {
        let down = |rank, cause: &str| Event::PeerDown { rank, cause: cause.to_owned(), loss: Loss::Silent };
        self.hub.inboxes[self.rank.index()].put(down(peer, cause));
        self.hub.inboxes[peer.index()].put(down(self.rank, "it has given this rank up"));
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.leave(Loss::Ended, "its task ended without closing its Comm");
    }
}
