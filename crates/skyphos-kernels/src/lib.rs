//! Kernels: the inner loops of all collectives, each tested against a simple implementation.
//!
//! Index sets are kept as blocks of 64 neighbouring indices ([`Block`]: the block's hashed number and
//! a bit for each index), sorted by hashed number. Where a set is dense (the head of a power law, a web graph's
//! communities), an index then costs a few bytes to sort, send and merge; where it is sparse, an index costs a block.
//!
//! Values are folded ([`fold_rows`]), moved ([`Permutation`]), quantised ([`quantise`]) and chosen ([`topk`]).
//!
//! Kernels do not depend on messages or time. A rank is only a number from which owners and random numbers are computed.
//!
//! AVX-512 and AVX2 code needs a value that only detection creates (`simd.rs`).

mod array_builder;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block;
mod codec;
mod copy;
mod fold;
mod hash;
mod index;
pub mod keyed;
mod merge;
mod permutation;
mod prefetch;
mod prepare;
pub mod product;
mod quantise;
mod radix;
mod runs;
mod simd;
mod sketch;
pub mod sparse_product;
pub mod stream;
mod topk;
mod union;

pub use array_builder::ArrayBuilder;
pub use block::{BLOCK_BITS, BLOCK_SIZE, Block, IndexSet, count_indices, split_ranges};
pub use codec::{Encoding, decode, encoded_bytes};
pub use fold::{fold_all, fold_rows, gather_rows, scatter_rows};
pub use hash::BlockHash;
pub use index::{Index, Indices};
pub use merge::{Entries, merge};
pub use permutation::Permutation;
pub use prepare::{Prepared, prepare};
pub use quantise::{Draw, Quantize, Scale, dequantise, dequantise_and_add, quantise, quantised_bytes};
pub use sketch::{estimated_union, sketch};
pub use topk::{
    Incoming, Layer, Magnitude, Select, put_back, quantise_in_place, take_layers, take_topk,
    take_topk_of_sum, topk,
};
pub use union::{Locator, MISSING, union};
