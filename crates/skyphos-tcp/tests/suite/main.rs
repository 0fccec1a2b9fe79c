//! The TCP transport over real sockets. One program for all files, since the linker runs once per program.

#[path = "../common/mod.rs"]
mod common;

mod node;
mod rendezvous;
mod tls;
mod traffic;
