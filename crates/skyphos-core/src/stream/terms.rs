//! What ranks agree on in a reduction of streams, and how each encodes its own entries by it.

use crate::endpoint::Endpoint;
use crate::stream::quantised::Precision;
use crate::stream::segments::{SEGMENT_BYTES, Segments, segments_of};
use skyphos_kernels::stream::{QuantisedValues, Shape, View};
use skyphos_types::{Element, ReduceOp};

/// What all ranks agree on in a reduction of streams.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// The operation.
    pub op: &'a ReduceOp,
    /// Rows of the whole vector.
    pub n: u64,
    /// How parts and results are stored.
    pub shape: Shape,
    /// What is quantised, if anything.
    pub precision: Option<Precision<'a>>,
}

impl Terms<'_> {
    /// How segments that say so are quantised.
    pub fn codec(&self) -> Option<QuantisedValues> {
        self.precision.map(|p| p.codec)
    }

    /// This rank's input of `lo..hi`, as it sends it.
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
