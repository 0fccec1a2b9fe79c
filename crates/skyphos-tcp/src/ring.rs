//! Two rings of bytes in shared memory, one in each direction: a connection between two ranks of one host.
//!
//! One process writes a ring and the other reads it; each publishes its counter. A process cannot wait for a change of memory, so an
//! end that is about to wait sets a flag in the ring (`ring/control.rs`), and the other end then sends a byte on their socket.
//!
//! The other process is trusted no more than a socket: contradictory counters end the connection.

mod control;
mod sync;

use control::Control;
use skyphos_core::loan::{Borrower, Lender};
use skyphos_core::shared_memory::arena::{Arena, SLOTS};
use skyphos_core::shared_memory::memory_file::{HEAD_BYTES, Mapping, MemoryFile, Token};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::sync::Arc;

/// Bytes of a ring, at most and at least. A larger ring would not stay in the cache.
const MAX_CAPACITY: usize = 512 * 1024;
const MIN_CAPACITY: usize = 64 * 1024;

/// Bytes of all rings of a host, unless the least capacity takes more.
const HOST_BYTES: usize = 64 << 20;

/// Bytes copied before they are published. The other side reads them while this side copies the next piece.
const PIECE: usize = 32 * 1024;

/// Offsets in the memory's head of each ring's control, and of the slots of buffers on loan.
const CONTROL_OFFSETS: [usize; 2] = [1024, 2048];
const SLOT_OFFSETS: [usize; 2] = [CONTROL_OFFSETS[0] + 512, CONTROL_OFFSETS[1] + 512];
const _: () = assert!(size_of::<Control>() <= 512 && SLOTS <= 512 && SLOT_OFFSETS[1] + SLOTS <= HEAD_BYTES);

/// One process's ends of both rings.
pub(crate) struct Rings {
    map: Arc<Mapping>,
    /// Bytes of a ring, a power of two.
    capacity: usize,
    /// Number of the ring that this process writes. It reads the other one.
    out: usize,
    /// Unread bytes that this process may leave in its ring.
    limit: usize,
    /// Bytes that this process has ever written and read.
    written: u64,
    read: u64,
    /// Bytes that the other process had read at the last check.
    read_by_peer: u64,
    /// The lender and the borrower of buffers, until the outbox and the inbox take them; `None` without an arena.
    pub(crate) lender: Option<Lender>,
    pub(crate) borrower: Option<Borrower>,
}

/// Bytes of each ring on a host with `ranks` ranks.
pub(crate) fn capacity(ranks: usize) -> usize {
    let rings = ranks * (ranks - 1).max(1);
    (HOST_BYTES / rings).clamp(MIN_CAPACITY, MAX_CAPACITY).next_power_of_two().min(MAX_CAPACITY)
}

fn contradictory() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the counters in shared memory contradict each other")
}

impl Rings {
    /// New rings, and the file that they are in.
    pub(crate) fn make(capacity: usize, token: &Token) -> io::Result<(Rings, MemoryFile)> {
        let file = MemoryFile::make(2 * capacity, token)?;
        Ok((Rings::of(file.map_shared(2 * capacity)?, capacity, 0), file))
    }

    /// Opens the rings of another process, if its file has the expected length and token.
    pub(crate) fn open(process: u32, file: u32, capacity: usize, token: &Token) -> io::Result<Rings> {
        if !capacity.is_power_of_two() || !(MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) {
            return Err(io::Error::new(ErrorKind::InvalidData, "not the capacity of a ring"));
        }
        let map = MemoryFile::open(process, file, 2 * capacity, token)?.map_shared(2 * capacity)?;
        Ok(Rings::of(map, capacity, 1))
    }

    fn of(map: Mapping, capacity: usize, out: usize) -> Rings {
        let (map, limit, lender, borrower) = (Arc::new(map), capacity, None, None);
        Rings { map, capacity, out, limit, written: 0, read: 0, read_by_peer: 0, lender, borrower }
    }

    /// Lends buffers of this arena to the other side from now on.
    pub(crate) fn lend(&mut self, arena: Arc<Arena>) {
        self.lender = Some(Lender::new(arena, self.map.clone(), SLOT_OFFSETS[self.out]));
    }

    /// Borrows buffers of the other side's arena from now on.
    pub(crate) fn borrow(&mut self, arena: &MemoryFile) -> io::Result<()> {
        self.borrower = Some(Borrower::new(arena, self.map.clone(), SLOT_OFFSETS[1 - self.out])?);
        Ok(())
    }

    /// Limits the unread bytes that this process leaves in its ring.
    pub(crate) fn limit(&mut self, bytes: usize) {
        self.limit = bytes.clamp(MIN_CAPACITY / 2, self.capacity);
    }

    fn outgoing(&self) -> &Control {
        self.control(self.out)
    }

    fn incoming(&self) -> &Control {
        self.control(1 - self.out)
    }

    fn control(&self, ring: usize) -> &Control {
        // SAFETY: within the head, and aligned to 1 KB. All fields are atomic, and any bytes are valid values.
        unsafe { &*self.map.as_ptr().add(CONTROL_OFFSETS[ring]).cast() }
    }

    /// The address of byte `number` of a ring, and the number of bytes from there to the ring's end.
    fn address(&self, ring: usize, number: u64) -> (*mut u8, usize) {
        let at = number as usize & (self.capacity - 1);
        // SAFETY: within the mapping: `at` is below the capacity.
        (unsafe { self.map.as_ptr().add(HEAD_BYTES + ring * self.capacity + at) }, self.capacity - at)
    }

    /// Bytes that may be written now.
    fn writable(&mut self) -> io::Result<usize> {
        let read = self.outgoing().read();
        if read < self.read_by_peer || read > self.written {
            return Err(contradictory());
        }
        self.read_by_peer = read;
        Ok(self.limit.saturating_sub((self.written - read) as usize))
    }

    /// Whether more can be written.
    pub(crate) fn has_room(&mut self) -> bool {
        // The write reports contradictory counters.
        self.writable().map_or(true, |room| room > 0)
    }

    /// Bytes that can be read.
    fn readable(&self) -> io::Result<usize> {
        let written = self.incoming().written();
        match written.checked_sub(self.read) {
            Some(bytes) if bytes <= self.capacity as u64 => Ok(bytes as usize),
            _ => Err(contradictory()),
        }
    }

    /// Whether bytes can be read.
    pub(crate) fn is_readable(&self) -> bool {
        self.incoming().written() != self.read
    }

    /// Writes as much as there is room for. Returns the number of bytes.
    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let (mut taken, mut unpublished) = (0, 0);
        let mut room = self.limit.saturating_sub((self.written - self.read_by_peer) as usize);
        'all: for slice in slices {
            let mut rest = &slice[..];
            while !rest.is_empty() {
                if room == 0 {
                    room = self.writable()?;
                    if room == 0 {
                        break 'all;
                    }
                }
                let (to, contiguous) = self.address(self.out, self.written);
                let len = rest.len().min(room).min(contiguous).min(PIECE - unpublished);
                // SAFETY: `len` bytes are free, up to the ring's end, and the other process does not read them before they are published.
                unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to, len) };
                rest = &rest[len..];
                self.written += len as u64;
                (taken, unpublished, room) = (taken + len, unpublished + len, room - len);
                if unpublished == PIECE {
                    unpublished = 0;
                    self.outgoing().publish_written(self.written);
                }
            }
        }
        self.outgoing().publish_written(self.written);
        Ok(taken)
    }

    /// After a write: whether the reader must be woken.
    pub(crate) fn must_wake_reader(&self) -> bool {
        self.outgoing().must_wake_reader()
    }

    /// After a write of no bytes: asks for a wake-up byte once there is room. Returns `false` if there is room already.
    pub(crate) fn begin_wait_for_room(&mut self) -> io::Result<bool> {
        self.outgoing().announce_blocked();
        let full = self.writable()? == 0;
        if !full {
            self.outgoing().end_blocked();
        }
        Ok(full)
    }

    /// Reads into the buffers as much as is there. Returns the number of bytes.
    pub(crate) fn read(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut left = self.readable()?;
        let (mut got, mut unpublished) = (0, 0);
        'all: for buffer in buffers {
            let mut rest = &mut buffer[..];
            while !rest.is_empty() {
                if left == 0 {
                    break 'all;
                }
                let (from, contiguous) = self.address(1 - self.out, self.read);
                let len = rest.len().min(left).min(contiguous).min(PIECE - unpublished);
                // SAFETY: the other process has published these `len` bytes, up to the ring's end, and does not overwrite them before
                // they are counted as read.
                unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), rest.as_mut_ptr(), len) };
                rest = &mut rest[len..];
                self.read += len as u64;
                (got, unpublished, left) = (got + len, unpublished + len, left - len);
                if unpublished == PIECE {
                    unpublished = 0;
                    self.incoming().publish_read(self.read);
                }
            }
        }
        self.incoming().publish_read(self.read);
        Ok(got)
    }

    /// After a read: whether the writer must be woken.
    pub(crate) fn must_wake_writer(&self) -> bool {
        self.incoming().must_wake_writer(|| self.readable().map_or(true, |bytes| bytes <= self.capacity / 2))
    }

    /// Before a wait: asks for a wake-up byte once there are bytes. Returns `false` if bytes can be read already.
    pub(crate) fn begin_sleep(&self) -> bool {
        self.incoming().announce_sleep();
        !self.is_readable()
    }

    /// Publishes false counters.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn publish_false_counters(&self, written: u64, read: u64) {
        self.outgoing().publish_written(written);
        self.incoming().publish_read(read);
    }

    /// Ends the request of a wake-up byte.
    pub(crate) fn end_sleep(&self) {
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

    fn read(rings: &mut Rings, max: usize) -> Vec<u8> {
        let (mut a, mut b) = (vec![0; max / 2], vec![0; max - max / 2]);
        let got = rings.read(&mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)]).unwrap();
        a.extend(b);
        a.truncate(got);
        a
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Bytes arrive in the order in which they were written, in both directions and in pieces of any size.
        #[test]
        fn bytes_arrive_in_order(steps in prop::collection::vec((any::<bool>(), any::<bool>(), 0usize..90_000), 1..80)) {
            let (mut one, mut other) = pair(MIN_CAPACITY);
            let (mut next, mut due) = ([0u64; 2], [0u64; 2]);
            let byte = |k: u64| (k * 31 % 251) as u8;
            for (forward, writes, len) in steps {
                let (from, to) = if forward { (&mut one, &mut other) } else { (&mut other, &mut one) };
                let direction = usize::from(forward);
                if writes {
                    let bytes: Vec<u8> = (next[direction]..next[direction] + len as u64).map(byte).collect();
                    let took = write(from, &bytes);
                    prop_assert_eq!(took, len.min(MIN_CAPACITY - (next[direction] - due[direction]) as usize));
                    next[direction] += took as u64;
                } else {
                    let got = read(to, len);
                    prop_assert_eq!(got.len(), len.min((next[direction] - due[direction]) as usize));
                    for byte_got in got {
                        prop_assert_eq!(byte_got, byte(due[direction]));
                        due[direction] += 1;
                    }
                }
                prop_assert_eq!(to.is_readable(), next[direction] > due[direction]);
            }
        }
    }

    /// Both ends are threads that sleep and wake each other, as two processes would.
    #[test]
    fn sleeping_ends_are_woken() {
        let (mut one, mut other) = pair(MIN_CAPACITY);
        let (wake_reader, reader_woken) = std::sync::mpsc::channel::<()>();
        let (wake_writer, writer_woken) = std::sync::mpsc::channel::<()>();
        let total = 20_000_000u64;
        let patience = std::time::Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let bytes: Vec<u8> = (0..50_000u64).map(|k| (k % 251) as u8).collect();
                let mut sent = 0u64;
                while sent < total {
                    // The bytes repeat with period 251.
                    let from = (sent % 251) as usize;
                    let len =
                        (bytes.len() - from).min((total - sent) as usize).min(1 + sent as usize % 49_000);
                    let took = one.write(&[IoSlice::new(&bytes[from..from + len])]).unwrap();
                    sent += took as u64;
                    if took > 0 && one.must_wake_reader() {
                        wake_reader.send(()).unwrap();
                    }
                    if took < len && one.begin_wait_for_room().unwrap() {
                        writer_woken.recv_timeout(patience).expect("the writer is not woken");
                    }
                }
            });
            let mut got = 0u64;
            let mut buffer = vec![0; 30_000];
            while got < total {
                let n = other.read(&mut [IoSliceMut::new(&mut buffer)]).unwrap();
                assert!(buffer[..n].iter().zip(got..).all(|(byte, k)| *byte == (k % 251) as u8), "{got}");
                got += n as u64;
                if n > 0 && other.must_wake_writer() {
                    let _ = wake_writer.send(()); // the writer may be done
                }
                if n == 0 && got < total && other.begin_sleep() {
                    reader_woken.recv_timeout(patience).expect("the reader is not woken");
                }
                other.end_sleep();
            }
        });
    }

    #[test]
    fn contradictory_counters_are_refused() {
        for (ring, written, read) in [(0, u64::MAX, 0), (0, MIN_CAPACITY as u64 + 1, 0), (0, 0, 7), (1, 0, 7)]
        {
            let (mut one, mut other) = pair(MIN_CAPACITY);
            let control = one.control(ring);
            control.publish_written(written);
            control.publish_read(read);
            if ring == 0 && read == 0 {
                assert!(other.read(&mut [IoSliceMut::new(&mut [0; 8])]).is_err(), "{written}");
            } else {
                let rings = if ring == 0 { &mut one } else { &mut other };
                assert!(rings.writable().is_err(), "{ring} {read}");
            }
        }
    }

    #[test]
    fn other_memory_is_refused() {
        let token = [3; 32];
        let (_rings, file) = Rings::make(MIN_CAPACITY, &token).unwrap();
        let me = std::process::id();
        assert!(Rings::open(me, file.number(), MIN_CAPACITY, &token).is_ok());
        assert!(Rings::open(me, file.number(), MIN_CAPACITY, &[4; 32]).is_err());
        assert!(Rings::open(me, file.number(), 2 * MIN_CAPACITY, &token).is_err());
        assert!(Rings::open(me, file.number(), MIN_CAPACITY + 1, &token).is_err());
        assert!(Rings::open(me, 0, MIN_CAPACITY, &token).is_err());
    }

    #[test]
    fn rings_of_many_ranks_are_smaller() {
        let all: Vec<usize> = [2, 8, 16, 64, 1000].into_iter().map(capacity).collect();
        assert_eq!(all, [512 << 10, 512 << 10, 512 << 10, 64 << 10, 64 << 10]);
    }
}
