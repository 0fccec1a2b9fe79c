//! A stream: the chunks of one message that have come.

use crate::frame::{Frame, Header, WINDOW_BYTES};
use crate::slab::{CHUNK_BYTES, Payload};
use skyphos_types::Error;
use std::collections::VecDeque;

/// Capacity of a stream of a large message: its sender's window in chunks. It never grows, or once where a transport has
/// smaller chunks.
pub(super) const LARGE_STREAM_CHUNKS: usize = WINDOW_BYTES as usize / CHUNK_BYTES + 1;
/// Capacity of any other stream: its chunk may come as several segments.
pub(super) const SMALL_STREAM_CHUNKS: usize = 4;

/// A message on its way in: the chunks that have come and were not read, in order.
pub(super) struct Stream {
    pub(super) next_seq: u32,
    pub(super) chunks: VecDeque<Payload>,
    pub(super) total: u64,
}

impl Stream {
    /// A stream of `total` bytes (`u64::MAX`: its own bytes tell where it ends), in recycled storage.
    pub(super) fn new(total: u64, mut chunks: VecDeque<Payload>) -> Stream {
        let is_large = total > CHUNK_BYTES as u64 && total < u64::MAX;
        chunks.reserve(if is_large { LARGE_STREAM_CHUNKS } else { SMALL_STREAM_CHUNKS });
        Stream { next_seq: 0, total, chunks }
    }

    /// Appends the next chunk. `Err`: another chunk has come in its place.
    pub(super) fn push(&mut self, from: u32, header: &Header, frame: Frame) -> Result<(), Error> {
        if header.seq != self.next_seq || header.total != self.total {
            let (seq, total, next, due) = (header.seq, header.total, self.next_seq, self.total);
            let message =
                format!("chunk {seq} of a message of {total} bytes where chunk {next} of {due} was due");
            return Err(Error::Corrupt { rank: from, message });
        }
        self.next_seq += 1;
        self.chunks.push_back(frame.payload);
        Ok(())
    }
}
