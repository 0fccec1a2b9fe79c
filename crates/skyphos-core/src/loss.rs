//! The kinds of loss of a peer, and the health of processes.

use crate::slab::Payload;
use std::time::Duration;

/// The kind of a peer's loss.
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
    /// Its number in the transport.
    pub process: u32,
    /// Its rank.
    pub rank: u32,
    /// Its number among the replicas of that rank.
    pub replica: u32,
    /// Host and address.
    pub address: String,
    /// The kind of its loss, and the evidence.
    pub lost: Option<(Loss, String)>,
    /// It has not sent its chunks in time, so this process, its sibling, sends them in its place.
    pub late: bool,
    /// Time since its last frame; unknown without replication.
    pub silent: Option<Duration>,
    /// Chunks whose first copy came from it.
    pub won: u64,
    /// Chunks of which it sent a copy after the first one.
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
