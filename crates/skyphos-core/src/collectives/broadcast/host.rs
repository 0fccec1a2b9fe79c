//! One copy of a message per host: a leader receives it into memory that the host's other ranks, its followers, map.
//!
//! ```text
//! leader      allocates a region, and offers it to its followers
//! followers   map the region, and answer whether they could
//! leader      receives the message into the region; reports to the followers that mapped it how far it is filled, and
//!             sends the message to the others
//! ```
//!
//! The memory is a [`Region`](crate::shared_memory::host_region::Region).

use super::completion::{Completion, Polled};
use super::flow::Flow;
use super::receive_buffer::ReceiveBuffer;
use super::shared::Shared;
use super::store::Store;
use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::shared_memory::host_region::UnfilledCopy;
use skyphos_types::{GroupRank, Result, Round};

/// Rounds: the offer of the region; a follower's answer; reports of how far the region is filled.
const OFFER: Round = Round(0x110);
const ANSWER: Round = Round(0x111);
const FILLED: Round = Round(0x112);

/// Bytes between two reports to the followers. Without reports they would time out while a long message arrives.
const REPORT_BYTES: usize = 64 << 20;

/// A leader's view of its followers.
pub(super) struct Followers {
    /// Followers that have not answered the offer.
    offered: Vec<(u32, Incoming)>,
    /// Reports to the followers that have mapped the region.
    reports: Vec<Outgoing>,
    total: usize,
}

impl Followers {
    pub(super) fn none() -> Followers {
        Followers { offered: Vec::new(), reports: Vec::new(), total: 0 }
    }

    /// Offers the region; the offer is empty if there is none.
    pub(super) fn new(ep: &Endpoint, ranks: &[u32], shared: Option<&Shared>, total: usize) -> Followers {
        let offer = shared.map_or(Vec::new(), |shared| shared.offer().as_ref().to_vec());
        let offer = ep.node().pool().copy_of(&offer);
        let send_offer = |rank: &u32| {
            Outgoing::new(GroupRank(*rank), OFFER, offer.len() as u64).push_shared(ep, offer.clone());
            (*rank, Incoming::new(GroupRank(*rank), ANSWER))
        };
        Followers { offered: ranks.iter().map(send_offer).collect(), reports: Vec::new(), total }
    }

    /// Reads answers: a follower that could not map the region is sent the message. Reports progress to the others.
    /// A lost follower stays counted as a user of the region, so the region is not reused.
    /// Returns whether there was an answer or a report.
    pub(super) fn step(
        &mut self,
        completion: &Completion<'_>,
        flow: &mut Flow,
        shared: Option<&Shared>,
    ) -> Result<bool> {
        let (ep, before) = (completion.ep, self.offered.len());
        for (rank, mut answer) in std::mem::take(&mut self.offered) {
            match completion.poll_stream(rank, &mut answer)? {
                Polled::Chunk(chunk) if chunk.as_bytes() == [1] => {
                    self.reports.push(Outgoing::new(GroupRank(rank), FILLED, reports_of(self.total)));
                }
                Polled::Chunk(_) => {
                    shared.into_iter().for_each(Shared::release);
                    flow.send_all_to(rank);
                }
                Polled::Pending => self.offered.push((rank, answer)),
                Polled::SenderLost(_) => {}
            }
        }
        let mut moved = self.offered.len() < before;
        let Some(shared) = shared else { return Ok(moved) };
        let due = match shared.filled() == self.total {
            true => reports_of(self.total),
            false => (shared.filled() / REPORT_BYTES) as u64,
        };
        for report in &mut self.reports {
            while report.sent() < due {
                report.push(ep, ep.chunk(1));
                moved = true;
            }
        }
        Ok(moved)
    }
}

/// Number of reports, of one byte each, in the course of a message.
fn reports_of(total: usize) -> u64 {
    (total / REPORT_BYTES + 1) as u64
}

/// A follower's state.
pub(super) enum Follower {
    /// Waits for the offer.
    AwaitsOffer(Incoming),
    /// Has mapped the region, and waits for the report that it is full.
    AwaitsFilled(UnfilledCopy, Incoming),
    /// Has the message, or receives it as a stream.
    Settled,
}

impl Follower {
    pub(super) fn new(leader: u32) -> Follower {
        Follower::AwaitsOffer(Incoming::new(GroupRank(leader), OFFER))
    }

    pub(super) fn step<R: ReceiveBuffer>(
        &mut self,
        leader: u32,
        completion: &mut Completion<'_>,
        flow: &mut Flow,
        store: &mut Store<'_, R>,
    ) -> Result<bool> {
        let ep = completion.ep;
        match std::mem::replace(self, Follower::Settled) {
            Follower::Settled => return Ok(false),
            Follower::AwaitsOffer(mut offer) => match completion.poll_stream(leader, &mut offer)? {
                Polled::Pending => {
                    *self = Follower::AwaitsOffer(offer);
                    return Ok(false);
                }
                Polled::SenderLost(error) => {
                    store.allocate_buffer()?;
                    flow.request_all(completion, error)?;
                }
                Polled::Chunk(offer) => {
                    let copy =
                        ep.node().shares_memory().then(|| UnfilledCopy::open(offer.as_bytes())).flatten();
                    let answer = ep.node().pool().copy_of(&[u8::from(copy.is_some())]);
                    Outgoing::new(GroupRank(leader), ANSWER, 1).push_shared(ep, answer);
                    match copy {
                        Some(copy) => {
                            *self = Follower::AwaitsFilled(copy, Incoming::new(GroupRank(leader), FILLED))
                        }
                        None => {
                            store.allocate_buffer()?;
                            flow.receive_all_from(leader);
                        }
                    }
                }
            },
            Follower::AwaitsFilled(copy, mut filled) => match completion.poll_stream(leader, &mut filled)? {
                Polled::Chunk(_) if filled.done() => {
                    store.set_copy(copy.filled());
                    flow.complete();
                }
                Polled::Chunk(_) => *self = Follower::AwaitsFilled(copy, filled),
                Polled::Pending => {
                    *self = Follower::AwaitsFilled(copy, filled);
                    return Ok(false);
                }
                Polled::SenderLost(error) => {
                    drop(copy);
                    store.allocate_buffer()?;
                    flow.request_all(completion, error)?;
                }
            },
        }
        Ok(true)
    }
}
