//! Memory shared between processes and threads. All `unsafe` code of this crate is here, except for system calls (`process.rs`).

pub mod arena;
pub mod host_region;
pub mod memory_file;
pub mod piece_buffer;
