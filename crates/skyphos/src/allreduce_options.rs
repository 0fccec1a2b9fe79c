//! The options of an allreduce, which all ranks share.

use crate::quantize::QuantizeOptions;
use crate::signature::{Shape, custom_tag, shape_hash};
use skyphos_core::collectives::Split;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_tune::{Algorithm, DenseThreshold};
use skyphos_types::{Element, ReduceOp};

/// Settings of [`Comm::allreduce`](crate::Comm::allreduce). All ranks must pass the same, except for `tell_sent`.
#[derive(Clone, Debug, Default)]
pub struct AllreduceOptions {
    /// The algorithm; `Auto` selects one.
    pub algorithm: Algorithm,
    /// Degrees of the butterfly's layers; `None`: one layer.
    pub degrees: Option<Vec<u32>>,
    /// How the index space is cut into one range per rank.
    pub split: Split,
    /// The number of entries above which a vector turns dense.
    pub dense_threshold: DenseThreshold,
    /// Quantisation of inputs or results.
    pub quantize: Option<QuantizeOptions>,
    /// Expected entries of the result. With it, a first call with `Auto` needs no survey of the ranks.
    pub expected_nnz: Option<u64>,
    /// Return [`Allreduced::sent`](crate::Allreduced::sent) on this rank.
    pub tell_sent: bool,
    /// Shape of the array that the vector was made from.
    pub shape: Shape,
}

impl AllreduceOptions {
    /// The signature of a call with these options. Its `extra` hashes the options that ranks must share; its `width` is that of
    /// a row or, for a dense array, a hash of the shape.
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
