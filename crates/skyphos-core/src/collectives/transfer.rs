//! The messages of one layer of a reduction: chunks sent, chunks received, and the progress of each.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::plan::{Buffers, Layer, Map, WaitingChunk};
use skyphos_types::{Error, Result, Round};

impl Buffers {
    /// Begins the messages of one layer; member j is sent `bytes(j)` bytes.
    pub(crate) fn start(&mut self, layer: &Layer, round: Round, bytes: impl Fn(usize) -> usize) {
        let size = layer.members.len();
        self.sends.clear();
        self.receives.clear();
        // Each rank sends to its successor first, so that the senders do not all start with the same rank.
        for step in 1..size {
            let j = (layer.me + step) % size;
            self.sends.push(Outgoing::new(layer.members[j], round, bytes(j) as u64));
        }
        for (j, member) in layer.members.iter().enumerate() {
            if j != layer.me {
                self.receives.push(Incoming::new(*member, round));
            }
        }
        self.waiting.resize_with(size.max(self.waiting.len()), Default::default);
        self.waiting.iter_mut().for_each(|chunks| chunks.clear());
        self.received.clear();
        self.received.resize(size, 0);
    }

    /// Sends one chunk, of whole rows, to every member that can take one. `fill(j, offset, chunk)` writes the bytes of member
    /// j's message from `offset`. Returns whether any chunk was sent.
    pub(crate) fn send_chunks(
        &mut self,
        ep: &Endpoint,
        layer: &Layer,
        row_bytes: usize,
        mut fill: impl FnMut(usize, usize, &mut [u8]),
    ) -> bool {
        let (size, mut moved) = (layer.members.len(), false);
        for (k, send) in self.sends.iter_mut().enumerate() {
            if let Some(range) = send.next_range(ep, row_bytes) {
                let mut chunk = ep.chunk(range.len());
                let effort = Effort::Gather { rows: range.len() / row_bytes, row_bytes };
                ep.compute(effort, || {
                    fill((layer.me + k + 1) % size, range.start, chunk.as_bytes_mut());
                });
                send.push(ep, chunk);
                moved = true;
            }
        }
        moved
    }

    /// Takes every chunk that has arrived. Member j must send `rows(j)` rows in all. Returns whether there was any chunk.
    pub(crate) fn take_chunks(
        &mut self,
        ep: &Endpoint,
        layer: &Layer,
        row_bytes: usize,
        rows: impl Fn(usize) -> usize,
    ) -> Result<bool> {
        let mut moved = false;
        for (k, receive) in self.receives.iter_mut().enumerate() {
            let j = if k < layer.me { k } else { k + 1 };
            while let Some(chunk) = receive.next(ep)? {
                let (start, count) = (self.received[j], chunk.len() / row_bytes);
                if chunk.len() % row_bytes != 0
                    || start + count > rows(j)
                    || (receive.done() && start + count < rows(j))
                {
                    return Err(Error::Corrupt {
                        rank: ep.world_rank(layer.members[j]).0,
                        message: format!(
                            "{} bytes after {start} of {} rows of {row_bytes} bytes",
                            chunk.len(),
                            rows(j)
                        ),
                    });
                }
                self.received[j] = start + count;
                if count > 0 {
                    self.waiting[j].push_back(WaitingChunk { chunk, start, rows: count });
                }
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Drops the chunks that lie wholly in the first `blocks` fold blocks of a layer, which have been folded.
    pub(crate) fn release(&mut self, k: usize, layer: &Layer, blocks: usize) {
        for (j, chunks) in self.waiting.iter_mut().enumerate().take(layer.members.len()) {
            let folded = self.cuts[k].rows_of(j, blocks - 1).end;
            while chunks.front().is_some_and(|chunk| chunk.start + chunk.rows <= folded) {
                chunks.pop_front();
            }
        }
    }

    /// Whether every member's whole share has arrived.
    pub(crate) fn all_received(&self, layer: &Layer) -> bool {
        layer.out_maps.iter().zip(&self.received).all(|(map, received)| *received == map.len())
    }

    /// The number of first rows of the sum for which the values of every member have arrived.
    pub(crate) fn ready_rows(&self, layer: &Layer, all: usize) -> usize {
        let ready = |(map, received): (&Map, &usize)| map.position(*received).unwrap_or(all);
        layer.out_maps.iter().zip(&self.received).map(ready).min().unwrap_or(all)
    }
}
