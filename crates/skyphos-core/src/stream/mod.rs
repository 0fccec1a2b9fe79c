//! Sparse streams between ranks (SparCML §5.1): cutting a vector into segments, exchanging, folding and assembling them.

mod assemble;
mod exchange;
mod place;
mod quantised;
mod reduced_range;
mod reduction_params;
mod segments;

pub use assemble::Assembler;
pub use exchange::{Stream, exchange, send};
pub use place::exchange_and_place;
pub use quantised::{PART_BUCKETS, Precision, QuantisedInput, RESULT_BUCKETS, check_finite};
pub use reduced_range::{ReducedRange, exchange_and_fold, fold_failed, fold_segment};
pub use reduction_params::ReductionParams;
pub use segments::{SEGMENT_BYTES, Segments, encode};
