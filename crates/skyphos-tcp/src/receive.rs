//! The receiving half of a connection: bytes in, checked frames out.
//!
//! ```text
//! loop:
//!   read [missing bytes of the payload in progress, read-ahead]    one system call
//!   a complete payload is checked and becomes a frame
//!   bytes in the read-ahead: a header (checked before memory is taken), the start of its payload
//! ```
//!
//! A large payload goes directly from the kernel into its pooled buffer; many small frames cost one call. The read-ahead is shared by all
//! connections, since it is empty between calls. It is long ([`LONG_READ_AHEAD`]) while frames are small, and short
//! ([`SHORT_READ_AHEAD`]) while they are large, because bytes of a large payload that land in it are copied once more.

use crate::sockets::{failure_cause, loss_of};
use crate::wire::Wire;
use skyphos_core::frame::{Frame, FrameKind, HEADER_BYTES, Header};
use skyphos_core::loan::{Borrower, DESCRIPTOR_BYTES};
use skyphos_core::slab::{Payload, PayloadMut, Pool};
use skyphos_core::transport::{Event, Loss, reason_in};
use skyphos_types::WorldRank;
use std::io::{self, ErrorKind, IoSliceMut, Read};

/// Read-ahead while frames are small: 64 KB hold 15 frames of 4 KB or 1,000 headers.
pub(crate) const LONG_READ_AHEAD: usize = 64 * 1024;

/// Read-ahead while frames are large: the next header, and a 32nd of its payload.
const SHORT_READ_AHEAD: usize = 4 * 1024;

/// Payloads up to this size are small.
const SMALL_BYTES: usize = 16 * 1024;

/// Frames with a larger payload come in bulk. Smaller ones are usually answered at once, and the answer acknowledges them.
const BULK_BYTES: usize = 1024;

/// Bytes read from one peer before the others get their turn.
const TURN_BYTES: usize = 1 << 20;

/// The cause of the loss of a peer that has given up this rank.
const GIVEN_UP: &str = "it has given this rank up, because it received nothing, or nothing valid, from it";

/// The reason why reading stopped.
#[derive(Debug, PartialEq)]
pub(crate) enum Stop {
    /// Nothing more to read for now.
    Drained,
    /// The turn is over; there may be more.
    More,
    /// The peer has said goodbye. The text is the reason if its program failed, else empty.
    Bye(String),
    /// The connection is broken: the kind of the loss, and its cause.
    Broken(Loss, String),
}

struct Body {
    header: Header,
    /// `None` for an empty payload.
    slab: Option<PayloadMut>,
    filled: usize,
    len: usize,
    /// Bytes of the payload, if the peer lends it (`skyphos_core::loan`): it sends only a descriptor, and this rank reads the payload
    /// in the peer's memory.
    lent: Option<usize>,
}

impl Body {
    /// The bytes that are still missing.
    fn rest(&mut self) -> &mut [u8] {
        self.slab.as_mut().map_or(&mut [], |slab| &mut slab.as_bytes_mut()[self.filled..])
    }
}

/// The partly received next frame of one peer.
pub(crate) struct Inbox {
    head: [u8; HEADER_BYTES],
    head_filled: usize,
    body: Option<Body>,
    read_ahead: usize,
    /// Bytes of the last frame's payload.
    last_len: usize,
    /// Payloads have no checksum.
    omits_checksums: bool,
    /// Opens the payloads that the peer lends; `None` if it cannot lend any.
    borrower: Option<Borrower>,
}

impl Default for Inbox {
    fn default() -> Inbox {
        let (head, head_filled, body, read_ahead, last_len) =
            ([0; HEADER_BYTES], 0, None, LONG_READ_AHEAD, 0);
        Inbox { head, head_filled, body, read_ahead, last_len, omits_checksums: false, borrower: None }
    }
}

/// The peer's rank, and the state that reads of all connections share.
pub(crate) struct ReadContext<'a> {
    pub(crate) from: u32,
    pub(crate) pool: &'a Pool,
    /// [`LONG_READ_AHEAD`] bytes.
    pub(crate) buffer: &'a mut [u8],
    pub(crate) events: &'a mut Vec<Event>,
}

impl Inbox {
    /// Reads until the source is drained or the turn is over. `ending`: the peer has closed its side, or the socket has an error, so
    /// only the end of the stream ends reading.
    pub(crate) fn read(&mut self, source: &mut Wire, ending: bool, context: &mut ReadContext) -> Stop {
        let mut budget = TURN_BYTES;
        loop {
            let (got, asked, in_body) = match self.read_once(source, context.buffer) {
                Ok((0, ..)) => return Stop::Broken(Loss::Ended, self.ended()),
                Ok(read) => read,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Stop::Drained,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Stop::Broken(loss_of(&e), failure_cause(&e)),
            };
            if let Err(stop) = self.process(in_body, got - in_body, context) {
                return stop;
            }
            if !ending && source.is_drained(got < asked) {
                return Stop::Drained;
            }
            budget = budget.saturating_sub(got);
            if budget == 0 {
                return Stop::More;
            }
        }
    }

    /// The inbox of a new connection. `omits_checksums`: payloads cross no network, so they have no checksum.
    pub(crate) fn new(omits_checksums: bool, borrower: Option<Borrower>) -> Inbox {
        Inbox { omits_checksums, borrower, ..Inbox::default() }
    }

    /// Whether the last frame was large, so more bytes will probably follow.
    pub(crate) fn in_bulk(&self) -> bool {
        self.last_len > BULK_BYTES
    }

    /// Reads once. Returns the bytes read, the bytes asked for, and the bytes read into the payload in progress.
    fn read_once(&mut self, source: &mut impl Read, buffer: &mut [u8]) -> io::Result<(usize, usize, usize)> {
        let buffer = &mut buffer[..self.read_ahead];
        match &mut self.body {
            None => {
                let asked = buffer.len();
                Ok((source.read(buffer)?, asked, 0))
            }
            Some(body) => {
                let missing = body.len - body.filled;
                let asked = missing + buffer.len();
                let rest = body.rest();
                let got = source.read_vectored(&mut [IoSliceMut::new(rest), IoSliceMut::new(buffer)])?;
                Ok((got, asked, got.min(missing)))
            }
        }
    }

    /// Processes bytes that were read: those of the payload in progress, then those in the read-ahead.
    fn process(&mut self, in_body: usize, in_buffer: usize, context: &mut ReadContext) -> Result<(), Stop> {
        if let Some(body) = &mut self.body {
            body.filled += in_body;
        }
        self.finish(context)?;
        let mut at = 0;
        while at < in_buffer {
            let bytes = &context.buffer[at..in_buffer];
            let taken = match &mut self.body {
                None => {
                    let taken = bytes.len().min(HEADER_BYTES - self.head_filled);
                    self.head[self.head_filled..][..taken].copy_from_slice(&bytes[..taken]);
                    self.head_filled += taken;
                    if self.head_filled == HEADER_BYTES {
                        self.begin(context.pool)?;
                    }
                    taken
                }
                Some(body) => {
                    let taken = bytes.len().min(body.len - body.filled);
                    body.rest()[..taken].copy_from_slice(&bytes[..taken]);
                    body.filled += taken;
                    taken
                }
            };
            at += taken;
            self.finish(context)?;
        }
        Ok(())
    }

    /// Decodes a complete header, then takes memory for its payload.
    fn begin(&mut self, pool: &Pool) -> Result<(), Stop> {
        let lent = self.borrower.is_some() && Header::unmark_lent(&mut self.head);
        let (header, len, _) = Header::decode(&self.head).map_err(|e| damaged(&e))?;
        let (lent, len) = if lent { (Some(len), DESCRIPTOR_BYTES) } else { (None, len) };
        (self.read_ahead, self.last_len) =
            (if len <= SMALL_BYTES { LONG_READ_AHEAD } else { SHORT_READ_AHEAD }, len);
        self.body = Some(Body { header, slab: (len > 0).then(|| pool.take(len)), filled: 0, len, lent });
        Ok(())
    }

    /// If the payload is complete, checks it and reports the frame.
    fn finish(&mut self, context: &mut ReadContext) -> Result<(), Stop> {
        let Some(Body { header, slab, lent, .. }) = self.body.take_if(|b| b.filled == b.len) else {
            return Ok(());
        };
        self.head_filled = 0;
        let mut payload = slab.map_or(Payload::default(), PayloadMut::freeze);
        if let (Some(len), Some(borrower)) = (lent, &self.borrower) {
            let descriptor = payload.as_bytes().try_into().expect("as long as a descriptor");
            payload =
                borrower.take(descriptor, len).ok_or_else(|| damaged("a payload outside of its memory"))?;
        }
        let checked = if self.omits_checksums { &[] } else { payload.as_bytes() };
        if !Header::check(&self.head, checked) {
            return Err(damaged("the checksum of a frame is wrong"));
        }
        match header.kind {
            FrameKind::Bye => return Err(Stop::Bye(reason_in(&payload))),
            FrameKind::GivenUp => return Err(Stop::Broken(Loss::Silent, GIVEN_UP.to_owned())),
            _ => {}
        }
        context.events.push(Event::Frame { from: WorldRank(context.from), frame: Frame { header, payload } });
        Ok(())
    }

    fn ended(&self) -> String {
        match self.head_filled {
            0 => "connection closed without a goodbye: its process ended".to_owned(),
            _ => "connection closed in the middle of a frame: its process ended".to_owned(),
        }
    }
}

fn damaged(what: &str) -> Stop {
    Stop::Broken(Loss::Silent, format!("it sent damaged data: {what}"))
}

/// Discards input of a closing rank. An error means that the connection is broken.
pub(crate) fn discard(mut stream: impl Read, buffer: &mut [u8]) -> io::Result<()> {
    loop {
        match stream.read(buffer) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e),
        }
    }
}
