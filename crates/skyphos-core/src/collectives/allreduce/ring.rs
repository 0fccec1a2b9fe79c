//! Allreduce of sparse vectors on a ring: each rank exchanges messages with its two neighbours only.
//!
//! ```text
//! for s = 1..P:    send rank me + 1 the partial sum of range (me - s)
//!                  receive that of range (me - s - 1) from rank me - 1, and add my part
//! for s = 0..P-1:  forward the segments of a finished range
//! ```
//!
//! Cost: 2 (P - 1) α. No link carries more than the traffic of two neighbours, which suits rings of slow links. A partial sum
//! gets more entries at each rank, so sparse data takes more bytes than with the split allgather.

use crate::endpoint::Endpoint;
use crate::stream::{
    Assembler, ReducedRange, ReductionParams, Stream, exchange_and_fold, exchange_and_place,
};
use skyphos_kernels::stream::{Form, View};
use skyphos_types::{Element, Result, Round};

/// First rounds of the two phases; each step adds one.
const REDUCE: Round = Round(0x1000);
const GATHER: Round = Round(0x100_0000);

/// The reduction of all ranks' vectors; `bounds` are the bounds of the ranks' ranges.
pub async fn ring<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    params: ReductionParams<'_>,
    bounds: Vec<u64>,
) -> Result<Form<T>> {
    let (me, size, width) = (ep.rank().index(), ep.size() as usize, params.shape.width);
    let (next, previous) = (((me + 1) % size) as u32, ((me + size - 1) % size) as u32);
    let density = view.nnz(width) as f64 / params.n.max(1) as f64;
    let range = |part: usize| (bounds[part % size], bounds[part % size + 1]);
    let own = |part: usize| params.encode_input(ep, view, range(part).0, range(part).1);
    // The partial sum of range r starts at rank r + 1 and ends, with every rank's values added, at rank r.
    let mut partial: Option<ReducedRange<T>> = None;
    for step in 1..size {
        let (number, mine) = (me + 2 * size - 1 - step, own(me + 2 * size - 1 - step));
        let sum = match &partial {
            None => own(me + size - 1),
            Some(part) => part.encode(ep, width, part.lo, part.hi),
        };
        let streams = vec![Stream::new(sum, [next]), Stream::new(mine, [ep.rank().0])];
        let (sources, round, density) =
            ([previous, ep.rank().0], REDUCE + step as u32, density * step as f64);
        partial =
            Some(exchange_and_fold(ep, params, round, streams, &sources, range(number), density).await?);
    }
    let mut part = match partial {
        Some(part) => part,
        None => {
            let alone = vec![Stream::new(own(0), [ep.rank().0])];
            exchange_and_fold(ep, params, Round(0), alone, &[ep.rank().0], (0, params.n), density).await?
        }
    };
    part.finish(params.op, ep.size(), width)?;
    let mut assembler =
        Assembler::new(&bounds, params.shape, params.op.identity::<T>()?).quantised(params.codec());
    let mut forwarded = part.encode_result(ep, &params)?;
    // A single rank also takes a step, in which it decodes its own range.
    for step in 1..size.max(2) {
        let leaf = (me + size - step) % size;
        let (mut receivers, mut sources) = (vec![next], vec![(previous, leaf..leaf + 1)]);
        if step == 1 && size > 1 {
            // This rank decodes its own range while it sends it.
            receivers.push(ep.rank().0);
            sources.push((ep.rank().0, me..me + 1));
        }
        let (streams, round) = (vec![Stream::new(forwarded, receivers)], GATHER + step as u32);
        let keep = step + 1 < size;
        let mut received = exchange_and_place(ep, round, streams, &sources, &mut assembler, keep).await?;
        forwarded = received.swap_remove(0).into();
    }
    Ok(assembler.finish())
}
