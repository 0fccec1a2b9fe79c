//! An exchange of messages: sends to several ranks and receives from several, all at once.

use crate::endpoint::Endpoint;
use crate::frame::WINDOW_BYTES;
use crate::message_stream::{Incoming, Outgoing};
use crate::slab::{Message, MessageMut, Payload};
use skyphos_types::{GroupRank, Result, Round};

/// Round of announcements, which are never received.
const ANNOUNCE_ROUND: Round = Round(u32::MAX);

impl Endpoint {
    /// Sends the call's signature to the next rank, in a frame without payload. For collectives in which some ranks exchange no
    /// messages: two neighbours in different calls detect that, and all ranks get the error.
    pub fn announce(&self) {
        let next = GroupRank((self.rank().0 + 1) % self.size());
        if next != self.rank() {
            Outgoing::new(next, ANNOUNCE_ROUND, 0).push_shared(self, Payload::default());
        }
    }

    /// Sends a message to each of several ranks and receives one from each of several, all at once.
    ///
    /// Returns the messages in the order of `sources`. Neither list may contain this rank. A message of one chunk is not copied on
    /// either side. Reductions over a plan do not use this.
    pub async fn exchange(
        &self,
        round: Round,
        messages: Vec<(GroupRank, MessageMut)>,
        sources: &[GroupRank],
    ) -> Result<Vec<Message>> {
        let mut large = Vec::new();
        for (to, message) in messages {
            match message {
                MessageMut::Chunk(slab) => Outgoing::new(to, round, slab.len() as u64).push(self, slab),
                MessageMut::Large(vec) => {
                    large.push((Outgoing::new(to, round, vec.len() as u64), Some(vec)));
                }
                MessageMut::Sized(len) => large.push((Outgoing::new(to, round, len as u64), None)),
            }
        }
        let mut receives: Vec<Incoming> = sources.iter().map(|from| Incoming::new(*from, round)).collect();
        let mut received: Vec<Option<Message>> = sources.iter().map(|_| None).collect();
        loop {
            let mut moved = false;
            for (send, bytes) in &mut large {
                while let Some(range) = send.next_range(self, 1) {
                    let mut chunk = self.chunk(range.len());
                    if let Some(bytes) = bytes {
                        chunk.as_bytes_mut().copy_from_slice(&bytes.as_bytes()[range]);
                    }
                    send.push(self, chunk);
                    moved = true;
                }
            }
            for (receive, message) in receives.iter_mut().zip(&mut received) {
                while let Some(chunk) = receive.next(self)? {
                    moved = true;
                    match message {
                        None if receive.done() => *message = Some(Message::Chunk(chunk)),
                        None => {
                            // At most a window is allocated for a size that the peer claims.
                            let capacity =
                                if self.is_sized() { 0 } else { receive.total().min(WINDOW_BYTES) };
                            let mut joined = self.node().pool().large(capacity as usize);
                            joined.resize(0);
                            joined.extend(chunk.as_bytes());
                            *message = Some(Message::Large(joined));
                        }
                        Some(Message::Large(joined)) => joined.extend(chunk.as_bytes()),
                        Some(Message::Chunk(_)) => unreachable!("a message that is done yields no more"),
                    }
                }
            }
            if large.iter().all(|(send, _)| send.done()) && receives.iter().all(Incoming::done) {
                return Ok(received.into_iter().flatten().collect());
            }
            if !moved {
                self.progress().await?;
            }
        }
    }
}
