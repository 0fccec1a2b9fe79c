//! The generalized Rabenseifner algorithm (*DSOP* §5.3): owners of blocks get the slices of factors that they need, multiply,
//! and exchange their blocks.

use super::blocks::exchange_blocks;
use super::exchange::{check_complete, exchange, store_chunk, store_own};
use super::factors::Factors;
use super::tiles::{Gathered, Target, Tiles};
use super::{BlockAssignment, FACTORS, Pairs, ProductShape};
use crate::clock::Effort;
use crate::collectives::gather::{Schedule, allgather_then, rounds};
use crate::collectives::ring_pipeline::{RingNeighbours, RingStep, ring_pipeline};
use crate::endpoint::Endpoint;
use crate::slab::{CHUNK_BYTES, Payload};
use skyphos_kernels::product::Factor;
use skyphos_types::{GroupRank, Result, Round};
use std::ops::Range;

/// The exchange of factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Each rank sends every owner its slices directly.
    Slices,
    /// All ranks get all factors, by an allgather of this schedule.
    Whole(Schedule),
}

/// Sums all products into `out`: the whole of G, or, with `block_only`, this rank's block.
pub async fn by_owners<T: Factor>(
    ep: &Endpoint,
    shape: &ProductShape,
    assignment: &BlockAssignment,
    method: Exchange,
    own: Pairs<'_, T>,
    out: &mut [T],
    block_only: bool,
) -> Result<()> {
    let block = assignment.blocks[ep.rank().index()].clone();
    let target = match block_only {
        true => Target { numbers: out, stride: block.cols.len(), first: 0 },
        false => Target::whole(out, shape.m, &block),
    };
    let whole;
    let needs = match method {
        Exchange::Slices => assignment,
        Exchange::Whole(_) => {
            whole = BlockAssignment::whole(ep.size(), ep.rank().0, (shape.n, shape.m));
            &whole
        }
    };
    let needed = &needs.blocks[ep.rank().index()];
    let mut factors = Factors::new(ep, shape, needed);
    let mut tiles = Some(Tiles::new(ep, shape, &block, needed, target));
    gather(ep, shape, needs, method, own, &mut factors, &mut tiles).await?;
    let mut tiles = tiles.expect("made above");
    if assignment.members.len() > 1 {
        exchange_blocks(ep, assignment, shape.m, &factors, &mut tiles).await?;
    }
    while tiles.step(ep, &factors, ep.size() as usize) {
        // Other ranks may wait for bytes that are still queued here.
        ep.pump();
    }
    debug_assert!(tiles.done());
    Ok(())
}

/// Gathers the factors of all ranks on all ranks.
pub async fn gather_factors<T: Factor>(
    ep: &Endpoint,
    shape: &ProductShape,
    schedule: Schedule,
    own: Pairs<'_, T>,
) -> Result<Gathered> {
    let assignment = BlockAssignment::whole(ep.size(), ep.rank().0, (shape.n, shape.m));
    let mut factors: Factors<T::Sum> = Factors::new(ep, shape, &assignment.blocks[0]);
    gather(ep, shape, &assignment, Exchange::Whole(schedule), own, &mut factors, &mut None).await?;
    let (a, b) = factors.into_buffers();
    Ok(Gathered { a, b })
}

async fn gather<T: Factor>(
    ep: &Endpoint,
    shape: &ProductShape,
    assignment: &BlockAssignment,
    method: Exchange,
    own: Pairs<'_, T>,
    factors: &mut Factors<T::Sum>,
    tiles: &mut Option<Tiles<'_, T>>,
) -> Result<()> {
    store_own(ep, shape, assignment, own, factors);
    match method {
        _ if ep.size() == 1 => Ok(()),
        Exchange::Slices | Exchange::Whole(Schedule::Direct) => {
            exchange(ep, shape, assignment, own, factors, tiles).await
        }
        Exchange::Whole(Schedule::Ring) => around_ring(ep, own, factors, tiles).await,
        Exchange::Whole(schedule) => by_schedule(ep, schedule, own, factors, tiles).await,
    }
}

/// Computes the next tile, if its factors have arrived.
fn compute_tile<T: Factor>(ep: &Endpoint, factors: &Factors<T::Sum>, tiles: &mut Option<Tiles<'_, T>>) {
    if let Some(tiles) = tiles {
        tiles.step(ep, factors, factors.ready());
    }
}

/// The factors of all ranks on a ring.
struct FactorRing<'a, 'b, T: Factor, F> {
    ep: &'a Endpoint,
    own: Pairs<'a, T>,
    factors: &'a mut Factors<T::Sum>,
    tiles: &'a mut Option<Tiles<'b, T>>,
    /// The rank whose factors are sent in a step.
    sent_in: F,
}

impl<T: Factor, F: Fn(usize) -> u32> RingStep<T> for FactorRing<'_, '_, T, F> {
    fn fill(&mut self, numbers: Range<usize>, chunk: &mut [T]) -> Result<()> {
        if self.ep.is_sized() {
            return Ok(());
        }
        let in_a = self.own.a.len();
        let of_a = numbers.start.min(in_a)..numbers.end.min(in_a);
        let of_b = numbers.start.max(in_a) - in_a..numbers.end.max(in_a) - in_a;
        let (to_a, to_b) = chunk.split_at_mut(of_a.len());
        to_a.copy_from_slice(&self.own.a[of_a]);
        to_b.copy_from_slice(&self.own.b[of_b]);
        Ok(())
    }

    fn receive(&mut self, step: usize, chunk: Payload, _: Range<usize>) -> Result<Payload> {
        store_chunk::<T>(self.ep, (self.sent_in)(step + 1), &chunk, self.factors)?;
        compute_tile(self.ep, self.factors, self.tiles);
        Ok(chunk)
    }
}

/// Sends all factors around the ring of ranks in the topology's order.
async fn around_ring<T: Factor>(
    ep: &Endpoint,
    own: Pairs<'_, T>,
    factors: &mut Factors<T::Sum>,
    tiles: &mut Option<Tiles<'_, T>>,
) -> Result<()> {
    let (size, topology) = (ep.size(), ep.topology());
    let own_index = topology.index_of(ep.rank().0);
    let at = |steps: u32| topology.rank_at((own_index + steps) % size);
    let neighbours = RingNeighbours { previous: at(size - 1), next: at(1) };
    let sent_in = |step: usize| at(2 * size - step as u32);
    let lens: Vec<usize> = (0..size).map(|rank| factors.due(rank)).collect();
    let sent_range = |step: usize| 0..lens[sent_in(step) as usize];
    let ring = FactorRing { ep, own, factors, tiles, sent_in };
    ring_pipeline::<T>(ep, neighbours, size as usize - 1, |step| FACTORS + step as u32, sent_range, ring)
        .await
}

/// Sends all factors by any other schedule of an allgather.
async fn by_schedule<T: Factor>(
    ep: &Endpoint,
    schedule: Schedule,
    own: Pairs<'_, T>,
    factors: &mut Factors<T::Sum>,
    tiles: &mut Option<Tiles<'_, T>>,
) -> Result<()> {
    if ep.is_sized() {
        return by_schedule_sized::<T>(ep, schedule, factors).await;
    }
    let chunk = |numbers: &[T]| -> Payload {
        let mut chunk = ep.chunk(size_of_val(numbers));
        chunk.as_slice_mut().copy_from_slice(numbers);
        chunk.freeze()
    };
    let chunk_numbers = CHUNK_BYTES / size_of::<T>();
    let item = own.a.chunks(chunk_numbers).chain(own.b.chunks(chunk_numbers)).map(chunk).collect();
    allgather_then(ep, Round(0), schedule, item, |rank, item| {
        item.iter().try_for_each(|chunk| store_chunk::<T>(ep, rank, chunk, factors))?;
        compute_tile(ep, factors, tiles);
        Ok(())
    })
    .await?;
    check_complete(ep, factors)
}

/// Like [`by_schedule`], in a simulation without data.
async fn by_schedule_sized<T: Factor>(
    ep: &Endpoint,
    schedule: Schedule,
    factors: &mut Factors<T::Sum>,
) -> Result<()> {
    for (k, round) in rounds(schedule, ep.rank().0, ep.size()).into_iter().enumerate() {
        let bytes = |items: &[u32]| items.iter().map(|rank| factors.due(*rank) * size_of::<T>()).sum();
        let sends =
            round.sends.iter().map(|(to, items)| (GroupRank(*to), ep.message(bytes(items)))).collect();
        let sources: Vec<GroupRank> = round.receives.iter().map(|(from, _)| GroupRank(*from)).collect();
        ep.exchange(FACTORS + k as u32, sends, &sources).await?;
        for rank in round.receives.iter().flat_map(|(_, items)| items) {
            let due = factors.due(*rank);
            ep.spend(Effort::Dense { bytes: due * (size_of::<T>() + size_of::<T::Sum>()) });
            factors.put::<T>(*rank, &[], due);
        }
    }
    Ok(())
}
