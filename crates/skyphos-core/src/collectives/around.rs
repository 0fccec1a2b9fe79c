//! A ring along which arrays go chunk by chunk.
//!
//! In each step a rank sends one stretch of an array to the next rank and receives another from the one before. What it
//! receives in a step is what it sends in the next, in the buffer it came in, changed or not. A chunk does not wait for
//! the rest of its stretch, so that all steps overlap, and only what begins here is copied on its way out.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::slab::Payload;
use skyphos_types::{Element, Error, Result};
use std::ops::Range;

/// How many numbers a chunk has, which must fit `due` after `taken` before them.
fn counted<T: Element>(ep: &Endpoint, from: u32, chunk: &Payload, taken: usize, due: usize) -> Result<usize> {
    // Read, and added to or put over what is there.
    ep.spend(Effort::Dense { bytes: 3 * chunk.len() });
    let count = chunk.len() / size_of::<T>();
    match chunk.len() == count * size_of::<T>() && taken + count <= due {
        true => Ok(count),
        false => Err(Error::Corrupt {
            rank: ep.world_rank(from),
            message: format!("{} bytes after {taken} of {due} numbers", chunk.len()),
        }),
    }
}

/// The numbers of a chunk, which must fit `due` after `taken` before them.
pub(crate) fn numbers<'a, T: Element>(
    ep: &Endpoint,
    from: u32,
    chunk: &'a Payload,
    taken: usize,
    due: usize,
) -> Result<&'a [T]> {
    counted::<T>(ep, from, chunk, taken, due)?;
    Ok(chunk.as_slice::<T>().expect("whole numbers"))
}

/// Whom a rank hears from, and whom it tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circle {
    /// The rank before it.
    pub(crate) before: u32,
    /// The one after it.
    pub(crate) next: u32,
}

impl Circle {
    /// All ranks by number.
    pub(crate) fn of_all(ep: &Endpoint) -> Circle {
        let (me, size) = (ep.rank(), ep.size());
        Circle { before: (me + size - 1) % size, next: (me + 1) % size }
    }
}

/// What a rank does with stretches.
pub(crate) trait Passing<T> {
    /// Writes the numbers that belong to `place` of this rank's own.
    fn own(&mut self, place: Range<usize>, chunk: &mut [T]) -> Result<()>;

    /// Gets a chunk of a step, whole numbers; returns what goes on in the next one.
    fn take(&mut self, step: usize, chunk: Payload, place: Range<usize>) -> Result<Payload>;
}

/// The same as two functions.
pub(crate) struct By<O, K>(pub(crate) O, pub(crate) K);

impl<T, O, K> Passing<T> for By<O, K>
where
    O: FnMut(Range<usize>, &mut [T]) -> Result<()>,
    K: FnMut(usize, Payload, Range<usize>) -> Result<Payload>,
{
    fn own(&mut self, place: Range<usize>, chunk: &mut [T]) -> Result<()> {
        self.0(place, chunk)
    }

    fn take(&mut self, step: usize, chunk: Payload, place: Range<usize>) -> Result<Payload> {
        self.1(step, chunk, place)
    }
}

/// Passes stretches around: `stretch(s)` is sent in step s and `stretch(s + 1)` received, for s in `0..steps`. The first
/// is this rank's own. Without data chunks have lengths alone.
pub(crate) async fn around<T: Element>(
    ep: &Endpoint,
    Circle { before, next }: Circle,
    steps: usize,
    round: impl Fn(usize) -> u32,
    stretch: impl Fn(usize) -> Range<usize>,
    mut passing: impl Passing<T>,
) -> Result<()> {
    let bytes = |step: usize| (stretch(step).len() * size_of::<T>()) as u64;
    let mut sends: Vec<_> = (0..steps).map(|s| Outgoing::new(next, round(s), bytes(s))).collect();
    let mut receives: Vec<_> = (0..steps).map(|s| (Incoming::new(before, round(s)), 0)).collect();
    let mut finished = 0;
    loop {
        let mut moved = false;
        while let Some(part) = sends.first().and_then(|send| send.next_range(ep, size_of::<T>())) {
            let mut chunk = ep.chunk(part.len());
            let first = stretch(0).start;
            let place = first + part.start / size_of::<T>()..first + part.end / size_of::<T>();
            ep.spend(Effort::Dense { bytes: 2 * chunk.len() });
            passing.own(place, chunk.as_slice_mut())?;
            sends[0].push(ep, chunk);
            moved = true;
        }
        for (step, (incoming, taken)) in receives.iter_mut().enumerate().skip(finished) {
            let (range, onward) = (stretch(step + 1), step + 1);
            loop {
                // What can go no further stays where its sender is held back by it.
                if onward < steps && !sends[onward].may_send(ep) {
                    break;
                }
                let Some(chunk) = incoming.next(ep)? else { break };
                let count = counted::<T>(ep, before, &chunk, *taken, range.len())?;
                let start = range.start + *taken;
                *taken += count;
                let chunk = passing.take(step, chunk, start..start + count)?;
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
            if receives[finished].1 != stretch(finished + 1).len() {
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
