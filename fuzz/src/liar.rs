//! A rank that follows the protocol, except that some of its frames are changed on their way.

use arbitrary::Arbitrary;
use skyphos_core::extensions::{NativeCollectives, Replication, UnderReplicas};
use skyphos_core::frame::{CallKind, Frame, FrameKind};
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_core::transport::{Event, Facts, Transport, Waker};
use skyphos_types::{CallNumber, Round, WorldRank};
use std::time::Duration;

/// A change to a frame.
#[derive(Arbitrary, Debug)]
pub enum Edit {
    /// Sets a byte of the payload: near its beginning, where heads are, or anywhere.
    Byte {
        near: bool,
        at: u16,
        value: u8,
    },
    /// Sets a number of 8 bytes in the payload.
    Number {
        at: u8,
        value: u64,
        shift: u8,
    },
    /// Shortens the payload and its message.
    Cut {
        at: u16,
    },
    /// Appends 8 bytes, or `all` 9, to the payload and its message.
    More {
        bytes: [u8; 9],
        all: bool,
    },
    /// Replaces the payload; the message's length follows.
    Instead {
        bytes: Vec<u8>,
    },
    /// Sets the total in the header; the next six each set another of its fields.
    Total {
        value: u64,
        shift: u8,
    },
    Seq(u32),
    Round(u32),
    Call(u8),
    Kind(u8),
    Width(u32),
    Failed,
    /// Drops the frame.
    Lost,
    /// Sends the frame twice.
    Twice,
    /// Sends another frame before it.
    Extra {
        kind: u8,
        round: u16,
        total: u64,
        bytes: Vec<u8>,
    },
}

/// The transport of such a rank.
pub struct Liar {
    inner: Box<dyn Transport>,
    /// Edits with the number of their frame, counted from 0.
    edits: Vec<(u8, Edit)>,
    posted: usize,
}

impl Liar {
    /// Wraps the transport of a rank.
    pub fn boxed(inner: Box<dyn Transport>, edits: Vec<(u8, Edit)>) -> Box<dyn Transport> {
        Box::new(Liar { inner, edits, posted: 0 })
    }

    /// Applies an edit. Returns how often the frame is to be sent.
    fn edit(&mut self, to: u32, frame: &mut Frame, edit: Edit) -> usize {
        let mut bytes = frame.payload.as_bytes().to_vec();
        let before = bytes.len() as u64;
        let header = &mut frame.header;
        let mut adjust_total =
            |bytes: &[u8]| header.total = header.total.wrapping_add(bytes.len() as u64).wrapping_sub(before);
        match edit {
            Edit::Byte { near, at, value } if !bytes.is_empty() => {
                let at = usize::from(at) % if near { bytes.len().min(48) } else { bytes.len() };
                bytes[at] = value;
            }
            Edit::Number { at, value, shift } if bytes.len() >= 8 => {
                let at = usize::from(at) * 8 % (bytes.len() - 7);
                bytes[at..at + 8].copy_from_slice(&(value >> (shift % 64)).to_le_bytes());
            }
            Edit::Byte { .. } | Edit::Number { .. } => {}
            Edit::Cut { at } => {
                bytes.truncate(usize::from(at) % (bytes.len() + 1));
                adjust_total(&bytes);
            }
            Edit::More { bytes: more, all } => {
                bytes.extend(&more[..if all { 9 } else { 8 }]);
                bytes.truncate(CHUNK_BYTES);
                adjust_total(&bytes);
            }
            Edit::Instead { bytes: other } => {
                bytes = other;
                adjust_total(&bytes);
            }
            Edit::Total { value, shift } => header.total = value >> (shift % 64),
            Edit::Seq(seq) => header.seq = seq,
            Edit::Round(round) => header.round = Round(round),
            Edit::Call(call) => header.call = CallNumber(u64::from(call)),
            Edit::Width(width) => header.sig.width = width,
            Edit::Failed => header.sig.kind = CallKind::Failed,
            Edit::Kind(kind) => header.kind = KINDS[usize::from(kind) % KINDS.len()],
            Edit::Lost => return 0,
            Edit::Twice => return 2,
            Edit::Extra { kind, round, total, bytes } => {
                let mut other = frame.header;
                (other.kind, other.total) = (KINDS[usize::from(kind) % KINDS.len()], total);
                other.round = Round(other.round.0.wrapping_add(u32::from(round)));
                self.inner.post(
                    WorldRank(to),
                    Frame { header: other, payload: self.inner.facts().pool.copy_of(&bytes) },
                );
                return 1;
            }
        }
        frame.payload = self.inner.facts().pool.copy_of(&bytes);
        1
    }
}

const KINDS: [FrameKind; 8] = [
    FrameKind::Data,
    FrameKind::Credit,
    FrameKind::Abort,
    FrameKind::Probe,
    FrameKind::Present,
    FrameKind::Acknowledge,
    FrameKind::Forward,
    FrameKind::Forwarded,
];

impl NativeCollectives for Liar {}

impl Replication for Liar {}

impl UnderReplicas for Liar {}

impl Transport for Liar {
    fn rank(&self) -> WorldRank {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn facts(&self) -> Facts {
        let known = self.inner.facts();
        Facts {
            topology: known.topology,
            clock: known.clock,
            pool: known.pool,
            ..Facts::new("liar", known.addresses, known.ranks_on_host)
        }
    }

    fn post(&mut self, to: WorldRank, mut frame: Frame) {
        let (number, mut times) = (self.posted as u8, 1);
        self.posted += 1;
        while let Some(place) = self.edits.iter().position(|(at, _)| *at == number) {
            let (_, edit) = self.edits.swap_remove(place);
            times = times.min(1) * self.edit(to.0, &mut frame, edit);
        }
        (0..times).for_each(|_| self.inner.post(to, frame.clone()));
    }

    fn backlog(&self, to: WorldRank) -> usize {
        self.inner.backlog(to)
    }

    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>) {
        self.inner.poll(wait, events);
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn close(&mut self, wait: Duration) -> skyphos_types::Result<()> {
        self.inner.close(wait)
    }
}
