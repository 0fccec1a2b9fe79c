//! The parameters of a reduction of streams, the same on all ranks, and the encoding of a rank's input by them.

use crate::endpoint::Endpoint;
use crate::stream::quantised::Precision;
use crate::stream::segments::{SEGMENT_BYTES, Segments, segments_of};
use skyphos_kernels::stream::{QuantisedValues, Shape, View};
use skyphos_types::{Element, ReduceOp};

/// The parameters of a reduction of streams, the same on all ranks.
#[derive(Clone, Copy)]
pub struct ReductionParams<'a> {
    /// The operation.
    pub op: &'a ReduceOp,
    /// Size of the index space.
    pub n: u64,
    /// The shape of partial and final results: width, index type, density at which they turn dense.
    pub shape: Shape,
    /// The quantisation, if any.
    pub precision: Option<Precision<'a>>,
}

impl ReductionParams<'_> {
    /// The codec of segments that are marked as quantised.
    pub fn codec(&self) -> Option<QuantisedValues> {
        self.precision.map(|p| p.codec)
    }

    /// The segments of this rank's input in `lo..hi`.
    pub fn encode_input<'a, T: Element>(
        &self,
        ep: &'a Endpoint,
        view: View<'a, T>,
        lo: u64,
        hi: u64,
    ) -> Segments<'a> {
        match self.precision.and_then(|p| p.input) {
            Some(input) => input.between(lo, hi).into(),
            None => segments_of(ep, view, self.shape.width, 0, lo, hi, SEGMENT_BYTES),
        }
    }
}
