//! Moving streams between ranks: all that a round sends and receives, at once.

use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::slab::Payload;
use crate::stream::segments::Segments;
use skyphos_types::Result;
use std::collections::VecDeque;

/// Segments that a rank takes of its own stream before others have them, at most: 1 MB.
const LEAD: usize = 32;

/// What becomes of the segments that come.
pub trait Receiver {
    /// Takes the next segment of a source, by its number. Returns whether that was its last, if the segments tell.
    fn take(&mut self, source: usize, segment: Payload) -> Result<bool>;

    /// Whether it should get more of this rank's own stream before others do.
    fn waits_for_own(&self) -> bool;
}

/// A stream of this rank's, and who gets it: other ranks, and maybe this one.
pub struct Stream<'a> {
    segments: Segments<'a>,
    takers: Vec<Taker>,
    /// Those that some taker has still to get, and how many were before them.
    kept: VecDeque<Payload>,
    gone: usize,
    /// Takers that lack the first of those kept.
    behind: usize,
}

struct Taker {
    rank: u32,
    /// How many it has got.
    got: usize,
    out: Option<Outgoing>,
}

impl<'a> Stream<'a> {
    /// Segments for these ranks.
    pub fn new(segments: impl Into<Segments<'a>>, takers: impl IntoIterator<Item = u32>) -> Stream<'a> {
        let takers: Vec<_> = takers.into_iter().map(|rank| Taker { rank, got: 0, out: None }).collect();
        let behind = takers.len();
        Stream { segments: segments.into(), takers, kept: VecDeque::new(), gone: 0, behind }
    }

    /// The ranks that get it.
    pub(super) fn takers(&self) -> impl Iterator<Item = u32> {
        self.takers.iter().map(|taker| taker.rank)
    }

    /// Whether there is more for a taker.
    fn has_more_for(&self, taker: usize) -> bool {
        self.takers[taker].got - self.gone < self.kept.len() || !self.segments.ended()
    }

    /// The next segment for a taker; cuts it if it is the first to want it.
    fn next_for(&mut self, taker: usize) -> Option<Payload> {
        let place = self.takers[taker].got - self.gone;
        if place == self.kept.len() {
            self.kept.extend(self.segments.next_for(self.takers.len()));
        }
        let segment = self.kept.get(place).cloned()?;
        self.takers[taker].got += 1;
        self.behind -= usize::from(place == 0);
        if self.behind == 0 {
            self.kept.pop_front();
            self.gone += 1;
            self.behind = self.takers.iter().filter(|taker| taker.got == self.gone).count();
        }
        Some(segment)
    }

    fn done(&self) -> bool {
        self.takers.is_empty() || self.segments.ended() && self.kept.is_empty()
    }

    /// Whether a taker that is this rank may have the next: once all others have it, or a little before.
    fn may_keep(&self, taker: usize, receiver: &impl Receiver) -> bool {
        let got = self.takers[taker].got;
        let others = (0..self.takers.len()).filter(|k| *k != taker).map(|k| self.takers[k].got);
        match others.min() {
            None => receiver.waits_for_own(),
            Some(least) => least > got || got < least + LEAD && receiver.waits_for_own(),
        }
    }
}

/// Sends streams and receives others. `sources` are the ranks whose streams come, this one among them if it takes
/// one of its own.
pub async fn exchange_streams(
    ep: &Endpoint,
    round: u32,
    mut streams: Vec<Stream<'_>>,
    sources: &[u32],
    receiver: &mut impl Receiver,
) -> Result<()> {
    let me = ep.rank();
    for stream in &mut streams {
        let bytes = stream.segments.bytes();
        for taker in stream.takers.iter_mut().filter(|taker| taker.rank != me) {
            let to = taker.rank;
            taker.out = Some(match bytes {
                Some(total) => Outgoing::new(to, round, total),
                None => Outgoing::open(to, round),
            });
        }
    }
    let own = sources.iter().position(|from| *from == me);
    let mut ins: Vec<(usize, Incoming, bool)> = (0..sources.len())
        .filter(|k| Some(*k) != own)
        .map(|k| (k, Incoming::new(sources[k], round), false))
        .collect();
    loop {
        let mut moved = false;
        // One segment to each in turn, so that all get theirs at the same rate.
        for stream in &mut streams {
            for k in 0..stream.takers.len() {
                match &stream.takers[k].out {
                    // Asking whether it may go takes locks.
                    _ if !stream.has_more_for(k) => continue,
                    Some(out) if !out.may_send(ep) => continue,
                    None if !stream.may_keep(k, receiver) => continue,
                    _ => {}
                }
                let Some(segment) = stream.next_for(k) else { continue };
                moved = true;
                match (&mut stream.takers[k].out, own) {
                    (Some(out), _) => out.push_shared(ep, segment),
                    (None, Some(own)) => drop(receiver.take(own, segment)?),
                    (None, None) => unreachable!("a stream for this rank, which is no source"),
                }
            }
        }
        for (k, incoming, ended) in &mut ins {
            while !*ended && let Some(segment) = incoming.next(ep)? {
                *ended = receiver.take(*k, segment)?;
                moved = true;
            }
        }
        let came = ins.iter().all(|(_, incoming, ended)| *ended || incoming.done());
        if came && streams.iter().all(Stream::done) {
            return Ok(());
        }
        if !moved {
            ep.progress().await?;
        }
    }
}

/// Sends segments that are there and receives others, to the end that their senders told. `came(k, segment)` gets
/// each segment of the k-th source in the order in which it sent them.
pub async fn exchange(
    ep: &Endpoint,
    round: u32,
    sends: &[(u32, &[Payload])],
    sources: &[u32],
    came: impl FnMut(usize, Payload) -> Result<()>,
) -> Result<()> {
    let streams = sends.iter().map(|(to, list)| Stream::new(*list, [*to])).collect();
    exchange_streams(ep, round, streams, sources, &mut ToTheEnd(came)).await
}

/// Sends a stream, and receives nothing.
pub async fn send(ep: &Endpoint, round: u32, stream: Stream<'_>) -> Result<()> {
    exchange_streams(ep, round, vec![stream], &[], &mut ToTheEnd(|_, _| Ok(()))).await
}

struct ToTheEnd<F>(F);

impl<F: FnMut(usize, Payload) -> Result<()>> Receiver for ToTheEnd<F> {
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
        fn every_taker_gets_all_and_nothing_is_kept_longer(
            count in 1usize..20,
            takers in 1u32..6,
            turns in prop::collection::vec(0usize..6, 0..200),
        ) {
            let pool = Pool::default();
            let segments: Vec<Payload> = (0..count).map(|k| pool.copy_of(&[k as u8])).collect();
            let mut stream = Stream::new(segments, 0..takers);
            let mut got = vec![Vec::new(); takers as usize];
            let rest = (0..takers as usize).flat_map(|k| std::iter::repeat_n(k, count));
            for k in turns.into_iter().filter(|k| *k < takers as usize).chain(rest) {
                got[k].extend(stream.next_for(k).map(|segment| segment.as_bytes()[0] as usize));
                let (least, most) = (got.iter().map(Vec::len).min(), got.iter().map(Vec::len).max());
                prop_assert_eq!(Some(stream.gone), least);
                prop_assert_eq!(Some(stream.gone + stream.kept.len()), most);
                prop_assert_eq!(stream.done(), least == Some(count));
            }
            prop_assert!(got.iter().all(|got| got.iter().copied().eq(0..count)));
        }
    }
}
