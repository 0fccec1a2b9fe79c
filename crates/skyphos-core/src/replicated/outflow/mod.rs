//! Sending from replicated ranks: each chunk reaches every replica of its receiver once, from one replica of its sender.
//!
//! ```text
//! chunk c of a message to replica d:   replica (c + d) mod s of the sender owns it, the next one if that one is missing
//! the owner sends it;                  its siblings keep it until the receiver acknowledges it
//! not acknowledged in time:            the owner is late, and the next one sends, from a message's last chunk back
//! only one replica is left to send:    it sends each chunk to one of the receivers, which forwards it to its siblings
//! ```
//!
//! So a link carries each message once, as without replication. Owner and fallback send from opposite ends of a message; a chunk
//! that the other has delivered is dropped here before it is sent. Delivery does not depend on guesses about which process is
//! late or lost: each process keeps each chunk until the receiver has it, or the receiver's connection does.
//!
//! This state machine does not wait, send or know the time.

mod departures;
mod late;
mod next;
mod post;
mod queue;
mod state;

pub(super) use late::QUIET;
pub use state::Outflow;
