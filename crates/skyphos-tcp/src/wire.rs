//! A wire: the bytes of one connection, over a socket, TLS or shared memory, without blocking.
//!
//! A plain wire is only its socket. An encrypted one buffers bytes in both directions:
//!
//! - Decrypted bytes that were not read yet, although the socket is drained. No event reports them, so a reader continues until
//!   [`Wire::drained`] or `WouldBlock`.
//! - Encrypted bytes that the socket had no room for. [`Wire::unwritten`] counts them; once the socket is writable, [`Wire::flush`]
//!   writes them.
//!
//! Within a host bytes may go through shared memory ([`crate::ring`]). Then the socket carries only wake-up bytes and the end.
//!
//! Latency over TLS is 1.11 times that of a plain connection, the rate of large frames 0.4 times (`docs/threat-model.md`).
//!
//! rustls reads 4 KB at a time; a buffer before it saves three of four system calls. Its close_notify is not used, because a goodbye
//! frame has that purpose: a connection that ends without one was cut.

use crate::handshake::{Nonce, PROOF_BYTES};
use crate::message::is_greeting;
use crate::ring::Rings;
use crate::sockets;
use crate::tls::Tls;
use mio::net::TcpStream;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustls::{AlertDescription, Connection};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream as StdStream;

/// Encrypted bytes that may wait for the socket: one system call takes them in 16 records.
const MAX_UNWRITTEN: usize = 256 * 1024;

/// The same for connections that should queue little: a record, which cannot be taken back, and the next one.
const MIN_UNWRITTEN: usize = 32 * 1024;

/// Bytes read from the socket at once.
const AHEAD: usize = 64 * 1024;

/// The first bytes of a TLS connection: a record of kind handshake (22), version 3.x. As the length of a message they exceed every
/// limit.
pub(crate) const TLS_OPENING: [u8; 2] = [22, 3];

/// A connection.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    tunnel: Option<Box<Tunnel>>,
    rings: Option<Box<Rings>>,
}

/// A wire that is registered with no event loop.
pub(crate) struct Idle {
    pub(crate) stream: StdStream,
    tunnel: Option<Box<Tunnel>>,
    rings: Option<Box<Rings>>,
}

struct Tunnel {
    tls: Connection,
    incoming: bool,
    /// Bytes read from the socket that rustls has not taken: `ahead[from..to]`.
    ahead: Box<[u8]>,
    from: usize,
    to: usize,
    /// The last read has drained the socket.
    short: bool,
    /// Decrypted bytes that were not read yet.
    clear: usize,
    /// A lower bound on the encrypted bytes that wait for the socket; at least 1 while some do.
    unwritten: usize,
    /// No valid record has arrived yet.
    unheard: bool,
}

/// A failure of TLS: its text, and whether the two sides' settings can never match.
#[derive(Debug)]
pub(crate) struct TlsFailure {
    text: String,
    pub(crate) denied: bool,
}

impl std::fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TLS: {}", self.text)
    }
}

impl std::error::Error for TlsFailure {}

impl Wire {
    /// A wire over a connection that was accepted (`incoming`) or made.
    pub(crate) fn new(stream: TcpStream, tls: Option<&Tls>, incoming: bool) -> io::Result<Wire> {
        let tunnel = match tls {
            None => None,
            Some(tls) => Some(Box::new(Tunnel::new(tls, incoming)?)),
        };
        Ok(Wire { stream, tunnel, rings: None })
    }

    /// Prepares the wire for another event loop. It must not be registered with this one any more.
    pub(crate) fn idle(self) -> Idle {
        Idle { stream: self.stream.into(), tunnel: self.tunnel, rings: self.rings }
    }

    /// Like [`Wire::idle`], with shared memory for all bytes from now on. They need no encryption.
    pub(crate) fn through(self, rings: Rings) -> Idle {
        Idle { stream: self.stream.into(), tunnel: None, rings: Some(Box::new(rings)) }
    }

    /// Whether bytes go through shared memory.
    pub(crate) fn is_shared(&self) -> bool {
        self.rings.is_some()
    }

    /// The rings in shared memory, if there are any.
    pub(crate) fn rings(&mut self) -> Option<&mut Rings> {
        self.rings.as_deref_mut()
    }

    /// Wakes the other side.
    fn ring_bell(&self) -> io::Result<()> {
        match send(&self.stream, &[IoSlice::new(&[0])]) {
            // The socket's buffer is full of wake-up bytes that the other side has not read.
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
            rung => rung.map(drop),
        }
    }

    fn write_shared(&mut self, slices: &[IoSlice<'_>], bytes: usize) -> Option<io::Result<(usize, bool)>> {
        let rings = self.rings.as_mut()?;
        let written = loop {
            match rings.write(slices) {
                Ok(0) if bytes > 0 => match rings.is_blocked() {
                    Ok(true) => break 0,
                    Ok(false) => {}
                    Err(e) => return Some(Err(e)),
                },
                Ok(written) => break written,
                Err(e) => return Some(Err(e)),
            }
        };
        if written > 0
            && rings.must_wake_reader()
            && let Err(e) = self.ring_bell()
        {
            return Some(Err(e));
        }
        // Only a writer that could write no byte is woken once there is room.
        Some(Ok((written, written == 0)))
    }

    fn read_shared(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Option<io::Result<usize>> {
        let mut bells = [0; 256];
        let mut over = None;
        loop {
            let rings = self.rings.as_mut()?;
            let got = match rings.read(buffers) {
                Ok(0) => match over.take() {
                    // All bytes that were written before the socket closed have been read.
                    Some(end) => return Some(end),
                    None => 0,
                },
                Ok(got) => got,
                Err(e) => return Some(Err(e)),
            };
            if got > 0 {
                if rings.must_wake_writer() {
                    // It fails if the other side is gone, which the next read of the socket reports.
                    let _ = self.ring_bell();
                }
                return Some(Ok(got));
            }
            match (&self.stream).read(&mut bells) {
                Ok(n) if n > 0 => {}
                end => over = Some(end),
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tunnel.as_ref().is_some_and(|tunnel| tunnel.tls.is_handshaking())
    }

    /// Limits the unsent bytes in the kernel to `bytes`, and the encrypted bytes that wait here to about as many.
    pub(crate) fn hold_back(&mut self, bytes: usize) {
        if let Some(rings) = &mut self.rings {
            return rings.limit(bytes);
        }
        sockets::hold_back(&self.stream, bytes);
        if let Some(tunnel) = &mut self.tunnel {
            tunnel.tls.set_buffer_limit(Some(bytes.clamp(MIN_UNWRITTEN, MAX_UNWRITTEN)));
        }
    }

    /// The value that proofs over this connection cover in place of a nonce. On an encrypted connection it is derived from the nonce and
    /// the connection's keys (RFC 5705, RFC 8446 section 7.5), `None` before the handshake.
    pub(crate) fn bound(&self, nonce: &Nonce) -> Option<Nonce> {
        let Some(tunnel) = &self.tunnel else { return Some(*nonce) };
        tunnel.tls.export_keying_material([0; PROOF_BYTES], b"EXPORTER-skyphos-token", Some(nonce)).ok()
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tunnel.is_some()
    }

    /// Takes bytes to send. Returns how many it took, and whether it takes no more before the next event.
    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>], bytes: usize) -> io::Result<(usize, bool)> {
        if let Some(written) = self.write_shared(slices, bytes) {
            return written;
        }
        let Some(tunnel) = &mut self.tunnel else {
            // A short write means a full buffer (epoll(7)): an event follows when it drains.
            return send(&self.stream, slices).map(|n| (n, n < bytes));
        };
        tunnel.push(&self.stream)?;
        let taken = tunnel.tls.writer().write_vectored(slices)?;
        tunnel.unwritten += taken;
        match tunnel.push(&self.stream) {
            Ok(()) => Ok((taken, false)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok((taken, true)),
            Err(e) => Err(e),
        }
    }

    /// Sends the encrypted bytes that wait here. Returns `WouldBlock` if some remain.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.tunnel.as_mut().map_or(Ok(()), |tunnel| tunnel.push(&self.stream))
    }

    /// Whether no encrypted bytes wait here. Bytes that may only be sent after the handshake do not count.
    pub(crate) fn is_flushed(&self) -> bool {
        self.tunnel.as_ref().is_none_or(|tunnel| !tunnel.tls.wants_write())
    }

    /// Approximate number of encrypted bytes that wait here; 0 if there are none.
    pub(crate) fn unwritten(&self) -> usize {
        self.tunnel.as_ref().map_or(0, |tunnel| tunnel.unwritten)
    }

    /// Whether a read that returned bytes has drained the connection, so that an event reports the next bytes (epoll(7)). `short`:
    /// the read returned fewer bytes than the buffer has.
    pub(crate) fn drained(&self, short: bool) -> bool {
        self.tunnel.as_ref().map_or(short, |t| t.clear == 0 && t.from == t.to && t.short)
    }

    /// Sends bytes in the clear to a peer that may have connected without TLS, and so waits for this side's first message.
    pub(crate) fn answer_unencrypted(&self, bytes: &[u8]) {
        if self.tunnel.as_ref().is_some_and(|tunnel| tunnel.incoming && tunnel.unheard) {
            let _ = send(&self.stream, &[IoSlice::new(bytes)]); // the connection is being closed
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(got) = self.read_shared(&mut [IoSliceMut::new(buffer)]) {
            return got;
        }
        match &mut self.tunnel {
            None => (&self.stream).read(buffer),
            Some(tunnel) => tunnel.read(&self.stream, buffer),
        }
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if let Some(got) = self.read_shared(buffers) {
            return got;
        }
        match &mut self.tunnel {
            None => (&self.stream).read_vectored(buffers),
            Some(tunnel) => {
                let first = buffers.iter_mut().find(|buffer| !buffer.is_empty());
                tunnel.read(&self.stream, first.map_or(&mut [], |buffer| &mut buffer[..]))
            }
        }
    }
}

impl Idle {
    /// A connection that is not encrypted.
    #[cfg(test)]
    pub(crate) fn plain(stream: StdStream) -> Idle {
        Idle { stream, tunnel: None, rings: None }
    }

    /// Prepares the wire for registration with an event loop.
    pub(crate) fn wake(self) -> Wire {
        Wire { stream: TcpStream::from_std(self.stream), tunnel: self.tunnel, rings: self.rings }
    }
}

impl Tunnel {
    fn new(tls: &Tls, incoming: bool) -> io::Result<Tunnel> {
        let mut tls = tls.connection(incoming).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(MAX_UNWRITTEN));
        let (from, to, short, clear, unwritten, unheard) = (0, 0, false, 0, 0, true);
        Ok(Tunnel { tls, incoming, ahead: vec![0; AHEAD].into(), from, to, short, clear, unwritten, unheard })
    }

    /// Sends encrypted bytes until none is left or the socket is full.
    fn push(&mut self, stream: &TcpStream) -> io::Result<()> {
        let mut outlet = Outlet { stream, full: false };
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut outlet) {
                Ok(sent) => self.unwritten = self.unwritten.saturating_sub(sent).max(1),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    self.unwritten = self.unwritten.max(1);
                    return Err(e);
                }
            }
        }
        self.unwritten = 0;
        Ok(())
    }

    fn read(&mut self, mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.clear > 0 {
                let n = self.tls.reader().read(buffer)?;
                self.clear -= n;
                return Ok(n);
            }
            if self.from == self.to {
                let n = stream.read(&mut self.ahead)?;
                if n == 0 {
                    return Ok(0);
                }
                (self.from, self.to, self.short) = (0, n, n < AHEAD);
            }
            self.from += self.tls.read_tls(&mut &self.ahead[self.from..self.to])?;
            let state = match self.tls.process_new_packets() {
                Ok(state) => state,
                Err(error) => {
                    let _ = self.push(stream); // the alert that names the error
                    return Err(io::Error::new(ErrorKind::InvalidData, self.failure(&error)));
                }
            };
            self.unheard = false;
            self.clear = state.plaintext_bytes_to_read();
            if self.clear == 0 && state.peer_has_closed() {
                return Ok(0);
            }
            if state.tls_bytes_to_write() > 0 {
                match self.push(stream) {
                    Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
                    _ => {}
                }
            }
        }
    }

    fn failure(&self, error: &rustls::Error) -> TlsFailure {
        use AlertDescription as Alert;
        // During the handshake of an outgoing connection `ahead` has the first bytes that arrived.
        if self.unheard && !self.incoming && is_greeting(&self.ahead[..self.to]) {
            return TlsFailure {
                text: "it speaks Skyphos's protocol, but without TLS".to_owned(),
                denied: true,
            };
        }
        let (text, denied) = match error {
            rustls::Error::InvalidCertificate(cause) => {
                (format!("its certificate is not one of this group ({cause})"), true)
            }
            rustls::Error::NoCertificatesPresented => ("it has no certificate".to_owned(), true),
            rustls::Error::AlertReceived(
                alert @ (Alert::UnknownCA
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::CertificateRequired
                | Alert::AccessDenied
                | Alert::DecryptError),
            ) => (format!("it does not accept this side's certificate ({alert:?})"), true),
            other => (other.to_string(), false),
        };
        TlsFailure { text, denied }
    }
}

/// A socket to be written to, until it is full.
struct Outlet<'a> {
    stream: &'a TcpStream,
    full: bool,
}

impl Write for Outlet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.full {
            return Err(ErrorKind::WouldBlock.into());
        }
        let sent = send(self.stream, slices)?;
        self.full = sent < slices.iter().map(|slice| slice.len()).sum();
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// NOSIGNAL: a peer that is gone is an error here, not a SIGPIPE to the user's program.
fn send(stream: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    Ok(sendmsg(stream, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
}
