//! The driver: which thread polls the transport, and how the others wait.
//!
//! ```text
//! wait until there is news:
//!     no thread drives:    poll the transport (spin, then sleep in it), file the events, wake the other threads
//!     another one drives:  sleep until it leaves
//! ```

use crate::mailbox::{Mailbox, Reply};
use crate::node::{INTERRUPT_CHECK, Node, SharedMailbox};
use crate::slab::Payload;
use crate::transport::Transport;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Upper bound on the polls for arrivals before a completed call returns. So many polls file everything that had arrived when
/// it completed.
const ARRIVAL_POLLS: u32 = 64;

impl Node {
    fn state(&self) -> MutexGuard<'_, SharedMailbox> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the mailbox, under its lock.
    pub(crate) fn mail<R>(&self, f: impl FnOnce(&mut Mailbox) -> R) -> R {
        f(&mut self.state().mail)
    }

    /// The transport, woken first if a driver sleeps in it.
    pub(crate) fn transport(&self) -> MutexGuard<'_, Box<dyn Transport>> {
        if let Ok(guard) = self.transport.try_lock() {
            return guard;
        }
        self.transport_waiters.fetch_add(1, Ordering::AcqRel);
        (self.waker)();
        let guard = self.transport.lock().unwrap_or_else(PoisonError::into_inner);
        self.transport_waiters.fetch_sub(1, Ordering::AcqRel);
        guard
    }

    /// Wakes all waiting threads, to look again.
    pub(crate) fn wake_waiters(&self) {
        let state = self.state();
        if state.driving {
            (self.waker)();
        }
        if state.waiters > 0 {
            self.driver_left.notify_all();
        }
    }

    /// Files everything that has arrived so far.
    pub(crate) fn file_arrivals(&self) {
        let (mut quiet, mut other_turns) = (0, 0);
        for _ in 0..ARRIVAL_POLLS {
            let mut state = self.state();
            if !state.driving {
                state.driving = true;
                drop(state);
                quiet = if self.drive(Duration::ZERO) { quiet + 1 } else { 0 };
                if quiet == self.facts.quiet_polls {
                    return;
                }
                continue;
            }
            // Another thread drives: wait for two of its turns, of which the second begins after now.
            if other_turns == 2 {
                return;
            }
            other_turns += 1;
            (self.waker)();
            state.waiters += 1;
            state = self
                .driver_left
                .wait_timeout(state, self.longest_wait())
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            state.waiters -= 1;
        }
    }

    /// The longest wait between two looks at the clock and at interrupts.
    pub(crate) fn longest_wait(&self) -> Duration {
        INTERRUPT_CHECK.min(self.grace() / 2)
    }

    /// Time for ranks to answer a probe before a call times out.
    pub(crate) fn grace(&self) -> Duration {
        (self.settings().timeout / 4).min(Duration::from_secs(2))
    }

    /// Waits for news, for at most `timeout`. True if this thread has polled the transport and no event arrived.
    pub(crate) fn wait_until(&self, news: impl Fn(&mut Mailbox) -> bool, timeout: Duration) -> bool {
        let mut state = self.state();
        if news(&mut state.mail) {
            return false;
        }
        if state.driving {
            state.waiters += 1;
            state = self.driver_left.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0;
            state.waiters -= 1;
            return false;
        }
        state.driving = true;
        drop(state);
        self.drive(timeout)
    }

    /// Polls the transport once and files its events. Returns true if there was none.
    fn drive(&self, timeout: Duration) -> bool {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut transport = self.transport.lock().unwrap_or_else(PoisonError::into_inner);
            transport.poll(Duration::ZERO, &mut events);
            if events.is_empty() && !self.spin.is_zero() && !timeout.is_zero() {
                let until = Instant::now() + self.spin;
                while events.is_empty() && Instant::now() < until {
                    std::hint::spin_loop();
                    transport.poll(Duration::ZERO, &mut events);
                }
            }
            if events.is_empty() && !timeout.is_zero() && self.transport_waiters.load(Ordering::Acquire) == 0
            {
                transport.poll(timeout, &mut events);
            }
        }
        if self.transport_waiters.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        let quiet = events.is_empty();
        let mut state = self.state();
        for event in events.drain(..) {
            state.mail.deliver(event);
        }
        state.driving = false;
        if state.waiters > 0 {
            self.driver_left.notify_all();
        }
        let replies = std::mem::take(&mut state.mail.replies);
        drop(state);
        self.send_replies(replies);
        quiet
    }

    /// Sends the mailbox's replies.
    pub(crate) fn send_replies(&self, replies: Vec<Reply>) {
        for Reply { to, header, payload } in replies {
            let payload = if payload.is_empty() { Payload::default() } else { self.pool().copy_of(&payload) };
            self.post(to, header, payload);
        }
    }
}
