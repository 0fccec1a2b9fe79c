//! The collectives, one file each.

pub mod allgather;
pub mod allreduce;
pub mod barrier;
pub mod configure;
mod configure_layer;
pub mod reduce;
mod rows;
mod transfer;
