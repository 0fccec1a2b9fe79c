//! The choice of the next chunk to a process: its own, or one in a sibling's place.

use super::queue::{Fallback, Queued};
use super::state::Outflow;
use crate::frame::{FrameKind, Header};
use crate::replicated::chunk::{Body, Chunk};
use skyphos_types::ProcessId;

/// Bytes by which the limit of bytes on their way grows with each chunk sent in place of a late sibling.
pub(super) const MORE_BYTES: usize = 256 * 1024;

impl<B: Body> Outflow<B> {
    /// Whether there may be a frame for a process.
    pub fn has_any(&self, to: ProcessId) -> bool {
        let queue = &self.queues[to.index()];
        !queue.queued.is_empty() || !queue.fallback.is_empty() && self.has_missing_sender()
    }

    /// The next frame for a process, if there is one. The process's connection is then responsible for the frame.
    /// `in_flight`: bytes that are on their way there.
    ///
    /// A chunk in a sibling's place goes after the queued chunks of its own exchange and of earlier ones, and before those of later
    /// exchanges, which may depend on it.
    pub fn take(&mut self, to: ProcessId, in_flight: impl FnOnce() -> usize) -> Option<(Header, B)> {
        let bit = self.bit(to);
        let next = self.queues[to.index()].queued.iter().find_map(|queued| match queued {
            Queued::Own { chunk, .. } => self
                .pending
                .get(chunk)
                .filter(|pending| pending.missing & bit != 0)
                .map(|pending| pending.exchange),
            Queued::Forwarded(..) => Some(0),
        });
        let instead = self.fallback_to_send(to, next.unwrap_or(u64::MAX), in_flight);
        while instead.is_none()
            && let Some(queued) = self.queues[to.index()].queued.pop_front()
        {
            self.queues[to.index()].bytes -= queued.bytes();
            match queued {
                Queued::Forwarded(header, body) => return Some((header, body)),
                Queued::Own { chunk, to_forward, .. } => {
                    let kind = if to_forward { FrameKind::Forward } else { FrameKind::Data };
                    if let Some((header, body)) = self.hand_over(&chunk, bit) {
                        return Some((Header { kind, ..header }, body));
                    }
                }
            }
        }
        let fallback = self.queues[to.index()].fallback.remove(instead?).expect("seen");
        self.sent_instead += 1;
        self.hand_over(&fallback.chunk, bit)
    }

    /// Index of the next fallback chunk that this process sends in its owner's place, if its exchange is before `before`. While an
    /// owner is merely late, its chunks go one by one at first, so that few are sent twice.
    fn fallback_to_send(
        &mut self,
        to: ProcessId,
        before: u64,
        in_flight: impl FnOnce() -> usize,
    ) -> Option<usize> {
        if !self.has_missing_sender() {
            return None;
        }
        self.first_fallback(to)?;
        let (bit, fallback) = (self.bit(to), &self.queues[to.index()].fallback);
        let exchange = |fallback: &Fallback| {
            self.pending
                .get(&fallback.chunk)
                .filter(|pending| pending.missing & bit != 0)
                .map(|pending| pending.exchange)
        };
        let is_mine = |fallback: &Fallback| {
            fallback.via.is_none() && self.owner(&fallback.chunk, to) == self.numbering.me()
        };
        // Fallback chunks are in the order of their exchanges; some have arrived meanwhile.
        let earlier = fallback
            .iter()
            .enumerate()
            .filter_map(|(index, fallback)| Some((index, fallback, exchange(fallback)?)));
        let mut mine = earlier
            .take_while(|(.., exchange)| *exchange < before)
            .filter(|(_, fallback, _)| is_mine(fallback));
        let (first, _, first_exchange) = mine.next()?;
        // A late owner sends from the front, so this process begins at the back.
        let index = match self.late.is_empty() {
            true => first,
            false => {
                let others = mine.take_while(|(.., exchange)| *exchange == first_exchange);
                others.last().map_or(first, |(index, ..)| index)
            }
        };
        (self.late.is_empty() || in_flight() <= self.sent_instead * MORE_BYTES).then_some(index)
    }

    /// Takes a chunk that a receiver misses, and counts it as sent.
    fn hand_over(&mut self, chunk: &Chunk, bit: u32) -> Option<(Header, B)> {
        let pending = self.pending.get_mut(chunk).filter(|pending| pending.missing & bit != 0)?;
        pending.missing &= !bit;
        let frame = (pending.header, pending.body.clone());
        if pending.missing == 0 {
            self.pending.remove(chunk);
        }
        Some(frame)
    }
}
