//! Runs blocking calls by what earlier calls of their kind found out: the tuner ([`skyphos_tune`]) of one group, with its
//! clock and its lock.

use crate::Comm;
use crate::group_start::own_cores;
use crate::stopwatch::Stopwatch;
use skyphos_core::frame::CallSig;
use skyphos_core::{Arguments, Endpoint, Traffic};
use skyphos_plan::Profile;
use skyphos_tune::{CallReport, Choice, Observations, Recalled, Tuner};
use skyphos_types::Result;
use std::ops::{Deref, DerefMut};
use std::sync::{MutexGuard, PoisonError};

/// What a call may rely on, taken when it is made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Basis {
    pub(crate) recalled: Recalled,
    pub(crate) observed: Observations,
}

/// The profile that a call on this endpoint starts with.
pub(crate) fn start_profile(observed: &Observations, ep: &Endpoint) -> Profile {
    observed.start(ep.size(), ep.node().on_one_host(), own_cores)
}

/// Bytes that count as moved: the larger direction.
pub(crate) fn moved_bytes(traffic: Traffic) -> u64 {
    traffic.sent_bytes.max(traffic.received_bytes)
}

/// The observations of a group, locked.
pub(crate) struct Observed<'a>(MutexGuard<'a, Tuner<CallSig>>);

impl Deref for Observed<'_> {
    type Target = Observations;

    fn deref(&self) -> &Observations {
        &self.0.observations
    }
}

impl DerefMut for Observed<'_> {
    fn deref_mut(&mut self) -> &mut Observations {
        &mut self.0.observations
    }
}

impl Comm {
    /// The group's tuner, locked.
    pub(crate) fn tuner(&self) -> MutexGuard<'_, Tuner<CallSig>> {
        self.tuner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What calls have shown of machine and network.
    pub(crate) fn observed(&self) -> Observed<'_> {
        Observed(self.tuner())
    }

    /// The profile that a call starts with.
    pub(crate) fn start_profile(&self) -> Profile {
        self.tuner().observations.start(self.size(), self.node().on_one_host(), own_cores)
    }

    /// What a call relies on, and the signature that tells the other ranks.
    pub(crate) fn basis(&self, asked: CallSig) -> (Basis, CallSig) {
        let mismatches = self.mismatches();
        let mut tuner = self.tuner();
        let (recalled, stamp) = tuner.recall(&asked, mismatches);
        let extra = stamp.map_or(asked.extra, |stamp| asked.extra.rotate_left(7) ^ stamp);
        (Basis { recalled, observed: tuner.observations }, CallSig { extra, ..asked })
    }

    /// Runs a call on so many bytes of values, and lets the tuner learn from it. `shows`: the bytes that it moved, and the
    /// prediction that its duration corrects.
    pub(crate) fn tuned<R>(
        &self,
        (asked, arguments): (CallSig, Arguments),
        bytes: usize,
        body: impl AsyncFnOnce(&Endpoint, Basis) -> Result<(R, CallReport)>,
        shows: impl Fn(&R) -> (Traffic, Option<&Choice>),
    ) -> Result<R> {
        let (basis, sig) = self.basis(asked);
        let watch = Stopwatch::start(bytes);
        let call = self.call((sig, arguments), async |ep| body(ep, basis).await);
        let timing = watch.stop();
        let (done, report) = call?;
        let (traffic, choice) = shows(&done);
        self.tuner().finish(asked, report, &timing, moved_bytes(traffic), choice);
        Ok(done)
    }
}
