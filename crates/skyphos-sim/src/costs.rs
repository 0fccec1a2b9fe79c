//! What work costs a simulated processor.

use skyphos_core::clock::Effort;
use skyphos_plan::{Kernels, Profile};

/// Processor time of messages and of the kernels, of a core that does nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Seconds of a frame at either end.
    pub frame_s: f64,
    /// Seconds of a byte at either end.
    pub byte_s: f64,
    /// Of the kernels of streams and arrays.
    pub kernels: Kernels,
    /// Of a row gathered into a message or from it, and of one added through a map; and of each of its bytes more.
    pub gather_s: f64,
    /// See `gather_s`.
    pub fold_s: f64,
    /// See `gather_s`.
    pub row_byte_s: f64,
    /// Of an index encoded into a message of a configuration and decoded there.
    pub set_code_s: f64,
    /// Of an index joined with others and found in the union.
    pub set_join_s: f64,
}

impl Default for Costs {
    /// One core of a Zen 4 processor: frames and bytes over TCP, kernels by `kernel_rates`, `configure` and `reduce` by
    /// `profile_reduce`.
    fn default() -> Costs {
        let Profile { frame_s, byte_s, kernels, .. } = Profile::network(1e9);
        Costs {
            frame_s,
            byte_s,
            kernels,
            gather_s: 0.8e-9,
            fold_s: 1.2e-9,
            row_byte_s: 0.1e-9,
            set_code_s: 1.0e-9,
            set_join_s: 4.0e-9,
        }
    }
}

impl Costs {
    /// Seconds that a piece of work takes.
    pub fn seconds(&self, effort: Effort) -> f64 {
        let k = &self.kernels;
        match effort {
            Effort::Gather { rows, row_bytes } => {
                rows as f64 * (self.gather_s + row_bytes as f64 * self.row_byte_s)
            }
            Effort::Fold { rows, row_bytes } => {
                rows as f64 * (self.fold_s + row_bytes as f64 * self.row_byte_s)
            }
            Effort::Encode { entries, row_bytes } => entries as f64 * k.encode_s * Kernels::weight(row_bytes),
            Effort::Place { entries, row_bytes } => entries as f64 * k.place_s * Kernels::weight(row_bytes),
            Effort::Merge { entries, row_bytes, sources } => {
                let merges = k.merge_s + k.merge_more_s * sources.saturating_sub(1) as f64;
                entries as f64 * merges.min(k.block_s) * Kernels::weight(row_bytes)
            }
            Effort::Dense { bytes } => bytes as f64 * k.dense_byte_s,
            Effort::SetCode { indices } => indices as f64 * self.set_code_s,
            Effort::SetJoin { indices, .. } => indices as f64 * self.set_join_s,
        }
    }
}
