//! A cluster of thousands of ranks on one thread, under a virtual clock.
//!
//! The collectives are the same code that runs over TCP: each rank has its node, its mailbox and its calls. Only what is
//! under them differs: [`transport`] hands frames to a [`world`] of links, in which they take their time by the description
//! of a [`network`]; processors take theirs by the [`costs`] of the work that collectives tell of. [`cluster`] polls
//! whichever rank is next in time.
//!
//! Everything is drawn from one seed, and nothing depends on the machine or on time that passes: the same description and
//! seed give the same [`trace`], byte for byte.
//!
//! [`play`] runs whole programs instead of one call: each process is a coroutine that goes on as if it were alone, and stops
//! where it waits. [`faults`] go wrong meanwhile.

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
pub use record::{Record, Round};
