//! Measurement of an exchange with several ranks at once, as in a layer of a butterfly: each rank sends a message to each of
//! the next k ranks, and receives one from each of the previous k.

use super::rounds::{BEGIN_ROUND, DATA_ROUND};
use crate::Comm;
use crate::call_builder::{Body, CallBuilder};
use skyphos_core::collectives::barrier::barrier_from;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{CallRequest, Endpoint};
use skyphos_types::{Error, GroupRank, Result};

/// The largest number of rounds of a barrier.
const BARRIER_ROUNDS: u32 = 32;

/// The order of ranks, which defines a rank's next ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By rank.
    Rank,
    /// By rack and host, as in a ring.
    Topology,
}

/// Seconds of each of `times` exchanges.
async fn fan_on(ep: &Endpoint, order: Order, k: u32, bytes: usize, times: u32) -> Result<Vec<f64>> {
    let (size, topology) = (ep.size(), ep.topology());
    let at = |step: u32| match order {
        Order::Rank => (ep.rank().0 + step) % size,
        Order::Topology => topology.rank_at((topology.index_of(ep.rank().0) + step) % size),
    };
    let sources: Vec<GroupRank> = (1..=k).map(|step| GroupRank(at(size - step))).collect();
    let mut seconds = Vec::with_capacity(times as usize);
    for exchange in 0..times {
        // Each exchange has the rounds of a barrier, and one for data.
        let round = exchange * BARRIER_ROUNDS;
        barrier_from(ep, BEGIN_ROUND + round).await?;
        let start = ep.now();
        let messages = (1..=k).map(|step| (GroupRank(at(step)), ep.message(bytes))).collect();
        ep.exchange(DATA_ROUND + 0x1_0000 + round, messages, &sources).await?;
        seconds.push((ep.now() - start).as_secs_f64());
    }
    Ok(seconds)
}

/// See [`Comm::fan`].
pub struct Fan {
    order: Order,
    sig: CallSig,
    k: u32,
    bytes: usize,
    times: u32,
}

impl Body for Fan {
    type Output = Vec<f64>;
    type Op = ();
    type Options = ();

    fn request(&mut self, _: &Comm, (): &(), (): &()) -> CallRequest {
        self.sig.into()
    }

    async fn perform(self, ep: &Endpoint, (): &(), (): &()) -> Result<Vec<f64>> {
        fan_on(ep, self.order, self.k, self.bytes, self.times).await
    }
}

impl Comm {
    /// Seconds of `times` exchanges in which each rank sends a message of `bytes` bytes to each of the next `k`. Collective.
    ///
    /// # Errors
    /// `BadInput` if `k` is 0, or larger than the number of other ranks.
    pub fn fan(&self, k: u32, bytes: usize, times: u32) -> Result<CallBuilder<'_, Fan>> {
        self.fan_by(Order::Rank, k, bytes, times)
    }

    /// [`Comm::fan`] with the next ranks in another order.
    pub(crate) fn fan_by(
        &self,
        order: Order,
        k: u32,
        bytes: usize,
        times: u32,
    ) -> Result<CallBuilder<'_, Fan>> {
        let sig = self.check_fan(k, bytes)?;
        Ok(CallBuilder::new(self, Fan { order, sig, k, bytes, times }))
    }

    fn check_fan(&self, k: u32, bytes: usize) -> Result<CallSig> {
        if k == 0 || k >= self.size() {
            let message = format!("a rank of a group of {} cannot send to {k} others", self.size());
            return Err(self.fail_call(Error::bad_input(message)));
        }
        Ok(CallSig { n: bytes as u64, extra: k, ..CallSig::plain(CallKind::Measure) })
    }
}
