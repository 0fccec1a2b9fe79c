//! Dense allreduce and reduce-scatter on a ring: a chunk is reduced in the buffer it arrived in, and forwarded.
//!
//! Cost of the allreduce: 2 (P - 1) α, overlapped, and 2 (P - 1)/P n β.

use super::{GATHER, REDUCE, finish, ranges};
use crate::collectives::ring_pipeline::{Closures, RingNeighbours, ring_pipeline};
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use skyphos_kernels::fold_all;
use skyphos_kernels::stream::Addend;
use skyphos_types::{Element, ReduceOp, Result};
use std::ops::Range;

/// Reduces `values` of all ranks into `out`.
pub async fn ring<T: Element>(ep: &Endpoint, op: &ReduceOp, values: &[T], out: &mut [T]) -> Result<()> {
    let steps = 2 * (ep.size() as usize - 1);
    run(ep, op, values.len(), steps, copy_from(values), add_and_store(op, values, out, 0)).await
}

/// Reduces the sparse vectors of all ranks to an array of `len` numbers. `store` gets each piece of the result once, with the
/// index of its first number. Only the first range that a rank sends becomes an array; the rank's other entries are added to
/// chunks that arrive.
pub async fn ring_of_entries<T: Element>(
    ep: &Endpoint,
    op: &ReduceOp,
    vector: &Addend<'_, T>,
    len: usize,
    mut store: impl FnMut(usize, &[T]),
) -> Result<()> {
    let steps = 2 * (ep.size() as usize - 1);
    let fill = |range: Range<usize>, chunk: &mut [T]| {
        chunk.fill(vector.identity());
        vector.fold_onto(op, chunk, range.start)
    };
    run(ep, op, len, steps, fill, |action, range| match action {
        Action::Add(sum) => vector.fold_onto(op, sum, range.start),
        Action::Store(result) => {
            store(range.start, result);
            Ok(())
        }
    })
    .await
}

/// Reduces this rank's range of `values` of all ranks into `out`.
pub async fn ring_reduce_scatter<T: Element>(
    ep: &Endpoint,
    op: &ReduceOp,
    values: &[T],
    out: &mut [T],
) -> Result<()> {
    let mine = ranges(values.len(), ep.size())[ep.rank().index()].clone();
    let steps = ep.size() as usize - 1;
    run(ep, op, values.len(), steps, copy_from(values), add_and_store(op, values, out, mine.start)).await
}

/// The handling of a range of numbers that arrived.
enum Action<'a, T> {
    /// A partial sum: add this rank's numbers.
    Add(&'a mut [T]),
    /// A part of the result: store it.
    Store(&'a [T]),
}

/// Adds from `values`, and stores results in `out`, whose first number has index `first`.
fn add_and_store<'a, T: Element>(
    op: &'a ReduceOp,
    values: &'a [T],
    out: &'a mut [T],
    first: usize,
) -> impl FnMut(Action<'_, T>, Range<usize>) -> Result<()> + 'a {
    move |action, range| match action {
        Action::Add(sum) => fold_all(op, sum, &values[range]),
        Action::Store(result) => {
            out[range.start - first..range.end - first].copy_from_slice(result);
            Ok(())
        }
    }
}

/// The number of the range that this rank sends in a step: in step s, the range of rank me - s - 1.
fn range_sent_in(ep: &Endpoint, step: usize) -> usize {
    let (me, size) = (ep.rank().index(), ep.size() as usize);
    (me + 3 * size - step - 1) % size
}

/// Fills chunks from `values`.
fn copy_from<T: Element>(values: &[T]) -> impl FnMut(Range<usize>, &mut [T]) -> Result<()> {
    |range, chunk| {
        chunk.copy_from_slice(&values[range]);
        Ok(())
    }
}

/// Runs the ring: the first P - 1 steps reduce, the others distribute the result. `fill` is as in
/// [`RingStep`](crate::collectives::ring_pipeline::RingStep).
async fn run<T: Element>(
    ep: &Endpoint,
    op: &ReduceOp,
    len: usize,
    steps: usize,
    mut fill: impl FnMut(Range<usize>, &mut [T]) -> Result<()>,
    mut act: impl FnMut(Action<'_, T>, Range<usize>) -> Result<()>,
) -> Result<()> {
    let size = ep.size() as usize;
    if size == 1 {
        let mut all = vec![T::ZERO; len];
        fill(0..len, &mut all)?;
        finish(op, &mut all, 1);
        return act(Action::Store(&all), 0..len);
    }
    let ranges = ranges(len, size as u32);
    let sent_range = |step: usize| ranges[range_sent_in(ep, step)].clone();
    let round = |step: usize| if step < size - 1 { REDUCE } else { GATHER } + step as u32;
    ring_pipeline(
        ep,
        RingNeighbours::by_rank(ep),
        steps,
        round,
        sent_range,
        Closures(fill, |step: usize, chunk: Payload, range: Range<usize>| {
            if step >= size - 1 {
                act(Action::Store(chunk.as_slice().expect("whole numbers")), range)?;
                return Ok(chunk);
            }
            let mut sum = chunk.into_mut(|len| ep.chunk(len));
            act(Action::Add(sum.as_slice_mut()), range.clone())?;
            if step == size - 2 {
                finish(op, sum.as_slice_mut::<T>(), size as u32);
                act(Action::Store(sum.as_slice_mut()), range)?;
            }
            Ok(sum.freeze())
        }),
    )
    .await
}
