//! Sparse streams between ranks: what the collectives of SparCML are made of.

mod assemble;
mod part;
mod split;
mod wire;

pub use assemble::Assembler;
pub use part::{Part, Terms, exchange_and_fold};
pub use split::{Split, Survey, bounds, cut, survey};
pub use wire::{encode, exchange};
