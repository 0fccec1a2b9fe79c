//! Dense allreduce and reduce-scatter around a ring: a chunk that comes is reduced in the buffer it came in and goes on.

use super::{GATHER, REDUCE, finish, ranges};
use crate::collectives::around::{By, Circle, around};
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use skyphos_kernels::fold_all;
use skyphos_kernels::stream::Addend;
use skyphos_types::{Element, ReduceOp, Result};
use std::ops::Range;

/// Reduces `values` of all ranks into `out`.
pub async fn ring<T: Element>(ep: &Endpoint, op: &ReduceOp, values: &[T], out: &mut [T]) -> Result<()> {
    let steps = 2 * (ep.size() as usize - 1);
    pass(ep, op, values.len(), steps, copied(values), from_to(op, values, out, 0)).await
}

/// Reduces the vectors of all ranks to an array of `len` numbers: `keep` gets each piece of it once, with the number that it
/// begins with. Only the first range that a rank sends is made an array of; its other entries are added to what comes.
pub async fn ring_of_entries<T: Element>(
    ep: &Endpoint,
    op: &ReduceOp,
    vector: &Addend<'_, T>,
    len: usize,
    mut keep: impl FnMut(usize, &[T]),
) -> Result<()> {
    let steps = 2 * (ep.size() as usize - 1);
    let own = |place: Range<usize>, chunk: &mut [T]| {
        chunk.fill(vector.blank());
        vector.fold_onto(op, chunk, place.start)
    };
    pass(ep, op, len, steps, own, |what, place| match what {
        Do::Add(sum) => vector.fold_onto(op, sum, place.start),
        Do::Keep(result) => {
            keep(place.start, result);
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
    let steps = ep.size() as usize - 1;
    pass(ep, op, values.len(), steps, copied(values), from_to(op, values, out, mine.start)).await
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

/// Takes numbers from where they are.
fn copied<T: Element>(values: &[T]) -> impl FnMut(Range<usize>, &mut [T]) -> Result<()> {
    |place, chunk| {
        chunk.copy_from_slice(&values[place]);
        Ok(())
    }
}

/// The ring, of which the first P - 1 steps reduce and the others spread the result. `own` is as in [`around`].
async fn pass<T: Element>(
    ep: &Endpoint,
    op: &ReduceOp,
    len: usize,
    steps: usize,
    mut own: impl FnMut(Range<usize>, &mut [T]) -> Result<()>,
    mut act: impl FnMut(Do<'_, T>, Range<usize>) -> Result<()>,
) -> Result<()> {
    let size = ep.size() as usize;
    if size == 1 {
        let mut all = vec![T::ZERO; len];
        own(0..len, &mut all)?;
        finish(op, &mut all, 1);
        return act(Do::Keep(&all), 0..len);
    }
    let ranges = ranges(len, size as u32);
    let stretch = |step: usize| ranges[sent_in(ep, step)].clone();
    let round = |step: usize| if step < size - 1 { REDUCE } else { GATHER } + step as u32;
    around(
        ep,
        Circle::of_all(ep),
        steps,
        round,
        stretch,
        By(own, |step: usize, chunk: Payload, place: Range<usize>| {
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
        }),
    )
    .await
}
