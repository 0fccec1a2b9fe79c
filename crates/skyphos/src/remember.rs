//! Blocking calls that go by what earlier calls of their kind learned, and learn for later ones.

use crate::Comm;
use crate::choose::Choice;
use crate::decide::Basis;
use crate::memory::{Memory, Recalled, Told};
use crate::observe::Stopwatch;
use skyphos_core::frame::CallSig;
use skyphos_core::{Arguments, Endpoint, Traffic};
use skyphos_types::Result;

/// Calls of less are not watched closely: that would take longer than they tell.
const WATCHED_BYTES: usize = 64 * 1024;

impl Comm {
    /// What calls have learned: nothing, if ranks have called different things since, for then they may not know the same.
    pub(crate) fn knowledge(&self) -> &Memory {
        self.memory.forget_unless(self.mismatches());
        &self.memory
    }

    /// What a call relies on, and the signature that tells the other ranks.
    pub(crate) fn basis(&self, asked: CallSig) -> (Basis, CallSig) {
        let (recalled, sig): (Recalled, CallSig) = self.knowledge().recall(asked);
        (Basis { recalled, seen: *self.observed() }, sig)
    }

    /// Runs a call that takes so many bytes of values. `shows` says what of it tells of network and predictions.
    pub(crate) fn remembered<R>(
        &self,
        (asked, arguments): (CallSig, Arguments),
        bytes: usize,
        body: impl AsyncFnOnce(&Endpoint, Basis) -> Result<(R, Told)>,
        shows: impl Fn(&R) -> (Traffic, Option<&Choice>),
    ) -> Result<R> {
        let (basis, sig) = self.basis(asked);
        let watch = Stopwatch::start(bytes >= WATCHED_BYTES);
        let call = self.call((sig, arguments), async |ep| body(ep, basis).await);
        let seen = watch.stop();
        let done = self.memory.after(asked, call?, seen.seconds);
        let (traffic, choice) = shows(&done);
        self.observed().note(&seen, traffic, choice);
        Ok(done)
    }
}
