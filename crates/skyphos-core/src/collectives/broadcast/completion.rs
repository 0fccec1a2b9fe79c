//! Completion of a broadcast: acknowledgements, requests for bytes that a lost rank owed, and the agreed end.
//!
//! Ranks are numbered in broadcast order from the root, which has virtual rank 0. A rank's *collector* is the first rank of
//! that order that it has not lost, normally the root. Each rank acknowledges the message to its collector. Once every
//! remaining rank has done so, the collector sends the end, with the ranks that missed the message, and each rank forwards
//! the end to the ranks that acknowledged to it. No rank leaves earlier, because others may request bytes from it. A rank
//! requests bytes only from the nearest remaining rank before it in the order, so requests cannot form a circle.
//!
//! ```text
//! SendTable    to an earlier rank            send me the table of the parts
//! SendData     to an earlier rank            send me these bytes, as stream k
//! Complete     to the collector              I have the whole message
//! Collect      by a new collector, to all    acknowledge to me
//! End          by the collector              all have the message, except these lost ranks
//! ```
//!
//! Where a link is cut, two ranks may see different ranks as lost, and so have different collectors. A rank that has left
//! the call answers later messages with [`crate::frame::FrameKind::Past`]: every rank had the message by then.
//!
//! Cost: without losses one message from each rank to the root and one back.

use super::tree::binomial;
use crate::endpoint::Endpoint;
use crate::mailbox::Absence;
use crate::message_stream::{Incoming, Outgoing};
use crate::slab::Payload;
use skyphos_types::{Error, GroupRank, Result, Round};
use std::ops::Range;
use std::time::Duration;

/// The round of control messages.
const CONTROL: Round = Round(0x120);

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Control {
    SendTable,
    /// Stream number and bytes of the message.
    SendData(u32, Range<usize>),
    Complete,
    Collect,
    /// The ranks that missed the message.
    End(Vec<u32>),
}

impl Control {
    /// One byte for the kind, then numbers of 8 bytes.
    fn encode(&self) -> Vec<u8> {
        let (kind, numbers): (u8, Vec<u64>) = match self {
            Control::SendTable => (b't', Vec::new()),
            Control::SendData(stream, range) => {
                (b'd', vec![u64::from(*stream), range.start as u64, range.end as u64])
            }
            Control::Complete => (b'o', Vec::new()),
            Control::Collect => (b'c', Vec::new()),
            Control::End(missed) => (b'e', missed.iter().map(|rank| u64::from(*rank)).collect()),
        };
        [kind].into_iter().chain(numbers.into_iter().flat_map(u64::to_le_bytes)).collect()
    }

    /// `None` if the bytes are not a control message in a group of `size` ranks.
    fn decode(bytes: &[u8], size: u32) -> Option<Control> {
        let (kind, rest) = bytes.split_first()?;
        let (numbers, odd_bytes) = rest.as_chunks::<8>();
        let numbers: Vec<u64> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
        let rank = |number: &u64| u32::try_from(*number).ok().filter(|rank| *rank < size);
        match (kind, &numbers[..]) {
            _ if !odd_bytes.is_empty() => None,
            (b't', []) => Some(Control::SendTable),
            (b'd', [stream, start, end]) if start < end => {
                let range = usize::try_from(*start).ok()?..usize::try_from(*end).ok()?;
                Some(Control::SendData(u32::try_from(*stream).ok()?, range))
            }
            (b'o', []) => Some(Control::Complete),
            (b'c', []) => Some(Control::Collect),
            (b'e', missed) => missed.iter().map(rank).collect::<Option<_>>().map(Control::End),
            _ => None,
        }
    }
}

/// The result of polling a stream whose sender may be lost.
pub(super) enum Polled {
    Chunk(Payload),
    /// No chunk has arrived yet.
    Pending,
    /// The sender is lost, so no chunk will arrive; the error names it.
    SenderLost(Error),
}

/// The state of one other rank, as far as this rank knows it.
#[derive(Clone, Default)]
struct Peer {
    /// Its connection is lost.
    lost: bool,
    /// It has closed the group in order.
    left: bool,
    /// It has completed this call, so it had the message.
    past: bool,
    /// It has acknowledged the message to this rank.
    acknowledged: bool,
    /// The ranks that missed the message, from the end that this peer sent.
    end: Option<Vec<u32>>,
}

impl Peer {
    /// It takes no further part in the call.
    fn is_gone(&self) -> bool {
        self.lost || self.left || self.past
    }

    /// It has the whole message.
    fn has_message(&self) -> bool {
        self.acknowledged || self.past
    }
}

/// One rank's state of the protocol.
pub(super) struct Completion<'a> {
    pub(super) ep: &'a Endpoint,
    order: &'a [u32],
    vrank: usize,
    /// By rank.
    peers: Vec<Peer>,
    /// Absences that [`Completion::poll`] has read from the endpoint.
    absences_seen: usize,
    streams: Vec<Option<Outgoing>>,
    /// Collectors that get an acknowledgement once this rank has the message.
    collectors_waiting: Vec<u32>,
    complete: bool,
    /// The collector that this rank has acknowledged to last.
    collector: u32,
    /// This rank collects acknowledgements although it is not the root.
    collecting: bool,
    missed: Vec<u32>,
    /// Ranks that requested the table.
    pub(super) table_requests: Vec<u32>,
    /// Requests for data: rank, stream, bytes.
    pub(super) data_requests: Vec<(u32, u32, Range<usize>)>,
    /// Streams that this rank has requested.
    requested_streams: u32,
    /// The longest that a collector waits without progress.
    ack_timeout: Duration,
    last_progress: Duration,
}

impl<'a> Completion<'a> {
    pub(super) fn new(ep: &'a Endpoint, order: &'a [u32], ack_timeout: Duration) -> Completion<'a> {
        let (me, size) = (ep.rank().0, ep.size() as usize);
        let vrank = order.iter().position(|rank| *rank == me).expect("a rank of the group");
        Completion {
            ep,
            order,
            vrank,
            peers: vec![Peer::default(); size],
            absences_seen: 0,
            streams: (0..size).map(|_| None).collect(),
            collectors_waiting: order[..1].to_vec(),
            complete: false,
            collector: order[0],
            collecting: false,
            missed: Vec::new(),
            table_requests: Vec::new(),
            data_requests: Vec::new(),
            requested_streams: 0,
            ack_timeout,
            last_progress: ep.now(),
        }
    }

    /// This rank's index in the broadcast order; the root's is 0.
    pub(super) fn vrank(&self) -> usize {
        self.vrank
    }

    /// The ranks in broadcast order.
    pub(super) fn order(&self) -> &'a [u32] {
        self.order
    }

    /// The rank that sends this rank the table; `None` on the root.
    pub(super) fn table_parent(&self) -> Option<u32> {
        binomial(self.order, self.vrank).parent
    }

    /// The ranks that this rank sends the table to.
    pub(super) fn table_children(&self) -> Vec<u32> {
        binomial(self.order, self.vrank).children
    }

    /// Whether a rank takes no further part in the call.
    pub(super) fn is_gone(&self, rank: u32) -> bool {
        self.peers[rank as usize].is_gone()
    }

    fn send(&mut self, to: u32, message: &Control) {
        if to == self.ep.rank().0 || self.peers[to as usize].lost {
            return;
        }
        let bytes = message.encode();
        let stream = self.streams[to as usize].get_or_insert_with(|| match self.ep.outlives_losses() {
            true => Outgoing::open(GroupRank(to), CONTROL),
            // With replicas each rank sends one control message to a peer, and replicas need its length.
            false => Outgoing::new(GroupRank(to), CONTROL, bytes.len() as u64),
        });
        stream.push_shared(self.ep, self.ep.node().pool().copy_of(&bytes));
    }

    /// Reads control messages and losses that have arrived; returns whether there were any.
    pub(super) fn poll(&mut self) -> Result<bool> {
        let mut moved = false;
        while let Some((from, bytes)) = self.ep.take_from_any(CONTROL) {
            moved = true;
            let message = Control::decode(bytes.as_bytes(), self.ep.size());
            match message.ok_or_else(|| self.ep.corrupt(from, "not a control message of a broadcast"))? {
                Control::SendTable => self.table_requests.push(from.0),
                Control::SendData(stream, range) => self.data_requests.push((from.0, stream, range)),
                Control::Complete => self.peers[from.index()].acknowledged = true,
                Control::End(missed) => self.peers[from.index()].end = Some(missed),
                Control::Collect if self.complete => self.send(from.0, &Control::Complete),
                Control::Collect => self.collectors_waiting.push(from.0),
            }
        }
        if self.ep.count_absences() != self.absences_seen {
            self.absences_seen = self.ep.count_absences();
            moved = true;
            for (rank, why) in self.ep.absences() {
                let peer = &mut self.peers[rank.index()];
                match why {
                    Absence::Lost => peer.lost = true,
                    Absence::Left => peer.left = true,
                    Absence::Past => peer.past = true,
                }
            }
        }
        Ok(moved)
    }

    /// Takes the next chunk of a stream from a rank that may be lost.
    pub(super) fn poll_stream(&self, from: u32, incoming: &mut Incoming) -> Result<Polled> {
        match incoming.next(self.ep) {
            Ok(Some(chunk)) => Ok(Polled::Chunk(chunk)),
            Ok(None) if self.ep.outlives_losses() && self.is_gone(from) => {
                Ok(Polled::SenderLost(self.ep.loss_error(GroupRank(from))))
            }
            Ok(None) => Ok(Polled::Pending),
            // `version` returns an error if the whole call has failed, and `Ok` if only this sender is lost.
            Err(error @ Error::PeerLost { .. }) if self.ep.outlives_losses() => {
                self.ep.version().map(|_| Polled::SenderLost(error))
            }
            Err(error) => Err(error),
        }
    }

    /// The nearest remaining rank before this one in the order; `error` if there is none.
    fn substitute(&self, error: Error) -> Result<u32> {
        let earlier = self.order[..self.vrank].iter().rev();
        earlier.copied().find(|rank| !self.is_gone(*rank)).ok_or(error)
    }

    /// Requests the table after its sender was lost. `lost`: the error that names the sender. Returns the rank that will send it.
    pub(super) fn request_table(&mut self, lost: Error) -> Result<u32> {
        let from = self.substitute(lost)?;
        self.send(from, &Control::SendTable);
        Ok(from)
    }

    /// Requests bytes after their sender was lost. `lost`: the error that names the sender. Returns the rank that will send them,
    /// and the stream.
    pub(super) fn request_data(&mut self, range: Range<usize>, lost: Error) -> Result<(u32, u32)> {
        let from = self.substitute(lost)?;
        self.requested_streams += 1;
        self.send(from, &Control::SendData(self.requested_streams, range));
        Ok((from, self.requested_streams))
    }

    /// This rank has the whole message: acknowledges it.
    pub(super) fn acknowledge(&mut self) {
        if !std::mem::replace(&mut self.complete, true) {
            for collector in std::mem::take(&mut self.collectors_waiting) {
                self.send(collector, &Control::Complete);
            }
        }
    }

    /// Whether all remaining ranks have the message, as this rank has. If so, forwards the end.
    ///
    /// # Errors
    /// `PeerLost` if a needed rank has left, in a group whose calls end with a loss; `Timeout` if `ack_timeout` has passed.
    pub(super) fn is_over(&mut self) -> Result<bool> {
        let earlier = &self.order[..self.vrank];
        let peer = |rank: &u32| &self.peers[*rank as usize];
        if let Some(missed) = earlier.iter().find_map(|rank| peer(rank).end.clone()) {
            self.send_end(missed);
            return Ok(true);
        }
        if earlier.iter().any(|rank| peer(rank).past) {
            // The ranks that left do not count: they did not acknowledge to this rank, and may have had the message.
            self.send_end(self.unacknowledged_where(|peer| peer.lost).collect());
            return Ok(true);
        }
        if !self.ep.outlives_losses() {
            let needed = if self.vrank == 0 { &self.order[1..] } else { &self.order[..1] };
            let gone = needed.iter().find(|rank| peer(rank).is_gone() && !peer(rank).has_message());
            gone.map_or(Ok(()), |rank| Err(self.ep.loss_error(GroupRank(*rank))))?;
        }
        if let Some(collector) = earlier.iter().copied().find(|rank| !peer(rank).is_gone()) {
            if self.collector != collector {
                self.collector = collector;
                self.send(collector, &Control::Complete);
            }
            return Ok(false);
        }
        if self.vrank > 0 && !std::mem::replace(&mut self.collecting, true) {
            self.order.iter().for_each(|rank| self.send(*rank, &Control::Collect));
        }
        let over = self.unacknowledged().next().is_none();
        if over {
            self.send_end(self.all_missed());
        } else {
            self.check_timeout()?;
        }
        Ok(over)
    }

    /// Other ranks that are still in the call and have not acknowledged.
    fn unacknowledged(&self) -> impl Iterator<Item = u32> {
        let others = self.order.iter().copied().filter(move |rank| *rank != self.ep.rank().0);
        others.filter(move |rank| {
            let peer = &self.peers[*rank as usize];
            !peer.has_message() && !peer.is_gone()
        })
    }

    /// Restarts `ack_timeout`.
    pub(super) fn progressed(&mut self) {
        self.last_progress = self.ep.now();
    }

    /// When a collector gives up waiting; never on other ranks.
    pub(super) fn deadline(&self) -> Duration {
        match self.complete && (self.vrank == 0 || self.collecting) {
            true => self.last_progress.saturating_add(self.ack_timeout),
            false => Duration::MAX,
        }
    }

    fn check_timeout(&self) -> Result<()> {
        if self.ep.now() < self.deadline() {
            return Ok(());
        }
        let missing = self.unacknowledged().map(|rank| self.ep.world_rank(GroupRank(rank)).0).collect();
        Err(Error::Timeout { missing, call: self.ep.sig().to_string(), after: self.ack_timeout })
    }

    /// Sends the end to all ranks that have acknowledged to this rank, or may do so.
    fn send_end(&mut self, missed: Vec<u32>) {
        let end = Control::End(missed);
        for rank in self.order {
            let peer = &self.peers[*rank as usize];
            if !peer.past && (peer.acknowledged || self.vrank == 0 || self.collecting) {
                self.send(*rank, &end);
            }
        }
        let Control::End(missed) = end else { unreachable!("made above") };
        self.missed = missed;
    }

    /// Ranks for which `state` is true and that have not acknowledged.
    fn unacknowledged_where(&self, state: fn(&Peer) -> bool) -> impl Iterator<Item = u32> {
        let all = (0..).zip(&self.peers);
        all.filter(move |(_, peer)| state(peer) && !peer.has_message()).map(|(rank, _)| rank)
    }

    /// On a collector: the lost ranks, then those that left, which may be a consequence of the losses.
    fn all_missed(&self) -> Vec<u32> {
        let left = self.unacknowledged_where(|peer| peer.left && !peer.lost);
        self.unacknowledged_where(|peer| peer.lost).chain(left).collect()
    }

    /// The error that names the first rank without the message. If that is this rank, its link to the collector is cut, so the
    /// error names a lost earlier rank, or the collector.
    pub(super) fn first_missed(&self) -> Option<Error> {
        let me = self.ep.rank().0;
        let earlier = || self.order[..self.vrank].iter().copied();
        let sent_end = |rank: &u32| self.peers[*rank as usize].end.is_some();
        let cut_off_by = || earlier().find(|rank| self.is_gone(*rank)).or_else(|| earlier().find(sent_end));
        let missed = self.missed.iter().filter_map(|rank| match *rank == me {
            true => cut_off_by(),
            false => Some(*rank),
        });
        let missed: Vec<u32> = missed.collect();
        missed.iter().for_each(|rank| self.ep.note_lost_elsewhere(GroupRank(*rank)));
        missed.first().map(|rank| self.ep.loss_error(GroupRank(*rank)))
    }
}

/// A decoded control message, encoded again.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn fuzz_control(bytes: &[u8], size: u32) -> Option<Vec<u8>> {
    Control::decode(bytes, size).map(|message| message.encode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_messages_round_trip() {
        let messages = [
            Control::SendTable,
            Control::SendData(3, 5..77),
            Control::Complete,
            Control::Collect,
            Control::End(vec![1, 3]),
        ];
        for message in messages {
            assert_eq!(Control::decode(&message.encode(), 4), Some(message));
        }
        assert_eq!(Control::decode(&Control::End(vec![4]).encode(), 4), None, "no such rank");
        assert_eq!(Control::decode(&Control::SendData(1, 5..5).encode(), 4), None, "an empty range");
    }

    proptest! {
        #[test]
        fn accepted_bytes_encode_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(message) = Control::decode(&bytes, 4) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }
}
