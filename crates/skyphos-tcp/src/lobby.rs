//! The event loop of the bring-up: it accepts connections, connects, and returns one message at a time.
//!
//! Strangers cannot stall it: it blocks on no single connection; an incoming connection must prove the token within [`PROOF_TIME`]; and
//! at most [`STRANGERS`] unproved connections are kept beyond one for each expected rank, and the oldest is dropped first.

use crate::handshake::random;
use crate::link::{End, Link, Trust};
use crate::message::{Kind, Message, challenge};
use crate::sockets::{self, Tuning};
use crate::tls::Tls;
use crate::wire::{DetachedWire, Wire};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use skyphos_types::{Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Time for an incoming connection to prove the token; a rank needs milliseconds.
const PROOF_TIME: Duration = Duration::from_secs(10);

/// Time to connect. After it the attempt ends, and another one begins, perhaps to another address. A connected link waits for its
/// challenge as long as the caller does: rank 0's launcher may have opened the port long before rank 0 accepts.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Unproved incoming connections that are kept beyond one for each expected rank.
const STRANGERS: usize = 64;

/// Time between checks of the clock and for Ctrl-C.
const TICK: Duration = Duration::from_millis(50);

const LISTENER: Token = Token(0);

/// An event of a connection.
pub(crate) enum LinkEvent {
    Message(usize, Message),
    /// The connection is gone, or could not be made.
    Gone(usize, String),
    /// The connection is gone, and another one would end in the same way: only one side uses TLS, or the certificates do not match.
    Denied(usize, String),
}

/// The connections of a bring-up.
pub(crate) struct Lobby {
    poll: Poll,
    events: Events,
    listener: Option<TcpListener>,
    links: BTreeMap<usize, Link>,
    next_id: usize,
    /// Links that may have bytes to read.
    unread: VecDeque<usize>,
    gone: VecDeque<(usize, String)>,
    tls: Option<Tls>,
    /// Ranks that may connect to this one.
    expected: usize,
    interrupted: Option<fn() -> bool>,
    last_check: Instant,
}

/// The answer to a rank without TLS in a group that uses it.
fn tls_refusal() -> Vec<u8> {
    let mut message = Vec::new();
    Message::put(Kind::Refusal, &Error::refused("the group uses TLS").to_wire(), &mut message);
    message
}

/// An error of the machine rather than of a peer.
pub(crate) fn system_error(what: &str, error: &io::Error) -> Error {
    let hint = match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
            ": each rank needs an open file for every other one; raise `ulimit -n`"
        }
        _ => "",
    };
    Error::bad_input(format!("{what}: {error}{hint}"))
}

impl Lobby {
    pub(crate) fn new(expected: usize, interrupted: Option<fn() -> bool>, tls: Option<Tls>) -> Result<Lobby> {
        Ok(Lobby {
            poll: Poll::new().map_err(|e| system_error("cannot wait for connections", &e))?,
            events: Events::with_capacity(256),
            listener: None,
            links: BTreeMap::new(),
            next_id: 1,
            unread: VecDeque::new(),
            gone: VecDeque::new(),
            tls,
            expected,
            interrupted,
            last_check: Instant::now(),
        })
    }

    /// Accepts on a listening, non-blocking socket from now on.
    pub(crate) fn accept_on(&mut self, listener: std::net::TcpListener) -> Result<()> {
        let mut listener = TcpListener::from_std(listener);
        self.poll
            .registry()
            .register(&mut listener, LISTENER, Interest::READABLE)
            .map_err(|e| system_error("cannot listen", &e))?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Begins to connect. [`LinkEvent::Gone`] follows if that fails, else the server's challenge.
    pub(crate) fn connect(&mut self, address: SocketAddr, tuning: &Tuning) -> Result<usize> {
        let id = self.next_id;
        match sockets::begin_connect(address, tuning) {
            Ok(stream) => {
                let failed = |e| system_error("cannot connect", &e);
                let wire =
                    Wire::new(TcpStream::from_std(stream), self.tls.as_ref(), false).map_err(failed)?;
                self.add(Link::new(wire, address.to_string(), false)).map_err(failed)?;
            }
            Err(e) if matches!(e.raw_os_error(), Some(code) if code == rustix::io::Errno::MFILE.raw_os_error()) =>
            {
                return Err(system_error("cannot connect", &e));
            }
            Err(e) => {
                self.next_id += 1;
                self.gone.push_back((id, e.to_string()));
            }
        }
        Ok(id)
    }

    fn add(&mut self, mut link: Link) -> io::Result<usize> {
        sockets::prepare(&link.wire.stream)?;
        let id = self.next_id;
        self.next_id += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut link.wire.stream, Token(id), interest)?;
        self.links.insert(id, link);
        Ok(id)
    }

    pub(crate) fn link(&mut self, id: usize) -> Option<&mut Link> {
        self.links.get_mut(&id)
    }

    pub(crate) fn drop_link(&mut self, id: usize) {
        if let Some(mut link) = self.links.remove(&id) {
            // Fails only for a socket that is gone already.
            let _ = self.poll.registry().deregister(&mut link.wire.stream);
        }
    }

    /// Queues a message. A failure shows as [`LinkEvent::Gone`].
    pub(crate) fn send(&mut self, id: usize, kind: Kind, body: &[u8]) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if let Err(e) = link.send(kind, body) {
            self.lose(id, e.to_string());
        }
    }

    fn lose(&mut self, id: usize, cause: String) {
        self.drop_link(id);
        self.gone.push_back((id, cause));
    }

    /// Reads no more from a link, since frames may follow. Queued messages are still sent.
    pub(crate) fn settle(&mut self, id: usize) {
        if let Some(link) = self.links.get_mut(&id) {
            link.trust = Trust::Settled;
        }
    }

    /// Takes a settled connection out, for the transport.
    pub(crate) fn take(&mut self, id: usize) -> Result<DetachedWire> {
        let mut link = self.links.remove(&id).ok_or_else(|| Error::bad_input("a connection was lost"))?;
        let registry = self.poll.registry();
        registry
            .deregister(&mut link.wire.stream)
            .map_err(|e| system_error("cannot take over a connection", &e))?;
        Ok(link.wire.detach())
    }

    /// The next event; `None` once `until` has passed.
    pub(crate) fn next(&mut self, until: Instant) -> Result<Option<LinkEvent>> {
        loop {
            if let Some((id, cause)) = self.gone.pop_front() {
                return Ok(Some(LinkEvent::Gone(id, cause)));
            }
            if let Some(event) = self.read_one() {
                return Ok(Some(event));
            }
            let now = Instant::now();
            self.check(now)?;
            if now >= until {
                return Ok(None);
            }
            self.wait((until - now).min(TICK))?;
        }
    }

    fn read_one(&mut self) -> Option<LinkEvent> {
        while let Some(id) = self.unread.pop_front() {
            let Some(link) = self.links.get_mut(&id) else { continue };
            if matches!(link.trust, Trust::Connecting | Trust::Settled) {
                continue;
            }
            match link.read() {
                Ok(None) => {}
                Ok(Some(message)) => {
                    self.unread.push_back(id);
                    return Some(LinkEvent::Message(id, message));
                }
                Err(End { cause, denied }) => {
                    let cause = match link.incoming && link.trust == Trust::Stranger {
                        true => format!("{}: {cause}", link.peer),
                        false => cause,
                    };
                    self.drop_link(id);
                    return Some(match denied {
                        true => LinkEvent::Denied(id, cause),
                        false => LinkEvent::Gone(id, cause),
                    });
                }
            }
        }
        None
    }

    /// Once per tick: checks for Ctrl-C, and drops connections that are too slow.
    fn check(&mut self, now: Instant) -> Result<()> {
        if now.duration_since(self.last_check) < TICK {
            return Ok(());
        }
        self.last_check = now;
        if self.interrupted.is_some_and(|f| f()) {
            return Err(Error::Interrupted);
        }
        let late: Vec<usize> = self
            .links
            .iter()
            .filter(|(_, link)| {
                let waited = now.duration_since(link.since);
                match link.trust {
                    Trust::Connecting => waited > CONNECT_TIME,
                    Trust::Stranger => link.incoming && waited > PROOF_TIME,
                    Trust::Member | Trust::Settled => false,
                }
            })
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            let mut cause = "no answer".to_owned();
            if let Some(link) = self.links.get(&id).filter(|link| link.incoming) {
                cause = format!("{}: {cause}", link.peer);
                // It may be a rank without TLS, which waits for a challenge that it can read.
                link.wire.answer_unencrypted(&tls_refusal());
            }
            self.lose(id, cause);
        }
        Ok(())
    }

    fn wait(&mut self, wait: Duration) -> Result<()> {
        match self.poll.poll(&mut self.events, Some(wait)) {
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(()),
            Err(e) => return Err(system_error("cannot wait for connections", &e)),
            Ok(()) => {}
        }
        let happened: Vec<_> =
            self.events.iter().map(|e| (e.token(), e.is_writable() || e.is_error())).collect();
        for (token, writable) in happened {
            if token == LISTENER {
                self.accept()?;
                continue;
            }
            let Some(link) = self.links.get_mut(&token.0) else { continue };
            if link.trust == Trust::Connecting && writable {
                match link.wire.stream.take_error().and_then(|e| e.map_or(Ok(()), Err)) {
                    Ok(()) if link.wire.stream.peer_addr().is_ok() => {
                        link.trust = Trust::Stranger;
                        link.since = Instant::now();
                    }
                    Ok(()) => continue,
                    Err(e) => {
                        self.lose(token.0, e.to_string());
                        continue;
                    }
                }
            }
            if let Err(e) = link.flush() {
                self.lose(token.0, e.to_string());
                continue;
            }
            self.unread.push_back(token.0);
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            let Some(listener) = &self.listener else { return Ok(()) };
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                // This connection is gone already; the next one may not be.
                Err(e) if matches!(e.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {
                    continue;
                }
                Err(e) => return Err(system_error("cannot accept a connection", &e)),
            };
            let wire = Wire::new(stream, self.tls.as_ref(), true);
            let wire = wire.map_err(|e| system_error("cannot encrypt a connection", &e))?;
            let mut link = Link::new(wire, from.to_string(), true);
            link.server_nonce = random()?;
            let body = challenge(&link.server_nonce);
            let Ok(id) = self.add(link) else { continue };
            self.send(id, Kind::Challenge, &body);
            self.bound_strangers();
        }
    }

    fn bound_strangers(&mut self) {
        let mut strangers = self.links.iter().filter(|(_, l)| l.incoming && l.trust == Trust::Stranger);
        let oldest = strangers.next().map(|(id, _)| *id);
        if let Some(oldest) = oldest
            && strangers.count() >= self.expected + STRANGERS
        {
            self.drop_link(oldest);
        }
    }

    /// Sends all queued messages, or as many as possible before `until`.
    pub(crate) fn flush(&mut self, until: Instant) -> Result<()> {
        while self.links.values().any(|l| !l.is_flushed()) {
            let now = Instant::now();
            if now >= until {
                break;
            }
            self.wait((until - now).min(TICK))?;
        }
        Ok(())
    }
}
