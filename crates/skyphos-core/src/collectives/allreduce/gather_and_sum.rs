//! Allreduce by allgather: every rank sends its vector to all others, and every rank reduces all vectors.
//!
//! Moves the fewest bytes where inputs hardly overlap, since the result is then as large as all inputs together. Each rank
//! computes P times as much as in the split allgather. Cost: (P - 1) α, and β times the segments of all other ranks.

use crate::endpoint::Endpoint;
use crate::stream::{ReductionParams, Stream, exchange_and_fold};
use skyphos_kernels::stream::{Form, View};
use skyphos_types::{Element, Result, Round};

/// The reduction of all ranks' vectors.
pub async fn gather_and_sum<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    params: ReductionParams<'_>,
) -> Result<Form<T>> {
    let (me, size, width) = (ep.rank().0, ep.size(), params.shape.width);
    let receivers = (1..=size).map(|step| (me + step) % size);
    let own = Stream::new(params.encode_input(ep, view, 0, params.n), receivers);
    let sources: Vec<u32> = (0..size).collect();
    let density = view.nnz(width) as f64 / params.n.max(1) as f64;
    let mut part =
        exchange_and_fold::<T>(ep, params, Round(0), vec![own], &sources, (0, params.n), density).await?;
    part.finish(params.op, size, width)?;
    Ok(part.form)
}
