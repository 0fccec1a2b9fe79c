//! The options of an allreduce, which all ranks share.

use crate::quantize::QuantizeOptions;
use crate::signature::{Shape, custom_tag, shape_hash};
use skyphos_core::collectives::Split;
use skyphos_core::frame::{CallKind, CallSig};
pub(crate) use skyphos_tune::{Algorithm, DenseThreshold, choose_dense};
use skyphos_types::{Element, ReduceOp};

/// Settings of [`Comm::allreduce`]. All ranks must pass the same, but for `tell_sent`.
#[derive(Clone, Debug, Default)]
pub struct AllreduceOptions {
    /// The schedule.
    pub algorithm: Algorithm,
    /// Layers of the butterfly; `None`: one.
    pub degrees: Option<Vec<u32>>,
    /// How ranges are cut.
    pub split: Split,
    /// When vectors turn dense.
    pub dense_threshold: DenseThreshold,
    /// What is quantised, if anything.
    pub quantize: Option<QuantizeOptions>,
    /// Entries that the result should have: `Auto` need not ask the other ranks before a first call.
    pub expected_nnz: Option<u64>,
    /// Whether [`Allreduced::sent`](crate::Allreduced::sent) is wanted on this rank.
    pub tell_sent: bool,
    /// Shape of what the vector or array was made of.
    pub shape: Shape,
}

impl AllreduceOptions {
    pub(crate) fn sig<T: Element>(&self, kind: CallKind, op: &ReduceOp, n: u64, width: usize) -> CallSig {
        let mut extra = self.algorithm as u32 | (self.split as u32) << 8;
        let mut mix = |word: u32| extra = (extra ^ word).wrapping_mul(0x9e37_79b1).rotate_left(13);
        self.degrees.iter().flatten().for_each(|d| mix(*d));
        match self.dense_threshold {
            DenseThreshold::Auto => {}
            DenseThreshold::Paper => mix(1),
            DenseThreshold::Entries(entries) => mix((entries ^ entries >> 32) as u32 | 2),
        }
        self.quantize.iter().flat_map(QuantizeOptions::words).for_each(&mut mix);
        self.expected_nnz.iter().for_each(|entries| mix((entries ^ entries >> 32) as u32 ^ 3));
        let is_array = kind == CallKind::AllreduceDense;
        if self.shape.is_some() && !is_array {
            mix(shape_hash(&self.shape) ^ 4);
        }
        let width = if is_array { shape_hash(&self.shape) } else { u32::try_from(width).unwrap_or(u32::MAX) };
        CallSig {
            op: op.code(),
            dtype: T::DTYPE as u8,
            flags: custom_tag(op),
            width,
            n,
            extra,
            ..CallSig::plain(kind)
        }
    }
}
