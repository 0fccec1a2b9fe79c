//! The queue of chunks to one process.

use crate::frame::Header;
use crate::replicated::chunk::{Body, Chunk};
use skyphos_types::ProcessId;
use std::collections::VecDeque;
use std::time::Duration;

/// A chunk that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Queued<B> {
    /// A chunk of this rank. `to_forward`: the receiver forwards the chunk to its siblings.
    Own { chunk: Chunk, bytes: usize, to_forward: bool },
    /// A chunk of another rank, which this process forwards to a sibling.
    Forwarded(Header, B),
}

impl<B: Body> Queued<B> {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Queued::Own { bytes, .. } => *bytes,
            Queued::Forwarded(_, body) => body.bytes(),
        }
    }
}

/// A chunk that another process should send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fallback {
    pub(super) chunk: Chunk,
    /// The receiver's sibling that got it from here and forwards it.
    pub(super) via: Option<ProcessId>,
}

/// The chunks to one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queue<B> {
    pub(super) queued: VecDeque<Queued<B>>,
    pub(super) fallback: VecDeque<Fallback>,
    /// Bytes in `queued`.
    pub(super) bytes: usize,
    /// When bytes of this process were last seen on their way there.
    pub(super) busy: Duration,
}

impl<B> Default for Queue<B> {
    fn default() -> Queue<B> {
        Queue { queued: VecDeque::new(), fallback: VecDeque::new(), bytes: 0, busy: Duration::ZERO }
    }
}

impl<B: Body> Queue<B> {
    pub(super) fn push(&mut self, queued: Queued<B>) {
        self.bytes += queued.bytes();
        self.queued.push_back(queued);
    }
}
