//! Sparse streams between ranks: what the collectives of SparCML are made of.

mod assemble;
mod part;
mod quantised;
mod split;
mod survey;
mod wire;

pub use assemble::Assembler;
pub use part::{Part, Terms, exchange_and_fold};
pub use quantised::{PART_BUCKETS, Precision, QuantisedInput, RESULT_BUCKETS, check_finite, open};
pub use split::{Split, bounds};
pub use survey::{Survey, cut, largest, median, survey};
pub use wire::{SEGMENT_BYTES, encode, exchange};
