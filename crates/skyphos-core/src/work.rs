//! Calls that go on while their caller does something else.
//!
//! A [`Call`] has its number and is not under way yet. [`Call::run`] runs it on this thread, as a blocking call;
//! [`Call::start`] hands it to the node, and the [`Work`] it returns tells when it is done.
//!
//! ```text
//! the node's thread, while calls are under way and nobody waits for one:
//!     poll each call that has news;  if none had, drive the transport or wait for who does
//! a thread in Work::wait:  the same, until its own call is done; the node's thread steps back meanwhile
//! a thread in a blocking call:  drives the transport; calls that the node's thread may not touch, it polls too
//! ```
//!
//! Calls are numbered when they are made, so all ranks must make a group's calls in the same order; they may
//! complete, and be waited for, in any. A `Work` that is dropped leaves its call under way: other ranks wait for it.

use crate::endpoint::Endpoint;
use crate::mailbox::{Group, Mailbox};
use crate::node::{Leave, Node, Outcome, Watch};
use skyphos_types::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// The longest nap of who drives calls that are under way.
const NAP: Duration = Duration::from_millis(100);

type Future<R> = Pin<Box<dyn std::future::Future<Output = Result<R>> + Send>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call that has its number and is not under way. Dropped so, it fails on all ranks.
pub struct Call<R> {
    ep: Arc<Endpoint>,
    future: Option<Future<R>>,
    /// It may be polled only by threads that wait: it runs code of the caller's.
    waiters_only: bool,
}

impl<R: Send + 'static> Call<R> {
    pub(crate) fn new(ep: Arc<Endpoint>, future: Future<R>, waiters_only: bool) -> Call<R> {
        Call { ep, future: Some(future), waiters_only }
    }

    /// Runs it to its end on this thread.
    pub fn run(mut self) -> Result<R> {
        let future = self.future.take().expect("a call runs once");
        self.ep.node().clone().run(&self.ep, future)
    }

    /// The same call with another result.
    pub fn map<S: Send + 'static>(mut self, f: impl FnOnce(R) -> S + Send + 'static) -> Call<S> {
        let future = self.future.take().expect("a call runs once");
        Call::new(self.ep.clone(), Box::pin(async move { future.await.map(f) }), self.waiters_only)
    }

    /// A receive that fails with a send, if that fails before a message is here.
    pub fn beside<S>(self, send: &Work<S>) -> Call<R> {
        let (node, (group, receive), (_, call)) = (self.ep.node(), self.ep.place(), send.ep.place());
        if !node.mail(|m| m.put_beside(group.comm, receive, call)) {
            while !send.is_done() {
                std::thread::yield_now(); // another thread has ended it, and is about to say how
            }
            if let Some(Err(error)) = &*lock(&send.slot.result) {
                node.mail(|m| m.fail(group.comm, receive, error.clone()));
            }
        }
        self
    }

    /// Hands it to the node.
    pub fn start(self) -> Work<R> {
        let (task, work) = self.into_task();
        Node::launch(work.ep.node(), Box::new(task));
        work
    }

    /// Keeps it in the caller's hands, who polls it: a simulation has all ranks on one thread.
    pub fn into_steps(self) -> Steps<R> {
        let (task, work) = self.into_task();
        Steps { task, work }
    }

    fn into_task(mut self) -> (Task<R>, Work<R>) {
        let future = self.future.take().expect("a call runs once");
        let slot = Arc::new(Slot::default());
        let woken = Arc::new(Woken::default());
        let watch = Watch::new(self.ep.node());
        let (ep, slot_too) = (self.ep.clone(), slot.clone());
        let (waiters_only, fused) = (self.waiters_only, false);
        let task = Task { ep, future, slot: slot_too, watch, woken, waiters_only, fused };
        (task, Work { ep: self.ep.clone(), slot })
    }
}

/// A call that is polled by who made it.
pub struct Steps<R> {
    task: Task<R>,
    work: Work<R>,
}

impl<R: Send> Steps<R> {
    /// Files what has come for the rank and polls the call, if there was anything; its result, once it is over.
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
            drop(Leave { ep: &self.ep, outcome: Outcome::Failed(error), is_told: false });
            self.ep.node().see_nothing(&self.ep);
        }
    }
}

/// A call under way.
pub struct Work<R> {
    ep: Arc<Endpoint>,
    slot: Arc<Slot<R>>,
}

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

    /// Waits until the call is over, at most so long; whether it is. Meanwhile this thread drives all that is under
    /// way on the node. An interrupt ends the call on all ranks.
    pub fn wait_for(&self, timeout: Option<Duration>) -> bool {
        self.wait_on(&self.slot.ready, timeout);
        self.is_done()
    }

    /// The same until the call has set a flag, or is over.
    pub fn wait_on(&self, flag: &AtomicBool, timeout: Option<Duration>) {
        let is_set = || flag.load(Ordering::Acquire) || self.is_done();
        if is_set() {
            return;
        }
        let node = self.ep.node().clone();
        let until = timeout.and_then(|t| Instant::now().checked_add(t));
        node.release_held();
        let _waiting = Waiting::enter(&node.tasks);
        let mut asked = node.now();
        while !is_set() {
            let left = until.map_or(NAP, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return;
            }
            let quiet = node.step_calls(left, Some(flag));
            if quiet || node.now().saturating_sub(asked) > NAP {
                asked = node.now();
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

    /// Lets all that is under way on the node go on as far as it can now.
    pub fn advance(&self) {
        if !self.is_done() {
            self.ep.node().poll_calls(false);
        }
    }

    /// Ends the call, as if the user had interrupted it, if it is not over.
    pub fn withdraw(&self) {
        self.ep.node().interrupt(&self.ep);
        self.wait_for(None);
    }

    /// Notes that a call whose result was taken has failed in the eyes of this rank's program.
    pub fn note_failure(&self) {
        let error = Error::Aborted { rank: self.ep.node().rank(), cause: "after it had ended".to_owned() };
        self.ep.node().see_failure(&self.ep, &error, false);
    }

    /// Waits for the result.
    pub fn wait(self) -> Result<R> {
        self.wait_for(None);
        self.take().expect("nobody else can take it")
    }

    /// The result, once the call is over and nobody has taken it.
    pub fn take(&self) -> Option<Result<R>> {
        let result = lock(&self.slot.result).take();
        match &result {
            Some(Ok(_)) => self.ep.node().see_success(&self.ep),
            Some(Err(error)) => self.ep.node().see_failure(&self.ep, error, false),
            None => {}
        }
        result.map(|result| result.map_err(|error| self.ep.place().0.with_group_ranks(error)))
    }
}

impl<R> Drop for Work<R> {
    fn drop(&mut self) {
        let was_taken = self.is_done() && lock(&self.slot.result).is_none();
        if !was_taken {
            self.ep.node().see_nothing(&self.ep);
        }
    }
}

/// A call under way, whatever it returns.
pub(crate) trait Step: Send {
    /// Polls it; whether it is over.
    fn step(&mut self) -> bool;
    /// Whether something has happened since it was polled.
    fn has_news(&self, mail: &mut Mailbox) -> bool;
    /// Whether only threads that wait may poll it.
    fn waiters_only(&self) -> bool;
    /// Whether it was started together with others.
    fn fused(&mut self) -> &mut bool;
    /// What [`Tasks`] compares while the calls themselves are in use: the group, the call, and how much had
    /// happened in it when it was polled.
    fn seen(&self) -> (u64, u64, Option<u64>, Arc<Woken>);
    fn group(&self) -> u64;
}

struct Task<R> {
    ep: Arc<Endpoint>,
    future: Future<R>,
    slot: Arc<Slot<R>>,
    watch: Watch,
    woken: Arc<Woken>,
    waiters_only: bool,
    fused: bool,
}

/// Set when something other than a message wants a call polled; at first too.
pub(crate) struct Woken(AtomicBool);

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
                        Poll::Ready(self.ep.node().heed_aborts(&self.ep).map(|()| result))
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
        drop(Leave { ep: &self.ep, outcome, is_told: false });
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

    fn seen(&self) -> (u64, u64, Option<u64>, Arc<Woken>) {
        let (group, call) = self.ep.place();
        (group.comm, call, self.watch.version(), self.woken.clone())
    }

    fn group(&self) -> u64 {
        self.ep.place().0.comm
    }
}

/// All calls under way on a node.
#[derive(Default)]
pub(crate) struct Tasks {
    /// Started, and not polled yet, in order.
    fresh: Mutex<Vec<Box<dyn Step>>>,
    /// Whoever polls them holds this.
    active: Mutex<Vec<Box<dyn Step>>>,
    /// Calls of a [`Node::hold`], in order.
    held: Mutex<(usize, Vec<Box<dyn Step>>)>,
    /// Those of `active` and `fresh` that only waiting threads may poll.
    waiters_only: AtomicUsize,
    desk: Mutex<Desk>,
    bell: Condvar,
}

/// Whether the node's thread has work.
#[derive(Default)]
struct Desk {
    /// Whether there is a thread.
    thread: bool,
    /// Calls under way that it may poll.
    calls: usize,
    /// Threads that poll them while they wait.
    waiters: usize,
    /// Whether calls have ended whose last bytes may still be here. Peers must not wait for those.
    unsent: bool,
    /// Whether the transport has work when there is no call.
    goes_on: bool,
    stop: bool,
}

/// A thread that polls calls while it waits for one.
pub(crate) struct Waiting<'a>(&'a Tasks);

impl<'a> Waiting<'a> {
    fn enter(tasks: &'a Tasks) -> Waiting<'a> {
        lock(&tasks.desk).waiters += 1;
        Waiting(tasks)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.0.desk).waiters -= 1;
        self.0.bell.notify_all();
    }
}

impl Tasks {
    /// Ends the node's thread.
    pub(crate) fn stop(&self) {
        lock(&self.desk).stop = true;
        self.bell.notify_all();
    }

    /// Calls go on whenever somebody waits.
    pub(crate) fn needs_no_thread(&self) {
        lock(&self.desk).thread = true;
    }

    /// The transport has no more work of its own.
    pub(crate) fn stop_going(&self) {
        lock(&self.desk).goes_on = false;
        self.bell.notify_all();
    }

    /// Calls that only waiting threads may poll.
    pub(crate) fn any_for_waiters(&self) -> bool {
        self.waiters_only.load(Ordering::Acquire) > 0
    }
}

impl Node {
    /// Puts a call under way.
    fn launch(node: &Arc<Node>, task: Box<dyn Step>) {
        {
            let mut held = lock(&node.tasks.held);
            if held.0 > 0 {
                return held.1.push(task);
            }
        }
        Node::launch_all(node, vec![task]);
    }

    fn start_thread(node: &Arc<Node>) -> std::io::Result<()> {
        let (tasks, weak) = (node.tasks.clone(), Arc::downgrade(node));
        let thread = std::thread::Builder::new().name("skyphos-work".to_owned());
        thread.spawn(move || tend(&tasks, &weak)).map(drop)
    }

    /// From now on the transport is polled whether there is a call or not.
    pub(crate) fn keep_going(node: &Arc<Node>) -> Result<()> {
        let mut desk = lock(&node.tasks.desk);
        (desk.goes_on, desk.thread) = (true, true);
        let failed =
            |e| Error::bad_input(format!("cannot start the thread that a replicated group needs: {e}"));
        Node::start_thread(node).map_err(failed)
    }

    /// Lets the node's thread send what is still queued here.
    pub(crate) fn send_in_background(node: &Arc<Node>) {
        let mut desk = lock(&node.tasks.desk);
        desk.unsent = true;
        if !desk.thread {
            // Without a thread it is sent when this rank calls something else.
            desk.thread = Node::start_thread(node).is_ok();
        }
        drop(desk);
        node.tasks.bell.notify_all();
    }

    /// This thread drives the transport from now on, not the node's.
    pub(crate) fn step_in(&self) -> Waiting<'_> {
        let waiting = Waiting::enter(&self.tasks);
        self.rouse();
        waiting
    }

    fn launch_all(node: &Arc<Node>, calls: Vec<Box<dyn Step>>) {
        let for_waiters = calls.iter().filter(|call| call.waiters_only()).count();
        node.tasks.waiters_only.fetch_add(for_waiters, Ordering::AcqRel);
        let mut desk = lock(&node.tasks.desk);
        desk.calls += calls.len() - for_waiters;
        lock(&node.tasks.fresh).extend(calls);
        if !desk.thread {
            // Without a thread the calls go on whenever somebody waits.
            desk.thread = Node::start_thread(node).is_ok();
        }
        drop(desk);
        node.tasks.bell.notify_all();
        node.rouse();
    }

    /// From now on calls that are started wait for [`Node::release`], or until this rank waits for anything, so that
    /// their messages travel together.
    pub fn hold(&self) {
        lock(&self.tasks.held).0 += 1;
    }

    /// Starts what was held.
    pub fn release(self: &Arc<Node>) {
        let calls = {
            let mut held = lock(&self.tasks.held);
            held.0 = held.0.saturating_sub(1);
            if held.0 > 0 {
                return;
            }
            std::mem::take(&mut held.1)
        };
        self.launch_fused(calls);
    }

    /// Starts what is held, whoever holds it: this rank is about to wait.
    pub(crate) fn release_held(self: &Arc<Node>) {
        let calls = std::mem::take(&mut lock(&self.tasks.held).1);
        self.launch_fused(calls);
    }

    fn launch_fused(self: &Arc<Node>, mut calls: Vec<Box<dyn Step>>) {
        calls.iter_mut().for_each(|call| *call.fused() = true);
        if !calls.is_empty() {
            Node::launch_all(self, calls);
        }
    }

    /// Polls the calls that have news, in the order in which they were started; whether there was one. What those
    /// send that were started together leaves together. `background`: only those that the node's own thread may poll.
    pub(crate) fn poll_calls(&self, background: bool) -> bool {
        let mut active = lock(&self.tasks.active);
        active.append(&mut lock(&self.tasks.fresh));
        if active.is_empty() {
            return false;
        }
        let (mut moved, mut over, mut for_waiters, mut corked) = (false, 0, 0, false);
        active.retain_mut(|call| {
            if background && call.waiters_only() || !self.mail(|m| call.has_news(m)) {
                return true;
            }
            if *call.fused() != corked {
                corked = !corked;
                self.transport().cork(corked);
            }
            moved = true;
            if !call.step() {
                return true;
            }
            match call.waiters_only() {
                true => for_waiters += 1,
                false => over += 1,
            }
            false
        });
        if corked {
            self.transport().cork(false);
        }
        drop(active);
        if over + for_waiters > 0 {
            self.tasks.waiters_only.fetch_sub(for_waiters, Ordering::AcqRel);
            let mut desk = lock(&self.tasks.desk);
            (desk.calls, desk.unsent) = (desk.calls - over, true);
            drop(desk);
            self.tasks.bell.notify_all();
            self.rouse();
        }
        moved
    }

    /// Polls calls; if none had news waits for some, a moment at most, and tells whether nothing happened. `until`
    /// ends the wait too; without it this is the node's own thread.
    fn step_calls(self: &Arc<Node>, most: Duration, until: Option<&AtomicBool>) -> bool {
        let background = until.is_none();
        if self.poll_calls(background) {
            return false;
        }
        let seen: Vec<_> = {
            let active = lock(&self.tasks.active);
            active.iter().filter(|call| !background || !call.waiters_only()).map(|call| call.seen()).collect()
        };
        let news = |mail: &mut Mailbox| {
            until.is_some_and(|ready| ready.load(Ordering::Acquire))
                || !lock(&self.tasks.fresh).is_empty()
                || seen.iter().any(|(comm, call, version, woken)| {
                    woken.0.load(Ordering::Acquire) || mail.version(*comm, *call) != *version
                })
        };
        self.wait_until(news, most.min(self.nap()))
    }

    /// Moves the last bytes of calls that are over; whether all are gone.
    fn send_rest(&self) -> bool {
        let done = || self.transport().is_idle();
        done() || {
            self.wait_until(|_| false, self.nap());
            done()
        }
    }

    /// Lets the calls of a group come to their ends, for so long at most: other ranks wait for them.
    pub fn finish_calls(self: &Arc<Node>, group: &Group, most: Duration) {
        let comm = group.comm;
        self.release_held();
        let until = Instant::now() + most;
        let any = |calls: &[Box<dyn Step>]| calls.iter().any(|call| call.group() == comm);
        let _waiting = Waiting::enter(&self.tasks);
        while any(&lock(&self.tasks.fresh)) || any(&lock(&self.tasks.active)) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let never = AtomicBool::new(false);
            self.step_calls(left, Some(&never));
        }
    }

    /// Lets the calls of a group that was closed come to their ends.
    pub(crate) fn end_calls(self: &Arc<Node>, comm: u64) {
        self.release_held();
        let any = |calls: &[Box<dyn Step>]| calls.iter().any(|call| call.group() == comm);
        while any(&lock(&self.tasks.fresh)) || any(&lock(&self.tasks.active)) {
            self.poll_calls(false);
        }
    }
}

/// The node's thread: polls calls while nobody waits for one. It holds the node only while there are some.
fn tend(tasks: &Tasks, node: &Weak<Node>) {
    loop {
        let (idle, on);
        {
            let mut desk = lock(&tasks.desk);
            while !desk.stop && (desk.calls == 0 && !desk.unsent && !desk.goes_on || desk.waiters > 0) {
                desk = tasks.bell.wait(desk).unwrap_or_else(PoisonError::into_inner);
            }
            if desk.stop {
                return;
            }
            idle = desk.calls == 0;
            on = desk.goes_on;
            desk.unsent &= !idle;
        }
        let Some(node) = node.upgrade() else { return };
        if !idle {
            node.step_calls(NAP, None);
        } else if on {
            node.wait_until(|_| false, node.nap());
        } else if !node.send_rest() {
            lock(&tasks.desk).unsent = true;
        }
    }
}
