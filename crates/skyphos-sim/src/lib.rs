//! A simulated cluster of thousands of ranks on one thread, under a virtual clock.
//!
//! The collectives are the code that runs over TCP: each rank has its node, its mailbox and its calls. Only the layer below differs.
//! [`transport`] posts frames to a [`world`] of links, which delays them as the [`network`] is described; work takes the time that
//! [`costs`] computes for it. [`cluster`] always polls the rank that is next in virtual time.
//!
//! All randomness comes from one seed, and nothing depends on the machine or on real time: the same description and seed give the
//! same [`trace`], byte for byte.
//!
//! [`play`] runs whole programs instead of one call, with [`faults`]: each process is a coroutine that stops where it waits.

#![deny(unsafe_code)]

pub mod cluster;
#[allow(unsafe_code, reason = "a coroutine suspends through a pointer to the one that runs")]
mod coroutine;
pub mod costs;
pub mod distribution;
pub mod faults;
pub mod network;
pub mod play;
pub mod record;
mod strikes;
mod time;
pub mod trace;
mod transport;
mod world;

pub use cluster::{Cluster, Ran, slowest};
pub use costs::Costs;
pub use distribution::Distribution;
pub use faults::{Fault, Struck, When};
pub use network::{Network, Stragglers};
pub use play::{Outcome, Play, Played, Process, interrupted};
pub use record::{Record, RecordedRound};
