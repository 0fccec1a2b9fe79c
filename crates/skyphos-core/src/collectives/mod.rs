//! The collectives, one file each.

pub mod allgather;
pub mod allreduce;
pub mod barrier;
pub mod broadcast;
pub mod configure;
mod configure_layer;
pub mod exchange_blocks;
pub mod gather;
pub mod outer_product;
pub mod reduce;
pub mod reduce_to_root;
mod ring_pipeline;
mod rows;
pub mod sets;
pub mod shrink;
mod split;
mod survey;
pub mod topk_allreduce;
mod transfer;
mod weights;

pub use split::{Split, bounds};
pub use survey::{Survey, equal_entry_bounds, survey};
