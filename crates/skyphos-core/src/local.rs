//! Ranks of one process: the smallest transport, for tests, notebooks and examples.
//!
//! Each rank has an inbox (a queue under a mutex, and a condition variable to wait on); posting
//! moves the frame into the peer's inbox. Payloads are shared, not copied.

use crate::frame::Frame;
use crate::topology::Topology;
use crate::transport::{Event, Loss, Transport, Waker, leaving};
use skyphos_types::Result;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

#[derive(Default)]
struct Inbox {
    queue: Mutex<VecDeque<Event>>,
    came: Condvar,
    /// Length of the queue, readable without its lock: a poll that finds nothing costs one load.
    waiting: AtomicUsize,
    woken: AtomicBool,
}

impl Inbox {
    fn put(&self, event: Event) {
        let mut queue = self.queue.lock().expect("inbox lock");
        queue.push_back(event);
        self.waiting.store(queue.len(), Ordering::Release);
        drop(queue);
        self.came.notify_one();
    }
}

struct Hub {
    inboxes: Vec<Inbox>,
}

/// One rank of an in-process group.
pub struct Local {
    hub: Arc<Hub>,
    rank: u32,
    closed: bool,
    /// Why it leaves, if its program has failed.
    why: String,
}

/// A group of `size` ranks in this process.
pub fn local_group(size: u32) -> Vec<Local> {
    let inboxes = (0..size).map(|_| Inbox::default()).collect();
    let hub = Arc::new(Hub { inboxes });
    (0..size).map(|rank| Local { hub: hub.clone(), rank, closed: false, why: String::new() }).collect()
}

impl Local {
    fn leave(&mut self, loss: Loss, cause: &str) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        for (peer, inbox) in self.hub.inboxes.iter().enumerate() {
            if peer != self.rank as usize {
                inbox.put(Event::PeerDown { rank: self.rank, cause: cause.to_owned(), loss });
            }
        }
    }
}

impl Transport for Local {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.hub.inboxes.len() as u32
    }

    fn name(&self) -> &'static str {
        "local"
    }

    fn address(&self, rank: u32) -> String {
        format!("this process, task {rank}")
    }

    fn ranks_on_host(&self) -> usize {
        self.hub.inboxes.len()
    }

    fn topology(&self) -> Topology {
        let one = vec![0; self.hub.inboxes.len()];
        Topology::new(&one, &one).expect("one host in one rack")
    }

    fn post(&mut self, to: u32, frame: Frame) {
        self.hub.inboxes[to as usize].put(Event::Frame { from: self.rank, frame });
    }

    fn give_up(&mut self, peer: u32, cause: &str) {
        let down = |rank, cause: &str| Event::PeerDown { rank, cause: cause.to_owned(), loss: Loss::Silent };
        self.hub.inboxes[self.rank as usize].put(down(peer, cause));
        self.hub.inboxes[peer as usize].put(down(self.rank, "it has given this one up"));
    }

    fn backlog(&self, _to: u32) -> usize {
        0
    }

    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>) {
        let inbox = &self.hub.inboxes[self.rank as usize];
        if wait.is_zero() && inbox.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut queue = inbox.queue.lock().expect("inbox lock");
        if queue.is_empty() && !wait.is_zero() && !inbox.woken.load(Ordering::Acquire) {
            queue = inbox.came.wait_timeout(queue, wait).expect("inbox lock").0;
        }
        inbox.woken.store(false, Ordering::Release);
        events.extend(queue.drain(..));
        inbox.waiting.store(0, Ordering::Release);
    }

    fn waker(&self) -> Waker {
        let (hub, rank) = (self.hub.clone(), self.rank as usize);
        Arc::new(move || {
            let inbox = &hub.inboxes[rank];
            let queue = inbox.queue.lock().expect("inbox lock");
            inbox.woken.store(true, Ordering::Release);
            drop(queue);
            inbox.came.notify_one();
        })
    }

    fn say_why(&mut self, why: &str) {
        why.clone_into(&mut self.why);
    }

    fn close(&mut self, _wait: Duration) -> Result<()> {
        let why = std::mem::take(&mut self.why);
        self.leave(Loss::Left, leaving(&why));
        Ok(())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.leave(Loss::Ended, "its task ended without closing its Comm");
    }
}
