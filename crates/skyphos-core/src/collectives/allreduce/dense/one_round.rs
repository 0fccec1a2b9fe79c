//! Dense allreduce of a few numbers: each rank sends its whole array to all others, and adds up all arrays.
//!
//! Cost: (P - 1) α in one round, half the messages of [`super::direct`]. The result has the same bits, since both add in the
//! order of ranks.

use super::{REDUCE, finish};
use crate::clock::Effort;
use crate::endpoint::Endpoint;
use skyphos_kernels::fold_all;
use skyphos_types::{Element, GroupRank, ReduceOp, Result};

/// The most bytes that a rank may send. Sending them takes about as long as a message's overhead.
const MAX_BYTES: usize = 4096;

/// Whether this algorithm suits an array of `bytes` bytes. Custom operations can fail, so they need an algorithm at whose end
/// a rank knows that all others have finished.
pub fn applies(ep: &Endpoint, op: &ReduceOp, bytes: usize) -> bool {
    bytes * (ep.size() as usize - 1) <= MAX_BYTES && !matches!(op, ReduceOp::Custom(_)) && !ep.is_sized()
}

/// Reduces `values` of all ranks into `out`.
pub async fn one_round<T: Element>(ep: &Endpoint, op: &ReduceOp, values: &[T], out: &mut [T]) -> Result<()> {
    let (me, size) = (ep.rank().0, ep.size());
    let peers: Vec<GroupRank> = (1..size).map(|step| GroupRank((me + step) % size)).collect();
    let message = |peer: &GroupRank| (*peer, ep.message_of(bytemuck::cast_slice(values)));
    let received = ep.exchange(REDUCE, peers.iter().map(message).collect(), &peers).await?;
    ep.spend(Effort::Dense { bytes: 3 * size as usize * size_of_val(values) });
    for rank in 0..size {
        // The list of peers begins with the next rank, and wraps around.
        let array = match rank == me {
            true => values,
            false => {
                let message = &received[((rank + size - me) % size - 1) as usize];
                let array = message.as_slice().filter(|array: &&[T]| array.len() == out.len());
                array.ok_or_else(|| {
                    let bytes = message.as_bytes().len();
                    ep.corrupt(GroupRank(rank), &format!("{bytes} bytes for {} numbers", out.len()))
                })?
            }
        };
        match rank {
            0 => out.copy_from_slice(array),
            _ => fold_all(op, out, array)?,
        }
    }
    finish(op, out, size);
    Ok(())
}
