//! Exchange of reduced ranges, which the receiver copies to their place in the result as they arrive.

use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::assemble::Assembler;
use crate::stream::exchange::{Consumer, Stream, exchange_streams};
use skyphos_types::{Element, GroupRank, Result, Round};
use std::ops::Range;

/// Sends streams, and assembles those received into the result. Each source is a rank and the leaves of the assembler that it
/// sends, in order. This rank is a source if one of its streams goes to itself. If `keep` is true, returns the received segments by
/// source.
pub async fn exchange_and_place<T: Element>(
    ep: &Endpoint,
    round: Round,
    streams: Vec<Stream<'_>>,
    sources: &[(u32, Range<usize>)],
    assembler: &mut Assembler<T>,
    keep: bool,
) -> Result<Vec<Vec<Payload>>> {
    let ranks: Vec<u32> = sources.iter().map(|(rank, _)| *rank).collect();
    let mut placing = Placing {
        ep,
        ranks: &ranks,
        left: sources.iter().map(|(_, leaves)| leaves.clone()).collect(),
        assembler,
        segments: sources.iter().map(|_| Vec::new()).collect(),
        keep,
        own_only: (sources.iter().find(|(rank, _)| *rank == ep.rank().0).map(|(_, leaves)| leaves.start))
            .filter(|_| streams.iter().any(|stream| stream.receivers().eq([ep.rank().0]))),
    };
    exchange_streams(ep, round, streams, &ranks, &mut placing).await?;
    match placing.left.iter().position(|leaves| !leaves.is_empty()) {
        Some(source) => Err(ep.corrupt(GroupRank(ranks[source]), "its stream ended before its range did")),
        None => Ok(placing.segments),
    }
}

/// The consumer that passes segments to the assembler.
struct Placing<'a, T> {
    ep: &'a Endpoint,
    ranks: &'a [u32],
    /// Incomplete leaves of each source.
    left: Vec<Range<usize>>,
    assembler: &'a mut Assembler<T>,
    /// Received segments by source; empty unless `keep`.
    segments: Vec<Vec<Payload>>,
    keep: bool,
    /// The leaf of this rank's own stream, if no other rank receives it.
    own_only: Option<usize>,
}

impl<T: Element> Consumer for Placing<'_, T> {
    fn take(&mut self, source: usize, segment: Payload) -> Result<bool> {
        let (rank, leaf) = (self.ranks[source], self.left[source].start);
        if self.keep {
            self.segments[source].push(segment.clone());
        }
        if self.assembler.take(self.ep, rank, leaf, segment)? {
            self.left[source].start += 1;
        }
        Ok(self.left[source].is_empty())
    }

    fn waits_for_own(&self) -> bool {
        // The result is allocated once its size is known. Until then one segment of this rank's own stream is enough, if other
        // sources of this round can make the size known.
        let may_wait = |leaf| self.ranks.len() > 1 && self.assembler.has_begun(leaf);
        self.own_only.is_some_and(|leaf| self.assembler.is_allocated() || !may_wait(leaf))
    }
}
