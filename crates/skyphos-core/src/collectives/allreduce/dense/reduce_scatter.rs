//! Dense reduce-scatter in one round, for small arrays, and dense reduction to one rank.

use super::{finish, ranges, ring_reduce_scatter};
use crate::collectives::gather::{alltoall_blocks, gather_arrays};
use crate::endpoint::Endpoint;
use skyphos_kernels::fold_all;
use skyphos_types::{Element, ReduceOp, Result};
use std::ops::Range;

/// The bytes that a range of numbers occupies.
fn byte_range<T>(range: &Range<usize>) -> Range<usize> {
    range.start * size_of::<T>()..range.end * size_of::<T>()
}

/// Reduces this rank's range of `values` of all ranks into `out`: an all-to-all, then additions in rank order. Cost:
/// (P - 1) α, and memory for P copies of a range.
pub async fn direct_reduce_scatter<T: Element>(
    ep: &Endpoint,
    op: &ReduceOp,
    values: &[T],
    out: &mut [T],
) -> Result<()> {
    let (size, len) = (ep.size(), out.len());
    let ranges = ranges(values.len(), size);
    let block = |rank: u32| byte_range::<T>(&ranges[rank as usize]);
    let mut all = vec![T::ZERO; len * size as usize];
    alltoall_blocks(ep, bytemuck::cast_slice(values), bytemuck::cast_slice_mut(&mut all), block).await?;
    out.copy_from_slice(&all[..len]);
    for rank in 1..size as usize {
        fold_all(op, out, &all[rank * len..(rank + 1) * len])?;
    }
    finish(op, out, size);
    Ok(())
}

/// Reduces `values` of all ranks into `out` on `root`; `out` is empty elsewhere. Each rank reduces a P-th of the array.
pub async fn reduce_to_root<T: Element>(
    ep: &Endpoint,
    op: &ReduceOp,
    root: u32,
    values: &[T],
    out: &mut [T],
    by_ring: bool,
) -> Result<()> {
    let ranges = ranges(values.len(), ep.size());
    let mut mine = vec![T::ZERO; ranges[ep.rank().index()].len()];
    match by_ring {
        true => ring_reduce_scatter(ep, op, values, &mut mine).await?,
        false => direct_reduce_scatter(ep, op, values, &mut mine).await?,
    }
    let block = |rank: u32| byte_range::<T>(&ranges[rank as usize]);
    gather_arrays(ep, root, bytemuck::cast_slice(&mine), bytemuck::cast_slice_mut(out), block).await
}
