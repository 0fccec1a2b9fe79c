//! A byte buffer that is written piece by piece, in any order, and not zeroed before.

use crate::ranges::Ranges;
use std::collections::TryReserveError;
use std::ops::Range;

/// A buffer of a fixed length, whose bytes count as absent until they are written.
#[derive(Default)]
pub struct PieceBuffer {
    /// Empty; the bytes are in its spare capacity.
    bytes: Vec<u8>,
    len: usize,
    /// The bytes before this one are written. Pieces that arrive in order need no more bookkeeping.
    prefix: usize,
    /// Bytes that were written out of order.
    scattered: Ranges,
}

impl PieceBuffer {
    /// Allocates a buffer of `len` bytes.
    pub fn new(len: usize) -> Result<PieceBuffer, TryReserveError> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len)?;
        Ok(PieceBuffer { bytes, len, prefix: 0, scattered: Ranges::default() })
    }

    fn is_written(&self, range: Range<usize>) -> bool {
        range.end <= self.prefix || self.scattered.covers(&(range.start.max(self.prefix)..range.end))
    }

    /// Writes a piece at an offset.
    ///
    /// # Panics
    /// If the piece does not fit.
    pub fn write(&mut self, at: usize, piece: &[u8]) {
        assert!(at <= self.len && piece.len() <= self.len - at, "a piece beyond the buffer");
        let to = self.bytes.spare_capacity_mut()[at..].as_mut_ptr().cast();
        // SAFETY: the capacity is at least `len`, so the piece fits; `piece` is borrowed, so it lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len()) };
        let written = at..at + piece.len();
        match at == self.prefix {
            true => self.prefix = written.end,
            false => self.scattered.add(written),
        }
    }

    /// The bytes of a range.
    ///
    /// # Panics
    /// If some of them are not written yet.
    pub fn written(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && self.is_written(range.clone()), "bytes that are not written yet");
        // SAFETY: the range has been written, so it is within the capacity and initialised; writes need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().add(range.start), range.len()) }
    }

    /// The bytes; `None` if some are not written yet.
    pub fn into_bytes(mut self) -> Option<Vec<u8>> {
        if !self.is_written(0..self.len) {
            return None;
        }
        // SAFETY: all bytes up to this length have been written.
        unsafe { self.bytes.set_len(self.len) };
        Some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_in_any_order_make_the_whole() {
        let whole: Vec<u8> = (0..90).collect();
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1], [2, 0, 1], [1, 2, 0]] {
            let mut buffer = PieceBuffer::new(90).unwrap();
            for (count, k) in order.into_iter().enumerate() {
                assert!(!buffer.is_written(0..90), "{count} of 3 pieces");
                buffer.write(30 * k, &whole[30 * k..][..30]);
                assert_eq!(buffer.written(30 * k..30 * k + 30), &whole[30 * k..][..30]);
            }
            assert_eq!(buffer.written(10..70), &whole[10..70]);
            assert_eq!(buffer.into_bytes().unwrap(), whole);
        }
    }

    #[test]
    fn a_buffer_with_a_gap_has_no_bytes() {
        let mut buffer = PieceBuffer::new(9).unwrap();
        buffer.write(0, &[1; 4]);
        buffer.write(5, &[1; 4]);
        assert!(buffer.into_bytes().is_none());
        assert_eq!(PieceBuffer::default().into_bytes(), Some(Vec::new()));
    }

    #[test]
    #[should_panic(expected = "not written yet")]
    fn absent_bytes_cannot_be_read() {
        PieceBuffer::new(9).unwrap().written(0..1);
    }

    #[test]
    #[should_panic(expected = "beyond the buffer")]
    fn a_piece_must_fit() {
        PieceBuffer::new(9).unwrap().write(8, &[0; 2]);
    }
}
