//! Ranks of one host agree on memory that they share: before any frame, on each connection between two of them.
//!
//! ```text
//! lower rank     makes the memory; tells process, file and mark
//! higher rank    opens that file of that process (/proc/PID/fd/N), and looks for the mark; tells whether it has it
//! both           from now on all bytes go through the memory, and the connection carries bells and the end
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
use skyphos_core::memory::{Backing, Mark};
use skyphos_types::{Error, Result};
use std::io::{self, ErrorKind, IoSlice, Read};
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
    let shared = agree(me, &mut near, wanted.then_some(capacity), patience);
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

/// The memory for each connection, as far as both sides have it; or the peer that is lost.
fn agree(
    me: usize,
    near: &mut [(usize, Wire)],
    capacity: Option<usize>,
    patience: &Patience,
) -> std::result::Result<Vec<Option<Rings>>, (usize, io::Error)> {
    let mut all: Vec<Option<Rings>> = near.iter().map(|_| None).collect();
    // Open until the others have it open too.
    let mut files: Vec<Backing> = Vec::new();
    for (rings, (peer, wire)) in all.iter_mut().zip(near.iter_mut()).filter(|(_, (peer, _))| *peer > me) {
        let mut offer = Offer { process: std::process::id(), file: 0, capacity: 0, mark: [0; 32] };
        if let Some(capacity) = capacity
            && let Ok(mark) = random()
            && let Ok((made, file)) = Rings::make(capacity, &mark)
        {
            (offer.file, offer.capacity, offer.mark) = (file.number(), capacity as u32, mark);
            files.push(file);
            *rings = Some(made);
        }
        tell(wire, &offer.encode(), patience).map_err(|error| (*peer, error))?;
    }
    for (rings, (peer, wire)) in all.iter_mut().zip(near.iter_mut()).filter(|(_, (peer, _))| *peer < me) {
        let mut bytes = [0; OFFER_BYTES];
        hear(wire, &mut bytes, patience).map_err(|error| (*peer, error))?;
        let Offer { process, file, capacity: bytes, mark } = Offer::decode(&bytes);
        if capacity.is_some() && bytes > 0 {
            *rings = Rings::open(process, file, bytes as usize, &mark).ok();
        }
        let answer = if rings.is_some() { TAKEN } else { LEFT };
        tell(wire, &answer, patience).map_err(|error| (*peer, error))?;
    }
    for (rings, (peer, wire)) in all.iter_mut().zip(near.iter_mut()).filter(|(_, (peer, _))| *peer > me) {
        let mut answer = [0; 4];
        hear(wire, &mut answer, patience).map_err(|error| (*peer, error))?;
        if answer != TAKEN {
            *rings = None;
        }
    }
    Ok(all)
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
