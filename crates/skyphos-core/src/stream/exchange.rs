//! Exchange of streams between ranks: all streams that a rank sends and receives in a round, at the same time.

use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::slab::Payload;
use crate::stream::segments::Segments;
use skyphos_types::{GroupRank, Result, Round};
use std::collections::VecDeque;

/// The most segments by which this rank may be ahead of others in its own stream: 1 MB.
const LEAD_SEGMENTS: usize = 32;

/// The consumer of received segments.
pub trait Consumer {
    /// Takes the next segment of a source, given by its index. Returns whether the segment says that it is the last.
    fn take(&mut self, source: usize, segment: Payload) -> Result<bool>;

    /// Whether the consumer cannot go on without more of this rank's own stream.
    fn waits_for_own(&self) -> bool;
}

/// A stream that this rank sends to its receivers: other ranks, and possibly itself.
pub struct Stream<'a> {
    segments: Segments<'a>,
    receivers: Vec<StreamReceiver>,
    /// Segments that some receiver has not been given.
    queue: VecDeque<Payload>,
    /// Number of segments before those in the queue.
    dropped: usize,
    /// Number of receivers that have not been given the first segment in the queue.
    behind: usize,
}

struct StreamReceiver {
    rank: u32,
    /// Segments given to it.
    given: usize,
    out: Option<Outgoing>,
}

impl<'a> Stream<'a> {
    /// A stream of segments to these ranks.
    pub fn new(segments: impl Into<Segments<'a>>, receivers: impl IntoIterator<Item = u32>) -> Stream<'a> {
        let receivers: Vec<_> =
            receivers.into_iter().map(|rank| StreamReceiver { rank, given: 0, out: None }).collect();
        let behind = receivers.len();
        Stream { segments: segments.into(), receivers, queue: VecDeque::new(), dropped: 0, behind }
    }

    /// The ranks that get the stream.
    pub(super) fn receivers(&self) -> impl Iterator<Item = u32> {
        self.receivers.iter().map(|receiver| receiver.rank)
    }

    /// Whether a receiver lacks segments.
    fn has_more_for(&self, receiver: usize) -> bool {
        self.receivers[receiver].given - self.dropped < self.queue.len() || !self.segments.ended()
    }

    /// The next segment for a receiver. Cuts a new segment if the queue has none.
    fn next_for(&mut self, receiver: usize) -> Option<Payload> {
        let k = self.receivers[receiver].given - self.dropped;
        if k == self.queue.len() {
            self.queue.extend(self.segments.next_for(self.receivers.len()));
        }
        let segment = self.queue.get(k).cloned()?;
        self.receivers[receiver].given += 1;
        self.behind -= usize::from(k == 0);
        if self.behind == 0 {
            self.queue.pop_front();
            self.dropped += 1;
            self.behind = self.receivers.iter().filter(|receiver| receiver.given == self.dropped).count();
        }
        Some(segment)
    }

    fn done(&self) -> bool {
        self.receivers.is_empty() || self.segments.ended() && self.queue.is_empty()
    }

    /// Whether this rank, a receiver of its own stream, may take the next segment: if all others have been given it, or if the
    /// consumer waits for it and this rank is less than [`LEAD_SEGMENTS`] segments ahead.
    fn may_take_own(&self, receiver: usize, consumer: &impl Consumer) -> bool {
        let given = self.receivers[receiver].given;
        let others = (0..self.receivers.len()).filter(|k| *k != receiver).map(|k| self.receivers[k].given);
        match others.min() {
            None => consumer.waits_for_own(),
            Some(least) => least > given || given < least + LEAD_SEGMENTS && consumer.waits_for_own(),
        }
    }
}

/// Sends streams and receives others. `sources` are the ranks whose streams are received, including this rank if it receives
/// one of its own.
pub async fn exchange_streams(
    ep: &Endpoint,
    round: Round,
    mut streams: Vec<Stream<'_>>,
    sources: &[u32],
    consumer: &mut impl Consumer,
) -> Result<()> {
    let me = ep.rank().0;
    for stream in &mut streams {
        let bytes = stream.segments.bytes();
        for receiver in stream.receivers.iter_mut().filter(|receiver| receiver.rank != me) {
            let to = receiver.rank;
            receiver.out = Some(match bytes {
                Some(total) => Outgoing::new(GroupRank(to), round, total),
                None => Outgoing::open(GroupRank(to), round),
            });
        }
    }
    let own = sources.iter().position(|from| *from == me);
    let mut ins: Vec<(usize, Incoming, bool)> = (0..sources.len())
        .filter(|k| Some(*k) != own)
        .map(|k| (k, Incoming::new(GroupRank(sources[k]), round), false))
        .collect();
    loop {
        let mut moved = false;
        // One segment to each receiver in turn, so that all are served at the same rate.
        for stream in &mut streams {
            for k in 0..stream.receivers.len() {
                match &stream.receivers[k].out {
                    // First, because `may_send` takes locks.
                    _ if !stream.has_more_for(k) => continue,
                    Some(out) if !out.may_send(ep) => continue,
                    None if !stream.may_take_own(k, consumer) => continue,
                    _ => {}
                }
                let Some(segment) = stream.next_for(k) else { continue };
                moved = true;
                match (&mut stream.receivers[k].out, own) {
                    (Some(out), _) => out.push_shared(ep, segment),
                    (None, Some(own)) => drop(consumer.take(own, segment)?),
                    (None, None) => unreachable!("a stream for this rank, which is not a source"),
                }
            }
        }
        for (k, incoming, ended) in &mut ins {
            while !*ended && let Some(segment) = incoming.next(ep)? {
                *ended = consumer.take(*k, segment)?;
                moved = true;
            }
        }
        let received = ins.iter().all(|(_, incoming, ended)| *ended || incoming.done());
        if received && streams.iter().all(Stream::done) {
            return Ok(());
        }
        if !moved {
            ep.progress().await?;
        }
    }
}

/// Sends lists of segments and receives others, to the ends of all messages. `on_segment(k, segment)` gets each segment of
/// source k, in the order of the source's list.
pub async fn exchange(
    ep: &Endpoint,
    round: Round,
    sends: &[(u32, &[Payload])],
    sources: &[u32],
    on_segment: impl FnMut(usize, Payload) -> Result<()>,
) -> Result<()> {
    let streams = sends.iter().map(|(to, list)| Stream::new(*list, [*to])).collect();
    exchange_streams(ep, round, streams, sources, &mut UntilEnd(on_segment)).await
}

/// Sends a stream without receiving any.
pub async fn send(ep: &Endpoint, round: Round, stream: Stream<'_>) -> Result<()> {
    exchange_streams(ep, round, vec![stream], &[], &mut UntilEnd(|_, _| Ok(()))).await
}

/// A consumer that takes the segments of a source until the end of its message.
struct UntilEnd<F>(F);

impl<F: FnMut(usize, Payload) -> Result<()>> Consumer for UntilEnd<F> {
    fn take(&mut self, source: usize, segment: Payload) -> Result<bool> {
        (self.0)(source, segment)?;
        Ok(false)
    }

    fn waits_for_own(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Pool;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_receiver_gets_all_segments_and_none_stays_queued(
            count in 1usize..20,
            receivers in 1u32..6,
            turns in prop::collection::vec(0usize..6, 0..200),
        ) {
            let pool = Pool::default();
            let segments: Vec<Payload> = (0..count).map(|k| pool.copy_of(&[k as u8])).collect();
            let mut stream = Stream::new(segments, 0..receivers);
            let mut got = vec![Vec::new(); receivers as usize];
            let rest = (0..receivers as usize).flat_map(|k| std::iter::repeat_n(k, count));
            for k in turns.into_iter().filter(|k| *k < receivers as usize).chain(rest) {
                got[k].extend(stream.next_for(k).map(|segment| segment.as_bytes()[0] as usize));
                let (least, most) = (got.iter().map(Vec::len).min(), got.iter().map(Vec::len).max());
                prop_assert_eq!(Some(stream.dropped), least);
                prop_assert_eq!(Some(stream.dropped + stream.queue.len()), most);
                prop_assert_eq!(stream.done(), least == Some(count));
            }
            prop_assert!(got.iter().all(|got| got.iter().copied().eq(0..count)));
        }
    }
}
