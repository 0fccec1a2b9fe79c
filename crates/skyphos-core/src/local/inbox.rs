//! Inbox of a rank: a queue under a mutex, a condition variable, and a waker that ends a wait without an event.
//!
//! `loom/tests/inbox.rs` tries all orders of its threads; it supplies its own `sync`.

use super::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, Ordering};
use std::collections::VecDeque;
use std::time::Duration;

pub(crate) struct Inbox<E> {
    queue: Mutex<VecDeque<E>>,
    changed: Condvar,
    /// Length of the queue, readable without its lock: a poll that finds nothing costs one load.
    len: AtomicUsize,
    woken: AtomicBool,
}

impl<E> Default for Inbox<E> {
    fn default() -> Inbox<E> {
        Inbox {
            queue: Mutex::new(VecDeque::new()),
            changed: Condvar::new(),
            len: AtomicUsize::new(0),
            woken: AtomicBool::new(false),
        }
    }
}

impl<E> Inbox<E> {
    pub(crate) fn put(&self, event: E) {
        let mut queue = self.queue.lock().expect("inbox lock");
        queue.push_back(event);
        self.len.store(queue.len(), Ordering::Release);
        drop(queue);
        self.changed.notify_one();
    }

    /// Moves all events to `events`, and waits at most `wait` for the first one or for [`Inbox::wake`].
    pub(crate) fn take_all(&self, wait: Duration, events: &mut Vec<E>) {
        if wait.is_zero() && self.len.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut queue = self.queue.lock().expect("inbox lock");
        if queue.is_empty() && !wait.is_zero() && !self.woken.load(Ordering::Acquire) {
            queue = self.changed.wait_timeout(queue, wait).expect("inbox lock").0;
        }
        self.woken.store(false, Ordering::Release);
        events.extend(queue.drain(..));
        self.len.store(0, Ordering::Release);
    }

    /// Ends the current wait, or, if no thread waits, the next one.
    pub(crate) fn wake(&self) {
        let queue = self.queue.lock().expect("inbox lock");
        self.woken.store(true, Ordering::Release);
        drop(queue);
        self.changed.notify_one();
    }
}
