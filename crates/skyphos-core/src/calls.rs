//! Calls of a group: begun in the same order on all ranks, and reported to the program when they end.

use crate::arguments::Arguments;
use crate::call_guard::{CallGuard, Outcome};
use crate::endpoint::Endpoint;
use crate::frame::{CallKind, CallSig};
use crate::group::Group;
use crate::mailbox::Mailbox;
use crate::node::Node;
use crate::work::Call;
use skyphos_types::{CallNumber, Error, Result};
use std::sync::Arc;

/// A call, and its arguments.
pub struct Asked(pub CallSig, pub Arguments);

impl From<CallSig> for Asked {
    fn from(sig: CallSig) -> Asked {
        Asked(sig, Arguments::None)
    }
}

impl From<(CallSig, Arguments)> for Asked {
    fn from((sig, arguments): (CallSig, Arguments)) -> Asked {
        Asked(sig, arguments)
    }
}

impl Node {
    /// Runs one collective call to its end on this thread.
    ///
    /// The body gets an endpoint of the call. Whatever it returns, the call is over afterwards; an
    /// error is sent to all ranks, so that every rank raises.
    pub fn call<R>(
        self: &Arc<Node>,
        group: &Arc<Group>,
        asked: impl Into<Asked>,
        body: impl AsyncFnOnce(&Endpoint) -> Result<R>,
    ) -> Result<R> {
        let ep = self.begin(group, asked.into());
        self.run(&ep, body(&ep))
    }

    /// A call that can go on while its caller does something else. `waiters_only`: it runs code that only threads
    /// of the caller's may run.
    pub fn prepare<R: Send + 'static, F: Future<Output = Result<R>> + Send + 'static>(
        self: &Arc<Node>,
        group: &Arc<Group>,
        asked: impl Into<Asked>,
        waiters_only: bool,
        body: impl FnOnce(Arc<Endpoint>) -> F,
    ) -> Call<R> {
        let ep = Arc::new(self.begin(group, asked.into()));
        let (body, call) = (body(ep.clone()), ep.clone());
        let whole = async move {
            let result = body.await?;
            ep.wait_to_end().await?;
            Ok(result)
        };
        Call::new(call, Box::pin(whole), waiters_only)
    }

    fn begin(self: &Arc<Node>, group: &Arc<Group>, Asked(sig, arguments): Asked) -> Endpoint {
        // Replicas that disagree are found by checksums of their input.
        let arguments = if self.is_replicated() { Arguments::None } else { arguments };
        let begin = |m: &mut Mailbox| (m.begin(group, sig, arguments), std::mem::take(&mut m.replies));
        let ((call, sig), replies) = self.mail(begin);
        self.send_replies(replies);
        Endpoint::new(self.clone(), group.clone(), call, sig)
    }

    /// Fails the group's next call, which failed on this rank before it began: the other ranks, whatever they called, get the
    /// error. `goes_on`: this rank makes the same calls after it as ranks that have not received the error yet.
    pub fn fail_call(self: &Arc<Node>, group: &Arc<Group>, error: Error, goes_on: bool) -> Error {
        let sig = CallSig::plain(CallKind::Failed);
        let ep = self.begin(group, sig.into());
        let outcome = Outcome::Failed(group.with_transport_ranks(error.clone()));
        drop(CallGuard { ep: &ep, outcome, is_reported: true });
        Node::flush_abort(&ep);
        self.report_failure(&ep, &error, !goes_on);
        error
    }

    /// This rank's program learns that a call has failed; `at_once`: before the call was under way. A replica that fails alone
    /// learns nothing: its siblings go on in the call, and checksums of their inputs find the difference.
    pub(crate) fn report_failure(&self, ep: &Endpoint, error: &Error, at_once: bool) {
        let (group, call) = ep.group_and_call();
        match ep.is_message() {
            true => {}
            false if self.is_replicated() => self.forget_outcome(ep),
            false => self.mail(|m| m.report_failure(group.comm, call, error, at_once)),
        }
    }

    /// Calls of a group that this rank has begun.
    pub fn calls_begun(&self, group: &Group) -> CallNumber {
        self.mail(|m| m.begun(group.comm))
    }

    /// This rank's program learns that a collective has failed that consists of all calls from `first` on
    /// ([`Node::calls_begun`]), however they ended.
    pub fn report_failure_since(&self, group: &Group, first: CallNumber) {
        if !self.is_replicated() {
            self.mail(|m| m.report_failure_since(group.comm, first));
        }
    }

    /// This rank's program learns that a call has succeeded.
    pub(crate) fn report_success(&self, ep: &Endpoint) {
        let (group, call) = ep.group_and_call();
        if !ep.is_message() {
            self.mail(|m| m.report_success(group.comm, call));
        }
    }

    /// This rank's program will not learn how a call ends.
    pub(crate) fn forget_outcome(&self, ep: &Endpoint) {
        let (group, call) = ep.group_and_call();
        if !ep.is_message() {
            self.mail(|m| m.forget_outcome(group.comm, call));
        }
    }
}
