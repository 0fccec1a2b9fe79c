//! What messages cost that are sent to several ranks at once, and what it costs a receiver that several send to it: each
//! rank gives the next k ranks a message each, and gets one of the k before it, as in a layer of a butterfly.

use super::{BEGIN_ROUND, DATA_ROUND};
use crate::Comm;
use skyphos_core::collectives::barrier::barrier_from;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{Call, Endpoint};
use skyphos_types::{Error, Result};
use std::sync::Arc;

/// Rounds that a barrier may take.
const BARRIER_ROUNDS: u32 = 32;

/// Whom a rank takes to be next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By rank.
    Numbers,
    /// By host and rack, as rings go.
    Places,
}

/// Seconds of each of so many exchanges.
async fn fan_on(ep: &Endpoint, order: Order, k: u32, bytes: usize, times: u32) -> Result<Vec<f64>> {
    let (size, topology) = (ep.size(), ep.topology());
    let at = |step: u32| match order {
        Order::Numbers => (ep.rank() + step) % size,
        Order::Places => topology.rank_at((topology.place_of(ep.rank()) + step) % size),
    };
    let sources: Vec<u32> = (1..=k).map(|step| at(size - step)).collect();
    let mut took = Vec::with_capacity(times as usize);
    for turn in 0..times {
        // One barrier's rounds and one of data each turn.
        let round = turn * BARRIER_ROUNDS;
        barrier_from(ep, BEGIN_ROUND + round).await?;
        let start = ep.now();
        let messages = (1..=k).map(|step| (at(step), ep.message(bytes))).collect();
        ep.exchange(DATA_ROUND + 0x1_0000 + round, messages, &sources).await?;
        took.push((ep.now() - start).as_secs_f64());
    }
    Ok(took)
}

impl Comm {
    /// Seconds of exchanges in which each rank gives the next `k` ranks a message of so many bytes each. Collective.
    pub fn fan(&self, k: u32, bytes: usize, times: u32) -> Result<Vec<f64>> {
        let sig = self.check_fan(k, bytes)?;
        self.call(sig, async |ep| fan_on(ep, Order::Numbers, k, bytes, times).await)
    }

    /// [`Comm::fan`] that can go on by itself.
    pub(crate) fn fan_call(&self, order: Order, k: u32, bytes: usize, times: u32) -> Result<Call<Vec<f64>>> {
        let sig = self.check_fan(k, bytes)?;
        self.prepare(
            sig,
            None,
            move |ep: Arc<Endpoint>| async move { fan_on(&ep, order, k, bytes, times).await },
        )
    }

    fn check_fan(&self, k: u32, bytes: usize) -> Result<CallSig> {
        if k == 0 || k >= self.size() {
            let message = format!("a rank of a group of {} cannot send to {k} others", self.size());
            return Err(self.fail_call(Error::bad_input(message)));
        }
        Ok(CallSig { n: bytes as u64, extra: k, ..CallSig::plain(CallKind::Measure) })
    }
}
