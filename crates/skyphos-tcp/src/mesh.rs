//! The connections between ranks other than 0.
//!
//! ```text
//! connect to every rank j with 0 < j < rank; accept every rank j > rank     concurrently
//! prove the token and the group on each connection
//! ```
//!
//! The whole mesh is built at start: (P-1)(P-2)/2 connections beside rank 0's. Measured on 2 cores over the loopback
//! (`examples/bringup.rs`, all ranks threads of one process, best of 7):
//!
//! | ranks | bring-up | the mesh's part |
//! |---|---|---|
//! | 2 | 0.4 ms | none |
//! | 8 | 2.1 ms | 0.8 ms |
//! | 64 | 82 ms | 55 ms: 2016 connections, 27 µs each |
//!
//! On 64 machines each rank would make its 63 connections in a few ms. Lazy connections could save no more than that, and only in
//! programs that use few pairs. Other programs would connect inside their first collectives, and find an unreachable rank late.

use crate::attempt::Attempt;
use crate::joining::{Event, Joining};
use crate::link::Trust;
use crate::lobby::LinkEvent;
use crate::message::{self, Hello, Kind, Message, PROTOCOL, Role, Table};
use crate::sockets;
use skyphos_types::{Error, Result};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// Time for the mesh after the table has arrived. Every listener exists by then, so a longer wait means a firewall or a wrong address.
const MESH_TIME: Duration = Duration::from_secs(30);

/// How long a refused connection is retried.
const REFUSED_TIME: Duration = Duration::from_secs(2);

/// Additional time of the accepting side, since the connecting side reports better errors.
const ACCEPT_EXTRA: Duration = Duration::from_secs(1);

struct Mesh<'a> {
    join: &'a mut Joining,
    table: &'a Table,
    me: usize,
    /// The connections made so far, by rank.
    links: Vec<Option<usize>>,
    /// Attempts to connect to the ranks below this one.
    attempts: Vec<Attempt>,
    limit: Instant,
}

/// Connects to every other rank but 0. Returns the link to each.
pub(crate) fn mesh(join: &mut Joining, listener: TcpListener, table: &Table) -> Result<Vec<Option<usize>>> {
    join.lobby.accept_on(listener)?;
    let me = join.options.rank as usize;
    let mut mesh = Mesh {
        me,
        links: vec![None; table.locations.len()],
        attempts: (0..me).map(|_| Attempt::new()).collect(),
        limit: join.deadline.min(Instant::now() + MESH_TIME),
        join,
        table,
    };
    while mesh.missing().next().is_some() {
        let until = mesh.try_due()?;
        match mesh.join.next_event(until)? {
            Event::Nothing if Instant::now() >= mesh.limit + ACCEPT_EXTRA => {
                return Err(mesh.no_connections());
            }
            Event::Other(LinkEvent::Gone(id, cause)) => {
                if let Some(j) = mesh.attempt_of(id) {
                    mesh.attempts[j].failed(cause);
                }
            }
            Event::Other(LinkEvent::Denied(id, cause)) => {
                if let Some(j) = mesh.attempt_of(id) {
                    let there = format!("rank {j}'s place {}", mesh.table.locations[j].describe());
                    return Err(mesh.join.denied(&there, &cause));
                }
            }
            Event::Other(LinkEvent::Message(id, message)) => match mesh.attempt_of(id) {
                Some(j) => mesh.on_connected(id, j, &message)?,
                None => mesh.on_accepted(id, &message),
            },
            _ => {}
        }
    }
    Ok(mesh.links)
}

impl Mesh<'_> {
    fn missing(&self) -> impl Iterator<Item = usize> {
        (1..self.links.len()).filter(|j| *j != self.me && self.links[*j].is_none())
    }

    fn attempt_of(&self, id: usize) -> Option<usize> {
        self.attempts.iter().position(|a| a.link == Some(id))
    }

    /// Makes the attempts that are due. Returns the time of the next one.
    fn try_due(&mut self) -> Result<Instant> {
        let now = Instant::now();
        let mut until = self.limit + ACCEPT_EXTRA;
        for j in 1..self.me {
            if self.links[j].is_some() {
                continue;
            }
            let attempt = &mut self.attempts[j];
            let refused = attempt.last_failure.contains("refused") && now - attempt.since > REFUSED_TIME;
            if refused || now >= self.limit {
                return Err(self.unreachable(j));
            }
            if attempt.due() {
                let address = self.table.locations[j].address;
                attempt.link = Some(self.join.lobby.connect(address, &self.join.options.tuning())?);
            }
            until = until.min(if attempt.link.is_none() { attempt.next } else { self.limit });
        }
        Ok(until)
    }

    /// Handles a message on a connection to rank `j` that this rank opened.
    fn on_connected(&mut self, id: usize, j: usize, message: &Message) -> Result<()> {
        let Mesh { join, table, attempts, links, .. } = self;
        match (message.kind, &attempts[j].hello) {
            (Kind::Challenge, None) => {
                if let Some((PROTOCOL, nonce)) = message::read_challenge(&message.body) {
                    let hello = join.hello(Role::Mesh, j as u32, None)?;
                    let Some(link) = join.lobby.link(id) else { return Ok(()) };
                    link.server_nonce = nonce;
                    link.trust = Trust::Member;
                    let Some(nonce) = link.nonce() else { return Ok(()) };
                    let body = hello.encode(&join.key, &nonce, &table.group);
                    attempts[j].hello = Some(hello);
                    join.lobby.send(id, Kind::Hello, &body);
                    return Ok(());
                }
            }
            (Kind::Welcome, Some(hello)) => {
                let Some(nonce) = join.lobby.link(id).and_then(|link| link.nonce()) else { return Ok(()) };
                if hello.accepts_welcome(&message.body, &join.key, &nonce, &table.group) {
                    join.lobby.settle(id);
                    links[j] = Some(id);
                    return Ok(());
                }
            }
            _ => {}
        }
        join.lobby.drop_link(id);
        attempts[j].failed("what listens there is not a rank of this group".to_owned());
        Ok(())
    }

    /// Handles a message on a connection that was accepted. The connection is kept if the peer proves to be a rank, else dropped.
    fn on_accepted(&mut self, id: usize, message: &Message) {
        let Mesh { join, table, links, me, .. } = self;
        let Some(link) = join.lobby.link(id) else { return };
        let Some(nonce) = link.nonce() else { return };
        let hello = (message.kind == Kind::Hello && link.trust == Trust::Stranger)
            .then(|| Hello::decode(&message.body, &join.key, &nonce, &table.group))
            .flatten()
            .filter(|(hello, is_proved)| *is_proved && hello.role == Role::Mesh && hello.to as usize == *me)
            .map(|(hello, _)| hello)
            .filter(|hello| (*me + 1..links.len()).contains(&(hello.rank as usize)));
        let Some(hello) = hello else {
            join.lobby.drop_link(id);
            return;
        };
        join.lobby.settle(id);
        join.lobby.send(id, Kind::Welcome, &hello.welcome(&join.key, &nonce, &table.group));
        // An earlier connection that the rank gave up may still be there.
        if let Some(before) = links[hello.rank as usize].replace(id) {
            join.lobby.drop_link(before);
        }
    }

    fn unreachable(&self, j: usize) -> Error {
        let (location, own) = (&self.table.locations[j], &self.table.locations[self.me]);
        let last =
            Some(self.attempts[j].last_failure.as_str()).filter(|l| !l.is_empty()).unwrap_or("no answer");
        let hint = if sockets::is_loopback(location.address.ip()) && location.machine != own.machine {
            "it offers a loopback address; let the rendezvous name an address that all machines share, or set the \
             interface"
        } else {
            "open the ports between the machines, or set the interface to listen on"
        };
        let cause = format!("rank {} cannot connect to it: {last}; {hint}", self.me);
        Error::PeerLost { rank: j as u32, address: location.describe(), cause }
    }

    fn no_connections(&self) -> Error {
        let missing = self.missing().map(|j| j as u32).collect();
        let call = format!("connecting to rank {} at {}", self.me, self.table.locations[self.me].describe());
        Error::Timeout { missing, call, after: MESH_TIME.min(self.join.options.timeout) }
    }
}
