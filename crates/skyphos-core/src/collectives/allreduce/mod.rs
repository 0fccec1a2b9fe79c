//! Allreduce of sparse vectors: every rank gets the reduction of all.
//!
//! One file an algorithm. All of them move [segments](skyphos_kernels::stream) and fold them in an order that
//! ranks and settings fix, so that every rank gets the same bits every time.

pub mod butterfly;
pub mod dense;
pub mod gather_and_sum;
pub mod recursive_doubling;
pub mod ring;

use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::{Assembler, Terms};
use skyphos_types::{Element, Error, Result};

/// What came from a rank makes no sense.
pub(crate) fn damaged(ep: &Endpoint, rank: u32, what: &str) -> Error {
    Error::Corrupt { rank: ep.world_rank(rank), message: what.to_owned() }
}

/// Reads what is already complete.
pub(crate) fn decode_all<T: Element>(
    ep: &Endpoint,
    terms: Terms<'_>,
    from: u32,
    (lo, hi): (u64, u64),
    segments: &[Payload],
) -> Result<skyphos_kernels::stream::Form<T>> {
    let mut assembler = Assembler::new(&[lo, hi], terms.shape, terms.op.identity::<T>()?);
    for segment in segments {
        assembler.push(0, segment.clone()).map_err(|what| damaged(ep, from, what))?;
    }
    Ok(assembler.finish())
}
