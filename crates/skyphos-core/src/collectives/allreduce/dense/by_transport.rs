//! Dense allreduce by the transport: MPI's own, where ranks talk over an MPI library.
//!
//! Such a library matches collectives by their order alone, and none that was begun can be taken back. So all ranks say first
//! that they are in this call and have no other one there (⌈log2 P⌉ α); then all begin. A call that fails meanwhile may have
//! left some of it there, and this rank says no from then on. What the library reads and writes are buffers of ours, a chunk each and some at
//! a time: a call that fails leaves it no memory of its caller's.

use super::{ASK, OWN, finish};
use crate::collectives::barrier::all_say;
use crate::endpoint::Endpoint;
use crate::message_stream::Incoming;
use crate::slab::CHUNK_BYTES;
use skyphos_types::{Element, ReduceOp, Result};

/// Chunks that are with the transport at once.
const AT_ONCE: usize = 32;

/// Chunks of a message of this rank's to itself: such messages need no credit.
const CHUNKS: usize = 64;

/// Reduces `values` of all ranks into `out`, if the transport has an allreduce of its own for such numbers and no call that
/// fails is or was in it; whether it did, on all ranks the same.
pub async fn by_transport<T: Element>(
    ep: &Endpoint,
    op: &ReduceOp,
    values: &[T],
    out: &mut [T],
) -> Result<bool> {
    if !ep.has_allreduce(op, T::DTYPE) {
        return Ok(false);
    }
    let node = ep.node();
    let taken = node.take_native_collectives();
    // An error from here on leaves them taken.
    if !all_say(ep, ASK, taken).await? {
        if taken {
            node.release_native_collectives();
        }
        return Ok(false);
    }
    let numbers = CHUNK_BYTES / size_of::<T>();
    let chunks = values.len().div_ceil(numbers);
    let of = |chunk: usize| chunk * numbers..values.len().min((chunk + 1) * numbers);
    let place = |chunk: usize| {
        let message = chunk / CHUNKS * CHUNKS;
        let whole = of(message).start..of(chunks.min(message + CHUNKS) - 1).end;
        let round = OWN + (chunk / CHUNKS) as u32;
        (round, (chunk % CHUNKS) as u32, (whole.len() * size_of::<T>()) as u64)
    };
    let (mut begun, mut done) = (0, 0);
    let mut incoming = Incoming::new(ep.rank(), OWN);
    while done < chunks {
        while begun < chunks.min(done + AT_ONCE) {
            let part = &values[of(begun)];
            let mut chunk = ep.chunk(size_of_val(part));
            chunk.as_slice_mut().copy_from_slice(part);
            ep.begin_allreduce(op, T::DTYPE, place(begun), chunk);
            begun += 1;
        }
        let Some(chunk) = incoming.next(ep)? else {
            ep.progress().await?;
            continue;
        };
        let part = &mut out[of(done)];
        part.copy_from_slice(chunk.as_slice().expect("as long as what was begun"));
        finish(op, part, ep.size());
        done += 1;
        if done % CHUNKS == 0 {
            incoming = Incoming::new(ep.rank(), place(done).0);
        }
    }
    node.release_native_collectives();
    Ok(true)
}
