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

/// A request to begin a call: its signature, and the arguments that an error names if ranks disagree.
pub struct CallRequest(pub CallSig, pub Arguments);

impl From<CallSig> for CallRequest {
    fn from(sig: CallSig) -> CallRequest {
        CallRequest(sig, Arguments::None)
    }
}

impl From<(CallSig, Arguments)> for CallRequest {
    fn from((sig, arguments): (CallSig, Arguments)) -> CallRequest {
        CallRequest(sig, arguments)
    }
}

impl Node {
    /// Runs one collective call to its end on this thread.
    ///
    /// The body gets an endpoint of the call. The call ends when the body returns. An error is sent to all ranks, so every rank
    /// raises.
    pub fn call<R>(
        self: &Arc<Node>,
        group: &Arc<Group>,
        request: impl Into<CallRequest>,
        body: impl AsyncFnOnce(&Endpoint) -> Result<R>,
    ) -> Result<R> {
        let ep = self.begin(group, request.into());
        self.run(&ep, body(&ep))
    }

    /// Prepares a non-blocking call. `waiters_only`: the call runs code of the caller, so only threads that wait may poll it.
    pub fn prepare<R: Send + 'static, F: Future<Output = Result<R>> + Send + 'static>(
        self: &Arc<Node>,
        group: &Arc<Group>,
        request: impl Into<CallRequest>,
        waiters_only: bool,
        body: impl FnOnce(Arc<Endpoint>) -> F,
    ) -> Call<R> {
        let ep = Arc::new(self.begin(group, request.into()));
        let (body, call) = (body(ep.clone()), ep.clone());
        let whole = async move {
            let result = body.await?;
            ep.wait_to_end().await?;
            Ok(result)
        };
        Call::new(call, Box::pin(whole), waiters_only)
    }

    fn begin(self: &Arc<Node>, group: &Arc<Group>, CallRequest(sig, arguments): CallRequest) -> Endpoint {
        // Replicas that disagree are found by checksums of their input.
        let arguments = if self.is_replicated() { Arguments::None } else { arguments };
        let begin = |m: &mut Mailbox| (m.begin(group, sig, arguments), std::mem::take(&mut m.replies));
        let ((call, sig), replies) = self.mail(begin);
        self.send_replies(replies);
        Endpoint::new(self.clone(), group.clone(), call, sig)
    }

    /// Fails the group's next call, because this rank found an error before the call began. The other ranks get the error in
    /// their next call. `goes_on`: this rank still makes its later calls, like a rank that has not received the error yet.
    pub fn fail_call(self: &Arc<Node>, group: &Arc<Group>, error: Error, goes_on: bool) -> Error {
        let sig = CallSig::plain(CallKind::Failed);
        let ep = self.begin(group, sig.into());
        let outcome = Outcome::Failed(group.with_transport_ranks(error.clone()));
        drop(CallGuard { ep: &ep, outcome, is_reported: true });
        Node::flush_abort(&ep);
        self.report_failure(&ep, &error, !goes_on);
        error
    }

    /// Records that this rank's program gets the error of a call. `at_once`: it gets the error before the call was under way,
    /// and may skip later calls. A replica that fails alone records nothing: its siblings go on in the call, and checksums of
    /// their inputs find the difference.
    pub(crate) fn report_failure(&self, ep: &Endpoint, error: &Error, at_once: bool) {
        let (group, call) = ep.group_and_call();
        match ep.is_message() {
            true => {}
            false if self.is_replicated() => self.forget_outcome(ep),
            false => self.mail(|m| m.report_failure(group.comm, call, error, at_once)),
        }
    }

    /// How many calls of a group this rank has begun.
    pub fn calls_begun(&self, group: &Group) -> CallNumber {
        self.mail(|m| m.begun(group.comm))
    }

    /// Records that this rank's program gets the error of a collective that consists of all calls from `first` on
    /// ([`Node::calls_begun`]), even if the calls succeeded.
    pub fn report_failure_since(&self, group: &Group, first: CallNumber) {
        if !self.is_replicated() {
            self.mail(|m| m.report_failure_since(group.comm, first));
        }
    }

    /// Records that this rank's program gets the result of a call.
    pub(crate) fn report_success(&self, ep: &Endpoint) {
        let (group, call) = ep.group_and_call();
        if !ep.is_message() {
            self.mail(|m| m.report_success(group.comm, call));
        }
    }

    /// Records that this rank's program gets neither the result nor the error of a call.
    pub(crate) fn forget_outcome(&self, ep: &Endpoint) {
        let (group, call) = ep.group_and_call();
        if !ep.is_message() {
            self.mail(|m| m.forget_outcome(group.comm, call));
        }
    }
}
