//! The cost of work on a simulated processor.

use skyphos_core::clock::Effort;
use skyphos_core::frame::ARRAYS;
use skyphos_plan::{Kernels, Profile, RowKernels};
use skyphos_types::Round;

/// Processor time of messages and of the kernels, on a core that does nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Seconds of a frame at either end.
    pub frame_s: f64,
    /// Seconds of a byte at either end.
    pub byte_s: f64,
    /// Seconds of a byte of an array at either end.
    pub array_byte_s: f64,
    /// Costs of the kernels of streams and arrays.
    pub kernels: Kernels,
    /// Costs of the kernels of plans.
    pub rows: RowKernels,
    /// Seconds of a multiply-add of a matrix product.
    pub product_s: f64,
}

impl Default for Costs {
    /// The costs of a rank with its own core on a network: see [`Profile::network`].
    fn default() -> Costs {
        Costs::of(&Profile::network(1e9))
    }
}

impl Costs {
    /// The costs of a profile.
    pub fn of(profile: &Profile) -> Costs {
        let Profile { frame_s, byte_s, array_byte_s, kernels, rows, product_s, .. } = *profile;
        Costs { frame_s, byte_s, array_byte_s, kernels, rows, product_s }
    }

    /// Seconds of a frame at either end.
    pub fn frame(&self, round: Round, bytes: usize) -> f64 {
        let byte_s = if round.0 & ARRAYS == 0 { self.byte_s } else { self.array_byte_s };
        self.frame_s + bytes as f64 * byte_s
    }

    /// Seconds that a piece of work takes.
    pub fn seconds(&self, effort: Effort) -> f64 {
        let (k, r) = (&self.kernels, &self.rows);
        match effort {
            Effort::Gather { rows, row_bytes } => rows as f64 * (r.gather_s + row_bytes as f64 * r.byte_s),
            Effort::Fold { rows, row_bytes } => rows as f64 * (r.fold_s + row_bytes as f64 * r.byte_s),
            Effort::Encode { entries, row_bytes } => entries as f64 * k.encode_s * Kernels::weight(row_bytes),
            Effort::Place { entries, row_bytes } => entries as f64 * k.place_s * Kernels::weight(row_bytes),
            Effort::Merge { entries, row_bytes, sources } => {
                let merges = k.merge_s + k.merge_more_s * sources.saturating_sub(1) as f64;
                entries as f64 * merges.min(k.block_s) * Kernels::weight(row_bytes)
            }
            Effort::Dense { bytes } => bytes as f64 * k.dense_byte_s,
            Effort::Product { multiply_adds, bytes, number_bytes } => {
                let scale = number_bytes as f64 / 8.0;
                multiply_adds as f64 * self.product_s * scale + bytes as f64 * k.dense_byte_s
            }
            Effort::SetCode { indices } => indices as f64 * r.set_code_s,
            Effort::SetJoin { indices } => indices as f64 * r.set_join_s,
        }
    }
}
