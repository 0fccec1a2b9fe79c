//! Calls that go on while their caller does something else.
//!
//! A [`Call`] has its number and is not under way yet. [`Call::run`] runs it on this thread, as a blocking call;
//! [`Call::start`] passes it to the node, and returns a [`Work`] that is complete when the call is.
//!
//! Calls are numbered when they are made, so all ranks must make a group's calls in the same order; they may
//! complete, and be waited for, in any order. A dropped `Work` leaves its call under way: other ranks wait for it.

use crate::call_guard::{CallGuard, Outcome};
use crate::endpoint::Endpoint;
use crate::mailbox::Mailbox;
use crate::node::{INTERRUPT_CHECK, Node};
use crate::tasks::{LastPoll, Step, Waiting, Woken, lock};
use crate::watch::Watch;
use skyphos_types::{CommId, Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

type Future<R> = Pin<Box<dyn std::future::Future<Output = Result<R>> + Send>>;

/// A call that has its number and is not under way yet. If the `Call` is dropped, the call fails on all ranks.
pub struct Call<R> {
    ep: Arc<Endpoint>,
    future: Option<Future<R>>,
    /// Only threads that wait for the call may poll it, because it runs the caller's code.
    waiters_only: bool,
}

impl<R: Send + 'static> Call<R> {
    pub(crate) fn new(ep: Arc<Endpoint>, future: Future<R>, waiters_only: bool) -> Call<R> {
        Call { ep, future: Some(future), waiters_only }
    }

    /// Runs the call to its end on this thread.
    pub fn run(mut self) -> Result<R> {
        let future = self.future.take().expect("a call runs once");
        self.ep.node().clone().run(&self.ep, future)
    }

    /// The same call with another result.
    pub fn map<S: Send + 'static>(mut self, f: impl FnOnce(R) -> S + Send + 'static) -> Call<S> {
        let future = self.future.take().expect("a call runs once");
        Call::new(self.ep.clone(), Box::pin(async move { future.await.map(f) }), self.waiters_only)
    }

    /// Lets this receive fail if `send` fails before the receive has taken a message.
    pub fn fail_with<S>(self, send: &Work<S>) -> Call<R> {
        let (node, (group, receive), (_, call)) =
            (self.ep.node(), self.ep.group_and_call(), send.ep.group_and_call());
        if !node.mail(|m| m.pair_with_send(group.comm, receive, call)) {
            while !send.is_done() {
                std::thread::yield_now(); // the send has ended on another thread, which is about to store the result
            }
            if let Some(Err(error)) = &*lock(&send.slot.result) {
                node.mail(|m| m.fail(group.comm, receive, error.clone()));
            }
        }
        self
    }

    /// Hands the call to the node.
    pub fn start(self) -> Work<R> {
        let (task, work) = self.into_task();
        Node::launch(work.ep.node(), Box::new(task));
        work
    }

    /// Lets the caller poll the call itself: a simulation has all ranks on one thread.
    pub fn into_steps(self) -> Steps<R> {
        let (task, work) = self.into_task();
        Steps { task, work }
    }

    fn into_task(mut self) -> (Task<R>, Work<R>) {
        let future = self.future.take().expect("a call runs once");
        let slot = Arc::new(Slot::default());
        let woken = Arc::new(Woken::default());
        let watch = Watch::new(self.ep.node());
        let (ep, shared_slot) = (self.ep.clone(), slot.clone());
        let (waiters_only, fused) = (self.waiters_only, false);
        let task = Task { ep, future, slot: shared_slot, watch, woken, waiters_only, fused };
        (task, Work { ep: self.ep.clone(), slot })
    }
}

/// A call that its caller polls.
pub struct Steps<R> {
    task: Task<R>,
    work: Work<R>,
}

impl<R: Send> Steps<R> {
    /// Delivers events that have arrived, and polls the call if it has any. Returns the result once the call is over.
    pub fn step(&mut self) -> Option<Result<R>> {
        let node = self.work.ep.node().clone();
        node.wait_until(|_| false, Duration::ZERO);
        if node.mail(|mail| self.task.has_news(mail)) && self.task.step() {
            return self.work.take();
        }
        None
    }
}

impl<R> Drop for Call<R> {
    fn drop(&mut self) {
        if self.future.is_some() {
            let error = Error::bad_input("a call was made and dropped before it ran");
            drop(CallGuard { ep: &self.ep, outcome: Outcome::Failed(error), is_reported: false });
            self.ep.node().forget_outcome(&self.ep);
        }
    }
}

/// A call under way.
pub struct Work<R> {
    ep: Arc<Endpoint>,
    slot: Arc<Slot<R>>,
}

/// The result of a call, for its [`Work`].
struct Slot<R> {
    ready: AtomicBool,
    result: Mutex<Option<Result<R>>>,
}

impl<R> Default for Slot<R> {
    fn default() -> Slot<R> {
        Slot { ready: AtomicBool::new(false), result: Mutex::new(None) }
    }
}

impl<R> Work<R> {
    /// Whether the call is over.
    pub fn is_done(&self) -> bool {
        self.slot.ready.load(Ordering::Acquire)
    }

    /// The call, as errors name it.
    pub fn name(&self) -> String {
        self.ep.sig().to_string()
    }

    /// Waits until the call is over, at most `timeout`; true if it is. Meanwhile this thread drives all calls under way on the
    /// node. An interrupt ends the call on all ranks.
    pub fn wait_for(&self, timeout: Option<Duration>) -> bool {
        self.wait_on(&self.slot.ready, timeout);
        self.is_done()
    }

    /// Waits until the call has set a flag or is over, at most `timeout`.
    pub fn wait_on(&self, flag: &AtomicBool, timeout: Option<Duration>) {
        let is_set = || flag.load(Ordering::Acquire) || self.is_done();
        if is_set() {
            return;
        }
        let node = self.ep.node().clone();
        let until = timeout.and_then(|t| Instant::now().checked_add(t));
        node.release_held();
        let _waiting = Waiting::enter(&node.tasks);
        let mut checked = node.now();
        while !is_set() {
            let left = until.map_or(INTERRUPT_CHECK, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return;
            }
            let quiet = node.step_calls(left, Some(flag));
            if quiet || node.now().saturating_sub(checked) > INTERRUPT_CHECK {
                checked = node.now();
                if node.interrupted() {
                    node.interrupt(&self.ep);
                }
            }
        }
    }

    /// Whether the call is over, and failed.
    pub fn has_failed(&self) -> bool {
        matches!(*lock(&self.slot.result), Some(Err(_)))
    }

    /// Polls all calls under way on the node once, without waiting.
    pub fn advance(&self) {
        if !self.is_done() {
            self.ep.node().poll_calls(false);
        }
    }

    /// Ends a call under way on all ranks, as if the user had interrupted it.
    pub fn withdraw(&self) {
        self.ep.node().interrupt(&self.ep);
        self.wait_for(None);
    }

    /// Records that this rank's program treats the call as failed, although its result was taken. Later calls tell other ranks.
    pub fn note_failure(&self) {
        let error = Error::Aborted { rank: self.ep.node().rank().0, cause: "after it had ended".to_owned() };
        self.ep.node().report_failure(&self.ep, &error, false);
    }

    /// Waits for the result.
    pub fn wait(self) -> Result<R> {
        self.wait_for(None);
        self.take().expect("the result was not taken before")
    }

    /// Takes the result. `None` if the call is not over, or its result was taken before.
    pub fn take(&self) -> Option<Result<R>> {
        let result = lock(&self.slot.result).take();
        match &result {
            Some(Ok(_)) => self.ep.node().report_success(&self.ep),
            Some(Err(error)) => self.ep.node().report_failure(&self.ep, error, false),
            None => {}
        }
        result.map(|result| result.map_err(|error| self.ep.group_and_call().0.with_group_ranks(error)))
    }
}

impl<R> Drop for Work<R> {
    fn drop(&mut self) {
        let was_taken = self.is_done() && lock(&self.slot.result).is_none();
        if !was_taken {
            self.ep.node().forget_outcome(&self.ep);
        }
    }
}

/// A call under way, as the node polls it.
struct Task<R> {
    ep: Arc<Endpoint>,
    future: Future<R>,
    slot: Arc<Slot<R>>,
    watch: Watch,
    woken: Arc<Woken>,
    waiters_only: bool,
    fused: bool,
}

impl<R: Send> Step for Task<R> {
    fn step(&mut self) -> bool {
        self.woken.0.store(false, Ordering::Release);
        let waker = Waker::from(self.woken.clone());
        let checked = self.watch.look(&self.ep);
        let polled = match checked {
            Err(error) => Ok(Poll::Ready(Err(error))),
            Ok(()) => {
                let poll = || self.future.as_mut().poll(&mut Context::from_waker(&waker));
                catch_unwind(AssertUnwindSafe(poll)).map(|polled| match polled {
                    Poll::Ready(Ok(result)) => {
                        Poll::Ready(self.ep.node().check_aborts(&self.ep).map(|()| result))
                    }
                    other => other,
                })
            }
        };
        let (result, outcome) = match polled {
            Ok(Poll::Pending) => return false,
            Ok(Poll::Ready(result)) => {
                let outcome = Outcome::of(&result);
                (result, outcome)
            }
            Err(_) => (Err(self.ep.node().panicked()), Outcome::Panicked),
        };
        drop(CallGuard { ep: &self.ep, outcome, is_reported: false });
        *lock(&self.slot.result) = Some(result);
        self.slot.ready.store(true, Ordering::Release);
        true
    }

    fn has_news(&self, mail: &mut Mailbox) -> bool {
        self.woken.0.load(Ordering::Acquire) || self.watch.has_news(&self.ep, mail)
    }

    fn waiters_only(&self) -> bool {
        self.waiters_only
    }

    fn fused(&mut self) -> &mut bool {
        &mut self.fused
    }

    fn last_poll(&self) -> LastPoll {
        let (group, call) = self.ep.group_and_call();
        LastPoll { comm: group.comm, call, version: self.watch.version(), woken: self.woken.clone() }
    }

    fn group(&self) -> CommId {
        self.ep.group_and_call().0.comm
    }
}
