//! The pool that buffers come from and return to.

use super::buffer::{CAPACITIES, CHUNK_BYTES, Shelves};
use super::message::{LargeBuffer, MessageMut};
use super::payload::{Payload, PayloadMut};
use crate::shared_memory::arena::Arena;
use std::sync::Arc;

/// The pool that buffers come from and return to. Clones share it.
#[derive(Clone, Default)]
pub struct Pool {
    own: Arc<Shelves>,
    /// Buffers in an arena, which can be lent to other processes.
    lending: Option<Arc<Shelves>>,
}

impl Pool {
    /// A pool that also has buffers in an arena, to lend to other processes.
    pub fn lending(arena: Arc<Arena>) -> Pool {
        Pool { lending: Some(Arc::new(Shelves::of_arena(arena))), ..Pool::default() }
    }

    /// Number of buffers in use.
    pub fn in_use(&self) -> usize {
        self.own.in_use() + self.lending.as_ref().map_or(0, Shelves::in_use)
    }

    /// A buffer of `len` bytes (at most [`CHUNK_BYTES`]). Its contents are arbitrary.
    pub fn take(&self, len: usize) -> PayloadMut {
        PayloadMut::of(self.own.take(len), len)
    }

    /// Like [`Pool::take`], for bytes that several ranks get: a buffer that can be lent, unless copying it is faster.
    pub fn take_for_several(&self, len: usize) -> PayloadMut {
        let lending = self.lending.as_ref().filter(|_| len > CAPACITIES[0]);
        PayloadMut::of(lending.unwrap_or(&self.own).take(len), len)
    }

    /// Memory for a message of `len` bytes. Its contents are arbitrary.
    pub fn message(&self, len: usize) -> MessageMut {
        match len <= CHUNK_BYTES {
            true => MessageMut::Chunk(self.take(len)),
            false => MessageMut::Large(self.large(len)),
        }
    }

    /// Memory for a message of several chunks, of length `len`. Its contents are arbitrary.
    pub fn large(&self, len: usize) -> LargeBuffer {
        LargeBuffer::take(&self.own, len)
    }

    /// A buffer with a copy of `bytes`.
    pub fn copy_of(&self, bytes: &[u8]) -> Payload {
        let mut payload = self.take(bytes.len());
        payload.as_bytes_mut().copy_from_slice(bytes);
        payload.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_owner_returns_a_buffer() {
        let pool = Pool::default();
        let first = pool.copy_of(&[1, 2, 3]);
        let address = first.as_bytes().as_ptr();
        let second = first.clone();
        drop(first);
        assert_ne!(pool.copy_of(&[0]).as_bytes().as_ptr(), address, "the clone still owns it");
        assert_eq!((second.as_bytes(), pool.in_use()), (&[1, 2, 3][..], 1));
        drop(second);
        assert_eq!(pool.in_use(), 0);
        let again = pool.copy_of(&[9]);
        assert_eq!(again.as_bytes().as_ptr(), address, "the last owner returned it");
        let shared = again.clone();
        let mut copy = again.into_mut(|len| pool.take(len));
        copy.as_bytes_mut()[0] = 7;
        assert_eq!((shared.as_bytes(), copy.freeze().as_bytes()), (&[9][..], &[7][..]));
        let mut own = shared.into_mut(|_| unreachable!("no clone shares it now"));
        own.as_bytes_mut()[0] = 8;
        let own = own.freeze();
        assert_eq!((own.as_bytes(), own.as_bytes().as_ptr()), (&[8][..], address));
    }
}
