//! A growable byte vector whose data is aligned to a cache line.

use crate::shared_memory::arena::Line;
use bytemuck::{Pod, Zeroable};

/// A growable byte vector whose data is aligned to a cache line.
#[derive(Clone, Default)]
pub struct AlignedVec {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedVec {
    /// Sets the length, keeping capacity. New bytes are zero or left from before.
    pub fn resize(&mut self, len: usize) {
        let lines = len.div_ceil(size_of::<Line>());
        if lines > self.lines.len() {
            self.lines.resize(lines, Line::zeroed());
        }
        self.len = len;
    }

    /// Appends bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        let start = self.len;
        self.resize(start + bytes.len());
        self.as_bytes_mut()[start..].copy_from_slice(bytes);
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the vector is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that the vector takes.
    pub(super) fn capacity(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    /// The bytes, to write.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }

    /// The bytes as numbers. The length must be a multiple of their size.
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self.as_bytes())
    }

    /// The bytes as numbers, to write.
    pub fn as_slice_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.as_bytes_mut())
    }
}

impl std::fmt::Debug for AlignedVec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedVec({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aligned_vec_grows() {
        let mut v = AlignedVec::default();
        for k in 0..1000u64 {
            v.extend(&k.to_le_bytes());
        }
        assert_eq!(v.as_slice::<u64>(), (0..1000).collect::<Vec<u64>>());
        assert_eq!(v.as_bytes().as_ptr() as usize % 64, 0);
        v.resize(8);
        assert_eq!(v.as_slice::<u64>(), [0]);
    }
}
