//! Allreduce on a ring: each rank talks to its two neighbours only.
//!
//! ```text
//! for s = 1..P:  send the partial sum of range me - s to me + 1; add range me - s - 1 from me - 1
//! for s = 0..P-1:  pass the segments of a finished range on
//! ```
//!
//! Cost: 2 (P - 1) α; no link carries more than two neighbours' traffic, which suits rings of slow links.
//! Partial sums fill in as they travel, so that sparse data moves more than in a split.

use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::{Assembler, Part, Terms, exchange, exchange_and_fold};
use skyphos_kernels::stream::{Form, View};
use skyphos_types::{Element, Result};

/// Rounds of the two phases (plus the step).
const REDUCE: u32 = 0x1000;
const GATHER: u32 = 0x100_0000;

/// The reduction of all ranks' vectors; `bounds` are those of the ranks' ranges.
pub async fn ring<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    terms: Terms<'_>,
    bounds: Vec<u64>,
) -> Result<Form<T>> {
    let (me, size, width) = (ep.rank() as usize, ep.size() as usize, terms.shape.width);
    let (next, before) = (((me + 1) % size) as u32, ((me + size - 1) % size) as u32);
    let density = view.nnz(width) as f64 / terms.n.max(1) as f64;
    let range = |part: usize| (bounds[part % size], bounds[part % size + 1]);
    let own = |part: usize| terms.encode_input(ep, view, range(part).0, range(part).1);
    // Range r starts at rank r + 1 and ends, after all have added theirs, at rank r.
    let mut held = own(me + size - 1);
    for step in 1..size {
        let (number, mine) = (me + 2 * size - 1 - step, own(me + 2 * size - 1 - step));
        let (sends, sources) = ([(next, held.as_slice())], [before, ep.rank()]);
        let round = REDUCE + step as u32;
        let mut got: Part<T> = exchange_and_fold(
            ep,
            terms,
            round,
            &sends,
            &sources,
            &mine,
            range(number),
            density * step as f64,
        )
        .await?;
        if step + 1 == size {
            got.finish(terms.op, ep.size(), width)?;
            held = terms.encode_result(ep, &got)?;
        } else {
            held = got.encode(ep, width, got.lo, got.hi);
        }
    }
    if size == 1 {
        let mut alone: Part<T> =
            exchange_and_fold(ep, terms, 0, &[], &[ep.rank()], &held, (0, terms.n), density).await?;
        alone.finish(terms.op, ep.size(), width)?;
        held = terms.encode_result(ep, &alone)?;
    }
    let mut assembler =
        Assembler::new(&bounds, terms.shape, terms.op.identity::<T>()?).quantised(terms.codec());
    assembler.take_all(ep, ep.rank(), me, &held)?;
    for step in 1..size {
        let (leaf, mut theirs) = ((me + size - step) % size, Vec::<Payload>::new());
        exchange(ep, GATHER + step as u32, &[(next, &held)], &[before], |_, segment| {
            theirs.push(segment.clone());
            assembler.take(ep, before, leaf, segment)?;
            Ok(())
        })
        .await?;
        assembler.check_complete(ep, before, leaf)?;
        held = theirs;
    }
    Ok(assembler.finish())
}
