//! One copy of a message a host: one of its ranks brings it, in memory that the others map.
//!
//! ```text
//! leader    makes memory, and tells the others of its host where it is
//! others    map it, and say whether they could
//! leader    brings the message there; tells those who have it mapped how far it is, and sends it to those who have not
//! ```
//!
//! The memory is a [`Region`](crate::host_region::Region).

use super::completion::{Came, Completion};
use super::flow::Flow;
use super::message::Room;
use super::shared::Shared;
use super::store::Store;
use crate::endpoint::Endpoint;
use crate::host_region::HostCopy;
use crate::message_stream::{Incoming, Outgoing};
use skyphos_types::Result;

/// Rounds: where the memory is; whether it was found; how far it is filled.
const OFFER: u32 = 0x110;
const ANSWER: u32 = 0x111;
const FILLED: u32 = 0x112;

/// After so many bytes those who wait are told: who hears nothing for too long ends the call.
const STRETCH: usize = 64 << 20;

/// The others of a leader's host.
pub(super) struct Mates {
    /// Those who have not said yet whether they have the memory.
    asked: Vec<(u32, Incoming)>,
    /// Those who have, and are told how far it is filled.
    near: Vec<Outgoing>,
    total: usize,
}

impl Mates {
    pub(super) fn none() -> Mates {
        Mates { asked: Vec::new(), near: Vec::new(), total: 0 }
    }

    /// Tells them where the memory is, if there is any.
    pub(super) fn new(ep: &Endpoint, others: &[u32], shared: Option<&Shared>, total: usize) -> Mates {
        let offer = shared.map_or(Vec::new(), |shared| shared.offer().as_ref().to_vec());
        let offer = ep.node().pool().copy_of(&offer);
        let tell = |other: &u32| {
            Outgoing::new(*other, OFFER, offer.len() as u64).push_shared(ep, offer.clone());
            (*other, Incoming::new(*other, ANSWER))
        };
        Mates { asked: others.iter().map(tell).collect(), near: Vec::new(), total }
    }

    /// Who could not map the memory is sent the message; the others hear how far it is. Who is lost stays counted as its user.
    pub(super) fn step(
        &mut self,
        completion: &Completion<'_>,
        flow: &mut Flow,
        shared: Option<&Shared>,
    ) -> Result<bool> {
        let (ep, before) = (completion.ep, self.asked.len());
        for (other, mut answer) in std::mem::take(&mut self.asked) {
            match completion.take(other, &mut answer)? {
                Came::Chunk(chunk) if chunk.as_bytes() == [1] => {
                    self.near.push(Outgoing::new(other, FILLED, fill_reports(self.total)));
                }
                Came::Chunk(_) => {
                    shared.into_iter().for_each(Shared::release);
                    flow.plan_to(other);
                }
                Came::Nothing => self.asked.push((other, answer)),
                Came::Never(_) => {}
            }
        }
        let mut moved = self.asked.len() < before;
        let Some(shared) = shared else { return Ok(moved) };
        let due = match shared.filled() == self.total {
            true => fill_reports(self.total),
            false => (shared.filled() / STRETCH) as u64,
        };
        for send in &mut self.near {
            while send.sent() < due {
                send.push(ep, ep.chunk(1));
                moved = true;
            }
        }
        Ok(moved)
    }
}

/// How often who waits is told how far the memory is filled.
fn fill_reports(total: usize) -> u64 {
    (total / STRETCH + 1) as u64
}

/// Another rank's part.
pub(super) enum Mate {
    /// Waits to be told where the memory is.
    Waits(Incoming),
    /// Has it, and waits until it is filled.
    Has(HostCopy, Incoming),
    /// Has the message, or gets it by itself.
    Settled,
}

impl Mate {
    pub(super) fn new(leader: u32) -> Mate {
        Mate::Waits(Incoming::new(leader, OFFER))
    }

    pub(super) fn step<R: Room>(
        &mut self,
        leader: u32,
        completion: &mut Completion<'_>,
        flow: &mut Flow,
        store: &mut Store<'_, R>,
    ) -> Result<bool> {
        let ep = completion.ep;
        match std::mem::replace(self, Mate::Settled) {
            Mate::Settled => return Ok(false),
            Mate::Waits(mut offer) => match completion.take(leader, &mut offer)? {
                Came::Nothing => {
                    *self = Mate::Waits(offer);
                    return Ok(false);
                }
                Came::Never(why) => {
                    store.make()?;
                    flow.ask_for_all(completion, why)?;
                }
                Came::Chunk(offer) => {
                    let copy = ep.node().shares_memory().then(|| HostCopy::open(offer.as_bytes())).flatten();
                    let answer = ep.node().pool().copy_of(&[u8::from(copy.is_some())]);
                    Outgoing::new(leader, ANSWER, 1).push_shared(ep, answer);
                    match copy {
                        Some(copy) => *self = Mate::Has(copy, Incoming::new(leader, FILLED)),
                        None => {
                            store.make()?;
                            flow.plan_from(leader);
                        }
                    }
                }
            },
            Mate::Has(copy, mut filled) => match completion.take(leader, &mut filled)? {
                Came::Chunk(_) if filled.done() => {
                    store.found(copy);
                    flow.has_all();
                }
                Came::Chunk(_) => *self = Mate::Has(copy, filled),
                Came::Nothing => {
                    *self = Mate::Has(copy, filled);
                    return Ok(false);
                }
                Came::Never(why) => {
                    drop(copy);
                    store.make()?;
                    flow.ask_for_all(completion, why)?;
                }
            },
        }
        Ok(true)
    }
}
