//! Dense allreduce and reduce-scatter around a ring: a chunk that comes is reduced in the buffer it came in and goes on.

use super::{GATHER, REDUCE, finish, ranges};
use crate::collectives::around::around;
use crate::endpoint::Endpoint;
use skyphos_kernels::fold_all;
use skyphos_types::{Element, ReduceOp, Result};
use std::ops::Range;

/// Reduces `values` of all ranks into `out`.
pub async fn ring<T: Element>(ep: &Endpoint, op: &ReduceOp, values: &[T], out: &mut [T]) -> Result<()> {
    let (size, first) = (ep.size() as usize, first_range(ep, values.len()));
    pass(ep, op, values.len(), &values[first], 2 * (size - 1), from_to(op, values, out, 0)).await
}

/// Reduces `array` of all ranks where it is. A number is written after all ranks have read it.
pub async fn ring_in_place<T: Element>(ep: &Endpoint, op: &ReduceOp, array: &mut [T]) -> Result<()> {
    let (size, first) = (ep.size() as usize, first_range(ep, array.len()));
    let own = array[first].to_vec();
    pass(ep, op, array.len(), &own, 2 * (size - 1), |what, place| match what {
        Do::Add(sum) => fold_all(op, sum, &array[place]),
        Do::Keep(result) => {
            array[place].copy_from_slice(result);
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
    let mine = ranges(values.len(), ep.size())[ep.rank() as usize].clone();
    let (size, first) = (ep.size() as usize, first_range(ep, values.len()));
    pass(ep, op, values.len(), &values[first], size - 1, from_to(op, values, out, mine.start)).await
}

/// What is to be done with numbers of a place.
enum Do<'a, T> {
    /// This rank's are added.
    Add(&'a mut [T]),
    /// They are the result's.
    Keep(&'a [T]),
}

/// Adds `values`, and keeps results in `out`, which begins with number `first`.
fn from_to<'a, T: Element>(
    op: &'a ReduceOp,
    values: &'a [T],
    out: &'a mut [T],
    first: usize,
) -> impl FnMut(Do<'_, T>, Range<usize>) -> Result<()> + 'a {
    move |what, place| match what {
        Do::Add(sum) => fold_all(op, sum, &values[place]),
        Do::Keep(result) => {
            out[place.start - first..place.end - first].copy_from_slice(result);
            Ok(())
        }
    }
}

/// Which range this rank sends in a step: the one so many before its own, counted from one.
fn sent_in(ep: &Endpoint, step: usize) -> usize {
    let (me, size) = (ep.rank() as usize, ep.size() as usize);
    (me + 3 * size - step - 1) % size
}

/// The first range it sends.
fn first_range(ep: &Endpoint, len: usize) -> Range<usize> {
    ranges(len, ep.size())[sent_in(ep, 0)].clone()
}

/// The ring, of which the first P - 1 steps reduce and the others spread the result. `own`: the first range it sends.
async fn pass<T: Element>(
    ep: &Endpoint,
    op: &ReduceOp,
    len: usize,
    own: &[T],
    steps: usize,
    mut act: impl FnMut(Do<'_, T>, Range<usize>) -> Result<()>,
) -> Result<()> {
    let size = ep.size() as usize;
    if size == 1 {
        let mut all = own.to_vec();
        finish(op, &mut all, 1);
        return act(Do::Keep(&all), 0..len);
    }
    let ranges = ranges(len, size as u32);
    let stretch = |step: usize| ranges[sent_in(ep, step)].clone();
    let round = |step: usize| if step < size - 1 { REDUCE } else { GATHER } + step as u32;
    around(ep, steps, round, stretch, own, |step, chunk, place| {
        if step >= size - 1 {
            act(Do::Keep(chunk.as_slice().expect("whole numbers")), place)?;
            return Ok(chunk);
        }
        let mut sum = chunk.into_mut(|len| ep.chunk(len));
        act(Do::Add(sum.as_slice_mut()), place.clone())?;
        if step == size - 2 {
            finish(op, sum.as_slice_mut::<T>(), size as u32);
            act(Do::Keep(sum.as_slice_mut()), place)?;
        }
        Ok(sum.freeze())
    })
    .await
}
