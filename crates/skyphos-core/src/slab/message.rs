//! A message: one chunk from the pool if it fits, else memory of its own. Aligned to a cache line either way.

use super::aligned_vec::AlignedVec;
use super::buffer::Shelves;
use super::payload::{Payload, PayloadMut, as_numbers};
use bytemuck::Pod;
use std::sync::{Arc, Weak};

/// A message to write.
pub enum MessageMut {
    /// One chunk.
    Chunk(PayloadMut),
    /// Memory that is cut into chunks when it is sent.
    Large(LargeBuffer),
    /// A length without bytes, for a simulation without data.
    Sized(usize),
}

impl MessageMut {
    /// The bytes, to write; empty in a simulation without data.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        match self {
            MessageMut::Chunk(payload) => payload.as_bytes_mut(),
            MessageMut::Large(vec) => vec.as_bytes_mut(),
            MessageMut::Sized(_) => &mut [],
        }
    }
}

/// A message that has arrived.
#[derive(Debug)]
pub enum Message {
    /// A message of one chunk.
    Chunk(Payload),
    /// The joined chunks of a larger message.
    Large(LargeBuffer),
}

impl Message {
    /// The bytes as numbers; `None` if the length is not a multiple of their size.
    pub fn as_slice<T: Pod>(&self) -> Option<&[T]> {
        as_numbers(self.as_bytes())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Message::Chunk(payload) => payload.as_bytes(),
            Message::Large(vec) => vec.as_bytes(),
        }
    }
}

/// Memory for a message of several chunks, which returns to the pool when it is dropped. Fresh memory comes from the system page
/// by page, which costs more than filling it.
pub struct LargeBuffer {
    vec: AlignedVec,
    home: Weak<Shelves>,
}

impl LargeBuffer {
    /// Memory of length `len`, with arbitrary contents.
    pub(super) fn take(shelves: &Arc<Shelves>, len: usize) -> LargeBuffer {
        let mut vec = shelves.take_large();
        vec.resize(len);
        LargeBuffer { vec, home: Arc::downgrade(shelves) }
    }
}

impl std::ops::Deref for LargeBuffer {
    type Target = AlignedVec;
    fn deref(&self) -> &AlignedVec {
        &self.vec
    }
}

impl std::ops::DerefMut for LargeBuffer {
    fn deref_mut(&mut self) -> &mut AlignedVec {
        &mut self.vec
    }
}

impl Drop for LargeBuffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.put_back_large(std::mem::take(&mut self.vec));
        }
    }
}

impl std::fmt::Debug for LargeBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.vec.fmt(f)
    }
}
