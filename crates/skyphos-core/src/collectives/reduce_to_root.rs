//! Reduction of sparse vectors to one rank: a reduce-scatter, then a gather of the parts at the root.
//!
//! Every rank reduces a P-th of the index space, so the additions are spread over all ranks. Cost: 2 (P - 1) α; the root
//! receives its part of all inputs and (P - 1)/P of the result.

use crate::butterfly::layers_by_rank;
use crate::collectives::allreduce::butterfly::reduce_scatter;
use crate::collectives::barrier::barrier_from;
use crate::endpoint::Endpoint;
use crate::stream::{Assembler, ReductionParams, Stream, exchange_and_place, send};
use skyphos_kernels::stream::{Form, View};
use skyphos_types::{Element, Result, Round};

/// Round of the gather at the root.
const UP: Round = Round(0x200);
/// First round of the closing barrier.
const END: Round = Round(0x500);

/// Reduces to `root`; returns `None` on other ranks. `bounds` are the bounds of the ranks' ranges.
pub async fn reduce_to_root<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    params: ReductionParams<'_>,
    bounds: Vec<u64>,
    root: u32,
) -> Result<Option<Form<T>>> {
    let all = layers_by_rank(&[ep.size()], ep.rank().0);
    let reduced = reduce_scatter(ep, view, params, &all, bounds).await?;
    let (part, me) = (&reduced.part, ep.rank().0);
    let own = Stream::new(part.encode(ep, params.shape.width, part.lo, part.hi), [root]);
    if me != root {
        send(ep, UP, own).await?;
        barrier_from(ep, END).await?;
        return Ok(None);
    }
    let mut assembler = Assembler::new(&reduced.bounds, params.shape, params.op.identity::<T>()?);
    let sources: Vec<_> = (0..ep.size()).map(|rank| (rank, rank as usize..rank as usize + 1)).collect();
    exchange_and_place(ep, UP, vec![own], &sources, &mut assembler, false).await?;
    barrier_from(ep, END).await?;
    Ok(Some(assembler.finish()))
}
