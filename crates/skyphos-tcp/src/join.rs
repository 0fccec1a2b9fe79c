//! The other ranks' side of the bring-up: register with rank 0, then connect to each other.
//!
//! ```text
//! connect to the rendezvous, again and again until rank 0 is there; prove; register
//! wait for the table
//! connect to the others (`mesh`)
//! tell rank 0; wait for "go"
//! ```

use crate::handshake::{GroupId, Key, random};
use crate::link::Trust;
use crate::lobby::{Happening, Lobby, system};
use crate::mesh::mesh;
use crate::message::{self, Details, Hello, Kind, Message, PROTOCOL, Role, Table};
use crate::tls::Tls;
use crate::{Formed, Options, sockets};
use skyphos_core::host::Host;
use skyphos_types::{Error, Result};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// Pause before the next attempt: short, since rank 0 comes a moment later as a rule; longer each
/// time, since it may also take minutes.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// How long a name that does not resolve is tried again: in some clusters it appears with rank 0.
const NAME_TIME: Duration = Duration::from_secs(10);

/// What to do about settings that differ.
const SAME_TLS: &str = "give all ranks certificates of one authority, or none of them any";

/// How much longer than its own deadline a rank waits for rank 0's words.
const VERDICT_TIME: Duration = Duration::from_secs(3);

/// Attempts to connect to one place.
pub(crate) struct Attempt {
    pub(crate) since: Instant,
    pub(crate) link: Option<usize>,
    pub(crate) next: Instant,
    pause: Duration,
    pub(crate) hello: Option<Hello>,
    /// Why the last one failed.
    pub(crate) last: String,
}

impl Attempt {
    pub(crate) fn new() -> Attempt {
        let now = Instant::now();
        Attempt { since: now, link: None, next: now, pause: FIRST_PAUSE, hello: None, last: String::new() }
    }

    pub(crate) fn due(&self) -> bool {
        self.link.is_none() && Instant::now() >= self.next
    }

    pub(crate) fn failed(&mut self, cause: String) {
        (self.link, self.hello) = (None, None);
        self.next = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.last = cause;
    }
}

/// What [`Join::hear`] hears.
pub(crate) enum Heard {
    /// Rank 0 says something other than no.
    Home(Message),
    /// Something on another connection.
    Other(Happening),
    /// The time has passed.
    Nothing,
}

/// A rank on its way into the group.
pub(crate) struct Join {
    pub(crate) options: Options,
    pub(crate) key: Key,
    pub(crate) lobby: Lobby,
    pub(crate) deadline: Instant,
    /// The connection to rank 0, once this rank is registered.
    home: Option<usize>,
    /// Rank 0 has said that the group does not come up, or is gone.
    told: bool,
}

/// Brings the group up as a rank other than 0.
pub(crate) fn join(options: Options, tls: Option<Tls>) -> Result<Formed> {
    let mut join = Join {
        key: Key::new(options.token.as_deref()),
        lobby: Lobby::new(options.world_size as usize, options.interrupted, tls)?,
        deadline: options.deadline(),
        home: None,
        told: false,
        options,
    };
    join.run().map_err(|error| join.report(error))
}

impl Join {
    fn run(&mut self) -> Result<Formed> {
        let (home, listener) = self.register()?;
        self.home = Some(home);
        let table = self.table()?;
        let mut links = mesh(self, listener, &table)?;
        links[0] = Some(home);
        self.lobby.send(home, Kind::Ready, &[]);
        self.go()?;
        let wires = links.into_iter().map(|link| link.map(|id| self.lobby.take(id)).transpose());
        Ok(Formed { wires: wires.collect::<Result<_>>()?, seats: table.seats, arena: None })
    }

    /// The error in rank 0's refusal.
    fn refusal(&self, message: &Message) -> Error {
        Error::from_wire(&message.body)
            .unwrap_or_else(|| Error::refused(format!("{} did not say why", self.options.call())))
    }

    /// The next thing that happens; an error if rank 0 says no or is gone.
    pub(crate) fn hear(&mut self, until: Instant) -> Result<Heard> {
        match self.lobby.next(until)? {
            None => Ok(Heard::Nothing),
            Some(Happening::Gone(id, cause) | Happening::Denied(id, cause)) if self.home == Some(id) => {
                self.told = true;
                let cause = format!("{cause} during {}", self.options.call());
                Err(Error::PeerLost { rank: 0, address: self.options.rendezvous.clone(), cause })
            }
            Some(Happening::Message(id, message)) if self.home == Some(id) => match message.kind {
                Kind::Refusal => {
                    self.told = true;
                    Err(self.refusal(&message))
                }
                _ => Ok(Heard::Home(message)),
            },
            Some(other) => Ok(Heard::Other(other)),
        }
    }

    /// Finds rank 0 and is entered in its table: the connection to it, and this rank's listener.
    fn register(&mut self) -> Result<(usize, TcpListener)> {
        let mut home = Attempt::new();
        let mut addresses = Vec::new();
        let mut tries = 0;
        let mut listener = None;
        loop {
            if home.due() {
                if addresses.is_empty() {
                    addresses = self.resolve(&mut home)?;
                }
                if let Some(address) = addresses.get(tries % addresses.len().max(1)) {
                    home.link = Some(self.lobby.connect(*address, &self.options.tuning())?);
                    tries += 1;
                }
            }
            let until = if home.link.is_none() { home.next.min(self.deadline) } else { self.deadline };
            let happening = self.lobby.next(until)?;
            if happening.is_none() && Instant::now() >= self.deadline {
                return Err(self.nobody_home(&home));
            }
            match happening {
                Some(Happening::Gone(id, cause)) if home.link == Some(id) => home.failed(cause),
                Some(Happening::Denied(id, cause)) if home.link == Some(id) => {
                    return Err(self.denied(&self.options.rendezvous, &cause));
                }
                Some(Happening::Message(id, message)) if home.link == Some(id) => match message.kind {
                    Kind::Challenge if home.hello.is_none() => {
                        listener = self.introduce(id, &message, &mut home)?.or(listener);
                    }
                    // Only who cannot greet us in TLS refuses before he knows who we are.
                    Kind::Refusal if home.hello.is_none() => return Err(self.needs_tls()),
                    Kind::Refusal => return Err(self.refusal(&message)),
                    Kind::Welcome => {
                        if let (Some(hello), Some(listener)) = (&home.hello, listener.take()) {
                            self.believe(id, hello, &message)?;
                            return Ok((id, listener));
                        }
                    }
                    _ => {
                        self.lobby.drop_link(id);
                        home.failed("it does not speak Skyphos's protocol".to_owned());
                    }
                },
                _ => {}
            }
        }
    }

    fn resolve(&self, home: &mut Attempt) -> Result<Vec<SocketAddr>> {
        match sockets::resolve(&self.options.rendezvous) {
            Ok(addresses) => Ok(addresses),
            Err(e) if home.since.elapsed() > NAME_TIME || Instant::now() + LONGEST_PAUSE > self.deadline => {
                Err(sockets::unresolvable(&self.options.rendezvous, &e))
            }
            Err(e) => {
                home.failed(e.to_string());
                Ok(Vec::new())
            }
        }
    }

    /// Rank 0's challenge came: open this rank's own listener and register.
    fn introduce(&mut self, id: usize, message: &Message, home: &mut Attempt) -> Result<Option<TcpListener>> {
        let Some((protocol, nonce)) = message::read_challenge(&message.body) else {
            self.lobby.drop_link(id);
            home.failed("what listens there is not Skyphos: another program has the port".to_owned());
            return Ok(None);
        };
        if protocol != PROTOCOL {
            return Err(Error::bad_input(format!(
                "{} speaks version {protocol} of the protocol, rank {} version {PROTOCOL}: install the same Skyphos \
                 everywhere",
                self.options.call(),
                self.options.rank
            )));
        }
        let Some(link) = self.lobby.link(id) else { return Ok(None) };
        link.server_nonce = nonce;
        let Some(nonce) = link.nonce() else { return Ok(None) };
        let local = link.wire.stream.local_addr().map_err(|e| system("cannot see the own address", &e))?;
        let bind = SocketAddr::new(self.options.interface.unwrap_or(local.ip()), 0);
        let listener = sockets::listen(bind, &self.options.tuning()).map_err(|e| {
            Error::bad_input(format!("rank {} cannot listen at {}: {e}", self.options.rank, bind.ip()))
        })?;
        let own = listener.local_addr().map_err(|e| system("cannot see the own port", &e))?;
        let ip = if own.ip().is_unspecified() { local.ip() } else { own.ip() };
        let host = Host::this();
        let details = Details {
            left_ms: self.deadline.saturating_duration_since(Instant::now()).as_millis() as u64,
            pid: std::process::id(),
            replication: self.options.replication,
            mesh: SocketAddr::new(ip, own.port()),
            host: host.name,
            machine: host.machine,
        };
        let hello = self.hello(Role::Register, 0, Some(details))?;
        let body = hello.encode(&self.key, &nonce, &GroupId::default());
        home.hello = Some(hello);
        // Rank 0 answers at once, but may be busy with thousands of others.
        if let Some(link) = self.lobby.link(id) {
            link.trust = Trust::Member;
        }
        self.lobby.send(id, Kind::Hello, &body);
        Ok(Some(listener))
    }

    /// Rank 0 must know the token as well.
    fn believe(&mut self, id: usize, hello: &Hello, message: &Message) -> Result<()> {
        let Some(nonce) = self.lobby.link(id).and_then(|link| link.nonce()) else { return Ok(()) };
        match hello.check_welcome(&message.body, &self.key, &nonce, &GroupId::default()) {
            true => Ok(()),
            false => Err(Error::refused(format!(
                "what answers at {} cannot prove that it knows the token: it is not this group's rank 0",
                self.options.rendezvous
            ))),
        }
    }

    fn needs_tls(&self) -> Error {
        let (rank, call) = (self.options.rank, self.options.call());
        Error::refused(format!("rank {rank} came without TLS to {call}, where the group uses it; {SAME_TLS}"))
    }

    /// TLS has told that the settings of this rank and of what answers there differ.
    pub(crate) fn denied(&self, there: &str, cause: &str) -> Error {
        let rank = self.options.rank;
        Error::refused(format!(
            "rank {rank} and what answers at {there} do not agree on TLS: {cause}; {SAME_TLS}"
        ))
    }

    fn nobody_home(&self, home: &Attempt) -> Error {
        let mut call = self.options.call();
        if home.link.is_some() && home.hello.is_none() {
            call += match self.options.tls {
                None => {
                    " (what listens there sends no Skyphos greeting: is it another program, or does rank 0 use TLS?)"
                }
                Some(_) => " (what listens there does not speak TLS: is it another program?)",
            };
        } else if !home.last.is_empty() {
            call += &format!(" (last attempt: {})", home.last);
        }
        Error::Timeout { missing: vec![0], call, after: self.options.timeout }
    }

    pub(crate) fn hello(&self, role: Role, to: u32, details: Option<Details>) -> Result<Hello> {
        let Options { rank, world_size, .. } = self.options;
        let (has_token, nonce) = (self.key.has_token(), random()?);
        Ok(Hello { role, has_token, rank, world_size, to, nonce, details })
    }

    /// Rank 0 was there and says nothing any more.
    fn silent(&self, since: &str) -> Error {
        let call = format!("{} ({since}, then it fell silent)", self.options.call());
        Error::Timeout { missing: vec![0], call, after: self.options.timeout }
    }

    /// Waits for everyone else to come.
    fn table(&mut self) -> Result<Table> {
        loop {
            match self.hear(self.deadline + VERDICT_TIME)? {
                Heard::Nothing => return Err(self.silent("rank 0 registered this rank")),
                Heard::Home(message) if message.kind == Kind::Table => {
                    return Table::decode(&message.body)
                        .filter(|t| t.seats.len() == self.options.world_size as usize)
                        .ok_or(Error::Corrupt {
                            rank: 0,
                            message: "its table of ranks cannot be read".to_owned(),
                        });
                }
                _ => {}
            }
        }
    }

    /// Waits until every rank is connected to all.
    fn go(&mut self) -> Result<()> {
        loop {
            match self.hear(self.deadline + VERDICT_TIME)? {
                Heard::Nothing => return Err(self.silent("this rank is connected to all")),
                Heard::Home(message) if message.kind == Kind::Go => break,
                // Strangers, for every rank has its connection.
                Heard::Other(Happening::Message(id, _)) => self.lobby.drop_link(id),
                _ => {}
            }
        }
        self.lobby.flush(self.deadline + VERDICT_TIME)
    }

    /// Tells rank 0 why this rank cannot, and returns what all ranks will raise.
    fn report(&mut self, error: Error) -> Error {
        let Some(home) = self.home else { return error };
        if self.told {
            return error;
        }
        self.lobby.send(home, Kind::Failed, &error.as_seen_by_others(self.options.rank).to_wire());
        if error == Error::Interrupted {
            // The user waits; what does not go out at once shows as a lost connection.
            return error;
        }
        let until = Instant::now() + VERDICT_TIME;
        loop {
            match self.hear(until) {
                Ok(Heard::Nothing) => return error,
                Ok(_) => {}
                Err(_) if !self.told => return error,
                Err(Error::PeerLost { rank: 0, .. }) => return error,
                Err(verdict) => return verdict,
            }
        }
    }
}
