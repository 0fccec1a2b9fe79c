//! The messages of one layer of a reduction: chunks out and chunks in, and how far they have come.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::plan::{Held, Layer, Map, Memory};
use skyphos_types::{Error, Result};

impl Memory {
    /// Readies the messages of one layer; `bytes(j)` is what goes to member j.
    pub(crate) fn start(&mut self, layer: &Layer, round: u32, bytes: impl Fn(usize) -> usize) {
        let size = layer.members.len();
        self.sends.clear();
        self.receives.clear();
        // Each rank starts with its successor, so that no one is sent to by all at once.
        for step in 1..size {
            let j = (layer.me + step) % size;
            self.sends.push(Outgoing::new(layer.members[j], round, bytes(j) as u64));
        }
        for (j, member) in layer.members.iter().enumerate() {
            if j != layer.me {
                self.receives.push(Incoming::new(*member, round));
            }
        }
        self.held.resize_with(size.max(self.held.len()), Default::default);
        self.held.iter_mut().for_each(|h| h.clear());
        self.have.clear();
        self.have.resize(size, 0);
    }

    /// Sends one chunk, of whole rows, to every member that can take one; `fill(j, first byte, chunk)`.
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

    /// Takes every chunk that has come; `rows(j)` is what member j must send in all.
    pub(crate) fn take_chunks(
        &mut self,
        ep: &Endpoint,
        layer: &Layer,
        row: usize,
        rows: impl Fn(usize) -> usize,
    ) -> Result<bool> {
        let mut moved = false;
        for (k, receive) in self.receives.iter_mut().enumerate() {
            let j = if k < layer.me { k } else { k + 1 };
            while let Some(chunk) = receive.next(ep)? {
                let (start, count) = (self.have[j], chunk.len() / row);
                if chunk.len() % row != 0
                    || start + count > rows(j)
                    || (receive.done() && start + count < rows(j))
                {
                    return Err(Error::Corrupt {
                        rank: ep.world_rank(layer.members[j]),
                        message: format!(
                            "{} bytes of rows of {row} after {start} rows, where {} rows are due in all",
                            chunk.len(),
                            rows(j)
                        ),
                    });
                }
                self.have[j] = start + count;
                if count > 0 {
                    self.held[j].push_back(Held { chunk, start, rows: count });
                }
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Lets go of chunks that lie wholly in the first `blocks` fold blocks of a layer, which are folded.
    pub(crate) fn release(&mut self, k: usize, layer: &Layer, blocks: usize) {
        for (j, held) in self.held.iter_mut().enumerate().take(layer.members.len()) {
            let done = self.cuts[k].of(j, blocks - 1).end;
            while held.front().is_some_and(|h| h.start + h.rows <= done) {
                held.pop_front();
            }
        }
    }

    /// Whether every member's whole share is here.
    pub(crate) fn all_here(&self, layer: &Layer) -> bool {
        layer.out_maps.iter().zip(&self.have).all(|(map, have)| *have == map.len())
    }

    /// The number of first rows of the sum for which every source's values are here.
    pub(crate) fn ready_rows(&self, layer: &Layer, all: usize) -> usize {
        let ready = |(map, have): (&Map, &usize)| map.place(*have).unwrap_or(all);
        layer.out_maps.iter().zip(&self.have).map(ready).min().unwrap_or(all)
    }
}
