//! Ranks of one host agree on memory that they share: before any frame, on each connection between two of them.
//!
//! ```text
//! lower rank     makes the memory; tells process, file and mark, and those of the arena that its buffers lie in
//! higher rank    opens those files of that process (/proc/PID/fd/N), and looks for the marks; tells which it has, and of its own arena
//! lower rank     opens that; tells whether it has it
//! both           from now on all bytes go through the memory, and the connection carries bells and the end; who has an
//!                arena open is lent buffers in place of copies (`skyphos_core::loan`)
//! ```
//!
//! The kernel lets only processes of the same user open each other's files so. It fails as well between containers that see
//! different processes: then the connection stays as it is. The memory has no name, and goes with the last process that has it.

use crate::Formed;
use crate::handshake::random;
use crate::ring::{self, Rings};
use crate::wire::Wire;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use skyphos_core::arena::{ARENA_BYTES, Arena};
use skyphos_core::memory::{Backing, Mark};
use skyphos_types::{Error, Result};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest that it may take.
const MOST: Duration = Duration::from_secs(60);

/// How often it is looked whether the user has interrupted.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What the lower rank tells: process, file, bytes of a ring (0: there is no memory), mark.
const OFFER_BYTES: usize = 44;

/// What the higher rank tells.
const TAKEN: [u8; 4] = *b"shm+";
const LEFT: [u8; 4] = *b"shm-";

/// Where memory is, for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    process: u32,
    file: u32,
    capacity: u32,
    mark: Mark,
}

impl Offer {
    /// There is no memory.
    const NONE: Offer = Offer { process: 0, file: 0, capacity: 0, mark: [0; 32] };

    /// Of this process's file.
    fn of(file: &Backing, capacity: usize, mark: Mark) -> Offer {
        Offer { process: std::process::id(), file: file.number(), capacity: capacity as u32, mark }
    }

    /// Opens the arena that is there, to borrow from it beside these rings. Whether that can be.
    fn borrow(&self, rings: &mut Option<Rings>) -> bool {
        let Some(rings) = rings.as_mut().filter(|_| self.capacity as usize == ARENA_BYTES) else {
            return false;
        };
        let file = Backing::open(self.process, self.file, ARENA_BYTES, &self.mark);
        file.and_then(|file| rings.borrow(&file)).is_ok()
    }

    fn encode(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        bytes[..4].copy_from_slice(&self.process.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.file.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.capacity.to_le_bytes());
        bytes[12..].copy_from_slice(&self.mark);
        bytes
    }

    fn decode(bytes: &[u8; OFFER_BYTES]) -> Offer {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let mark = bytes[12..].try_into().expect("32 bytes");
        Offer { process: word(0), file: word(4), capacity: word(8), mark }
    }
}

/// How long all of it may take, and who may end it.
pub(crate) struct Patience {
    until: Instant,
    interrupted: Option<fn() -> bool>,
}

/// Gives each connection within this host its memory, unless either side will not have it. Every rank of the group calls it.
pub(crate) fn share(rank: u32, formed: &mut Formed, wanted: bool, patience: &Patience) -> Result<()> {
    let me = rank as usize;
    let machine = formed.seats[me].machine;
    let mut near: Vec<(usize, Wire)> = Vec::new();
    for peer in 0..formed.seats.len() {
        if peer != me
            && formed.seats[peer].machine == machine
            && let Some(wire) = formed.wires[peer].take()
        {
            near.push((peer, wire.wake()));
        }
    }
    let capacity = ring::capacity(near.len() + 1);
    let (mut offer, mut file) = (Offer::NONE, None);
    if wanted
        && near.len() > 1 // what goes to one only is copied as fast
        && let Ok(mark) = random()
        && let Ok((arena, backing)) = Arena::make(&mark)
    {
        offer = Offer::of(&backing, ARENA_BYTES, mark);
        (formed.arena, file) = (Some(arena), Some(backing));
    }
    let shared = agree(me, &mut near, wanted.then_some(capacity), formed.arena.as_ref(), &offer, patience);
    drop(file); // all have it open, or will not have it
    let lost = |(peer, error): (usize, io::Error)| match error.kind() {
        ErrorKind::Interrupted => Error::Interrupted,
        _ => {
            let (rank, address) = (peer as u32, formed.seats[peer].describe());
            Error::PeerLost { rank, address, cause: format!("it went away while the group began: {error}") }
        }
    };
    let shared = shared.map_err(lost)?;
    for ((peer, wire), rings) in near.into_iter().zip(shared) {
        formed.wires[peer] = Some(match rings {
            Some(rings) => wire.through(rings),
            None => wire.idle(),
        });
    }
    Ok(())
}

/// The memory for each connection, as far as both sides have it, which lends this rank's buffers if the other has them open too;
/// or the peer that is lost.
fn agree(
    me: usize,
    near: &mut [(usize, Wire)],
    capacity: Option<usize>,
    arena: Option<&Arc<Arena>>,
    offer: &Offer,
    patience: &Patience,
) -> std::result::Result<Vec<Option<Rings>>, (usize, io::Error)> {
    let mut all: Vec<Option<Rings>> = near.iter().map(|_| None).collect();
    // Open until the others have it open too.
    let mut files: Vec<Backing> = Vec::new();
    for (rings, (peer, wire)) in all.iter_mut().zip(near.iter_mut()).filter(|(_, (peer, _))| *peer > me) {
        let mut here = Offer::NONE;
        if let Some(capacity) = capacity
            && let Ok(mark) = random()
            && let Ok((made, file)) = Rings::make(capacity, &mark)
        {
            here = Offer::of(&file, capacity, mark);
            files.push(file);
            *rings = Some(made);
        }
        tell(wire, &[here.encode(), offer.encode()].concat(), patience).map_err(|error| (*peer, error))?;
    }
    for (rings, (peer, wire)) in all.iter_mut().zip(near.iter_mut()).filter(|(_, (peer, _))| *peer < me) {
        let mut said = || Ok((hear_offer(wire, patience)?, hear_offer(wire, patience)?));
        let (here, theirs) = said().map_err(|error| (*peer, error))?;
        if capacity.is_some() && here.capacity > 0 {
            *rings = Rings::open(here.process, here.file, here.capacity as usize, &here.mark).ok();
        }
        let taken = [answer(rings.is_some()), answer(theirs.borrow(rings))].concat();
        tell(wire, &[&taken[..], &offer.encode()].concat(), patience).map_err(|error| (*peer, error))?;
    }
    for (rings, (peer, wire)) in all.iter_mut().zip(near.iter_mut()).filter(|(_, (peer, _))| *peer > me) {
        let mut said =
            || Ok((hear_answer(wire, patience)?, hear_answer(wire, patience)?, hear_offer(wire, patience)?));
        let (taken, lends, theirs) = said().map_err(|error| (*peer, error))?;
        if !taken {
            *rings = None;
        }
        lend(rings, arena, lends);
        tell(wire, &answer(theirs.borrow(rings)), patience).map_err(|error| (*peer, error))?;
    }
    for (rings, (peer, wire)) in all.iter_mut().zip(near.iter_mut()).filter(|(_, (peer, _))| *peer < me) {
        lend(rings, arena, hear_answer(wire, patience).map_err(|error| (*peer, error))?);
    }
    Ok(all)
}

/// Lends to a peer that has taken the offer.
fn lend(rings: &mut Option<Rings>, arena: Option<&Arc<Arena>>, taken: bool) {
    if let (Some(rings), Some(arena), true) = (rings, arena, taken) {
        rings.lend(arena.clone());
    }
}

fn answer(taken: bool) -> [u8; 4] {
    if taken { TAKEN } else { LEFT }
}

fn hear_answer(wire: &mut Wire, patience: &Patience) -> io::Result<bool> {
    let mut bytes = [0; 4];
    hear(wire, &mut bytes, patience)?;
    Ok(bytes == TAKEN)
}

fn hear_offer(wire: &mut Wire, patience: &Patience) -> io::Result<Offer> {
    let mut bytes = [0; OFFER_BYTES];
    hear(wire, &mut bytes, patience)?;
    Ok(Offer::decode(&bytes))
}

fn tell(wire: &mut Wire, bytes: &[u8], patience: &Patience) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() || !wire.is_flushed() {
        let done = match sent < bytes.len() {
            true => wire.write(&[IoSlice::new(&bytes[sent..])], bytes.len() - sent).map(|(n, _)| sent += n),
            false => wire.flush(),
        };
        match done {
            Err(e) if e.kind() == ErrorKind::WouldBlock => patience.wait(wire, PollFlags::OUT)?,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            done => done?,
        }
    }
    Ok(())
}

fn hear(wire: &mut Wire, bytes: &mut [u8], patience: &Patience) -> io::Result<()> {
    let mut got = 0;
    while got < bytes.len() {
        match wire.read(&mut bytes[got..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => patience.wait(wire, PollFlags::IN)?,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

impl Patience {
    /// Until then, but no longer than a minute: all ranks come from the same bring-up.
    pub(crate) fn until(until: Instant, interrupted: Option<fn() -> bool>) -> Patience {
        Patience { until: until.min(Instant::now() + MOST), interrupted }
    }

    fn wait(&self, wire: &Wire, what: PollFlags) -> io::Result<()> {
        if self.interrupted.is_some_and(|interrupted| interrupted()) {
            return Err(ErrorKind::Interrupted.into());
        }
        if Instant::now() >= self.until {
            return Err(io::Error::new(ErrorKind::TimedOut, "it said nothing"));
        }
        match poll(&mut [PollFd::new(&wire.stream, what)], Some(&LOOK)) {
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
        let offer = Offer { process: 77, file: 12, capacity: 1 << 19, mark: [8; 32] };
        assert_eq!(Offer::decode(&offer.encode()), offer);
    }
}
