//! Two rings of bytes in memory that two processes share, one each way: a connection between ranks of one host.
//!
//! One process writes a ring, the other reads it; each publishes how far it is, and copies nothing but the bytes themselves. Neither
//! can wait for memory, so an end that is about to wait sets a flag in the ring (`ring/control.rs`), and the other end then sends a
//! byte on their socket.
//!
//! The other process is trusted no more than a socket: counters that contradict each other end the connection.

mod control;
mod sync;

use control::Control;
use skyphos_core::loan::{Borrower, Lender};
use skyphos_core::shared_memory::arena::{Arena, SLOTS};
use skyphos_core::shared_memory::memory_file::{HEAD_BYTES, Mapping, MemoryFile, Token};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::sync::Arc;

/// Bytes of a ring, at most and at least. Larger ones leave the cache.
const MOST: usize = 512 * 1024;
const LEAST: usize = 64 * 1024;

/// Memory for the rings of all ranks of a host.
const ALL: usize = 64 << 20;

/// So much is copied before the other side may have it: it copies on while this side copies the next.
const PIECE: usize = 32 * 1024;

/// Where in the memory's head the processes tell each other how far they are, and which buffers are lent.
const CONTROLS: [usize; 2] = [1024, 2048];
const LOANS: [usize; 2] = [CONTROLS[0] + 512, CONTROLS[1] + 512];
const _: () = assert!(size_of::<Control>() <= 512 && SLOTS <= 512 && LOANS[1] + SLOTS <= HEAD_BYTES);

/// One process's ends of both rings.
pub(crate) struct Rings {
    map: Arc<Mapping>,
    /// Bytes of a ring, a power of two.
    capacity: usize,
    /// Numbers of the ring that is written here and of the one that is read.
    out: usize,
    /// Bytes that may lie there for the other side.
    limit: usize,
    /// Written and read ever, here.
    written: u64,
    read: u64,
    /// What the other side had read, when it was looked last.
    seen: u64,
    /// What this side lends to the other and borrows from it, if they do that, until somebody takes them.
    pub(crate) lender: Option<Lender>,
    pub(crate) borrower: Option<Borrower>,
}

/// Bytes of each ring between ranks of a host that has so many.
pub(crate) fn capacity(ranks: usize) -> usize {
    let rings = ranks * (ranks - 1).max(1);
    (ALL / rings).clamp(LEAST, MOST).next_power_of_two().min(MOST)
}

fn senseless() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the counters in shared memory make no sense")
}

impl Rings {
    /// New ones, and the file that they are in, which goes when nobody has it open.
    pub(crate) fn make(capacity: usize, token: &Token) -> io::Result<(Rings, MemoryFile)> {
        let file = MemoryFile::make(2 * capacity, token)?;
        Ok((Rings::of(file.map_shared(2 * capacity)?, capacity, 0), file))
    }

    /// Those that another process has open, if it is they.
    pub(crate) fn open(process: u32, file: u32, capacity: usize, token: &Token) -> io::Result<Rings> {
        if !capacity.is_power_of_two() || !(LEAST..=MOST).contains(&capacity) {
            return Err(io::Error::new(ErrorKind::InvalidData, "no size of a ring"));
        }
        let map = MemoryFile::open(process, file, 2 * capacity, token)?.map_shared(2 * capacity)?;
        Ok(Rings::of(map, capacity, 1))
    }

    fn of(map: Mapping, capacity: usize, out: usize) -> Rings {
        let (map, limit, lender, borrower) = (Arc::new(map), capacity, None, None);
        Rings { map, capacity, out, limit, written: 0, read: 0, seen: 0, lender, borrower }
    }

    /// Lends buffers of this arena to the other side from now on.
    pub(crate) fn lend(&mut self, arena: Arc<Arena>) {
        self.lender = Some(Lender::new(arena, self.map.clone(), LOANS[self.out]));
    }

    /// Borrows buffers of the other side's arena from now on.
    pub(crate) fn borrow(&mut self, arena: &MemoryFile) -> io::Result<()> {
        self.borrower = Some(Borrower::new(arena, self.map.clone(), LOANS[1 - self.out])?);
        Ok(())
    }

    /// Leaves no more than so many bytes there for the other side.
    pub(crate) fn limit(&mut self, bytes: usize) {
        self.limit = bytes.clamp(LEAST / 2, self.capacity);
    }

    fn outgoing(&self) -> &Control {
        self.control(self.out)
    }

    fn incoming(&self) -> &Control {
        self.control(1 - self.out)
    }

    fn control(&self, ring: usize) -> &Control {
        // SAFETY: inside of the head, aligned to 1 KB; any bytes are such a value, and all of it is atomic.
        unsafe { &*self.map.as_ptr().add(CONTROLS[ring]).cast() }
    }

    /// Where bytes of a ring lie, from the one of this number on, and how many up to the ring's end.
    fn place(&self, ring: usize, number: u64) -> (*mut u8, usize) {
        let at = number as usize & (self.capacity - 1);
        // SAFETY: inside of the mapping.
        (unsafe { self.map.as_ptr().add(HEAD_BYTES + ring * self.capacity + at) }, self.capacity - at)
    }

    /// Bytes that may be written now.
    fn room(&mut self) -> io::Result<usize> {
        let read = self.outgoing().read();
        if read < self.seen || read > self.written {
            return Err(senseless());
        }
        self.seen = read;
        Ok(self.limit.saturating_sub((self.written - read) as usize))
    }

    /// Whether more can be written.
    pub(crate) fn has_room(&mut self) -> bool {
        // What makes no sense is found by the write.
        self.room().map_or(true, |room| room > 0)
    }

    /// Bytes that have come.
    fn come(&self) -> io::Result<usize> {
        let written = self.incoming().written();
        match written.checked_sub(self.read) {
            Some(come) if come <= self.capacity as u64 => Ok(come as usize),
            _ => Err(senseless()),
        }
    }

    /// Whether there is anything to read.
    pub(crate) fn has_come(&self) -> bool {
        self.incoming().written() != self.read
    }

    /// Writes what there is room for.
    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let (mut taken, mut hidden) = (0, 0);
        let mut room = self.limit.saturating_sub((self.written - self.seen) as usize);
        'all: for slice in slices {
            let mut rest = &slice[..];
            while !rest.is_empty() {
                if room == 0 {
                    room = self.room()?;
                    if room == 0 {
                        break 'all;
                    }
                }
                let (to, straight) = self.place(self.out, self.written);
                let len = rest.len().min(room).min(straight).min(PIECE - hidden);
                // SAFETY: room that the other side has left, up to the ring's end.
                unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to, len) };
                rest = &rest[len..];
                self.written += len as u64;
                (taken, hidden, room) = (taken + len, hidden + len, room - len);
                if hidden == PIECE {
                    hidden = 0;
                    self.outgoing().publish_written(self.written);
                }
            }
        }
        self.outgoing().publish_written(self.written);
        Ok(taken)
    }

    /// After a write: whether the reader must be woken.
    pub(crate) fn wakes(&self) -> bool {
        self.outgoing().must_wake_reader()
    }

    /// Nothing could be written: whether it must be waited for room, of which the reader then tells.
    pub(crate) fn is_blocked(&mut self) -> io::Result<bool> {
        self.outgoing().announce_blocked();
        let full = self.room()? == 0;
        if !full {
            self.outgoing().end_blocked();
        }
        Ok(full)
    }

    /// Reads what has come, as far as there is place: 0 if nothing has.
    pub(crate) fn read(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut left = self.come()?;
        let (mut got, mut hidden) = (0, 0);
        'all: for buffer in buffers {
            let mut rest = &mut buffer[..];
            while !rest.is_empty() {
                if left == 0 {
                    break 'all;
                }
                let (from, straight) = self.place(1 - self.out, self.read);
                let len = rest.len().min(left).min(straight).min(PIECE - hidden);
                // SAFETY: bytes that the other side has written, up to the ring's end.
                unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), rest.as_mut_ptr(), len) };
                rest = &mut rest[len..];
                self.read += len as u64;
                (got, hidden, left) = (got + len, hidden + len, left - len);
                if hidden == PIECE {
                    hidden = 0;
                    self.incoming().publish_read(self.read);
                }
            }
        }
        self.incoming().publish_read(self.read);
        Ok(got)
    }

    /// After a read: whether the writer must be told that there is room.
    pub(crate) fn relieves(&self) -> bool {
        self.incoming().must_wake_writer(|| self.come().map_or(true, |come| come <= self.capacity / 2))
    }

    /// This side is about to wait for a bell. `false`: something is there already.
    pub(crate) fn sleep(&self) -> bool {
        self.incoming().announce_sleep();
        !self.has_come()
    }

    /// Claims to have written and read so much.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn lie(&self, written: u64, read: u64) {
        self.outgoing().publish_written(written);
        self.incoming().publish_read(read);
    }

    /// It waits no more.
    pub(crate) fn awake(&self) {
        self.incoming().end_sleep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(capacity: usize) -> (Rings, Rings) {
        let token = [9; 32];
        let (one, file) = Rings::make(capacity, &token).unwrap();
        let other = Rings::open(std::process::id(), file.number(), capacity, &token).unwrap();
        (one, other)
    }

    fn write(rings: &mut Rings, bytes: &[u8]) -> usize {
        let (a, b) = bytes.split_at(bytes.len() / 3);
        rings.write(&[IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(b)]).unwrap()
    }

    fn read(rings: &mut Rings, most: usize) -> Vec<u8> {
        let (mut a, mut b) = (vec![0; most / 2], vec![0; most - most / 2]);
        let got = rings.read(&mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)]).unwrap();
        a.extend(b);
        a.truncate(got);
        a
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever is written and read in which pieces, it comes as it went, both ways.
        #[test]
        fn bytes_come_as_they_went(steps in prop::collection::vec((any::<bool>(), any::<bool>(), 0usize..90_000), 1..80)) {
            let (mut one, mut other) = pair(LEAST);
            let (mut next, mut due) = ([0u64; 2], [0u64; 2]);
            let byte = |k: u64| (k * 31 % 251) as u8;
            for (way, writes, len) in steps {
                let (from, to) = if way { (&mut one, &mut other) } else { (&mut other, &mut one) };
                let way = usize::from(way);
                if writes {
                    let bytes: Vec<u8> = (next[way]..next[way] + len as u64).map(byte).collect();
                    let took = write(from, &bytes);
                    prop_assert_eq!(took, len.min(LEAST - (next[way] - due[way]) as usize));
                    next[way] += took as u64;
                } else {
                    let got = read(to, len);
                    prop_assert_eq!(got.len(), len.min((next[way] - due[way]) as usize));
                    for byte_got in got {
                        prop_assert_eq!(byte_got, byte(due[way]));
                        due[way] += 1;
                    }
                }
                prop_assert_eq!(to.has_come(), next[way] > due[way]);
            }
        }
    }

    /// Both ends in threads that sleep and wake each other, as their processes do: nothing is lost and nobody sleeps for ever.
    #[test]
    fn whoever_sleeps_is_woken() {
        let (mut one, mut other) = pair(LEAST);
        let (bell, heard) = std::sync::mpsc::channel::<()>();
        let (room, free) = std::sync::mpsc::channel::<()>();
        let total = 20_000_000u64;
        let patience = std::time::Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let bytes: Vec<u8> = (0..50_000u64).map(|k| (k % 251) as u8).collect();
                let mut sent = 0u64;
                while sent < total {
                    // Whole periods, so that what follows is known.
                    let from = (sent % 251) as usize;
                    let len =
                        (bytes.len() - from).min((total - sent) as usize).min(1 + sent as usize % 49_000);
                    let took = one.write(&[IoSlice::new(&bytes[from..from + len])]).unwrap();
                    sent += took as u64;
                    if took > 0 && one.wakes() {
                        bell.send(()).unwrap();
                    }
                    if took < len && one.is_blocked().unwrap() {
                        free.recv_timeout(patience).expect("nobody tells of room");
                    }
                }
            });
            let mut got = 0u64;
            let mut buffer = vec![0; 30_000];
            while got < total {
                let n = other.read(&mut [IoSliceMut::new(&mut buffer)]).unwrap();
                assert!(buffer[..n].iter().zip(got..).all(|(byte, k)| *byte == (k % 251) as u8), "{got}");
                got += n as u64;
                if n > 0 && other.relieves() {
                    let _ = room.send(()); // the writer may be done
                }
                if n == 0 && got < total && other.sleep() {
                    heard.recv_timeout(patience).expect("nobody wakes");
                }
                other.awake();
            }
        });
    }

    #[test]
    fn counters_that_make_no_sense_are_refused() {
        for (ring, written, read) in [(0, u64::MAX, 0), (0, LEAST as u64 + 1, 0), (0, 0, 7), (1, 0, 7)] {
            let (mut one, mut other) = pair(LEAST);
            let control = one.control(ring);
            control.publish_written(written);
            control.publish_read(read);
            if ring == 0 && read == 0 {
                assert!(other.read(&mut [IoSliceMut::new(&mut [0; 8])]).is_err(), "{written}");
            } else {
                let rings = if ring == 0 { &mut one } else { &mut other };
                assert!(rings.room().is_err(), "{ring} {read}");
            }
        }
    }

    #[test]
    fn only_the_memory_that_was_meant_is_taken() {
        let token = [3; 32];
        let (_rings, file) = Rings::make(LEAST, &token).unwrap();
        let me = std::process::id();
        assert!(Rings::open(me, file.number(), LEAST, &token).is_ok());
        assert!(Rings::open(me, file.number(), LEAST, &[4; 32]).is_err());
        assert!(Rings::open(me, file.number(), 2 * LEAST, &token).is_err());
        assert!(Rings::open(me, file.number(), LEAST + 1, &token).is_err());
        assert!(Rings::open(me, 0, LEAST, &token).is_err());
    }

    #[test]
    fn many_ranks_have_smaller_rings() {
        let all: Vec<usize> = [2, 8, 16, 64, 1000].into_iter().map(capacity).collect();
        assert_eq!(all, [512 << 10, 512 << 10, 512 << 10, 64 << 10, 64 << 10]);
    }
}
