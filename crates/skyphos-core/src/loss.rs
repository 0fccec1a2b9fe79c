//! Lost peers: how they were lost, and the health of processes.

use crate::slab::Payload;
use std::time::Duration;

/// How a peer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Loss {
    /// It sent a goodbye frame.
    Left,
    /// Its process has ended.
    Ended,
    /// It sent or received nothing for too long; its process may be alive.
    Silent,
}

/// The health of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// Its number in the transport, its rank, and which replica of that rank it is.
    pub process: u32,
    /// See `process`.
    pub rank: u32,
    /// See `process`.
    pub replica: u32,
    /// Host and address.
    pub address: String,
    /// How it was lost, and how that was noticed.
    pub lost: Option<(Loss, String)>,
    /// It has not sent its chunks in time, so this process, its sibling, sends them in its place.
    pub late: bool,
    /// Time since its last frame; unknown without replication.
    pub silent: Option<Duration>,
    /// Chunks of which this process got the first copy from it (`won`), or a later one (`lost_races`).
    pub won: u64,
    /// See `won`.
    pub lost_races: u64,
}

/// Longest reason for a program's failure, in bytes.
const REASON_BYTES: usize = 1024;

/// The reason for a failure in a goodbye's payload; empty if the peer's program closed its `Comm`.
pub fn reason_in(payload: &Payload) -> String {
    let bytes = payload.as_bytes();
    String::from_utf8_lossy(&bytes[..bytes.len().min(REASON_BYTES)]).into_owned()
}

/// The cause of a loss by a goodbye with this reason. The peer has done its part in earlier calls, so ranks that need only that part
/// complete their calls.
pub fn goodbye_cause(reason: &str) -> &str {
    if reason.is_empty() { "it has closed its Comm" } else { reason }
}
