//! The mailbox matches frames to calls, by call number, round and peer.
//!
//! One mailbox serves all groups of a process. A frame whose call has not begun here waits; a frame whose call is over is dropped
//! (a late duplicate is normal input). Storage is recycled, so a steady sequence of calls allocates nothing. The mailbox does not
//! wait, send or know the time.
//!
//! To read: [`state`] (groups and boxes) → [`call_box`] → [`calls`] (begin, end, read) → [`delivery`] (events) → [`losses`] →
//! [`outcomes`] and [`doubts`] (peers whose programs know of other failed calls) → [`messages`] and [`matching`]
//! (point-to-point).

mod absence;
mod call_box;
mod calls;
mod delivery;
mod doubts;
mod losses;
mod matching;
mod messages;
mod mismatch;
mod outcomes;
mod reply;
mod state;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use self::absence::Absence;
pub(crate) use self::calls::Next;
pub(crate) use self::delivery::UNSEEN;
pub(crate) use self::messages::{Envelope, Filter, MessageId};
pub(crate) use self::reply::Reply;
pub(crate) use self::state::Mailbox;
