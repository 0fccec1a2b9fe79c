//! Exchange of reduced parts: what comes goes to where it belongs.

use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::assemble::Assembler;
use crate::stream::exchange::{Receiver, Stream, exchange_streams};
use skyphos_types::{Element, Result};
use std::ops::Range;

/// Exchanges streams and puts together what comes: of each source, these leaves of the assembler, one after the
/// other. This rank is among them if one of its streams goes to itself. Returns the segments that came, by source,
/// if they are to be kept.
pub async fn exchange_and_place<T: Element>(
    ep: &Endpoint,
    round: u32,
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
        kept: sources.iter().map(|_| Vec::new()).collect(),
        keep,
        alone: (sources.iter().find(|(rank, _)| *rank == ep.rank()).map(|(_, leaves)| leaves.start))
            .filter(|_| streams.iter().any(|stream| stream.takers().eq([ep.rank()]))),
    };
    exchange_streams(ep, round, streams, &ranks, &mut placing).await?;
    match placing.left.iter().position(|leaves| !leaves.is_empty()) {
        Some(source) => Err(ep.corrupt(ranks[source], "its stream ended before its range did")),
        None => Ok(placing.kept),
    }
}

struct Placing<'a, T> {
    ep: &'a Endpoint,
    ranks: &'a [u32],
    /// Leaves of each source that are not complete.
    left: Vec<Range<usize>>,
    assembler: &'a mut Assembler<T>,
    kept: Vec<Vec<Payload>>,
    keep: bool,
    /// The leaf of this rank's own stream, if that goes to nobody else.
    alone: Option<usize>,
}

impl<T: Element> Receiver for Placing<'_, T> {
    fn take(&mut self, source: usize, segment: Payload) -> Result<bool> {
        let (rank, leaf) = (self.ranks[source], self.left[source].start);
        if self.keep {
            self.kept[source].push(segment.clone());
        }
        if self.assembler.take(self.ep, rank, leaf, segment)? {
            self.left[source].start += 1;
        }
        Ok(self.left[source].is_empty())
    }

    fn waits_for_own(&self) -> bool {
        // What comes before the result has a size waits for that, if it gets one in this round.
        let may_wait = |leaf| self.ranks.len() > 1 && self.assembler.has_begun(leaf);
        self.alone.is_some_and(|leaf| self.assembler.has_room() || !may_wait(leaf))
    }
}
