//! A wire: a non-blocking connection to a peer over a socket, TLS or shared memory.
//!
//! A plain wire is only its socket. An encrypted one buffers bytes in both directions ([`tunnel`]):
//!
//! - Decrypted bytes that were not read yet, although the socket is drained. No event reports them, so a reader continues until
//!   [`Wire::is_drained`] or `WouldBlock`.
//! - Encrypted bytes that the socket had no room for. [`Wire::unwritten`] counts them; once the socket is writable, [`Wire::flush`]
//!   writes them.
//!
//! Within a host bytes may go through shared memory ([`crate::ring`]). Then the socket carries only wake-up bytes and the end of
//! the connection.

mod tunnel;

use crate::handshake::Nonce;
use crate::ring::Rings;
use crate::sockets::{self, send};
use crate::tls::Tls;
use mio::net::TcpStream;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::net::TcpStream as StdStream;
use tunnel::Tunnel;
pub(crate) use tunnel::{TLS_OPENING, TlsFailure};

/// A connection in an event loop.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    tunnel: Option<Box<Tunnel>>,
    rings: Option<Box<Rings>>,
}

/// A wire outside of any event loop.
pub(crate) struct DetachedWire {
    pub(crate) stream: StdStream,
    tunnel: Option<Box<Tunnel>>,
    rings: Option<Box<Rings>>,
}

impl Wire {
    /// A wire over a connection that was accepted (`incoming`) or made.
    pub(crate) fn new(stream: TcpStream, tls: Option<&Tls>, incoming: bool) -> io::Result<Wire> {
        let tunnel = match tls {
            None => None,
            Some(tls) => Some(Box::new(Tunnel::new(tls, incoming)?)),
        };
        Ok(Wire { stream, tunnel, rings: None })
    }

    /// Prepares the wire for another event loop. The caller has deregistered it from this one.
    pub(crate) fn detach(self) -> DetachedWire {
        DetachedWire { stream: self.stream.into(), tunnel: self.tunnel, rings: self.rings }
    }

    /// Like [`Wire::detach`], with shared memory for all bytes from now on. They need no encryption.
    pub(crate) fn detach_with(self, rings: Rings) -> DetachedWire {
        DetachedWire { stream: self.stream.into(), tunnel: None, rings: Some(Box::new(rings)) }
    }

    /// Whether bytes go through shared memory.
    pub(crate) fn is_shared(&self) -> bool {
        self.rings.is_some()
    }

    /// The rings in shared memory, if there are any.
    pub(crate) fn rings(&mut self) -> Option<&mut Rings> {
        self.rings.as_deref_mut()
    }

    /// Sends the peer a byte that wakes it.
    fn wake_peer(&self) -> io::Result<()> {
        match send(&self.stream, &[IoSlice::new(&[0])]) {
            // The socket is full of wake-up bytes that the peer has not read yet, so it will wake.
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
            sent => sent.map(drop),
        }
    }

    /// [`Wire::write`] through shared memory; `None` without it.
    fn write_shared(&mut self, slices: &[IoSlice<'_>], bytes: usize) -> Option<io::Result<(usize, bool)>> {
        let rings = self.rings.as_mut()?;
        let written = loop {
            match rings.write(slices) {
                Ok(0) if bytes > 0 => match rings.begin_wait_for_room() {
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
            && let Err(e) = self.wake_peer()
        {
            return Some(Err(e));
        }
        // The reader wakes only a writer that could write no byte.
        Some(Ok((written, written == 0)))
    }

    /// Reads from shared memory; `None` without it. `Ok(0)` is the end of the connection.
    fn read_shared(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Option<io::Result<usize>> {
        let mut wake_ups = [0; 256];
        let mut end = None;
        loop {
            let rings = self.rings.as_mut()?;
            let got = match rings.read(buffers) {
                Ok(0) => match end.take() {
                    // The socket had ended before this read, so the ring has no more bytes.
                    Some(end) => return Some(end),
                    None => 0,
                },
                Ok(got) => got,
                Err(e) => return Some(Err(e)),
            };
            if got > 0 {
                if rings.must_wake_writer() {
                    // This fails if the peer is gone, which the next read of the socket reports.
                    let _ = self.wake_peer();
                }
                return Some(Ok(got));
            }
            match (&self.stream).read(&mut wake_ups) {
                Ok(n) if n > 0 => {}
                // The end, an error, or `WouldBlock`.
                other => end = Some(other),
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tunnel.as_ref().is_some_and(|tunnel| tunnel.is_handshaking())
    }

    /// Limits the unsent bytes that the kernel buffers, and those that TLS buffers.
    pub(crate) fn limit_unsent(&mut self, bytes: usize) {
        if let Some(rings) = &mut self.rings {
            return rings.limit(bytes);
        }
        sockets::limit_unsent(&self.stream, bytes);
        if let Some(tunnel) = &mut self.tunnel {
            tunnel.limit_unsent(bytes);
        }
    }

    /// The bytes that proofs over this connection cover: the nonce, or on an encrypted connection a value derived from nonce and
    /// connection (channel binding: RFC 5705, RFC 8446 section 7.5). `None` before the handshake.
    pub(crate) fn channel_binding(&self, nonce: &Nonce) -> Option<Nonce> {
        match &self.tunnel {
            None => Some(*nonce),
            Some(tunnel) => tunnel.channel_binding(nonce),
        }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tunnel.is_some()
    }

    /// Sends `slices`, which hold `bytes` bytes in all. Returns how many bytes were taken, and whether the next write must wait for an
    /// event.
    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>], bytes: usize) -> io::Result<(usize, bool)> {
        if let Some(written) = self.write_shared(slices, bytes) {
            return written;
        }
        match &mut self.tunnel {
            // A short write means a full buffer (epoll(7)): an event follows when it drains.
            None => send(&self.stream, slices).map(|n| (n, n < bytes)),
            Some(tunnel) => tunnel.write(&self.stream, slices),
        }
    }

    /// Writes the encrypted bytes that are buffered here. `WouldBlock` if some remain.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.tunnel.as_mut().map_or(Ok(()), |tunnel| tunnel.push(&self.stream))
    }

    /// Whether no bytes are buffered here that could be sent now. Bytes that TLS sends only after the handshake do not count.
    pub(crate) fn is_flushed(&self) -> bool {
        self.tunnel.as_ref().is_none_or(|tunnel| tunnel.is_flushed())
    }

    /// About how many encrypted bytes are buffered here; 0 if none.
    pub(crate) fn unwritten(&self) -> usize {
        self.tunnel.as_ref().map_or(0, |tunnel| tunnel.unwritten())
    }

    /// After a read that got bytes: whether there are no more, so that an event reports the next arrival (epoll(7)). `short`: the
    /// read got fewer bytes than it asked for.
    pub(crate) fn is_drained(&self, short: bool) -> bool {
        self.tunnel.as_ref().map_or(short, |tunnel| tunnel.is_drained())
    }

    /// Sends `bytes` unencrypted to a peer that may have connected without TLS: it has sent nothing, and waits for this side's
    /// challenge.
    pub(crate) fn answer_unencrypted(&self, bytes: &[u8]) {
        if self.tunnel.as_ref().is_some_and(|tunnel| tunnel.awaits_first_bytes()) {
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

impl DetachedWire {
    /// A connection that is not encrypted.
    #[cfg(test)]
    pub(crate) fn plain(stream: StdStream) -> DetachedWire {
        DetachedWire { stream, tunnel: None, rings: None }
    }

    /// The wire for another event loop, which the caller registers it with.
    pub(crate) fn attach(self) -> Wire {
        Wire { stream: TcpStream::from_std(self.stream), tunnel: self.tunnel, rings: self.rings }
    }
}
