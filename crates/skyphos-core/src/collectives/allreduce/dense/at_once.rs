//! Dense allreduce of a few numbers: everyone sends all it has to all, and adds up what came. One round, half the messages of
//! [`super::direct`], and the same bits, for numbers are added in the order of ranks there too.

use super::{REDUCE, finish};
use crate::clock::Effort;
use crate::endpoint::Endpoint;
use skyphos_kernels::fold_all;
use skyphos_types::{Element, ReduceOp, Result};

/// Bytes that a rank may send: about what a message costs beside its bytes.
const MOST: usize = 4096;

/// Whether this is for arrays of so many bytes. Not for operations that can fail: who is done must know that all are.
pub fn is_for(ep: &Endpoint, op: &ReduceOp, bytes: usize) -> bool {
    bytes * (ep.size() as usize - 1) <= MOST && !matches!(op, ReduceOp::Custom(_)) && !ep.is_sized()
}

/// Reduces `values` of all ranks into `out`.
pub async fn at_once<T: Element>(ep: &Endpoint, op: &ReduceOp, values: &[T], out: &mut [T]) -> Result<()> {
    let (me, size) = (ep.rank(), ep.size());
    let peers: Vec<u32> = (1..size).map(|step| (me + step) % size).collect();
    let message = |peer: &u32| (*peer, ep.message_of(bytemuck::cast_slice(values)));
    let came = ep.exchange(REDUCE, peers.iter().map(message).collect(), &peers).await?;
    ep.spend(Effort::Dense { bytes: 3 * size as usize * size_of_val(values) });
    for rank in 0..size {
        // Peers begin with the next rank, and go around.
        let theirs = match rank == me {
            true => values,
            false => {
                let message = &came[((rank + size - me) % size - 1) as usize];
                let theirs = message.as_slice().filter(|theirs: &&[T]| theirs.len() == out.len());
                theirs.ok_or_else(|| {
                    let bytes = message.as_bytes().len();
                    ep.corrupt(rank, &format!("{bytes} bytes for {} numbers", out.len()))
                })?
            }
        };
        match rank {
            0 => out.copy_from_slice(theirs),
            _ => fold_all(op, out, theirs)?,
        }
    }
    finish(op, out, size);
    Ok(())
}
