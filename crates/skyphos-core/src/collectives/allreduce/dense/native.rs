//! Dense allreduce by the transport's own allreduce: that of the MPI library, where ranks communicate by MPI.
//!
//! An MPI library matches collectives by their order alone, and a collective that has begun cannot be cancelled. So all ranks
//! first agree that they are in this call and run no other collective in the library (⌈log2 P⌉ α); then all begin. If the
//! call then fails, the library may still run a collective, so this rank never agrees again. The library reads and writes
//! only pooled buffers of one chunk, at most `IN_FLIGHT` of them, so after a failed call it cannot write to the caller's memory.

use super::{AGREEMENT, NATIVE_RESULTS, finish};
use crate::collectives::barrier::all_true;
use crate::endpoint::Endpoint;
use crate::message_stream::Incoming;
use crate::slab::CHUNK_BYTES;
use skyphos_types::{Element, ReduceOp, Result};

/// The most chunks that the library reduces at a time.
const IN_FLIGHT: usize = 32;

/// Chunks per message of results. Results arrive as messages from this rank to itself; one of this length fits the window, so it
/// needs no credit.
const MESSAGE_CHUNKS: usize = 64;

/// Reduces `values` of all ranks into `out`, if the transport has an allreduce for the operation and the type, and all ranks
/// agree to use it. Returns whether it did, the same on all ranks.
pub async fn native<T: Element>(ep: &Endpoint, op: &ReduceOp, values: &[T], out: &mut [T]) -> Result<bool> {
    if !ep.has_allreduce(op, T::DTYPE) {
        return Ok(false);
    }
    let node = ep.node();
    let taken = node.take_native_collectives();
    // If this or a later step fails, the library stays taken.
    if !all_true(ep, AGREEMENT, taken).await? {
        if taken {
            node.release_native_collectives();
        }
        return Ok(false);
    }
    let chunk_len = CHUNK_BYTES / size_of::<T>();
    let chunks = values.len().div_ceil(chunk_len);
    let range_of = |chunk: usize| chunk * chunk_len..values.len().min((chunk + 1) * chunk_len);
    let round_of = |chunk: usize| NATIVE_RESULTS + (chunk / MESSAGE_CHUNKS) as u32;
    let header_of = |chunk: usize| {
        let message = chunk / MESSAGE_CHUNKS * MESSAGE_CHUNKS;
        let whole = range_of(message).start..range_of(chunks.min(message + MESSAGE_CHUNKS) - 1).end;
        ep.header(round_of(chunk), (chunk % MESSAGE_CHUNKS) as u32, (whole.len() * size_of::<T>()) as u64)
    };
    let (mut begun, mut done) = (0, 0);
    let mut incoming = Incoming::new(ep.rank(), NATIVE_RESULTS);
    while done < chunks {
        while begun < chunks.min(done + IN_FLIGHT) {
            let numbers = &values[range_of(begun)];
            let mut chunk = ep.chunk(size_of_val(numbers));
            chunk.as_slice_mut().copy_from_slice(numbers);
            ep.begin_allreduce(header_of(begun), op, T::DTYPE, chunk);
            begun += 1;
        }
        let Some(chunk) = incoming.next(ep)? else {
            ep.progress().await?;
            continue;
        };
        let sums = &mut out[range_of(done)];
        sums.copy_from_slice(chunk.as_slice().expect("as long as the chunk that was begun"));
        finish(op, sums, ep.size());
        done += 1;
        if done % MESSAGE_CHUNKS == 0 {
            incoming = Incoming::new(ep.rank(), round_of(done));
        }
    }
    node.release_native_collectives();
    Ok(true)
}
