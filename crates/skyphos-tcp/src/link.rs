//! One connection during bring-up: whole messages in, whole messages out, never blocking.
//!
//! It reads exactly one message at a time and not a byte more, since frames may follow the last.

use crate::handshake::Nonce;
use crate::message::{Kind, MEMBER_BYTES, Message, STRANGER_BYTES};
use mio::net::TcpStream;
use std::io::{self, ErrorKind, Read};
use std::time::Instant;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Ours, on the way to being connected.
    Connecting,
    /// Connected; nothing proved.
    Stranger,
    /// Proved to be a rank of the group.
    Member,
    /// Done with bring-up: not read any more, frames may come.
    Settled,
}

pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    /// The other end, for messages to people.
    pub(crate) peer: String,
    pub(crate) trust: Trust,
    /// Whether the other side connected to us.
    pub(crate) incoming: bool,
    /// The nonce we sent (incoming) or were sent (outgoing).
    pub(crate) server_nonce: Nonce,
    pub(crate) since: Instant,
    inbox: Vec<u8>,
    got: usize,
    out: Vec<u8>,
    sent: usize,
}

impl Link {
    pub(crate) fn new(stream: TcpStream, peer: String, incoming: bool) -> Link {
        let trust = if incoming { Trust::Stranger } else { Trust::Connecting };
        let since = Instant::now();
        let (inbox, out) = (vec![0; 4], Vec::new());
        Link { stream, peer, trust, incoming, server_nonce: [0; 32], since, inbox, got: 0, out, sent: 0 }
    }

    /// The next message, or `None` if it has not come whole. An error ends the link.
    pub(crate) fn read(&mut self) -> Result<Option<Message>, String> {
        let limit = if self.trust == Trust::Member { MEMBER_BYTES } else { STRANGER_BYTES };
        loop {
            while self.got < self.inbox.len() {
                match (&self.stream).read(&mut self.inbox[self.got..]) {
                    Ok(0) if self.got == 0 => return Err("it closed the connection".to_owned()),
                    Ok(0) => return Err("it closed the connection in the middle of a message".to_owned()),
                    Ok(n) => self.got += n,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e.to_string()),
                }
            }
            if self.inbox.len() == 4 {
                let head = self.inbox[..4].try_into().expect("4 bytes");
                let len = Message::length(head, limit).ok_or("it does not speak Skyphos's protocol")?;
                // Grows as bytes come: a claim alone reserves no more than a page or so.
                self.inbox.resize(4 + len.min(STRANGER_BYTES), 0);
                continue;
            }
            let head = self.inbox[..4].try_into().expect("4 bytes");
            let len = 4 + Message::length(head, limit).ok_or("it does not speak Skyphos's protocol")?;
            if self.inbox.len() < len {
                let grown = (self.inbox.len() * 2).min(len);
                self.inbox.resize(grown, 0);
                continue;
            }
            let message = Message::parse(&self.inbox[4..]).ok_or("it sent an unknown kind of message")?;
            self.inbox.truncate(4);
            self.got = 0;
            return Ok(Some(message));
        }
    }

    /// Queues a message and sends what can be sent.
    pub(crate) fn send(&mut self, kind: Kind, body: &[u8]) -> io::Result<()> {
        Message::put(kind, body, &mut self.out);
        self.flush()
    }

    /// Sends what can be sent.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        use rustix::net::{SendFlags, send};
        while self.sent < self.out.len() {
            match send(&self.stream, &self.out[self.sent..], SendFlags::NOSIGNAL).map_err(io::Error::from) {
                Ok(n) => self.sent += n,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    pub(crate) fn flushed(&self) -> bool {
        self.out.is_empty()
    }
}
