//! Dense allreduce around a ring, chunk by chunk.
//!
//! A chunk that comes is reduced where it lies, in the buffer it came in, and goes on to the next rank in it; so does
//! a chunk of the result once it is copied out. Only this rank's first range is copied on its way out. A chunk does not
//! wait for the rest of its range, so that all steps overlap.

use super::{GATHER, REDUCE, finish, numbers, ranges};
use crate::endpoint::{Endpoint, Incoming, Outgoing};
use crate::slab::CHUNK_BYTES;
use skyphos_kernels::fold_all;
use skyphos_types::{Element, Error, ReduceOp, Result};

/// Reduces `values` of all ranks into `out`.
pub async fn ring<T: Element>(ep: &Endpoint, op: &ReduceOp, values: &[T], out: &mut [T]) -> Result<()> {
    let (me, size) = (ep.rank() as usize, ep.size() as usize);
    if size == 1 {
        out.copy_from_slice(values);
        finish(op, out, 1);
        return Ok(());
    }
    let (next, before) = (((me + 1) % size) as u32, ((me + size - 1) % size) as u32);
    let ranges = ranges(values.len(), size as u32);
    // In step s this rank sends the s-th range before its own, counted from one, and receives the one before that.
    let steps = 2 * (size - 1);
    let range_of = |step: usize| ranges[(me + 3 * size - step - 1) % size].clone();
    let round = |step: usize| if step < size - 1 { REDUCE } else { GATHER } + step as u32;
    let bytes = |step: usize| (range_of(step).len() * size_of::<T>()) as u64;
    let mut sends: Vec<_> = (0..steps).map(|s| Outgoing::new(next, round(s), bytes(s))).collect();
    let mut receives: Vec<_> = (0..steps).map(|s| (Incoming::new(before, round(s)), 0)).collect();
    let mut finished = 0;
    loop {
        let mut moved = false;
        while let Some(part) = sends[0].next_range(ep, CHUNK_BYTES) {
            let first = range_of(0).start;
            let part = first + part.start / size_of::<T>()..first + part.end / size_of::<T>();
            let mut chunk = ep.chunk(part.len() * size_of::<T>());
            chunk.as_slice_mut().copy_from_slice(&values[part]);
            sends[0].push(ep, chunk);
            moved = true;
        }
        for (step, (incoming, taken)) in receives.iter_mut().enumerate().skip(finished) {
            let range = range_of(step + 1);
            let onward = step + 1;
            loop {
                // What can go no further stays where its sender is held back by it.
                if onward < steps && !sends[onward].may_send(ep) {
                    break;
                }
                let Some(chunk) = incoming.next(ep)? else { break };
                let count = numbers::<T>(ep, before, &chunk, *taken, range.len())?.len();
                let place = range.start + *taken..range.start + *taken + count;
                *taken += count;
                let chunk = if step < size - 1 {
                    let mut sum = chunk.into_mut(|len| ep.chunk(len));
                    fold_all(op, sum.as_slice_mut(), &values[place.clone()])?;
                    if step == size - 2 {
                        finish(op, sum.as_slice_mut::<T>(), size as u32);
                        out[place].copy_from_slice(sum.as_slice_mut());
                    }
                    sum.freeze()
                } else {
                    out[place].copy_from_slice(numbers(ep, before, &chunk, 0, count)?);
                    chunk
                };
                if onward < steps {
                    sends[onward].push_shared(ep, chunk);
                }
                moved = true;
            }
            if !incoming.begun() {
                break; // nor have later steps
            }
        }
        while finished < steps && receives[finished].0.done() {
            if receives[finished].1 != range_of(finished + 1).len() {
                return Err(Error::bad_input("ranks do not agree how long their arrays are"));
            }
            finished += 1;
        }
        if finished == steps && sends.iter().all(Outgoing::done) {
            return Ok(());
        }
        if !moved {
            ep.progress().await?;
        }
    }
}
