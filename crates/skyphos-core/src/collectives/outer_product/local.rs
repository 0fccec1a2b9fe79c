//! Baseline algorithm: each rank computes the whole of its own product, then all ranks run a dense allreduce (*DSOP* §5.1).

use super::ring::widened;
use super::tiles::product_of;
use super::{Pairs, ProductShape};
use crate::collectives::allreduce::dense::rabenseifner;
use crate::endpoint::Endpoint;
use skyphos_kernels::product::Factor;
use skyphos_types::{ReduceOp, Result};

/// Computes this rank's own product aᵀ b into `out`, which has the shape of G, the sum of all ranks' products.
pub fn own_product<T: Factor>(ep: &Endpoint, shape: &ProductShape, own: Pairs<'_, T>, out: &mut [T::Sum]) {
    let (a, b) = (widened(ep, own.a), widened(ep, own.b));
    let sizes = (shape.n, shape.m, shape.pairs[ep.rank().index()]);
    product_of::<T>(ep, (a.as_slice(), b.as_slice()), sizes, 0..shape.n, out);
}

/// Sums all ranks' products into `out`, the whole of G, by recursive halving and doubling.
pub async fn butterfly<T: Factor>(
    ep: &Endpoint,
    shape: &ProductShape,
    own: Pairs<'_, T>,
    out: &mut [T],
) -> Result<()> {
    if let Some(sums) = T::as_sums(out) {
        own_product(ep, shape, own, sums);
        return rabenseifner(ep, &ReduceOp::Sum, sums).await;
    }
    let mut sums = ep.node().pool().large(size_of::<T::Sum>() * out.len());
    own_product(ep, shape, own, sums.as_slice_mut());
    rabenseifner::<T::Sum>(ep, &ReduceOp::Sum, sums.as_slice_mut()).await?;
    T::narrow(sums.as_slice(), out);
    Ok(())
}
