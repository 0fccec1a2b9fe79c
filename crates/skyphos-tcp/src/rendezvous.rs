//! Rank 0's side of the bring-up.
//!
//! ```text
//! listen at the rendezvous
//! until all ranks 1 … P-1 are registered:      challenge, hello, welcome
//! send the table to all
//! until all have reported that they are connected: ready
//! send "go" to all; the same connections carry frames from then on
//! ```
//!
//! An error is sent to all registered ranks before it is returned here, so all ranks return the same error. The earliest deadline of
//! all ranks counts, so a rank that began to wait before this one still learns which ranks are missing.
//!
//! Cost: 4 messages per rank. Rank 0 uses the connections of the rendezvous for its part of the mesh.

use crate::connections::Connections;
use crate::handshake::{GroupId, Key, random};
use crate::link::{SPEAKS_TLS, Trust};
use crate::lobby::{LinkEvent, Lobby};
use crate::message::{Details, Hello, Kind, Location, Message, Role, Table};
use crate::options::Options;
use crate::sockets;
use crate::tls::Tls;
use skyphos_core::host::Host;
use skyphos_types::{Error, Result};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// Time for which rank 0, after the group has failed, sends the error to registered ranks and to ranks that come later. Launchers
/// usually start all ranks within a second.
const LINGER: Duration = Duration::from_secs(1);

/// How long rank 0 still waits after the deadline for the other ranks' reports why they could not connect.
const REPORT_TIME: Duration = Duration::from_secs(2);

/// A time-out's text mentions at most this many connections that were turned away.
const MAX_MENTIONED: usize = 4;

struct Member {
    link: usize,
    details: Details,
    peer: String,
    ready: bool,
}

impl Member {
    fn describe(&self) -> String {
        format!("pid {} on {} ({})", self.details.pid, self.details.host, self.peer)
    }
}

struct Rendezvous {
    options: Options,
    key: Key,
    lobby: Lobby,
    members: Vec<Option<Member>>,
    deadline: Instant,
    address: SocketAddr,
    turned_away: Vec<String>,
}

/// Brings the group up as rank 0.
pub(crate) fn gather(options: Options, tls: Option<Tls>) -> Result<Connections> {
    let (listener, address) = open(&options)?;
    let mut lobby = Lobby::new(options.world_size as usize, options.interrupted, tls)?;
    lobby.accept_on(listener)?;
    let mut rendezvous = Rendezvous {
        key: Key::new(options.token.as_deref()),
        members: (0..options.world_size).map(|_| None).collect(),
        deadline: options.deadline(),
        turned_away: Vec::new(),
        options,
        lobby,
        address,
    };
    match rendezvous.run() {
        Ok(connections) => Ok(connections),
        Err(error) => {
            rendezvous.refuse_all(&error);
            Err(error)
        }
    }
}

/// The listening socket, and the address at which other ranks reach it.
fn open(options: &Options) -> Result<(TcpListener, SocketAddr)> {
    let place = &options.rendezvous;
    let resolved = sockets::resolve(place);
    if let Some(fd) = options.listen_fd {
        let listener = sockets::inherit(fd, &options.tuning())?;
        let own = listener.local_addr().map_err(|e| Error::bad_input(format!("listen_fd={fd}: {e}")))?;
        let named = resolved.ok().and_then(|all| all.first().copied()).unwrap_or(own);
        return Ok((listener, SocketAddr::new(named.ip(), own.port())));
    }
    let named = match (resolved, options.interface) {
        (Ok(all), _) => all[0],
        (Err(_), Some(ip)) => {
            let port = place.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or_default();
            SocketAddr::new(ip, port)
        }
        (Err(e), None) => return Err(sockets::unresolvable(place, &e)),
    };
    let ip = options.interface.unwrap_or(match named.ip() {
        ip if sockets::is_loopback(ip) => ip,
        ip if ip.is_ipv4() => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    });
    let bind = SocketAddr::new(ip, named.port());
    let listener = sockets::listen(bind, &options.tuning()).map_err(|e| {
        Error::bad_input(match e.kind() {
            ErrorKind::AddrInUse => format!(
                "rank 0 cannot listen at {bind} for the rendezvous {place}: another program, or another group's \
                 rank 0, holds the port; end it or choose another port"
            ),
            ErrorKind::AddrNotAvailable => format!(
                "rank 0 cannot listen at {bind} for the rendezvous {place}: not an address of this machine; name \
                 the machine that rank 0 runs on"
            ),
            _ => format!("rank 0 cannot listen at {bind} for the rendezvous {place}: {e}"),
        })
    })?;
    Ok((listener, named))
}

impl Rendezvous {
    fn run(&mut self) -> Result<Connections> {
        while self.missing(|_| true).next().is_some() {
            match self.lobby.next(self.deadline)? {
                None => return Err(self.timeout(|_| true)),
                Some(LinkEvent::Message(id, message)) => self.greet(id, &message)?,
                Some(LinkEvent::Gone(id, cause) | LinkEvent::Denied(id, cause)) => self.gone(id, &cause)?,
            }
        }
        let table = Table { group: random()?, locations: self.locations() };
        let body = table.encode();
        self.send_all(Kind::Table, &body);
        while self.missing(|m| m.ready).next().is_some() {
            match self.lobby.next(self.deadline + REPORT_TIME)? {
                None => return Err(self.timeout(|m| m.ready)),
                Some(LinkEvent::Message(id, message)) => self.report(id, &message)?,
                Some(LinkEvent::Gone(id, cause) | LinkEvent::Denied(id, cause)) => self.gone(id, &cause)?,
            }
        }
        self.send_all(Kind::Go, &[]);
        self.lobby.flush(self.deadline + REPORT_TIME)?;
        let Rendezvous { members, lobby, .. } = self;
        let wires = members.iter().map(|m| m.as_ref().map(|m| lobby.take(m.link)).transpose());
        Ok(Connections { wires: wires.collect::<Result<_>>()?, locations: table.locations, arena: None })
    }

    /// The ranks that are not registered, or for which `counts` is false.
    fn missing(&self, counts: impl Fn(&Member) -> bool) -> impl Iterator<Item = u32> {
        let members = self.members.iter().enumerate().skip(1);
        members.filter(move |(_, m)| !m.as_ref().is_some_and(&counts)).map(|(rank, _)| rank as u32)
    }

    fn timeout(&self, counts: impl Fn(&Member) -> bool) -> Error {
        let mut call = self.options.describe_rendezvous();
        if sockets::is_loopback(self.address.ip()) && !self.options.rendezvous.starts_with("127.") {
            call += &format!(" ({}, which only this machine reaches)", self.address.ip());
        }
        if !self.turned_away.is_empty() {
            call += &format!(" (turned away: {})", self.turned_away.join("; "));
        }
        Error::Timeout { missing: self.missing(counts).collect(), call, after: self.options.timeout }
    }

    /// Registers the rank of a hello.
    fn greet(&mut self, id: usize, message: &Message) -> Result<()> {
        let Some((hello, is_proved)) = self.hello(id, message) else { return Ok(()) };
        let Some(link) = self.lobby.link(id) else { return Ok(()) };
        let (peer, Some(nonce)) = (link.peer.clone(), link.nonce()) else { return Ok(()) };
        if !is_proved {
            self.turn_away(id, &hello, &peer);
            return Ok(());
        }
        let Some(details) = hello.details.clone() else { return Ok(()) };
        link.trust = Trust::Member;
        let size = self.options.world_size;
        let newcomer = Member { link: id, details, peer, ready: false };
        let rank = hello.rank;
        let error = if hello.world_size != size {
            let group = |size: u32| format!("a group of {size} (world_size={size})");
            let (left_call, right_call) = (group(size), group(hello.world_size));
            Some(Error::Mismatch { left: 0, left_call, right: rank, right_call })
        } else if newcomer.details.replication != self.options.replication {
            let text = |(each, share_hosts): (u32, bool)| {
                format!(
                    "init(replication={each}, share_hosts={})",
                    if share_hosts { "True" } else { "False" }
                )
            };
            let (left_call, right_call) =
                (text(self.options.replication), text(newcomer.details.replication));
            Some(Error::Mismatch { left: 0, left_call, right: rank, right_call })
        } else if rank == 0 {
            let own = format!("pid {} on {}", std::process::id(), Host::this().name);
            Some(rank_taken(0, &own, &newcomer.describe()))
        } else if rank >= size {
            Some(Error::bad_input(format!("rank {rank} came to a group of {size}")))
        } else {
            self.members[rank as usize]
                .as_ref()
                .map(|first| rank_taken(rank, &first.describe(), &newcomer.describe()))
        };
        if let Some(error) = error {
            self.lobby.send(id, Kind::Refusal, &error.to_wire());
            return Err(error);
        }
        let left = Duration::from_millis(newcomer.details.left_ms);
        if let Some(theirs) = Instant::now().checked_add(left) {
            self.deadline = self.deadline.min(theirs);
        }
        let group = GroupId::default();
        self.lobby.send(id, Kind::Welcome, &hello.welcome(&self.key, &nonce, &group));
        self.members[rank as usize] = Some(newcomer);
        Ok(())
    }

    /// The hello in a stranger's message. Drops connections that send anything else.
    fn hello(&mut self, id: usize, message: &Message) -> Option<(Hello, bool)> {
        let link = self.lobby.link(id)?;
        let hello = (message.kind == Kind::Hello && link.trust == Trust::Stranger)
            .then(|| Hello::decode(&message.body, &self.key, &link.nonce()?, &GroupId::default()))
            .flatten()
            .filter(|(hello, _)| hello.role == Role::Register && hello.to == 0);
        // A registered rank sends nothing before it has the table, so a stranger that sends anything else is no rank.
        if hello.is_none() && link.trust == Trust::Stranger {
            self.lobby.drop_link(id);
        }
        hello
    }

    fn turn_away(&mut self, id: usize, hello: &Hello, peer: &str) {
        let why = match (self.key.has_token(), hello.has_token) {
            (true, false) => "it gave no token, the group has one",
            (false, true) => "it gave a token, the group has none",
            _ => "its token is not the group's",
        };
        let rank = hello.rank;
        let error = Error::refused(format!(
            "{} does not let in rank {rank} ({peer}): {why}; give all ranks the same token",
            self.options.describe_rendezvous()
        ));
        self.mention(format!("{peer} as rank {rank}, {why}"));
        self.lobby.send(id, Kind::Refusal, &error.to_wire());
        self.lobby.drop_link(id);
    }

    fn mention(&mut self, turned_away: String) {
        if self.turned_away.len() < MAX_MENTIONED {
            self.turned_away.push(turned_away);
        }
    }

    /// Handles a rank's report whether it is connected to all others.
    fn report(&mut self, id: usize, message: &Message) -> Result<()> {
        let Some(member) = self.members.iter_mut().flatten().find(|m| m.link == id) else {
            // All ranks are registered, so this is a duplicate or a stranger.
            return self.greet(id, message);
        };
        match message.kind {
            Kind::Ready => {
                member.ready = true;
                self.lobby.settle(id);
                Ok(())
            }
            Kind::Failed => {
                Err(Error::from_wire(&message.body).unwrap_or(Error::refused("a rank could not connect")))
            }
            _ => Ok(()),
        }
    }

    fn gone(&mut self, id: usize, cause: &str) -> Result<()> {
        let Some(rank) = self.members.iter().position(|m| m.as_ref().is_some_and(|m| m.link == id)) else {
            // A rank whose TLS settings differ from the group's fails here.
            if self.options.tls.is_some() || cause.ends_with(SPEAKS_TLS) {
                self.mention(cause.to_owned());
            }
            return Ok(());
        };
        let member = self.members[rank].take().expect("just found");
        let cause = format!("{cause} during {}", self.options.describe_rendezvous());
        Err(Error::PeerLost { rank: rank as u32, address: member.describe(), cause })
    }

    fn locations(&self) -> Vec<Location> {
        let own = Host::this();
        let mut machines = vec![own.machine.clone()];
        let mut locations = vec![Location { machine: 0, address: self.address, host: own.name }];
        for Member { details, .. } in self.members.iter().flatten() {
            let machine = machines.iter().position(|m| *m == details.machine).unwrap_or_else(|| {
                machines.push(details.machine.clone());
                machines.len() - 1
            });
            locations.push(Location {
                machine: machine as u32,
                address: details.mesh,
                host: details.host.clone(),
            });
        }
        locations
    }

    fn send_all(&mut self, kind: Kind, body: &[u8]) {
        for member in self.members.iter().flatten() {
            self.lobby.send(member.link, kind, body);
        }
    }

    /// Sends the error of a failed bring-up to all registered ranks, and to those that come within a second.
    fn refuse_all(&mut self, error: &Error) {
        let body = error.as_seen_by_others(0).to_wire();
        self.send_all(Kind::Refusal, &body);
        let until = Instant::now() + LINGER;
        // A failure here changes nothing: the caller returns the error already.
        let _ = self.lobby.flush(until);
        let answers_late = !matches!(error, Error::Timeout { .. } | Error::Interrupted);
        while answers_late && self.missing(|_| true).next().is_some() {
            let Ok(Some(event)) = self.lobby.next(until) else { break };
            let LinkEvent::Message(id, message) = event else { continue };
            let Some((hello, is_proved)) = self.hello(id, &message) else { continue };
            let (Some(link), Some(details)) = (self.lobby.link(id), hello.details.clone()) else { continue };
            if !is_proved {
                let peer = link.peer.clone();
                self.turn_away(id, &hello, &peer);
                continue;
            }
            if let Some(location) = self.members.get_mut(hello.rank as usize) {
                link.trust = Trust::Member;
                *location = Some(Member { link: id, details, peer: link.peer.clone(), ready: false });
            }
            self.lobby.send(id, Kind::Refusal, &body);
        }
        let _ = self.lobby.flush(until);
    }
}

fn rank_taken(rank: u32, first: &str, second: &str) -> Error {
    Error::refused(format!(
        "two processes came as rank {rank}: {first} and {second}; give each process its own rank"
    ))
}
