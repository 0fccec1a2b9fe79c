//! The stream of a message: its chunks that have arrived.

use crate::frame::{Frame, Header, WINDOW_BYTES};
use crate::slab::{CHUNK_BYTES, Payload};
use skyphos_types::{Error, WorldRank};
use std::collections::VecDeque;

/// Capacity of a large message's stream: its sender's window in chunks. It grows at most once, if a transport has smaller chunks.
pub(super) const LARGE_STREAM_CHUNKS: usize = WINDOW_BYTES as usize / CHUNK_BYTES + 1;
/// Capacity of any other stream, whose chunk may arrive as several segments.
pub(super) const SMALL_STREAM_CHUNKS: usize = 4;

/// An incoming message: its chunks that have arrived and were not read, in order.
pub(super) struct Stream {
    pub(super) next_seq: u32,
    pub(super) chunks: VecDeque<Payload>,
    pub(super) total: u64,
}

impl Stream {
    /// A stream of `total` bytes, in recycled storage. `u64::MAX` stands for an unknown length: the message's own bytes mark its end.
    pub(super) fn new(total: u64, mut chunks: VecDeque<Payload>) -> Stream {
        let is_large = total > CHUNK_BYTES as u64 && total < u64::MAX;
        chunks.reserve(if is_large { LARGE_STREAM_CHUNKS } else { SMALL_STREAM_CHUNKS });
        Stream { next_seq: 0, total, chunks }
    }

    /// Appends the next chunk. `Err`: a chunk is missing or belongs to another message.
    pub(super) fn push(&mut self, from: WorldRank, header: &Header, frame: Frame) -> Result<(), Error> {
        if header.seq != self.next_seq || header.total != self.total {
            let (seq, total, next, due) = (header.seq, header.total, self.next_seq, self.total);
            let message =
                format!("chunk {seq} of a message of {total} bytes where chunk {next} of {due} was due");
            return Err(Error::Corrupt { rank: from.0, message });
        }
        self.next_seq += 1;
        self.chunks.push_back(frame.payload);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameKind;
    use crate::slab::Pool;
    use skyphos_types::{CallNumber, CommId};

    fn chunk(seq: u32, total: u64) -> (Header, Frame) {
        let header = Header { seq, total, ..Header::control(FrameKind::Data, CommId(7), CallNumber(0)) };
        (header, Frame { header, payload: Pool::default().copy_of(&[seq as u8]) })
    }

    #[test]
    fn chunks_are_accepted_in_order_only() {
        // Chunks as (number, total), and the index of the refused one.
        let table = [
            (&[(0, 3), (1, 3), (2, 3)][..], None),
            (&[(1, 3)], Some(0)),
            (&[(0, 3), (0, 3)], Some(1)),
            (&[(0, 3), (2, 3)], Some(1)),
            (&[(0, 3), (1, 4)], Some(1)),
        ];
        for (chunks, refused) in table {
            let mut stream = Stream::new(3, VecDeque::new());
            for (k, (seq, total)) in chunks.iter().enumerate() {
                let (header, frame) = chunk(*seq, *total);
                match stream.push(WorldRank(5), &header, frame) {
                    Ok(()) => assert_ne!(refused, Some(k), "{chunks:?}"),
                    Err(error) => {
                        assert_eq!(refused, Some(k), "{chunks:?}");
                        assert!(matches!(error, Error::Corrupt { rank: 5, .. }));
                    }
                }
            }
            let accepted = refused.unwrap_or(chunks.len());
            assert_eq!((stream.chunks.len(), stream.next_seq), (accepted, accepted as u32));
        }
    }

    #[test]
    fn the_capacity_is_that_of_the_senders_window() {
        let chunk = CHUNK_BYTES as u64;
        for (total, least) in [
            (0, SMALL_STREAM_CHUNKS),
            (chunk, SMALL_STREAM_CHUNKS),
            (chunk + 1, LARGE_STREAM_CHUNKS),
            (u64::MAX, SMALL_STREAM_CHUNKS),
        ] {
            assert!(Stream::new(total, VecDeque::new()).chunks.capacity() >= least, "{total}");
        }
    }
}
