//! Entries for the package `fuzz` to the private decoders of outside bytes. Compiled only with the feature `fuzzing`.

use crate::handshake::{GroupId, Key, Nonce};
use crate::link::{Link, Trust};
use crate::message::{self, Hello, Kind, Message, Table};
use crate::receive::{FAR, Inbox, ReadContext, Stop};
use crate::ring::Rings;
use crate::tls::{Tls, TlsFiles};
use crate::wire::Wire;
use mio::net::TcpStream;
use skyphos_core::shared_memory::arena::Arena;
use skyphos_core::slab::Pool;
use skyphos_core::transport::Event;
use std::io::{IoSlice, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// Bytes that a pair of sockets can hold without a reader.
pub const PIECE: usize = 64 * 1024;

/// A connection, and the socket of its peer, to which a target writes arbitrary bytes. Not TCP: a fuzzer opens more connections than
/// there are ports.
fn pair(tls: Option<&Tls>, incoming: bool) -> (UnixStream, Wire) {
    let (there, here) = UnixStream::pair().expect("a pair of sockets");
    here.set_nonblocking(true).expect("a socket");
    let stream = TcpStream::from_std(std::net::TcpStream::from(OwnedFd::from(here)));
    (there, Wire::new(stream, tls, incoming).expect("a connection"))
}

/// The receiver of one peer's frames.
pub struct Receiver {
    there: Option<UnixStream>,
    /// The other side's ends of the memory that it shares.
    rings: Option<Rings>,
    wire: Wire,
    inbox: Inbox,
    pool: Pool,
    buffer: Vec<u8>,
}

impl Default for Receiver {
    fn default() -> Receiver {
        let (there, wire) = pair(None, true);
        let (inbox, pool, buffer) = (Inbox::default(), Pool::default(), vec![0; FAR]);
        Receiver { there: Some(there), rings: None, wire, inbox, pool, buffer }
    }
}

impl Receiver {
    /// A receiver that shares memory with its peer.
    pub fn shared() -> Receiver {
        let receiver = Receiver::default();
        let (theirs, file) = Rings::make(PIECE, &[7; 32]).expect("memory");
        let mut ours = Rings::open(std::process::id(), file.number(), PIECE, &[7; 32]).expect("memory");
        let (_, file) = Arena::make(&[8; 32]).expect("memory");
        ours.borrow(&file).expect("memory");
        let inbox = Inbox::apart(true, ours.borrower.take());
        let wire = receiver.wire.through(ours).wake();
        Receiver { rings: Some(theirs), wire, inbox, ..receiver }
    }

    /// Publishes false counters of the peer in shared memory.
    pub fn lie(&mut self, written: u64, read: u64) {
        if let Some(rings) = &self.rings {
            rings.lie(written, read);
        }
    }

    /// Receives at most [`PIECE`] bytes; `None` is the end of the stream. Returns the reason if the connection has ended.
    pub fn take(&mut self, bytes: Option<&[u8]>, events: &mut Vec<Event>) -> Option<String> {
        match bytes {
            Some(bytes) => match &mut self.rings {
                Some(rings) => assert_eq!(rings.write(&[IoSlice::new(bytes)]).ok(), Some(bytes.len())),
                None => self.there.as_mut().expect("not ended").write_all(bytes).expect("room"),
            },
            None => self.there = None,
        }
        loop {
            let mut context = ReadContext { from: 1, pool: &self.pool, buffer: &mut self.buffer, events };
            match self.inbox.read(&mut self.wire, self.there.is_none(), &mut context) {
                Stop::Drained => return None,
                Stop::More => {}
                Stop::Bye(_) => return Some("bye".to_owned()),
                Stop::Broken(loss, cause) => return Some(format!("{loss:?}: {cause}")),
            }
        }
    }
}

/// A rank's files, read as when it starts.
pub struct Files(Tls);

impl Files {
    /// Reads them.
    pub fn read(files: &TlsFiles) -> skyphos_types::Result<Files> {
        Tls::load(files, 3).map(Files)
    }

    /// The first bytes of a connecting peer with these files.
    pub fn opening(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.0.connection(false).expect("a connection").write_tls(&mut bytes).expect("memory");
        bytes
    }
}

/// Receives a stream in pieces on a connection of the bring-up. Returns the messages, and the reason if the connection has ended.
/// `member`: the peer has proved that it is a rank.
pub fn link(
    pieces: &[&[u8]],
    files: Option<&Files>,
    incoming: bool,
    member: bool,
) -> (Vec<Vec<u8>>, Option<String>) {
    let (mut there, wire) = pair(files.map(|files| &files.0), incoming);
    let mut link = Link::new(wire, "somebody".to_owned(), incoming);
    link.trust = if member { Trust::Member } else { Trust::Stranger };
    let mut all = Vec::new();
    for piece in pieces {
        there.write_all(piece).expect("room");
        loop {
            match link.read() {
                Ok(None) => break,
                Ok(Some(Message { kind, body })) => {
                    let mut bytes = Vec::new();
                    Message::put(kind, &body, &mut bytes);
                    all.push(bytes);
                }
                Err(end) => return (all, Some(end.cause)),
            }
        }
        let _ = (link.flush(), link.nonce());
    }
    (all, None)
}

/// Reads a message's body as every kind.
pub fn body(bytes: &[u8]) {
    let (key, nonce, group): (Key, Nonce, GroupId) = (Key::new(Some("cup")), [1; 32], [2; 16]);
    if let Some((protocol, nonce)) = message::read_challenge(bytes) {
        assert!(protocol != message::PROTOCOL || message::challenge(&nonce) == bytes);
    }
    let _ = message::is_greeting(bytes);
    if let Some((hello, holds)) = Hello::decode(bytes, &key, &nonce, &group) {
        let again = hello.encode(&key, &nonce, &group);
        assert_eq!(Hello::decode(&again, &key, &nonce, &group), Some((hello.clone(), true)));
        assert!(!holds || again == bytes, "a proof covers all");
        let welcome = hello.welcome(&key, &nonce, &group);
        assert!(hello.check_welcome(&welcome, &key, &nonce, &group));
        assert_eq!(hello.check_welcome(bytes, &key, &nonce, &group), bytes == welcome);
    }
    if let Some(table) = Table::decode(bytes) {
        assert_eq!(table.encode(), bytes);
    }
    if let Some(Message { kind, body }) = Message::parse(bytes) {
        assert_eq!((kind as u8, &body[..]), (bytes[0], &bytes[1..]));
    }
}

/// A hello with a proof that holds, of these fields.
pub fn proved(fields: &[u8]) -> Vec<u8> {
    let key = Key::new(Some("cup"));
    [&key.prove(crate::handshake::Side::Client, &[&[1; 32], fields, &[2; 16]])[..], fields].concat()
}

/// The byte of a message's kind, by its number.
pub fn kind(number: u8) -> u8 {
    use Kind::*;
    [Challenge, Hello, Welcome, Table, Ready, Failed, Go, Refusal][usize::from(number) % 8] as u8
}
