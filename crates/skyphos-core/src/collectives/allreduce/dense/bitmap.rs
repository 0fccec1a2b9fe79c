//! Allreduce of a dense array together with its bitmap, which says which rows are entries.

use super::rabenseifner::unite;
use crate::endpoint::Endpoint;
use crate::join::join;
use skyphos_kernels::stream::clear_beyond;
use skyphos_types::Result;
use std::future::Future;

/// Runs `array`, an allreduce, and at the same time unites the bitmaps of all ranks, of `rows` rows, in place.
pub async fn with_bitmap<R>(
    ep: &Endpoint,
    array: impl Future<Output = Result<R>>,
    bits: Option<&mut Vec<u64>>,
    rows: u64,
) -> Result<R> {
    let Some(bits) = bits else { return array.await };
    let (array, ()) = join(ep, array, unite(ep, bits)).await?;
    clear_beyond(bits, rows);
    Ok(array)
}
