//! Allreduce by allgather: every rank sends its vector to all others, and every rank reduces all vectors.
//!
//! Moves the fewest bytes where inputs hardly overlap, since the result is then as large as all inputs together. Takes P
//! times the computation of the split. Cost: (P - 1) α, and β times the segments of all other ranks.

use crate::endpoint::Endpoint;
use crate::stream::{Stream, Terms, exchange_and_fold};
use skyphos_kernels::stream::{Form, View};
use skyphos_types::{Element, Result, Round};

/// The reduction of all ranks' vectors.
pub async fn gather_and_sum<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    terms: Terms<'_>,
) -> Result<Form<T>> {
    let (me, size, width) = (ep.rank().0, ep.size(), terms.shape.width);
    let receivers = (1..=size).map(|step| (me + step) % size);
    let own = Stream::new(terms.encode_input(ep, view, 0, terms.n), receivers);
    let sources: Vec<u32> = (0..size).collect();
    let density = view.nnz(width) as f64 / terms.n.max(1) as f64;
    let mut part =
        exchange_and_fold::<T>(ep, terms, Round(0), vec![own], &sources, (0, terms.n), density).await?;
    part.finish(terms.op, size, width)?;
    Ok(part.form)
}
