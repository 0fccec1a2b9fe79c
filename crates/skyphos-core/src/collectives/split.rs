//! Ownership of the index space while a vector is reduced: one range per rank.

use crate::collectives::survey::sample;
use crate::endpoint::Endpoint;
use skyphos_kernels::split_ranges;
use skyphos_kernels::stream::View;
use skyphos_types::{Element, Result};

/// The cut of the index space into one range per rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// Ranges of equal length. Needs no messages; balanced if indices are spread evenly.
    Even,
    /// Equal ranges of hashed indices. Balanced for any data without a sample; costs one reordering each of input and result.
    Hash,
    /// Ranges of about equal work, by a sample of each rank's indices. Balanced for any data; costs ⌈log2 P⌉ small messages.
    #[default]
    Quantiles,
}

/// The bounds of `parts` ranges of the index space `0..n`, the same on all ranks.
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
