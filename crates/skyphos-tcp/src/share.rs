//! The agreement on shared memory between two ranks of a host, on their connection, before any frame.
//!
//! ```text
//! lower rank     makes the rings; sends process, file and token of the rings and of its arena (memory whose buffers it can lend)
//! higher rank    opens these files (/proc/PID/fd/N) and checks the tokens; answers which it has opened, and offers its own arena
//! lower rank     opens that arena; answers whether it has
//! both           from now on all bytes go through the rings, and the connection carries only wake-ups and the end; a rank that has
//!                opened the other's arena is lent buffers instead of copies (`skyphos_core::loan`)
//! ```
//!
//! The kernel allows this only between processes of one user, and not between containers that see different processes. If it fails, the
//! connection stays a socket. The memory has no name, and the system frees it with the last process that has it open.

use crate::connections::Connections;
use crate::handshake::random;
use crate::ring::{self, Rings};
use crate::wire::Wire;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use skyphos_core::shared_memory::arena::{ARENA_BYTES, Arena};
use skyphos_core::shared_memory::memory_file::{MemoryFile, Token};
use skyphos_types::{Error, Result};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time for the agreement.
const MAX_AGREEMENT: Duration = Duration::from_secs(60);

/// Time between checks for an interrupt.
const INTERRUPT_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// An offer on the wire: process, file, bytes of a ring or of the arena (0: there is no memory), token.
const OFFER_BYTES: usize = 44;

/// Answers to an offer.
const ACCEPTED: [u8; 4] = *b"shm+";
const DECLINED: [u8; 4] = *b"shm-";

/// The description of a process's shared memory, by which another process opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    process: u32,
    file: u32,
    capacity: u32,
    token: Token,
}

impl Offer {
    /// No memory is offered.
    const NONE: Offer = Offer { process: 0, file: 0, capacity: 0, token: [0; 32] };

    /// An offer of this process's file.
    fn of(file: &MemoryFile, capacity: usize, token: Token) -> Offer {
        Offer { process: std::process::id(), file: file.number(), capacity: capacity as u32, token }
    }

    /// Opens the offered arena, so that buffers in it can be borrowed beside these rings. Returns whether that succeeds.
    fn borrow(&self, rings: &mut Option<Rings>) -> bool {
        let Some(rings) = rings.as_mut().filter(|_| self.capacity as usize == ARENA_BYTES) else {
            return false;
        };
        let file = MemoryFile::open(self.process, self.file, ARENA_BYTES, &self.token);
        file.and_then(|file| rings.borrow(&file)).is_ok()
    }

    fn encode(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        bytes[..4].copy_from_slice(&self.process.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.file.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.capacity.to_le_bytes());
        bytes[12..].copy_from_slice(&self.token);
        bytes
    }

    fn decode(bytes: &[u8; OFFER_BYTES]) -> Offer {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let token = bytes[12..].try_into().expect("32 bytes");
        Offer { process: word(0), file: word(4), capacity: word(8), token }
    }
}

/// The limit of a wait, and a check for interrupts.
pub(crate) struct WaitLimit {
    until: Instant,
    interrupted: Option<fn() -> bool>,
}

/// Moves each connection within this host to shared memory, unless either side declines. Every rank of the group calls it.
pub(crate) fn share(rank: u32, connections: &mut Connections, wanted: bool, limit: &WaitLimit) -> Result<()> {
    let me = rank as usize;
    let machine = connections.locations[me].machine;
    let mut local: Vec<(usize, Wire)> = Vec::new();
    for peer in 0..connections.locations.len() {
        if peer != me
            && connections.locations[peer].machine == machine
            && let Some(wire) = connections.wires[peer].take()
        {
            local.push((peer, wire.attach()));
        }
    }
    let capacity = ring::capacity(local.len() + 1);
    let (mut offer, mut file) = (Offer::NONE, None);
    if wanted
        && local.len() > 1 // for one peer a copy is as fast
        && let Ok(token) = random()
        && let Ok((arena, arena_file)) = Arena::make(&token)
    {
        offer = Offer::of(&arena_file, ARENA_BYTES, token);
        (connections.arena, file) = (Some(arena), Some(arena_file));
    }
    let shared = agree(me, &mut local, wanted.then_some(capacity), connections.arena.as_ref(), &offer, limit);
    drop(file); // all peers have opened it, or declined
    let lost = |(peer, error): (usize, io::Error)| match error.kind() {
        ErrorKind::Interrupted => Error::Interrupted,
        _ => {
            let (rank, address) = (peer as u32, connections.locations[peer].describe());
            Error::PeerLost { rank, address, cause: format!("it went away while the group began: {error}") }
        }
    };
    let shared = shared.map_err(lost)?;
    for ((peer, wire), rings) in local.into_iter().zip(shared) {
        connections.wires[peer] = Some(match rings {
            Some(rings) => wire.detach_with(rings),
            None => wire.detach(),
        });
    }
    Ok(())
}

/// Agrees with each peer on shared memory, and lends it buffers if it has opened this rank's arena. `Err`: a peer that was lost.
fn agree(
    me: usize,
    local: &mut [(usize, Wire)],
    capacity: Option<usize>,
    arena: Option<&Arc<Arena>>,
    offer: &Offer,
    limit: &WaitLimit,
) -> std::result::Result<Vec<Option<Rings>>, (usize, io::Error)> {
    let mut all: Vec<Option<Rings>> = local.iter().map(|_| None).collect();
    // These files stay open until the peers have opened them.
    let mut files: Vec<MemoryFile> = Vec::new();
    for (rings, (peer, wire)) in all.iter_mut().zip(local.iter_mut()).filter(|(_, (peer, _))| *peer > me) {
        let mut rings_offer = Offer::NONE;
        if let Some(capacity) = capacity
            && let Ok(token) = random()
            && let Ok((made, file)) = Rings::make(capacity, &token)
        {
            rings_offer = Offer::of(&file, capacity, token);
            files.push(file);
            *rings = Some(made);
        }
        send(wire, &[rings_offer.encode(), offer.encode()].concat(), limit)
            .map_err(|error| (*peer, error))?;
    }
    for (rings, (peer, wire)) in all.iter_mut().zip(local.iter_mut()).filter(|(_, (peer, _))| *peer < me) {
        let mut offers = || Ok((receive_offer(wire, limit)?, receive_offer(wire, limit)?));
        let (rings_offer, arena_offer) = offers().map_err(|error| (*peer, error))?;
        if capacity.is_some() && rings_offer.capacity > 0 {
            *rings = Rings::open(
                rings_offer.process,
                rings_offer.file,
                rings_offer.capacity as usize,
                &rings_offer.token,
            )
            .ok();
        }
        let answers = [answer(rings.is_some()), answer(arena_offer.borrow(rings))].concat();
        send(wire, &[&answers[..], &offer.encode()].concat(), limit).map_err(|error| (*peer, error))?;
    }
    for (rings, (peer, wire)) in all.iter_mut().zip(local.iter_mut()).filter(|(_, (peer, _))| *peer > me) {
        let mut answers =
            || Ok((receive_answer(wire, limit)?, receive_answer(wire, limit)?, receive_offer(wire, limit)?));
        let (rings_accepted, arena_accepted, arena_offer) = answers().map_err(|error| (*peer, error))?;
        if !rings_accepted {
            *rings = None;
        }
        lend(rings, arena, arena_accepted);
        send(wire, &answer(arena_offer.borrow(rings)), limit).map_err(|error| (*peer, error))?;
    }
    for (rings, (peer, wire)) in all.iter_mut().zip(local.iter_mut()).filter(|(_, (peer, _))| *peer < me) {
        lend(rings, arena, receive_answer(wire, limit).map_err(|error| (*peer, error))?);
    }
    Ok(all)
}

/// Lends buffers to a peer that has accepted the offer of this rank's arena.
fn lend(rings: &mut Option<Rings>, arena: Option<&Arc<Arena>>, accepted: bool) {
    if let (Some(rings), Some(arena), true) = (rings, arena, accepted) {
        rings.lend(arena.clone());
    }
}

fn answer(accepted: bool) -> [u8; 4] {
    if accepted { ACCEPTED } else { DECLINED }
}

fn receive_answer(wire: &mut Wire, limit: &WaitLimit) -> io::Result<bool> {
    let mut bytes = [0; 4];
    receive(wire, &mut bytes, limit)?;
    Ok(bytes == ACCEPTED)
}

fn receive_offer(wire: &mut Wire, limit: &WaitLimit) -> io::Result<Offer> {
    let mut bytes = [0; OFFER_BYTES];
    receive(wire, &mut bytes, limit)?;
    Ok(Offer::decode(&bytes))
}

fn send(wire: &mut Wire, bytes: &[u8], limit: &WaitLimit) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() || !wire.is_flushed() {
        let done = match sent < bytes.len() {
            true => wire.write(&[IoSlice::new(&bytes[sent..])], bytes.len() - sent).map(|(n, _)| sent += n),
            false => wire.flush(),
        };
        match done {
            Err(e) if e.kind() == ErrorKind::WouldBlock => limit.wait(wire, PollFlags::OUT)?,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            done => done?,
        }
    }
    Ok(())
}

fn receive(wire: &mut Wire, bytes: &mut [u8], limit: &WaitLimit) -> io::Result<()> {
    let mut got = 0;
    while got < bytes.len() {
        match wire.read(&mut bytes[got..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => limit.wait(wire, PollFlags::IN)?,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

impl WaitLimit {
    /// A limit at `until`, but at most a minute from now: all ranks come from the same bring-up, so no peer answers much later.
    pub(crate) fn until(until: Instant, interrupted: Option<fn() -> bool>) -> WaitLimit {
        WaitLimit { until: until.min(Instant::now() + MAX_AGREEMENT), interrupted }
    }

    fn wait(&self, wire: &Wire, what: PollFlags) -> io::Result<()> {
        if self.interrupted.is_some_and(|interrupted| interrupted()) {
            return Err(ErrorKind::Interrupted.into());
        }
        if Instant::now() >= self.until {
            return Err(io::Error::new(ErrorKind::TimedOut, "it did not answer"));
        }
        match poll(&mut [PollFd::new(&wire.stream, what)], Some(&INTERRUPT_CHECK)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_survive_the_wire() {
        let offer = Offer { process: 77, file: 12, capacity: 1 << 19, token: [8; 32] };
        assert_eq!(Offer::decode(&offer.encode()), offer);
    }
}
