//! The sending half of a connection: a queue of frames in the order in which they are written.
//!
//! A frame's header is encoded, and its checksum computed, once, when it is posted. Control frames overtake data frames that have not
//! begun; otherwise frames are written in the order of their posts. One system call takes header and payload of up to [`BATCH`]
//! frames. The queue keeps its capacity, so a steady exchange allocates nothing.

use crate::wire::Wire;
use skyphos_core::frame::{Frame, FrameKind, HEADER_BYTES, Header};
use skyphos_core::loan::{DESCRIPTOR_BYTES, Lender};
use skyphos_core::slab::Payload;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};

/// Frames per system call: enough that each small frame costs little; the array of slices still fits 1 KB of stack.
const BATCH: usize = 32;

struct Queued {
    head: [u8; HEADER_BYTES],
    body: Body,
}

/// The bytes after a header.
enum Body {
    Payload(Payload),
    /// The descriptor of a payload on loan: the peer, on the same host, reads it in this rank's memory (`skyphos_core::loan`).
    Descriptor([u8; DESCRIPTOR_BYTES]),
}

impl Queued {
    fn body(&self) -> &[u8] {
        match &self.body {
            Body::Payload(payload) => payload.as_bytes(),
            Body::Descriptor(descriptor) => descriptor,
        }
    }

    fn bytes(&self) -> usize {
        HEADER_BYTES + self.body().len()
    }
}

/// The frames that wait to be written to one peer.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: VecDeque<Queued>,
    /// Payloads have no checksum.
    omits_checksums: bool,
    /// Lends payloads to a peer on the same host instead of writing them, where possible.
    lender: Option<Lender>,
    /// Bytes of the first frame that have been written.
    begun: usize,
    /// Control frames that have not begun. They follow the begun frame, if there is one.
    controls: usize,
    /// Bytes of the queue that the wire has not taken.
    queued_bytes: usize,
    /// Bytes that the wire has taken and its socket has not.
    in_wire: usize,
    /// The largest backlog since [`Outbox::relieved`] was last true.
    peak: usize,
}

impl Outbox {
    /// The outbox of a new connection. `omits_checksums`: payloads cross no network, so they have no checksum.
    pub(crate) fn new(omits_checksums: bool, lender: Option<Lender>) -> Outbox {
        Outbox { omits_checksums, lender, ..Outbox::default() }
    }

    /// Limits the bytes of payloads on loan to the peer.
    pub(crate) fn limit_loans(&mut self, bytes: usize) {
        if let Some(lender) = &mut self.lender {
            lender.limit(bytes);
        }
    }

    /// Releases the buffers that the peer has returned.
    pub(crate) fn collect(&mut self) {
        if let Some(lender) = self.lender.as_mut().filter(|lender| !lender.is_empty()) {
            lender.collect();
        }
    }

    /// Queues a frame: a control frame before data frames that have not begun.
    pub(crate) fn push(&mut self, frame: &Frame) {
        let place = match frame.header.kind {
            // No frame follows a goodbye.
            kind if kind.is_data() || kind == FrameKind::Bye => self.queue.len(),
            _ => {
                let place = usize::from(self.begun > 0) + self.controls;
                self.controls += 1;
                place
            }
        };
        let mut head = match self.omits_checksums {
            true => frame.header.encode_without_payload_checksum(frame.payload.len()),
            false => frame.header.encode(frame.payload.as_bytes()),
        };
        let body = match self.lender.as_mut().and_then(|lender| lender.lend(&frame.payload)) {
            Some(descriptor) => {
                Header::mark_lent(&mut head);
                Body::Descriptor(descriptor)
            }
            None => Body::Payload(frame.payload.clone()),
        };
        let queued = Queued { head, body };
        self.queued_bytes += queued.bytes();
        self.queue.insert(place, queued);
    }

    /// Bytes that the system has not taken yet.
    pub(crate) fn backlog(&self) -> usize {
        self.queued_bytes + self.in_wire
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.backlog() == 0
    }

    /// Drops all frames. Buffers on loan stay on loan, since the peer may still read them.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        (self.begun, self.controls, self.queued_bytes, self.in_wire, self.peak) = (0, 0, 0, 0, 0);
    }

    /// Drops the frames that have not begun. A begun frame must be completed, or the peer could not read the next one.
    pub(crate) fn drop_rest(&mut self) {
        let rest = self.queue.drain(usize::from(self.begun > 0)..);
        self.queued_bytes -= rest.map(|frame| frame.bytes()).sum::<usize>();
        (self.controls, self.peak) = (0, self.backlog());
    }

    /// Notes the backlog after a write.
    pub(crate) fn note_peak(&mut self) {
        self.peak = self.peak.max(self.backlog());
    }

    /// Whether the backlog has fallen to half or less of its peak. If so, the peak begins anew at this backlog.
    pub(crate) fn relieved(&mut self) -> bool {
        let relieved = self.peak > 0 && self.backlog() <= self.peak / 2;
        if relieved {
            self.peak = self.backlog();
        }
        relieved
    }

    /// Writes until no bytes wait, here or in the wire, or the socket is full.
    pub(crate) fn write(&mut self, wire: &mut Wire) -> io::Result<()> {
        let written = match wire.flush() {
            Ok(()) => self.write_queue(wire),
            Err(e) => Err(e),
        };
        self.in_wire = wire.unwritten();
        match written {
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
            written => written,
        }
    }

    fn write_queue(&mut self, wire: &mut Wire) -> io::Result<()> {
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); 2 * BATCH];
            let (mut count, mut bytes, mut skip) = (0, 0, self.begun);
            for frame in self.queue.iter().take(BATCH) {
                for part in [&frame.head[..], frame.body()] {
                    let from = skip.min(part.len());
                    skip -= from;
                    if from < part.len() {
                        slices[count] = IoSlice::new(&part[from..]);
                        count += 1;
                        bytes += part.len() - from;
                    }
                }
            }
            match wire.write(&slices[..count], bytes) {
                Ok((n, full)) => {
                    self.advance(n);
                    if full {
                        return Ok(());
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn advance(&mut self, mut n: usize) {
        self.queued_bytes -= n;
        while n > 0 {
            let Some(first) = self.queue.front() else { return };
            if self.begun == 0 {
                self.controls = self.controls.saturating_sub(1);
            }
            let left = first.bytes() - self.begun;
            if n < left {
                self.begun += n;
                return;
            }
            n -= left;
            self.begun = 0;
            self.queue.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skyphos_core::frame::{CallKind, CallSig};
    use skyphos_core::slab::Pool;
    use skyphos_types::{CallNumber, CommId};

    fn frame(kind: FrameKind, call: CallNumber, len: usize) -> Frame {
        let mut header = Header::control(kind, CommId(1), call);
        header.sig = CallSig::plain(CallKind::Barrier);
        Frame { header, payload: Pool::default().copy_of(&vec![call.0 as u8; len]) }
    }

    fn order(outbox: &Outbox) -> Vec<u64> {
        outbox.queue.iter().map(|q| u64::from_le_bytes(q.head[16..24].try_into().unwrap())).collect()
    }

    #[test]
    fn control_frames_pass_data_that_has_not_begun() {
        let mut outbox = Outbox::default();
        for call in 0..3 {
            outbox.push(&frame(FrameKind::Data, CallNumber(call), 100));
        }
        outbox.push(&frame(FrameKind::Credit, CallNumber(10), 0));
        assert_eq!(order(&outbox), [10, 0, 1, 2]);
        outbox.advance(64 + 10);
        assert_eq!((order(&outbox), outbox.begun, outbox.controls), (vec![0, 1, 2], 10, 0));
        outbox.push(&frame(FrameKind::Abort, CallNumber(11), 5));
        outbox.push(&frame(FrameKind::Probe, CallNumber(12), 0));
        outbox.push(&frame(FrameKind::Bye, CallNumber(13), 0));
        assert_eq!(order(&outbox), [0, 11, 12, 1, 2, 13]);
        outbox.advance(154 + 1);
        assert_eq!((order(&outbox), outbox.begun, outbox.controls), (vec![11, 12, 1, 2, 13], 1, 1));
        outbox.push(&frame(FrameKind::Credit, CallNumber(14), 0));
        assert_eq!(order(&outbox), [11, 12, 14, 1, 2, 13]);
        outbox.advance(68 + 64 + 64 + 164 + 164 + 64);
        assert_eq!((outbox.backlog(), outbox.is_empty(), outbox.controls), (0, true, 0));
    }

    #[test]
    fn relief_comes_at_half_and_at_zero() {
        let mut outbox = Outbox::default();
        for _ in 0..4 {
            outbox.push(&frame(FrameKind::Data, CallNumber(0), 36));
        }
        outbox.note_peak();
        outbox.advance(100);
        assert!(!outbox.relieved());
        outbox.advance(100);
        assert!(outbox.relieved() && !outbox.relieved());
        outbox.advance(99);
        assert!(!outbox.relieved());
        outbox.advance(101);
        assert!(outbox.relieved() && !outbox.relieved());
    }
}
