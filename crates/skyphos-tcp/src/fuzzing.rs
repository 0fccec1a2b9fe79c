//! Entry points for fuzz targets (the package `fuzz` at the repository's root) to the private code that decodes bytes from peers.
//! The feature `fuzzing` is off by default.

use crate::handshake::{GroupId, Key, Nonce};
use crate::link::{Link, Trust};
use crate::message::{self, Hello, Kind, Message, Table};
use crate::receive::{Inbox, LONG_READ_AHEAD, ReadContext, Stop};
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

/// Bytes that a pair of sockets can surely buffer before they are read.
pub const PIECE_BYTES: usize = 64 * 1024;

/// The fuzzer's end of a connection, and a wire at the other end. Not TCP, because a fuzzer opens more connections than there are
/// ports.
fn connection(tls: Option<&Tls>, incoming: bool) -> (UnixStream, Wire) {
    let (fuzzers, ours) = UnixStream::pair().expect("a pair of sockets");
    ours.set_nonblocking(true).expect("a socket");
    let stream = TcpStream::from_std(std::net::TcpStream::from(OwnedFd::from(ours)));
    (fuzzers, Wire::new(stream, tls, incoming).expect("a connection"))
}

/// A receiver of one peer's frames, whose bytes the fuzzer writes.
pub struct Receiver {
    /// The fuzzer's end of the socket, until it is closed.
    socket: Option<UnixStream>,
    /// The fuzzer's ends of the rings in shared memory.
    rings: Option<Rings>,
    wire: Wire,
    inbox: Inbox,
    pool: Pool,
    buffer: Vec<u8>,
}

impl Default for Receiver {
    fn default() -> Receiver {
        let (socket, wire) = connection(None, true);
        let (inbox, pool, buffer) = (Inbox::default(), Pool::default(), vec![0; LONG_READ_AHEAD]);
        Receiver { socket: Some(socket), rings: None, wire, inbox, pool, buffer }
    }
}

impl Receiver {
    /// A receiver that shares memory with the fuzzer.
    pub fn shared() -> Receiver {
        let receiver = Receiver::default();
        let (theirs, file) = Rings::make(PIECE_BYTES, &[7; 32]).expect("memory");
        let mut ours = Rings::open(std::process::id(), file.number(), PIECE_BYTES, &[7; 32]).expect("memory");
        let (_, file) = Arena::make(&[8; 32]).expect("memory");
        ours.borrow(&file).expect("memory");
        let inbox = Inbox::new(true, ours.borrower.take());
        let wire = receiver.wire.detach_with(ours).attach();
        Receiver { rings: Some(theirs), wire, inbox, ..receiver }
    }

    /// Publishes false counters of written and read bytes in the shared memory.
    pub fn publish_false_counters(&mut self, written: u64, read: u64) {
        if let Some(rings) = &self.rings {
            rings.publish_false_counters(written, read);
        }
    }

    /// Writes `bytes`, at most [`PIECE_BYTES`], or closes the socket if they are `None`; then reads all frames that are complete.
    /// Returns why the connection ended, if it did.
    pub fn write_and_read(&mut self, bytes: Option<&[u8]>, events: &mut Vec<Event>) -> Option<String> {
        match bytes {
            Some(bytes) => match &mut self.rings {
                Some(rings) => assert_eq!(rings.write(&[IoSlice::new(bytes)]).ok(), Some(bytes.len())),
                None => {
                    self.socket.as_mut().expect("not ended").write_all(bytes).expect("room in the buffer")
                }
            },
            None => self.socket = None,
        }
        loop {
            let mut context = ReadContext { from: 1, pool: &self.pool, buffer: &mut self.buffer, events };
            match self.inbox.read(&mut self.wire, self.socket.is_none(), &mut context) {
                Stop::Drained => return None,
                Stop::More => {}
                Stop::Bye(_) => return Some("bye".to_owned()),
                Stop::Broken(loss, cause) => return Some(format!("{loss:?}: {cause}")),
            }
        }
    }
}

/// A rank's TLS files, loaded as at its start.
pub struct Files(Tls);

impl Files {
    /// Loads the files.
    pub fn read(files: &TlsFiles) -> skyphos_types::Result<Files> {
        Tls::load(files, 3).map(Files)
    }

    /// The first bytes that a client with these files sends.
    pub fn client_hello(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.0.connection(false).expect("a connection").write_tls(&mut bytes).expect("memory");
        bytes
    }
}

/// Reads `pieces` as a connection of the bring-up. Returns the messages in them, and why the connection ended, if it did.
/// `member`: the peer has proved that it is a rank.
pub fn read_link(
    pieces: &[&[u8]],
    files: Option<&Files>,
    incoming: bool,
    member: bool,
) -> (Vec<Vec<u8>>, Option<String>) {
    let (mut socket, wire) = connection(files.map(|files| &files.0), incoming);
    let mut link = Link::new(wire, "a fuzzer".to_owned(), incoming);
    link.trust = if member { Trust::Member } else { Trust::Stranger };
    let mut all = Vec::new();
    for piece in pieces {
        socket.write_all(piece).expect("room in the buffer");
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

/// Decodes the bytes as the body of every kind of message in turn.
pub fn decode_body(bytes: &[u8]) {
    let (key, nonce, group): (Key, Nonce, GroupId) = (Key::new(Some("cup")), [1; 32], [2; 16]);
    if let Some((protocol, nonce)) = message::read_challenge(bytes) {
        assert!(protocol != message::PROTOCOL || message::challenge(&nonce) == bytes);
    }
    let _ = message::begins_challenge(bytes);
    if let Some((hello, is_proved)) = Hello::decode(bytes, &key, &nonce, &group) {
        let again = hello.encode(&key, &nonce, &group);
        assert_eq!(Hello::decode(&again, &key, &nonce, &group), Some((hello.clone(), true)));
        assert!(!is_proved || again == bytes, "a proof covers all bytes");
        let welcome = hello.welcome(&key, &nonce, &group);
        assert!(hello.accepts_welcome(&welcome, &key, &nonce, &group));
        assert_eq!(hello.accepts_welcome(bytes, &key, &nonce, &group), bytes == welcome);
    }
    if let Some(table) = Table::decode(bytes) {
        assert_eq!(table.encode(), bytes);
    }
    if let Some(Message { kind, body }) = Message::parse(bytes) {
        assert_eq!((kind as u8, &body[..]), (bytes[0], &bytes[1..]));
    }
}

/// A hello of these fields with a valid proof.
pub fn hello_with_proof(fields: &[u8]) -> Vec<u8> {
    let key = Key::new(Some("cup"));
    [&key.prove(crate::handshake::Side::Client, &[&[1; 32], fields, &[2; 16]])[..], fields].concat()
}

/// The byte of a message's kind, by its number.
pub fn kind_byte(number: u8) -> u8 {
    use Kind::*;
    [Challenge, Hello, Welcome, Table, Ready, Failed, Go, Refusal][usize::from(number) % 8] as u8
}
