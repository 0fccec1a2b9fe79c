//! The event loop of the bring-up: accepts, connects, and hands over one message at a time.
//!
//! Strangers cannot stall it: nothing here blocks on one connection, an incoming connection must
//! prove itself within [`PROOF_TIME`], and at most [`STRANGERS`] more than the ranks expected are kept
//! (the oldest stranger goes first).

use crate::handshake::random;
use crate::link::{End, Link, Trust};
use crate::message::{Kind, Message, challenge};
use crate::sockets::{self, Tuning};
use crate::tls::Tls;
use crate::wire::{Idle, Wire};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use skyphos_types::{Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Time for an incoming connection to prove the token; a rank needs milliseconds.
const PROOF_TIME: Duration = Duration::from_secs(10);

/// Time for a connection to be made; then the attempt is given up (and made again, perhaps to another
/// address). One that is made waits for its greeting as long as the caller does: rank 0's launcher may
/// have opened the port long before rank 0 looks.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Unproved incoming connections kept beside those of the ranks expected.
const STRANGERS: usize = 64;

/// How often to look at the clock and for Ctrl-C.
const TICK: Duration = Duration::from_millis(50);

const LISTENER: Token = Token(0);

/// What happened to a connection.
pub(crate) enum Happening {
    Message(usize, Message),
    /// The connection is gone; it was never there if it could not be made.
    Gone(usize, String),
    /// It is gone, and another one would go the same way, for one side has TLS and the other has not, or their certificates
    /// do not fit.
    Denied(usize, String),
}

pub(crate) struct Lobby {
    poll: Poll,
    events: Events,
    listener: Option<TcpListener>,
    links: BTreeMap<usize, Link>,
    next_id: usize,
    /// Links that may have something to read.
    unread: VecDeque<usize>,
    gone: VecDeque<(usize, String)>,
    tls: Option<Tls>,
    /// Ranks that may connect to this one.
    expected: usize,
    interrupted: Option<fn() -> bool>,
    looked: Instant,
}

/// What a rank is told that has no TLS in a group that has it: a refusal before it has said a word.
fn needs_tls() -> Vec<u8> {
    let mut message = Vec::new();
    Message::put(Kind::Refusal, &Error::refused("the group uses TLS").to_wire(), &mut message);
    message
}

/// An error of the machine rather than of a peer.
pub(crate) fn system(what: &str, error: &io::Error) -> Error {
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
            poll: Poll::new().map_err(|e| system("cannot wait for connections", &e))?,
            events: Events::with_capacity(256),
            listener: None,
            links: BTreeMap::new(),
            next_id: 1,
            unread: VecDeque::new(),
            gone: VecDeque::new(),
            tls,
            expected,
            interrupted,
            looked: Instant::now(),
        })
    }

    /// Accepts on a listening, non-blocking socket from now on.
    pub(crate) fn accept_on(&mut self, listener: std::net::TcpListener) -> Result<()> {
        let mut listener = TcpListener::from_std(listener);
        self.poll
            .registry()
            .register(&mut listener, LISTENER, Interest::READABLE)
            .map_err(|e| system("cannot listen", &e))?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Begins to connect; [`Happening::Gone`] follows if that fails, the server's challenge if not.
    pub(crate) fn connect(&mut self, address: SocketAddr, tuning: &Tuning) -> Result<usize> {
        let id = self.next_id;
        match sockets::begin_connect(address, tuning) {
            Ok(stream) => {
                let failed = |e| system("cannot connect", &e);
                let wire =
                    Wire::new(TcpStream::from_std(stream), self.tls.as_ref(), false).map_err(failed)?;
                self.add(Link::new(wire, address.to_string(), false)).map_err(failed)?;
            }
            Err(e) if matches!(e.raw_os_error(), Some(code) if code == rustix::io::Errno::MFILE.raw_os_error()) =>
            {
                return Err(system("cannot connect", &e));
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

    /// Queues a message. A failure shows as [`Happening::Gone`].
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

    /// Reads no more from a link, since frames may follow; a message queued for it still goes out.
    pub(crate) fn settle(&mut self, id: usize) {
        if let Some(link) = self.links.get_mut(&id) {
            link.trust = Trust::Settled;
        }
    }

    /// Takes a settled connection out, for the transport.
    pub(crate) fn take(&mut self, id: usize) -> Result<Idle> {
        let mut link = self.links.remove(&id).ok_or_else(|| Error::bad_input("a connection was lost"))?;
        let registry = self.poll.registry();
        registry
            .deregister(&mut link.wire.stream)
            .map_err(|e| system("cannot take over a connection", &e))?;
        Ok(link.wire.idle())
    }

    /// The next thing that happens, `None` once `until` has passed.
    pub(crate) fn next(&mut self, until: Instant) -> Result<Option<Happening>> {
        loop {
            if let Some((id, cause)) = self.gone.pop_front() {
                return Ok(Some(Happening::Gone(id, cause)));
            }
            if let Some(happening) = self.read_one() {
                return Ok(Some(happening));
            }
            let now = Instant::now();
            self.look_around(now)?;
            if now >= until {
                return Ok(None);
            }
            self.wait((until - now).min(TICK))?;
        }
    }

    fn read_one(&mut self) -> Option<Happening> {
        while let Some(id) = self.unread.pop_front() {
            let Some(link) = self.links.get_mut(&id) else { continue };
            if matches!(link.trust, Trust::Connecting | Trust::Settled) {
                continue;
            }
            match link.read() {
                Ok(None) => {}
                Ok(Some(message)) => {
                    self.unread.push_back(id);
                    return Some(Happening::Message(id, message));
                }
                Err(End { cause, denied }) => {
                    let cause = match link.incoming && link.trust == Trust::Stranger {
                        true => format!("{}: {cause}", link.peer),
                        false => cause,
                    };
                    self.drop_link(id);
                    return Some(match denied {
                        true => Happening::Denied(id, cause),
                        false => Happening::Gone(id, cause),
                    });
                }
            }
        }
        None
    }

    /// Every tick: Ctrl-C, and connections that keep us waiting.
    fn look_around(&mut self, now: Instant) -> Result<()> {
        if now.duration_since(self.looked) < TICK {
            return Ok(());
        }
        self.looked = now;
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
                // Perhaps a rank without TLS, which waits for a greeting that it can read.
                link.wire.answer_unencrypted(&needs_tls());
            }
            self.lose(id, cause);
        }
        Ok(())
    }

    fn wait(&mut self, wait: Duration) -> Result<()> {
        match self.poll.poll(&mut self.events, Some(wait)) {
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(()),
            Err(e) => return Err(system("cannot wait for connections", &e)),
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
                // The caller hung up before we looked (and the like): the next one may not have.
                Err(e) if matches!(e.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {
                    continue;
                }
                Err(e) => return Err(system("cannot accept a connection", &e)),
            };
            let wire = Wire::new(stream, self.tls.as_ref(), true);
            let wire = wire.map_err(|e| system("cannot encrypt a connection", &e))?;
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

    /// Sends all that is queued, waiting at most until then.
    pub(crate) fn flush(&mut self, until: Instant) -> Result<()> {
        while self.links.values().any(|l| !l.flushed()) {
            let now = Instant::now();
            if now >= until {
                break;
            }
            self.wait((until - now).min(TICK))?;
        }
        Ok(())
    }
}
