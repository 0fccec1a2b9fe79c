//! The TCP transport over real sockets. One program for all files, since each program costs a link.

#[path = "../common/mod.rs"]
mod common;

mod node;
mod rendezvous;
mod tls;
mod traffic;
