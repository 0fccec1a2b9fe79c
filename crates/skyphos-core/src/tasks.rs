//! Calls under way on a node, and the condition on which its thread sleeps.

use crate::mailbox::Mailbox;
use skyphos_types::{CallNumber, CommId};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call under way, without the type of its result.
pub(crate) trait Step: Send {
    /// Polls the call; true when it is over.
    fn step(&mut self) -> bool;
    /// Whether something has happened since the last poll.
    fn has_news(&self, mail: &mut Mailbox) -> bool;
    /// Whether only waiting threads may poll the call.
    fn waiters_only(&self) -> bool;
    /// Whether the call was started together with others.
    fn fused(&mut self) -> &mut bool;
    fn last_poll(&self) -> LastPoll;
    fn group(&self) -> CommId;
}

/// The state of a call at its last poll. With it a thread finds news of the call while another polls it.
pub(crate) struct LastPoll {
    pub(crate) comm: CommId,
    pub(crate) call: CallNumber,
    /// Version of the call's box.
    pub(crate) version: Option<u64>,
    pub(crate) woken: Arc<Woken>,
}

impl LastPoll {
    /// Whether anything has happened since then.
    pub(crate) fn has_news(&self, mail: &mut Mailbox) -> bool {
        self.woken.0.load(Ordering::Acquire) || mail.version(self.comm, self.call) != self.version
    }
}

/// True when a call must be polled although no message has arrived for it: at its start, and when its waker is called.
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
    /// Calls that were polled before. The thread that polls them holds this lock.
    pub(crate) active: Mutex<Vec<Box<dyn Step>>>,
    pub(crate) held: Mutex<HeldCalls>,
    /// Calls of `active` and `fresh` that only waiting threads may poll.
    pub(crate) waiters_only: AtomicUsize,
    pub(crate) thread_state: Mutex<ThreadState>,
    pub(crate) thread_wake: Condvar,
}

/// Calls that are held back so that they start together ([`crate::Node::hold`]).
#[derive(Default)]
pub(crate) struct HeldCalls {
    /// Calls of `hold` without a `release`.
    pub(crate) depth: usize,
    /// Calls that start at the release, in order.
    pub(crate) calls: Vec<Box<dyn Step>>,
}

/// The condition on which the node's thread sleeps.
#[derive(Default)]
pub(crate) struct ThreadState {
    /// The thread runs, or none may be started.
    pub(crate) thread: bool,
    /// Calls under way that the thread may poll.
    pub(crate) calls: usize,
    /// Threads that poll calls while they wait for one.
    pub(crate) waiters: usize,
    /// Calls have ended whose last bytes may still be queued here, while peers wait for them.
    pub(crate) unsent: bool,
    /// The transport has work while no call is under way.
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

    /// Keeps the node from starting a thread: calls move only while a caller waits for one.
    pub(crate) fn forbid_thread(&self) {
        lock(&self.thread_state).thread = true;
    }

    /// Notes that the transport has no more work of its own.
    pub(crate) fn end_background_work(&self) {
        lock(&self.thread_state).background_work = false;
        self.thread_wake.notify_all();
    }

    /// Whether there are calls that only waiting threads may poll.
    pub(crate) fn any_for_waiters(&self) -> bool {
        self.waiters_only.load(Ordering::Acquire) > 0
    }
}
