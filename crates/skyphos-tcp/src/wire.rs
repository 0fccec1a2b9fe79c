//! The bytes of a connection, encrypted or not, without blocking.
//!
//! A plain wire is its socket and nothing else. An encrypted one holds bytes that its socket knows nothing of, both ways:
//!
//! - Decrypted ones that nobody has taken yet, though the socket is drained. No event tells of them: who reads goes on until
//!   [`Wire::drained`] or `WouldBlock`.
//! - Encrypted ones that the socket had no room for. [`Wire::held`] counts them; a socket that has room again is reported,
//!   and then [`Wire::flush`] sends them.
//!
//! - Within a host they go through memory ([`crate::ring`]), whatever it was before; then the socket carries bells, and
//!   tells of the peer's end.
//!
//! Latency over TLS is 1.11 times that of a plain connection, the rate of large frames 0.4 times (`docs/threat-model.md`).
//!
//! rustls reads 4 KB at a time; a buffer before it saves three system calls of four. Its last word (close_notify) is not used,
//! for frames have their own: a connection that ends without a goodbye frame was cut.

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

/// Bytes that may wait encrypted: what one system call takes in 16 records.
const HELD: usize = 256 * 1024;

/// The same where little may be on the way: a record, which nothing can take back, and the next.
const LEAST_HELD: usize = 32 * 1024;

/// Bytes read from the socket at once.
const AHEAD: usize = 64 * 1024;

/// A TLS connection begins with a record of kind handshake (22), version 3.x. As the length of one of our messages this is
/// more than anyone may send.
pub(crate) const TLS_OPENING: [u8; 2] = [22, 3];

/// See the module's text.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    tunnel: Option<Box<Tunnel>>,
    rings: Option<Box<Rings>>,
}

/// A wire that no event loop knows.
pub(crate) struct Idle {
    pub(crate) stream: StdStream,
    tunnel: Option<Box<Tunnel>>,
    rings: Option<Box<Rings>>,
}

struct Tunnel {
    tls: Connection,
    incoming: bool,
    /// What came of the socket and rustls has not taken: `ahead[from..to]`.
    ahead: Box<[u8]>,
    from: usize,
    to: usize,
    /// The last read from the socket left nothing there.
    short: bool,
    /// Decrypted bytes to be taken.
    clear: usize,
    /// At least 1 while encrypted bytes wait; at most as many as do.
    held: usize,
    /// Nothing has come yet.
    unheard: bool,
}

/// Why TLS failed, for people, and whether the two sides' settings will never fit.
#[derive(Debug)]
pub(crate) struct TlsFailure {
    words: String,
    pub(crate) denied: bool,
}

impl std::fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TLS: {}", self.words)
    }
}

impl std::error::Error for TlsFailure {}

impl Wire {
    /// A connection that was accepted (`incoming`) or made.
    pub(crate) fn new(stream: TcpStream, tls: Option<&Tls>, incoming: bool) -> io::Result<Wire> {
        let tunnel = match tls {
            None => None,
            Some(tls) => Some(Box::new(Tunnel::new(tls, incoming)?)),
        };
        Ok(Wire { stream, tunnel, rings: None })
    }

    /// Hands it to another event loop; this one must have forgotten it.
    pub(crate) fn idle(self) -> Idle {
        Idle { stream: self.stream.into(), tunnel: self.tunnel, rings: self.rings }
    }

    /// The same for one whose bytes go through memory from now on, both ways: nothing needs to be encrypted any more.
    pub(crate) fn through(self, rings: Rings) -> Idle {
        Idle { stream: self.stream.into(), tunnel: None, rings: Some(Box::new(rings)) }
    }

    /// Whether bytes go through memory.
    pub(crate) fn is_shared(&self) -> bool {
        self.rings.is_some()
    }

    /// What goes through memory, if that is so.
    pub(crate) fn rings(&mut self) -> Option<&mut Rings> {
        self.rings.as_deref_mut()
    }

    /// Wakes the other side.
    fn ring_bell(&self) -> io::Result<()> {
        match send(&self.stream, &[IoSlice::new(&[0])]) {
            // As many bells wait there that it has not heard.
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
            && rings.wakes()
            && let Err(e) = self.ring_bell()
        {
            return Some(Err(e));
        }
        // Only who could write nothing is told of room.
        Some(Ok((written, written == 0)))
    }

    fn read_shared(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Option<io::Result<usize>> {
        let mut bells = [0; 256];
        let mut over = None;
        loop {
            let rings = self.rings.as_mut()?;
            let got = match rings.read(buffers) {
                Ok(0) => match over.take() {
                    // What came before the end is read, now that it is known to be the end.
                    Some(end) => return Some(end),
                    None => 0,
                },
                Ok(got) => got,
                Err(e) => return Some(Err(e)),
            };
            if got > 0 {
                if rings.relieves() {
                    // It fails if the other side is gone, which the next read of the socket tells.
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

    /// Leaves so many bytes to the kernel that it has not sent, and about as many encrypted.
    pub(crate) fn hold_back(&mut self, bytes: usize) {
        if let Some(rings) = &mut self.rings {
            return rings.limit(bytes);
        }
        sockets::hold_back(&self.stream, bytes);
        if let Some(tunnel) = &mut self.tunnel {
            tunnel.tls.set_buffer_limit(Some(bytes.clamp(LEAST_HELD, HELD)));
        }
    }

    /// What proofs over this connection cover in place of a nonce: on an encrypted one, a number that belongs to both the
    /// nonce and this connection (RFC 5705, RFC 8446 section 7.5). `None` before the handshake.
    pub(crate) fn bound(&self, nonce: &Nonce) -> Option<Nonce> {
        let Some(tunnel) = &self.tunnel else { return Some(*nonce) };
        tunnel.tls.export_keying_material([0; PROOF_BYTES], b"EXPORTER-skyphos-token", Some(nonce)).ok()
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tunnel.is_some()
    }

    /// Takes bytes to send: how many of them, and whether an event must come before more can be taken.
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
        tunnel.held += taken;
        match tunnel.push(&self.stream) {
            Ok(()) => Ok((taken, false)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok((taken, true)),
            Err(e) => Err(e),
        }
    }

    /// Sends what waits here: `WouldBlock` if not all of it could be.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.tunnel.as_mut().map_or(Ok(()), |tunnel| tunnel.push(&self.stream))
    }

    /// Whether nothing waits here. What may only be sent after the handshake does not count.
    pub(crate) fn is_flushed(&self) -> bool {
        self.tunnel.as_ref().is_none_or(|tunnel| !tunnel.tls.wants_write())
    }

    /// About how many bytes wait here, 0 if none.
    pub(crate) fn held(&self) -> usize {
        self.tunnel.as_ref().map_or(0, |tunnel| tunnel.held)
    }

    /// After a read that got something, less than was asked for if `short`: whether nothing more is there, so that an event
    /// follows when there is (epoll(7)).
    pub(crate) fn drained(&self, short: bool) -> bool {
        self.tunnel.as_ref().map_or(short, |t| t.clear == 0 && t.from == t.to && t.short)
    }

    /// To one who came without TLS, and so waits for our first word: sends this, if that can have happened.
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

    /// For another event loop.
    pub(crate) fn wake(self) -> Wire {
        Wire { stream: TcpStream::from_std(self.stream), tunnel: self.tunnel, rings: self.rings }
    }
}

impl Tunnel {
    fn new(tls: &Tls, incoming: bool) -> io::Result<Tunnel> {
        let mut tls = tls.connection(incoming).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(HELD));
        let (from, to, short, clear, held, unheard) = (0, 0, false, 0, 0, true);
        Ok(Tunnel { tls, incoming, ahead: vec![0; AHEAD].into(), from, to, short, clear, held, unheard })
    }

    /// Sends what is encrypted and waits.
    fn push(&mut self, stream: &TcpStream) -> io::Result<()> {
        let mut outlet = Outlet { stream, full: false };
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut outlet) {
                Ok(sent) => self.held = self.held.saturating_sub(sent).max(1),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    self.held = self.held.max(1);
                    return Err(e);
                }
            }
        }
        self.held = 0;
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
                    let _ = self.push(stream); // so that the other side learns why
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
        // `ahead` has what came first, for an outgoing connection that is still in its handshake.
        if self.unheard && !self.incoming && is_greeting(&self.ahead[..self.to]) {
            return TlsFailure {
                words: "it speaks Skyphos's protocol, but without TLS".to_owned(),
                denied: true,
            };
        }
        let (words, denied) = match error {
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
        TlsFailure { words, denied }
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
