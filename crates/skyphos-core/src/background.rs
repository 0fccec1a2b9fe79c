//! The node's thread, which polls non-blocking calls in the background.
//!
//! ```text
//! the node's thread, while calls are under way and no thread waits for one:
//!     poll each call that has news;  if none had, drive the transport or wait for the thread that does
//! a thread in Work::wait:  the same, until its own call is done; the node's thread pauses meanwhile
//! a thread in a blocking call:  drives the transport, and polls the calls that the node's thread may not poll
//! ```

use crate::group::Group;
use crate::mailbox::Mailbox;
use crate::node::{INTERRUPT_CHECK, Node};
use crate::tasks::{Step, Tasks, Waiting, lock};
use skyphos_types::{CommId, Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

impl Node {
    /// Starts a call, or sets it aside while [`Node::hold`] holds calls back.
    pub(crate) fn launch(node: &Arc<Node>, task: Box<dyn Step>) {
        {
            let mut held = lock(&node.tasks.held);
            if held.depth > 0 {
                return held.calls.push(task);
            }
        }
        Node::launch_all(node, vec![task]);
    }

    fn start_thread(node: &Arc<Node>) -> std::io::Result<()> {
        let (tasks, weak) = (node.tasks.clone(), Arc::downgrade(node));
        let thread = std::thread::Builder::new().name("skyphos-work".to_owned());
        thread.spawn(move || run_thread(&tasks, &weak)).map(drop)
    }

    /// From now on the node's thread polls the transport also while no call is under way.
    pub(crate) fn start_background_work(node: &Arc<Node>) -> Result<()> {
        let mut state = lock(&node.tasks.thread_state);
        (state.background_work, state.thread) = (true, true);
        let failed =
            |e| Error::bad_input(format!("cannot start the thread that a replicated group needs: {e}"));
        Node::start_thread(node).map_err(failed)
    }

    /// Lets the node's thread send the bytes that are still queued here.
    pub(crate) fn send_in_background(node: &Arc<Node>) {
        let mut state = lock(&node.tasks.thread_state);
        state.unsent = true;
        if !state.thread {
            // If no thread can start, the bytes are sent during this rank's next call.
            state.thread = Node::start_thread(node).is_ok();
        }
        drop(state);
        node.tasks.thread_wake.notify_all();
    }

    /// Lets this thread drive the transport in place of the node's thread, until the returned guard is dropped.
    pub(crate) fn step_in(&self) -> Waiting<'_> {
        let waiting = Waiting::enter(&self.tasks);
        self.wake_waiters();
        waiting
    }

    fn launch_all(node: &Arc<Node>, calls: Vec<Box<dyn Step>>) {
        let for_waiters = calls.iter().filter(|call| call.waiters_only()).count();
        node.tasks.waiters_only.fetch_add(for_waiters, Ordering::AcqRel);
        let mut state = lock(&node.tasks.thread_state);
        state.calls += calls.len() - for_waiters;
        lock(&node.tasks.fresh).extend(calls);
        if !state.thread {
            // If no thread can start, the calls progress only while a caller waits for one.
            state.thread = Node::start_thread(node).is_ok();
        }
        drop(state);
        node.tasks.thread_wake.notify_all();
        node.wake_waiters();
    }

    /// Holds back the calls that are started from now on, so that their messages travel together: until [`Node::release`], or
    /// until this rank waits for anything.
    pub fn hold(&self) {
        lock(&self.tasks.held).depth += 1;
    }

    /// Ends one [`Node::hold`]. When the last one ends, the held calls start.
    pub fn release(self: &Arc<Node>) {
        let calls = {
            let mut held = lock(&self.tasks.held);
            held.depth = held.depth.saturating_sub(1);
            if held.depth > 0 {
                return;
            }
            std::mem::take(&mut held.calls)
        };
        self.launch_fused(calls);
    }

    /// Starts the held calls though they were not released: this rank is about to wait.
    pub(crate) fn release_held(self: &Arc<Node>) {
        let calls = std::mem::take(&mut lock(&self.tasks.held).calls);
        self.launch_fused(calls);
    }

    fn launch_fused(self: &Arc<Node>, mut calls: Vec<Box<dyn Step>>) {
        calls.iter_mut().for_each(|call| *call.fused() = true);
        if !calls.is_empty() {
            Node::launch_all(self, calls);
        }
    }

    /// Polls the calls that have news, in the order in which they were started; returns whether any had. Frames of calls that
    /// were started together leave together. `background`: polls only calls that the node's own thread may poll.
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
            let mut state = lock(&self.tasks.thread_state);
            (state.calls, state.unsent) = (state.calls - over, true);
            drop(state);
            self.tasks.thread_wake.notify_all();
            self.wake_waiters();
        }
        moved
    }

    /// Polls calls; if none had news, waits for at most `timeout`. Returns true if no news came in that time. A true `until` also
    /// ends the wait; only the node's own thread passes `None`.
    pub(crate) fn step_calls(self: &Arc<Node>, timeout: Duration, until: Option<&AtomicBool>) -> bool {
        let background = until.is_none();
        if self.poll_calls(background) {
            return false;
        }
        let last_polls: Vec<_> = {
            let active = lock(&self.tasks.active);
            active
                .iter()
                .filter(|call| !background || !call.waiters_only())
                .map(|call| call.last_poll())
                .collect()
        };
        let news = |mail: &mut Mailbox| {
            until.is_some_and(|ready| ready.load(Ordering::Acquire))
                || !lock(&self.tasks.fresh).is_empty()
                || last_polls.iter().any(|call| call.has_news(mail))
        };
        self.wait_until(news, timeout.min(self.longest_wait()))
    }

    /// Sends the last bytes of calls that are over; true once all have left.
    fn send_rest(&self) -> bool {
        let done = || self.transport().is_idle();
        done() || {
            self.wait_until(|_| false, self.longest_wait());
            done()
        }
    }

    /// Polls the calls of a group until they end, for at most `timeout`, because other ranks wait for them.
    pub fn finish_calls(self: &Arc<Node>, group: &Group, timeout: Duration) {
        let comm = group.comm;
        self.release_held();
        let until = Instant::now() + timeout;
        let any_left = |calls: &[Box<dyn Step>]| calls.iter().any(|call| call.group() == comm);
        let _waiting = Waiting::enter(&self.tasks);
        while any_left(&lock(&self.tasks.fresh)) || any_left(&lock(&self.tasks.active)) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let never = AtomicBool::new(false);
            self.step_calls(left, Some(&never));
        }
    }

    /// Ends the calls of a group that was closed.
    pub(crate) fn end_calls(self: &Arc<Node>, comm: CommId) {
        self.release_held();
        let any_left = |calls: &[Box<dyn Step>]| calls.iter().any(|call| call.group() == comm);
        while any_left(&lock(&self.tasks.fresh)) || any_left(&lock(&self.tasks.active)) {
            self.poll_calls(false);
        }
    }
}

/// The node's thread: polls calls while no thread waits for one. It owns the node only while there are calls.
fn run_thread(tasks: &Tasks, node: &Weak<Node>) {
    loop {
        let (idle, has_background_work);
        {
            let mut state = lock(&tasks.thread_state);
            while !state.stop
                && (state.calls == 0 && !state.unsent && !state.background_work || state.waiters > 0)
            {
                state = tasks.thread_wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.stop {
                return;
            }
            idle = state.calls == 0;
            has_background_work = state.background_work;
            state.unsent &= !idle;
        }
        let Some(node) = node.upgrade() else { return };
        if !idle {
            node.step_calls(INTERRUPT_CHECK, None);
        } else if has_background_work {
            node.wait_until(|_| false, node.longest_wait());
        } else if !node.send_rest() {
            lock(&tasks.thread_state).unsent = true;
        }
    }
}
