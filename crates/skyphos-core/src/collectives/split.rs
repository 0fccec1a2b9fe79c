//! Which rank owns which indices while a vector is reduced in parts.

use crate::collectives::survey::sample;
use crate::endpoint::Endpoint;
use skyphos_kernels::split_ranges;
use skyphos_kernels::stream::View;
use skyphos_types::{Element, Result};

/// How the index space is cut into one range a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// Ranges of equal length: nothing to agree on, right for indices spread evenly.
    Even,
    /// Equal ranges of hashed indices: balanced without a sample, whatever the data; input and result are put in
    /// another order once each.
    Hash,
    /// Ranges of about as much work, from a sample of each rank's indices: right for all, for
    /// ⌈log2 P⌉ small messages more.
    #[default]
    Quantiles,
}

/// The bounds of `parts` ranges of the space `0..n`, the same on all ranks.
pub async fn bounds<T: Element>(
    ep: &Endpoint,
    split: Split,
    view: View<'_, T>,
    width: usize,
    n: u64,
    parts: u32,
) -> Result<Vec<u64>> {
    if split != Split::Quantiles || parts == 1 {
        return Ok(split_ranges(0, n, parts));
    }
    Ok(sample(ep, view, width, n).await?.bounds(parts))
}
