//! Barrier: returns when every rank has called it.

use crate::Comm;
use crate::call_builder::{Body, CallBuilder};
use skyphos_core::collectives::barrier::barrier;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{CallRequest, Endpoint};
use skyphos_types::Result;

/// See [`Comm::barrier`].
pub struct Barrier;

impl Body for Barrier {
    type Output = ();
    type Op = ();
    type Options = ();

    fn request(&mut self, _: &Comm, (): &(), (): &()) -> CallRequest {
        CallSig::plain(CallKind::Barrier).into()
    }

    async fn perform(self, ep: &Endpoint, (): &(), (): &()) -> Result<()> {
        barrier(ep).await
    }
}

impl Comm {
    /// Returns when every rank has called it. Collective; ⌈log2 P⌉ α.
    ///
    /// ```
    /// use skyphos::Comm;
    ///
    /// let ranks = Comm::local(3, &Default::default()).unwrap();
    /// ranks.map_ranks(|comm| comm.barrier().run().unwrap());
    /// ```
    pub fn barrier(&self) -> CallBuilder<'_, Barrier> {
        CallBuilder::new(self, Barrier)
    }
}
