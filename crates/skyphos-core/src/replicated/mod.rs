//! Replicas: P processes as m = ⌊P / s⌋ ranks of s replicas. A rank lives as long as one of its processes does (Kylix §V).
//!
//! A [`Replicated`] is a transport over a transport. The node over it sees m ranks and no replicas, so every collective whose
//! messages do not depend on the order of arrivals runs replicated. All replicas of a rank (siblings) make the same calls with
//! the same data, and so the same messages, chunk by chunk; the first copy of a chunk counts.
//!
//! Read [`numbering`] (processes and ranks), [`outflow`] (the owner of each chunk, and fallbacks), [`inflow`] (the first copy, in
//! order, and acknowledgements), then [`sending`], [`receiving`] and [`transport`], which carry out their decisions.
//!
//! **Small messages** (up to [`RACED_BYTES`]) go from every replica to every replica: the second copy is cheap, and a late replica
//! costs no time. The chunks of larger ones are divided among the replicas.
//!
//! **Replicas that differ** are found by checksums: a receiver compares copies, a sibling of a chunk's owner compares its own chunk
//! with the acknowledgement. Checksums of each call's input ([`input_checksums`]) cover data that is never sent.
//!
//! **A replica that fails alone** (interrupted, or timed out) leaves the call, and its siblings go on in its place. An error of the
//! call itself (bad input, a mismatch, different bytes) ends it on all.

mod acknowledgements;
mod chunk;
mod delay;
mod flow;
mod inflow;
mod input_checksums;
mod numbering;
mod outflow;
mod receiving;
mod sending;
mod startup_broadcast;
mod transport;

pub use chunk::{Body, Chunk, ChunkMismatch, EndedCalls};
pub use inflow::{Acknowledgement, Action, Inflow};
pub use numbering::Numbering;
pub use outflow::Outflow;
pub use startup_broadcast::startup_broadcast;
pub use transport::{RACED_BYTES, Replicated};

/// The acknowledgements in a frame from `rank`, and their encoding.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn fuzz_acknowledgements(
    bytes: &[u8],
    rank: skyphos_types::WorldRank,
) -> Option<(Vec<Acknowledgement>, Vec<u8>)> {
    acknowledgements::decode(bytes, rank).map(|all| (all.clone(), acknowledgements::encode(&all)))
}

#[cfg(test)]
mod tests;
