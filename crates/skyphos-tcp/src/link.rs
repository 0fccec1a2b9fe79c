//! A connection during bring-up: it receives and sends whole messages without blocking.
//!
//! It reads one message at a time and not a byte more, since frames may follow the last message.

use crate::handshake::Nonce;
use crate::message::{Kind, MEMBER_BYTES, Message, STRANGER_BYTES};
use crate::wire::{TLS_OPENING, TlsFailure, Wire};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::time::Instant;

/// The reason for dropping a connection whose rank uses TLS, in a group that does not.
pub(crate) const SPEAKS_TLS: &str = "it speaks TLS, which the group does not use";

/// The state of a connection, which decides what is read from it and for how long it may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// This rank is connecting.
    Connecting,
    /// Connected; the peer has proved nothing.
    Stranger,
    /// The peer has proved to be a rank of the group, or this rank has sent its proof to a server: longer messages may follow.
    Member,
    /// The bring-up is done: the link reads no more, since frames may follow.
    Settled,
}

/// The end of a connection.
pub(crate) struct End {
    pub(crate) cause: String,
    /// The two sides' TLS settings differ, so the next connection would end in the same way.
    pub(crate) denied: bool,
}

impl From<&str> for End {
    fn from(cause: &str) -> End {
        End { cause: cause.to_owned(), denied: false }
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        let tls = error.get_ref().and_then(|cause| cause.downcast_ref::<TlsFailure>());
        End { denied: tls.is_some_and(|failure| failure.denied), cause: error.to_string() }
    }
}

/// A connection during bring-up.
pub(crate) struct Link {
    pub(crate) wire: Wire,
    /// The other end, for error messages.
    pub(crate) peer: String,
    pub(crate) trust: Trust,
    /// Whether the peer opened the connection.
    pub(crate) incoming: bool,
    /// The nonce that this side has sent (incoming) or received (outgoing).
    pub(crate) server_nonce: Nonce,
    pub(crate) since: Instant,
    inbox: Vec<u8>,
    received: usize,
    out: Vec<u8>,
    sent: usize,
}

impl Link {
    pub(crate) fn new(wire: Wire, peer: String, incoming: bool) -> Link {
        let trust = if incoming { Trust::Stranger } else { Trust::Connecting };
        let since = Instant::now();
        let (inbox, out) = (vec![0; 4], Vec::new());
        Link { wire, peer, trust, incoming, server_nonce: [0; 32], since, inbox, received: 0, out, sent: 0 }
    }

    /// The nonce that proofs cover.
    pub(crate) fn nonce(&self) -> Option<Nonce> {
        self.wire.channel_binding(&self.server_nonce)
    }

    /// The next message; `None` if it has not arrived completely. An error ends the link.
    pub(crate) fn read(&mut self) -> Result<Option<Message>, End> {
        let limit = if self.trust == Trust::Member { MEMBER_BYTES } else { STRANGER_BYTES };
        loop {
            while self.received < self.inbox.len() {
                match self.wire.read(&mut self.inbox[self.received..]) {
                    Ok(0) if self.received == 0 => return Err("it closed the connection".into()),
                    Ok(0) => return Err("it closed the connection in the middle of a message".into()),
                    Ok(n) => self.received += n,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e.into()),
                }
            }
            if self.inbox.len() == 4 {
                let head = self.inbox[..4].try_into().expect("4 bytes");
                let len = Message::length(head, limit).ok_or_else(|| foreign_protocol(&self.inbox))?;
                // The inbox grows as bytes arrive: an announced length alone reserves about a page.
                self.inbox.resize(4 + len.min(STRANGER_BYTES), 0);
                continue;
            }
            let head = self.inbox[..4].try_into().expect("4 bytes");
            let len = 4 + Message::length(head, limit).ok_or_else(|| foreign_protocol(&self.inbox))?;
            if self.inbox.len() < len {
                let grown = (self.inbox.len() * 2).min(len);
                self.inbox.resize(grown, 0);
                continue;
            }
            let message = Message::parse(&self.inbox[4..]).ok_or("it sent an unknown kind of message")?;
            self.inbox.truncate(4);
            self.received = 0;
            return Ok(Some(message));
        }
    }

    /// Queues a message, and sends as much as possible.
    pub(crate) fn send(&mut self, kind: Kind, body: &[u8]) -> io::Result<()> {
        Message::put(kind, body, &mut self.out);
        self.flush()
    }

    /// Sends as much as possible.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.out.len() {
            let rest = &self.out[self.sent..];
            match self.wire.write(&[IoSlice::new(rest)], rest.len()) {
                Ok((0, _)) => return Ok(()), // only after the TLS handshake
                Ok((n, _)) => self.sent += n,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.out.clear();
        self.sent = 0;
        match self.wire.flush() {
            Err(e) if e.kind() != ErrorKind::WouldBlock => Err(e),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.out.is_empty() && self.wire.is_flushed()
    }
}

fn foreign_protocol(head: &[u8]) -> End {
    match head.starts_with(&TLS_OPENING) {
        true => SPEAKS_TLS.into(),
        false => "it does not speak Skyphos's protocol".into(),
    }
}
