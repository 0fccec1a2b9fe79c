//! Calls under way on a node, and the state that its thread waits for.

use crate::mailbox::Mailbox;
use skyphos_types::{CallNumber, CommId};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call under way, whatever its result's type.
pub(crate) trait Step: Send {
    /// Polls the call; true when it is over.
    fn step(&mut self) -> bool;
    /// Whether something has happened since the last poll.
    fn has_news(&self, mail: &mut Mailbox) -> bool;
    /// Whether only waiting threads may poll the call.
    fn waiters_only(&self) -> bool;
    /// Whether the call was started together with others.
    fn fused(&mut self) -> &mut bool;
    /// The group, the call, the version of its box at the last poll, and its waker: compared while the call itself is in use.
    fn last_seen(&self) -> (CommId, CallNumber, Option<u64>, Arc<Woken>);
    fn group(&self) -> CommId;
}

/// Set when a call is to be polled although no message has arrived for it: at first, and when its waker is called.
pub(crate) struct Woken(pub(crate) AtomicBool);

impl Default for Woken {
    fn default() -> Woken {
        Woken(AtomicBool::new(true))
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.0.store(true, Ordering::Release);
    }
}

/// All calls under way on a node.
#[derive(Default)]
pub(crate) struct Tasks {
    /// Calls that have started and were not polled yet, in order.
    pub(crate) fresh: Mutex<Vec<Box<dyn Step>>>,
    /// The thread that polls them holds this lock.
    pub(crate) active: Mutex<Vec<Box<dyn Step>>>,
    /// How often calls are held ([`crate::Node::hold`]), and the calls that wait for the release, in order.
    pub(crate) held: Mutex<(usize, Vec<Box<dyn Step>>)>,
    /// Calls of `active` and `fresh` that only waiting threads may poll.
    pub(crate) waiters_only: AtomicUsize,
    pub(crate) thread_state: Mutex<ThreadState>,
    pub(crate) thread_wake: Condvar,
}

/// The condition that the node's thread waits for.
#[derive(Default)]
pub(crate) struct ThreadState {
    /// Whether the thread runs, or none is wanted.
    pub(crate) thread: bool,
    /// Calls under way that the thread may poll.
    pub(crate) calls: usize,
    /// Threads that poll calls while they wait for one.
    pub(crate) waiters: usize,
    /// Whether calls have ended whose last bytes may still be queued here, for which peers wait.
    pub(crate) unsent: bool,
    /// Whether the transport has work while no call is under way.
    pub(crate) background_work: bool,
    pub(crate) stop: bool,
}

/// Registers a thread that polls calls while it waits for one.
pub(crate) struct Waiting<'a>(&'a Tasks);

impl<'a> Waiting<'a> {
    pub(crate) fn enter(tasks: &'a Tasks) -> Waiting<'a> {
        lock(&tasks.thread_state).waiters += 1;
        Waiting(tasks)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.0.thread_state).waiters -= 1;
        self.0.thread_wake.notify_all();
    }
}

impl Tasks {
    /// Ends the node's thread.
    pub(crate) fn stop(&self) {
        lock(&self.thread_state).stop = true;
        self.thread_wake.notify_all();
    }

    /// The node gets no thread: calls move only while a thread waits for one.
    pub(crate) fn needs_no_thread(&self) {
        lock(&self.thread_state).thread = true;
    }

    /// The transport has no more work of its own.
    pub(crate) fn end_background_work(&self) {
        lock(&self.thread_state).background_work = false;
        self.thread_wake.notify_all();
    }

    /// Whether there are calls that only waiting threads may poll.
    pub(crate) fn any_for_waiters(&self) -> bool {
        self.waiters_only.load(Ordering::Acquire) > 0
    }
}
