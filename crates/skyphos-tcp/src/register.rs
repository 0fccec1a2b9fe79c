//! Registration with rank 0: connect, prove the token to each other, send this rank's details.

use crate::attempt::{Attempt, LONGEST_PAUSE};
use crate::handshake::GroupId;
use crate::joining::{Joining, SAME_TLS};
use crate::link::Trust;
use crate::lobby::{LinkEvent, system_error};
use crate::message::{self, Details, Hello, Kind, Message, PROTOCOL, Role};
use crate::sockets;
use skyphos_core::host::Host;
use skyphos_types::{Error, Result};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// Time for which an unresolved name is retried: in some clusters the name exists only once rank 0 has started.
const NAME_TIME: Duration = Duration::from_secs(10);

impl Joining {
    /// Registers with rank 0. Returns the connection to it, and this rank's listener.
    pub(crate) fn register(&mut self) -> Result<(usize, TcpListener)> {
        let mut attempt = Attempt::new();
        let mut addresses = Vec::new();
        let mut tries = 0;
        let mut listener = None;
        loop {
            if attempt.due() {
                if addresses.is_empty() {
                    addresses = self.resolve(&mut attempt)?;
                }
                if let Some(address) = addresses.get(tries % addresses.len().max(1)) {
                    attempt.link = Some(self.lobby.connect(*address, &self.options.tuning())?);
                    tries += 1;
                }
            }
            let until = if attempt.link.is_none() { attempt.next.min(self.deadline) } else { self.deadline };
            let event = self.lobby.next(until)?;
            if event.is_none() && Instant::now() >= self.deadline {
                return Err(self.no_answer(&attempt));
            }
            match event {
                Some(LinkEvent::Gone(id, cause)) if attempt.link == Some(id) => attempt.failed(cause),
                Some(LinkEvent::Denied(id, cause)) if attempt.link == Some(id) => {
                    return Err(self.denied(&self.options.rendezvous, &cause));
                }
                Some(LinkEvent::Message(id, message)) if attempt.link == Some(id) => match message.kind {
                    Kind::Challenge if attempt.hello.is_none() => {
                        listener = self.introduce(id, &message, &mut attempt)?.or(listener);
                    }
                    // Only a rank 0 that cannot use TLS with this rank refuses before the challenge.
                    Kind::Refusal if attempt.hello.is_none() => return Err(self.error_without_tls()),
                    Kind::Refusal => return Err(self.refusal(&message)),
                    Kind::Welcome => {
                        if let (Some(hello), Some(listener)) = (&attempt.hello, listener.take()) {
                            self.check_welcome(id, hello, &message)?;
                            return Ok((id, listener));
                        }
                    }
                    _ => {
                        self.lobby.drop_link(id);
                        attempt.failed("it does not speak Skyphos's protocol".to_owned());
                    }
                },
                _ => {}
            }
        }
    }

    fn resolve(&self, attempt: &mut Attempt) -> Result<Vec<SocketAddr>> {
        match sockets::resolve(&self.options.rendezvous) {
            Ok(addresses) => Ok(addresses),
            Err(e)
                if attempt.since.elapsed() > NAME_TIME || Instant::now() + LONGEST_PAUSE > self.deadline =>
            {
                Err(sockets::unresolvable(&self.options.rendezvous, &e))
            }
            Err(e) => {
                attempt.failed(e.to_string());
                Ok(Vec::new())
            }
        }
    }

    /// Answers rank 0's challenge: opens this rank's listener, and sends its details with the proof. Returns the listener.
    fn introduce(
        &mut self,
        id: usize,
        message: &Message,
        attempt: &mut Attempt,
    ) -> Result<Option<TcpListener>> {
        let Some((protocol, nonce)) = message::read_challenge(&message.body) else {
            self.lobby.drop_link(id);
            attempt.failed("what listens there is not Skyphos: another program has the port".to_owned());
            return Ok(None);
        };
        if protocol != PROTOCOL {
            return Err(Error::bad_input(format!(
                "{} speaks version {protocol} of the protocol, rank {} version {PROTOCOL}: install the same Skyphos \
                 everywhere",
                self.options.describe_rendezvous(),
                self.options.rank
            )));
        }
        let Some(link) = self.lobby.link(id) else { return Ok(None) };
        link.server_nonce = nonce;
        let Some(nonce) = link.nonce() else { return Ok(None) };
        let local =
            link.wire.stream.local_addr().map_err(|e| system_error("cannot read this rank's address", &e))?;
        let bind = SocketAddr::new(self.options.interface.unwrap_or(local.ip()), 0);
        let listener = sockets::listen(bind, &self.options.tuning()).map_err(|e| {
            Error::bad_input(format!("rank {} cannot listen at {}: {e}", self.options.rank, bind.ip()))
        })?;
        let own = listener.local_addr().map_err(|e| system_error("cannot read this rank's port", &e))?;
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
        attempt.hello = Some(hello);
        // Rank 0's next messages may be longer than a stranger's: the table of all ranks.
        if let Some(link) = self.lobby.link(id) {
            link.trust = Trust::Member;
        }
        self.lobby.send(id, Kind::Hello, &body);
        Ok(Some(listener))
    }

    /// Checks that rank 0 knows the token as well.
    fn check_welcome(&mut self, id: usize, hello: &Hello, message: &Message) -> Result<()> {
        let Some(nonce) = self.lobby.link(id).and_then(|link| link.nonce()) else { return Ok(()) };
        match hello.accepts_welcome(&message.body, &self.key, &nonce, &GroupId::default()) {
            true => Ok(()),
            false => Err(Error::refused(format!(
                "what answers at {} cannot prove that it knows the token: it is not this group's rank 0",
                self.options.rendezvous
            ))),
        }
    }

    fn error_without_tls(&self) -> Error {
        let (rank, call) = (self.options.rank, self.options.describe_rendezvous());
        Error::refused(format!("rank {rank} came without TLS to {call}, where the group uses it; {SAME_TLS}"))
    }

    fn no_answer(&self, attempt: &Attempt) -> Error {
        let mut call = self.options.describe_rendezvous();
        if attempt.link.is_some() && attempt.hello.is_none() {
            call += match self.options.tls {
                None => {
                    " (what listens there sends no Skyphos greeting: is it another program, or does rank 0 use TLS?)"
                }
                Some(_) => " (what listens there does not speak TLS: is it another program?)",
            };
        } else if !attempt.last_failure.is_empty() {
            call += &format!(" (last attempt: {})", attempt.last_failure);
        }
        Error::Timeout { missing: vec![0], call, after: self.options.timeout }
    }
}
