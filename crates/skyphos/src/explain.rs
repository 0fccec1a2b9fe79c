//! What a reduction did.

use skyphos_core::Traffic;
use skyphos_tune::{Algorithm, Choice};
use std::sync::Arc;

/// How a vector was reduced, and what that moved on this rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The schedule; for `auto` what it chose.
    pub algorithm: Algorithm,
    /// Layers, where it is a butterfly.
    pub degrees: Vec<u32>,
    /// Entries above which a vector turns dense (δ), if the schedule lets it; 0: it never does.
    pub dense_threshold: f64,
    /// Bytes and frames.
    pub traffic: Traffic,
    /// What was predicted, where `auto` chose.
    pub choice: Option<Arc<Choice>>,
}
