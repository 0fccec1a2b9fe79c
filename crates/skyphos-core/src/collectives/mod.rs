//! The collectives, one file each.

pub mod allgather;
pub mod barrier;
pub mod configure;
pub mod reduce;
