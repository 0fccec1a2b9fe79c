//! A group's tuner ([`skyphos_tune`]) with its clock and lock: blocking calls run by the choices of earlier calls of their kind,
//! and report their times.

use crate::Comm;
use crate::group_start::own_cores;
use crate::stopwatch::Stopwatch;
use skyphos_core::frame::CallSig;
use skyphos_core::{Arguments, Endpoint, Traffic};
use skyphos_plan::Profile;
use skyphos_tune::{CallReport, Choice, Observations, Recalled, Tuner};
use skyphos_types::{Bytes, Result};
use std::sync::{MutexGuard, PoisonError};

/// The tuner's state that a call depends on, taken when the call gets its number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Basis {
    pub(crate) recalled: Recalled,
    pub(crate) observed: Observations,
}

/// The profile of a call before its survey.
pub(crate) fn start_profile(observed: &Observations, ep: &Endpoint) -> Profile {
    observed.start(ep.size(), ep.node().on_one_host(), own_cores)
}

/// Bytes moved in the busier direction.
pub(crate) fn moved_bytes(traffic: Traffic) -> Bytes {
    Bytes(traffic.sent_bytes.max(traffic.received_bytes))
}

impl Comm {
    /// The group's tuner, locked.
    pub(crate) fn tuner(&self) -> MutexGuard<'_, Tuner<CallSig>> {
        self.tuner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The profile of a call before its survey.
    pub(crate) fn start_profile(&self) -> Profile {
        self.tuner().observations.start(self.size(), self.node().on_one_host(), own_cores)
    }

    /// The state that a call depends on, and the signature by which ranks compare it.
    pub(crate) fn basis(&self, call_sig: CallSig) -> (Basis, CallSig) {
        let mismatches = self.mismatches();
        let mut tuner = self.tuner();
        let (recalled, stamp) = tuner.recall(&call_sig, mismatches);
        let extra = stamp.map_or(call_sig.extra, |stamp| call_sig.extra.rotate_left(7) ^ stamp);
        (Basis { recalled, observed: tuner.observations }, CallSig { extra, ..call_sig })
    }

    /// Runs a call on `bytes` bytes of values, and reports its time to the tuner. `explain` returns the traffic of the call, and
    /// the prediction that its duration corrects.
    pub(crate) fn tuned<R>(
        &self,
        (call_sig, arguments): (CallSig, Arguments),
        bytes: usize,
        body: impl AsyncFnOnce(&Endpoint, Basis) -> Result<(R, CallReport)>,
        explain: impl Fn(&R) -> (Traffic, Option<&Choice>),
    ) -> Result<R> {
        let (basis, sig) = self.basis(call_sig);
        let watch = Stopwatch::start(bytes);
        let call = self.call((sig, arguments), async |ep| body(ep, basis).await);
        let timing = watch.stop();
        let (done, report) = call?;
        let (traffic, choice) = explain(&done);
        self.tuner().finish(call_sig, report, &timing, moved_bytes(traffic), choice);
        Ok(done)
    }
}
