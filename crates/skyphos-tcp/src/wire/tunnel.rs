//! A TLS connection over a non-blocking socket, with its buffers.
//!
//! Latency over TLS is 1.11 times that of a plain connection, the rate of large frames 0.4 times (`docs/threat-model.md`).
//!
//! rustls reads 4 KB at a time; a buffer between it and the socket saves most of its system calls. Its close_notify is not used,
//! because a goodbye frame has that purpose: a connection that ends without one was cut.

use crate::handshake::{Nonce, PROOF_BYTES};
use crate::message::begins_challenge;
use crate::sockets::send;
use crate::tls::Tls;
use mio::net::TcpStream;
use rustls::{AlertDescription, Connection};
use std::io::{self, ErrorKind, IoSlice, Read, Write};

/// Largest number of encrypted bytes that wait for the socket: one system call takes them in 16 records.
const MAX_UNWRITTEN: usize = 256 * 1024;

/// The least limit for connections that queue little: a record that is being written, and the next one.
const MIN_UNWRITTEN: usize = 32 * 1024;

/// Bytes read from the socket at once.
const INPUT_BYTES: usize = 64 * 1024;

/// The first bytes of a TLS connection: a record of kind handshake (22), version 3.x. As the length of a message they exceed every
/// limit.
pub(crate) const TLS_OPENING: [u8; 2] = [22, 3];

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

/// See the module's text.
pub(super) struct Tunnel {
    tls: Connection,
    incoming: bool,
    /// Bytes read from the socket that rustls has not taken: `input[from..to]`.
    input: Box<[u8]>,
    from: usize,
    to: usize,
    /// The last read has drained the socket.
    socket_drained: bool,
    /// Decrypted bytes that were not read yet.
    decrypted: usize,
    /// A lower bound on the encrypted bytes that wait for the socket; at least 1 while some do.
    unwritten: usize,
    /// rustls has accepted no bytes yet.
    awaits_first_record: bool,
}

impl Tunnel {
    pub(super) fn new(tls: &Tls, incoming: bool) -> io::Result<Tunnel> {
        let mut tls = tls.connection(incoming).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(MAX_UNWRITTEN));
        Ok(Tunnel {
            tls,
            incoming,
            input: vec![0; INPUT_BYTES].into(),
            from: 0,
            to: 0,
            socket_drained: false,
            decrypted: 0,
            unwritten: 0,
            awaits_first_record: true,
        })
    }

    #[cfg(test)]
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    pub(super) fn limit_unsent(&mut self, bytes: usize) {
        self.tls.set_buffer_limit(Some(bytes.clamp(MIN_UNWRITTEN, MAX_UNWRITTEN)));
    }

    /// See `Wire::channel_binding`.
    pub(super) fn channel_binding(&self, nonce: &Nonce) -> Option<Nonce> {
        self.tls.export_keying_material([0; PROOF_BYTES], b"EXPORTER-skyphos-token", Some(nonce)).ok()
    }

    pub(super) fn is_flushed(&self) -> bool {
        !self.tls.wants_write()
    }

    pub(super) fn unwritten(&self) -> usize {
        self.unwritten
    }

    /// Whether neither this side nor the socket has bytes to read.
    pub(super) fn is_drained(&self) -> bool {
        self.decrypted == 0 && self.from == self.to && self.socket_drained
    }

    /// Whether this side accepted the connection, and the peer has sent no bytes of TLS.
    pub(super) fn awaits_first_bytes(&self) -> bool {
        self.incoming && self.awaits_first_record
    }

    /// See `Wire::write`.
    pub(super) fn write(&mut self, stream: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<(usize, bool)> {
        self.push(stream)?;
        let taken = self.tls.writer().write_vectored(slices)?;
        self.unwritten += taken;
        match self.push(stream) {
            Ok(()) => Ok((taken, false)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok((taken, true)),
            Err(e) => Err(e),
        }
    }

    /// Writes buffered encrypted bytes to the socket.
    pub(super) fn push(&mut self, stream: &TcpStream) -> io::Result<()> {
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

    /// Reads decrypted bytes. Returns 0 at the end of the connection.
    pub(super) fn read(&mut self, mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.decrypted > 0 {
                let n = self.tls.reader().read(buffer)?;
                self.decrypted -= n;
                return Ok(n);
            }
            if self.from == self.to {
                let n = stream.read(&mut self.input)?;
                if n == 0 {
                    return Ok(0);
                }
                (self.from, self.to, self.socket_drained) = (0, n, n < INPUT_BYTES);
            }
            self.from += self.tls.read_tls(&mut &self.input[self.from..self.to])?;
            let state = match self.tls.process_new_packets() {
                Ok(state) => state,
                Err(error) => {
                    let _ = self.push(stream); // so that the peer receives TLS's alert
                    return Err(io::Error::new(ErrorKind::InvalidData, self.failure(&error)));
                }
            };
            self.awaits_first_record = false;
            self.decrypted = state.plaintext_bytes_to_read();
            if self.decrypted == 0 && state.peer_has_closed() {
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
        // On an outgoing connection before rustls accepts bytes, `input` begins with the peer's first bytes.
        if self.awaits_first_record && !self.incoming && begins_challenge(&self.input[..self.to]) {
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

/// The socket as rustls writes to it. After a short write it refuses more without a system call.
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
