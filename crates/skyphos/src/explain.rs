//! Explanation of a reduction: its algorithm, prediction and traffic.

use skyphos_core::Traffic;
use skyphos_tune::{Algorithm, Choice};
use std::sync::Arc;

/// The algorithm of a reduction, its prediction, and its traffic on this rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The algorithm; with `auto`, the chosen one.
    pub algorithm: Algorithm,
    /// Degrees of the layers of a butterfly.
    pub degrees: Vec<u32>,
    /// Entries above which a vector turns dense (δ); 0: it never does.
    pub dense_threshold: f64,
    /// Bytes and frames.
    pub traffic: Traffic,
    /// The choice and its prediction, if `auto` chose.
    pub choice: Option<Arc<Choice>>,
}
