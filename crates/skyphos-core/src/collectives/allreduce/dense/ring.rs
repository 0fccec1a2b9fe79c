//! Dense allreduce and reduce-scatter around a ring: a chunk that comes is reduced in the buffer it came in and goes on.

use super::{GATHER, REDUCE, finish, ranges};
use crate::collectives::around::around;
use crate::endpoint::Endpoint;
use skyphos_kernels::fold_all;
use skyphos_types::{Element, ReduceOp, Result};

/// Reduces `values` of all ranks into `out`.
pub async fn ring<T: Element>(ep: &Endpoint, op: &ReduceOp, values: &[T], out: &mut [T]) -> Result<()> {
    pass(ep, op, values, out, 0, 2 * (ep.size() as usize - 1)).await
}

/// Reduces this rank's range of `values` of all ranks into `out`.
pub async fn ring_reduce_scatter<T: Element>(
    ep: &Endpoint,
    op: &ReduceOp,
    values: &[T],
    out: &mut [T],
) -> Result<()> {
    let mine = ranges(values.len(), ep.size())[ep.rank() as usize].clone();
    pass(ep, op, values, out, mine.start, ep.size() as usize - 1).await
}

/// The ring, of which the first P - 1 steps reduce and the others spread the result; `out` begins with number `first`.
async fn pass<T: Element>(
    ep: &Endpoint,
    op: &ReduceOp,
    values: &[T],
    out: &mut [T],
    first: usize,
    steps: usize,
) -> Result<()> {
    let (me, size) = (ep.rank() as usize, ep.size() as usize);
    if size == 1 {
        out.copy_from_slice(values);
        finish(op, out, 1);
        return Ok(());
    }
    let ranges = ranges(values.len(), size as u32);
    // In step s this rank sends the s-th range before its own, counted from one, and receives the one before that.
    let stretch = |step: usize| ranges[(me + 3 * size - step - 1) % size].clone();
    let round = |step: usize| if step < size - 1 { REDUCE } else { GATHER } + step as u32;
    around(ep, steps, round, stretch, values, |step, chunk, place| {
        let result = place.start.wrapping_sub(first)..place.end.wrapping_sub(first);
        if step >= size - 1 {
            out[result].copy_from_slice(chunk.as_slice().expect("whole numbers"));
            return Ok(chunk);
        }
        let mut sum = chunk.into_mut(|len| ep.chunk(len));
        fold_all(op, sum.as_slice_mut(), &values[place])?;
        if step == size - 2 {
            finish(op, sum.as_slice_mut::<T>(), size as u32);
            out[result].copy_from_slice(sum.as_slice_mut());
        }
        Ok(sum.freeze())
    })
    .await
}
