//! The payload of a frame: a buffer to write, then to share and read.

use super::buffer::{Buffer, Memory};
use crate::shared_memory::arena::{Borrowed, Cut};
use bytemuck::Pod;
use std::sync::Arc;

/// A buffer to write, with one owner.
pub struct PayloadMut {
    /// `None` in a simulation without data, where a payload is only its length.
    buffer: Option<Arc<Buffer>>,
    len: usize,
}

impl PayloadMut {
    /// A payload in a buffer that has no other owner.
    pub(super) fn of(buffer: Arc<Buffer>, len: usize) -> PayloadMut {
        PayloadMut { buffer: Some(buffer), len }
    }

    /// A length without bytes, for a simulation without data.
    pub fn sized(len: usize) -> PayloadMut {
        PayloadMut { buffer: None, len }
    }

    /// The bytes, to write; empty in a simulation without data.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        let Some(buffer) = &mut self.buffer else { return &mut [] };
        let buffer = Arc::get_mut(buffer).expect("a PayloadMut is the only owner");
        let lines = buffer.memory.lines_mut().expect("a PayloadMut is in this process's memory");
        &mut bytemuck::cast_slice_mut(lines)[..self.len]
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes as numbers, to write.
    pub fn as_slice_mut<T: Pod>(&mut self) -> &mut [T] {
        match self.as_bytes_mut() {
            // An empty slice may be unaligned.
            [] => &mut [],
            bytes => bytemuck::cast_slice_mut(bytes),
        }
    }

    /// Ends writing.
    pub fn freeze(self) -> Payload {
        Payload { buffer: self.buffer, len: self.len }
    }
}

/// A buffer to read, shared by its clones. In a simulation without data it has a length and no bytes.
#[derive(Clone, Default)]
pub struct Payload {
    buffer: Option<Arc<Buffer>>,
    len: usize,
}

impl Payload {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        let lines = self.buffer.as_ref().map(|buffer| buffer.memory.lines());
        lines.map_or(&[], |lines| &bytemuck::cast_slice(lines)[..self.len])
    }

    /// A payload in another process's memory.
    pub(crate) fn borrowed(borrowed: Borrowed, len: usize) -> Payload {
        Payload { buffer: Some(Buffer::borrowed(borrowed)), len }
    }

    /// The piece of this process's arena that the payload is in, if it is in one.
    pub(crate) fn cut(&self) -> Option<&Cut> {
        match &self.buffer.as_ref()?.memory {
            Memory::Cut(cut) => Some(cut),
            _ => None,
        }
    }

    /// The bytes as numbers; `None` if the length is not a multiple of their size.
    pub fn as_slice<T: Pod>(&self) -> Option<&[T]> {
        as_numbers(self.as_bytes())
    }

    /// The buffer to write: this one if no clone shares it, else a copy in a buffer from `take`.
    pub fn into_mut(mut self, take: impl FnOnce(usize) -> PayloadMut) -> PayloadMut {
        if let Some(mut buffer) = self.buffer.take() {
            if Arc::get_mut(&mut buffer).is_some_and(|buffer| buffer.memory.lines_mut().is_some()) {
                return PayloadMut::of(buffer, self.len);
            }
            self.buffer = Some(buffer);
        }
        let mut copy = take(self.len);
        copy.as_bytes_mut().copy_from_slice(self.as_bytes());
        copy
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Bytes as numbers; `None` if the length is not a multiple of their size.
pub(super) fn as_numbers<T: Pod>(bytes: &[u8]) -> Option<&[T]> {
    match bytes {
        // An empty slice may be unaligned.
        [] => Some(&[]),
        bytes => bytemuck::try_cast_slice(bytes).ok(),
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Payload({} bytes)", self.len)
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        self.buffer.take().into_iter().for_each(Buffer::put_back);
    }
}
