//! Ring pipeline of dense arrays: the loop that allreduce, reduce-scatter and allgather on a ring have in common.
//!
//! In each step a rank sends one range of an array to the next rank and receives another from the previous rank. The range
//! received in a step is the range sent in the next step: each chunk is forwarded in the buffer it arrived in, after the
//! collective has stored it or added to it. A chunk does not wait for the rest of its range, so all steps overlap. Only the
//! first range, this rank's own, is copied on its way out.
//!
//! Cost of s steps with ranges of b bytes: (s - 1 + chunks of a range) messages in sequence, and s b β.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::slab::Payload;
use skyphos_types::{Element, Error, GroupRank, Result, Round};
use std::ops::Range;

/// The number of numbers in a chunk. Refuses a chunk that does not fit a range of `due` numbers after the first `taken`.
fn count<T: Element>(ep: &Endpoint, from: u32, chunk: &Payload, taken: usize, due: usize) -> Result<usize> {
    // Three passes: read the chunk, read and write the array.
    ep.spend(Effort::Dense { bytes: 3 * chunk.len() });
    let count = chunk.len() / size_of::<T>();
    match chunk.len() == count * size_of::<T>() && taken + count <= due {
        true => Ok(count),
        false => Err(Error::Corrupt {
            rank: ep.world_rank(GroupRank(from)).0,
            message: format!("{} bytes after {taken} of {due} numbers of an array", chunk.len()),
        }),
    }
}

/// The numbers of a chunk. Refuses a chunk that does not fit a range of `due` numbers after the first `taken`.
pub(crate) fn numbers<'a, T: Element>(
    ep: &Endpoint,
    from: u32,
    chunk: &'a Payload,
    taken: usize,
    due: usize,
) -> Result<&'a [T]> {
    count::<T>(ep, from, chunk, taken, due)?;
    Ok(chunk.as_slice::<T>().expect("whole numbers"))
}

/// A rank's neighbours on a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingNeighbours {
    /// The rank that it receives from.
    pub(crate) previous: u32,
    /// The rank that it sends to.
    pub(crate) next: u32,
}

impl RingNeighbours {
    /// The neighbours on the ring of all ranks in rank order.
    pub(crate) fn by_rank(ep: &Endpoint) -> RingNeighbours {
        let (me, size) = (ep.rank().0, ep.size());
        RingNeighbours { previous: (me + size - 1) % size, next: (me + 1) % size }
    }
}

/// A rank's work on the chunks of a ring.
pub(crate) trait RingStep<T> {
    /// Writes this rank's own numbers of a range into a chunk that is sent in the first step.
    fn fill(&mut self, range: Range<usize>, chunk: &mut [T]) -> Result<()>;

    /// Takes a chunk, of whole numbers, that was received in a step. Returns the chunk to send in the next step.
    fn receive(&mut self, step: usize, chunk: Payload, range: Range<usize>) -> Result<Payload>;
}

/// A [`RingStep`] of two closures: `fill` and `receive`.
pub(crate) struct Closures<F, R>(pub(crate) F, pub(crate) R);

impl<T, F, R> RingStep<T> for Closures<F, R>
where
    F: FnMut(Range<usize>, &mut [T]) -> Result<()>,
    R: FnMut(usize, Payload, Range<usize>) -> Result<Payload>,
{
    fn fill(&mut self, range: Range<usize>, chunk: &mut [T]) -> Result<()> {
        self.0(range, chunk)
    }

    fn receive(&mut self, step: usize, chunk: Payload, range: Range<usize>) -> Result<Payload> {
        self.1(step, chunk, range)
    }
}

/// Runs the ring: in step s of `0..steps` this rank sends `sent_range(s)` and receives `sent_range(s + 1)`. In a simulation
/// without data chunks have only a length.
pub(crate) async fn ring_pipeline<T: Element>(
    ep: &Endpoint,
    RingNeighbours { previous, next }: RingNeighbours,
    steps: usize,
    round: impl Fn(usize) -> Round,
    sent_range: impl Fn(usize) -> Range<usize>,
    mut ring_step: impl RingStep<T>,
) -> Result<()> {
    let bytes = |step: usize| (sent_range(step).len() * size_of::<T>()) as u64;
    let mut sends: Vec<_> = (0..steps).map(|s| Outgoing::new(GroupRank(next), round(s), bytes(s))).collect();
    let mut receives: Vec<_> =
        (0..steps).map(|s| (Incoming::new(GroupRank(previous), round(s)), 0)).collect();
    let mut finished = 0;
    loop {
        let mut moved = false;
        while let Some(bytes) = sends.first().and_then(|send| send.next_range(ep, size_of::<T>())) {
            let mut chunk = ep.chunk(bytes.len());
            let first = sent_range(0).start;
            let range = first + bytes.start / size_of::<T>()..first + bytes.end / size_of::<T>();
            ep.spend(Effort::Dense { bytes: 2 * chunk.len() });
            ring_step.fill(range, chunk.as_slice_mut())?;
            sends[0].push(ep, chunk);
            moved = true;
        }
        for (step, (incoming, taken)) in receives.iter_mut().enumerate().skip(finished) {
            let (range, onward) = (sent_range(step + 1), step + 1);
            loop {
                // A chunk that cannot be forwarded is left with the transport, whose flow control holds its sender back.
                if onward < steps && !sends[onward].may_send(ep) {
                    break;
                }
                let Some(chunk) = incoming.next(ep)? else { break };
                let count = count::<T>(ep, previous, &chunk, *taken, range.len())?;
                let start = range.start + *taken;
                *taken += count;
                let chunk = ring_step.receive(step, chunk, start..start + count)?;
                if onward < steps {
                    sends[onward].push_shared(ep, chunk);
                }
                moved = true;
            }
            if !incoming.begun() {
                break; // no later step has begun either
            }
        }
        while finished < steps && receives[finished].0.done() {
            if receives[finished].1 != sent_range(finished + 1).len() {
                return Err(Error::bad_input("the ranks' arrays differ in length"));
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
