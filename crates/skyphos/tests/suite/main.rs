//! The collectives on all transports. One program for all files, since the linker runs once per program.

#[path = "../common/mod.rs"]
mod common;

mod agreement;
mod allreduce;
mod arrays;
mod blocks;
mod broadcast;
mod conformance;
mod late_entry;
mod messages;
mod mpi;
mod outcomes;
mod outer_product;
mod profile;
mod quantize;
mod replicated;
mod shrink;
mod simulated;
mod simulated_bytes;
mod topk_allreduce;
mod topology;
mod tuning_cache;
mod vectors;
mod work;
