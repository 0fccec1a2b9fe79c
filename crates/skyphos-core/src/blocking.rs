//! Blocking calls: the caller's thread polls the collective's future, and the transport while the future is pending.

use crate::call_guard::{CallGuard, Outcome};
use crate::endpoint::Endpoint;
use crate::frame::CallSig;
use crate::node::{INTERRUPT_CHECK, Node};
use crate::watch::Watch;
use skyphos_types::{Error, Result};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Longest wait for the system to take the abort of a failed call.
const ABORT_FLUSH: Duration = Duration::from_millis(50);

impl Node {
    /// Runs a call to its end on this thread.
    pub(crate) fn run<R>(&self, ep: &Endpoint, body: impl Future<Output = Result<R>>) -> Result<R> {
        // Starts the calls that `fuse` still holds back: another rank may wait for one of them before it enters this call.
        ep.node().release_held();
        let _waiting = self.has_background_work().then(|| self.step_in());
        // If the body panics, the guard keeps the other ranks from waiting for this one.
        let mut guard = CallGuard { ep, outcome: Outcome::Panicked, is_reported: false };
        let result = self.block_on(ep, async {
            let result = body.await?;
            self.flushed(ep).await?;
            Ok(result)
        });
        let result = result.and_then(|done| self.check_aborts(ep).map(|()| done));
        guard.outcome = Outcome::of(&result);
        guard.is_reported = true;
        let failed = matches!(guard.outcome, Outcome::Failed(_));
        drop(guard);
        if failed {
            Node::flush_abort(ep);
        }
        if let Err(error) = &result {
            self.report_failure(ep, error, false);
        }
        result.map_err(|error| ep.group_and_call().0.with_group_ranks(error))
    }

    /// Looks for aborts among everything that has arrived, before a completed call returns. A peer that leaves the call with an
    /// error sends its abort after its data, so a rank that enters late could complete a call that has failed.
    pub(crate) fn check_aborts(&self, ep: &Endpoint) -> Result<()> {
        if ep.is_message() {
            return Ok(()); // a received message is complete; a sent one may be received or not
        }
        self.file_arrivals();
        let (group, call) = ep.group_and_call();
        match self.mail(|m| m.look(group.comm, call)) {
            Err((error, true)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Hands the abort of a failed call to the system now, since this thread may not poll the transport again soon. The node's thread
    /// sends the bytes that the system does not take within [`ABORT_FLUSH`].
    pub(crate) fn flush_abort(ep: &Endpoint) {
        let node = ep.node();
        let until = node.now() + ABORT_FLUSH;
        while !node.is_flushed(ep) {
            if node.now() >= until {
                return Node::send_in_background(node);
            }
            node.wait_until(|_| false, ABORT_FLUSH / 10);
        }
    }

    /// Whether the system has taken all bytes queued for the ranks of the call.
    fn is_flushed(&self, ep: &Endpoint) -> bool {
        let transport = self.transport();
        ep.others().all(|rank| rank == self.rank() || transport.backlog(rank) == 0)
    }

    /// Completes when the system has taken all bytes queued for the group. Peers wait for them, and after the call this thread may not
    /// poll the transport again soon.
    async fn flushed(&self, ep: &Endpoint) -> Result<()> {
        if ep.is_message() && ep.sig().flags != CallSig::SENDS {
            return Ok(()); // a receive has sent nothing, and its sender may be busy elsewhere
        }
        std::future::poll_fn(|_| {
            // Reads new events first: while one is unread, `wait_until` returns at once and does not poll the transport.
            match ep.catch_up().and_then(|()| ep.may_end()) {
                Err(error) => Poll::Ready(Err(error)),
                Ok(may_end) if may_end && self.is_flushed(ep) => Poll::Ready(Ok(())),
                Ok(_) => Poll::Pending,
            }
        })
        .await
    }

    fn block_on<R>(&self, ep: &Endpoint, future: impl Future<Output = Result<R>>) -> Result<R> {
        let mut future = std::pin::pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let (mut watch, mut checked) = (Watch::new(self), self.now());
        watch.look(ep)?;
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                return result;
            }
            let quiet = self.wait_until(|mail| ep.has_news(mail), self.longest_wait());
            if quiet || self.now().saturating_sub(checked) > INTERRUPT_CHECK {
                checked = self.now();
                if self.interrupted() {
                    return Err(Error::Interrupted);
                }
            }
            // In a replicated group the node's thread leaves its calls to a thread that waits.
            if self.has_background_work() || self.tasks.any_for_waiters() {
                self.poll_calls(false);
            }
            watch.look(ep)?;
        }
    }

    /// Runs signal handlers. Returns whether the user has interrupted.
    pub(crate) fn interrupted(&self) -> bool {
        self.settings().interrupted.is_some_and(|f| f())
    }

    /// Ends a call on all ranks because the user interrupted.
    pub(crate) fn interrupt(&self, ep: &Endpoint) {
        let (group, call) = ep.group_and_call();
        self.mail(|m| m.fail(group.comm, call, Error::Interrupted));
    }

    /// The error of a call that panicked on this rank.
    pub(crate) fn panicked(&self) -> Error {
        Error::Aborted { rank: self.rank().0, cause: "it panicked".to_owned() }
    }
}
