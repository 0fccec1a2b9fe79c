//! Reference-counted buffers from a pool, which carry the payloads of frames.
//!
//! A [`PayloadMut`] is written by one owner, then frozen into a [`Payload`], which clones share and read. When the last owner
//! drops it, the buffer and its reference count return to the pool together, so a steady exchange allocates nothing.

mod aligned_vec;
mod buffer;
mod message;
mod payload;
mod pool;

pub use aligned_vec::AlignedVec;
pub use buffer::CHUNK_BYTES;
pub use message::{LargeBuffer, Message, MessageMut};
pub use payload::{Payload, PayloadMut};
pub use pool::Pool;
