//! Buffers that other processes of a host read in place, instead of getting a copy.
//!
//! A process cuts buffers for several receivers from an [`Arena`], which the other processes have mapped. With each of them it shares
//! a row of slots, one per loan:
//!
//! ```text
//! lender     sets the next slot, keeps the buffer, sends a descriptor: the slot, and the buffer's offset in the arena
//! borrower   reads the buffer in place; clears the slot when it needs the buffer no more
//! lender     finds the slot clear, and releases the buffer
//! ```
//!
//! Neither side waits: without a free slot, or with more than [`MAX_LENT_BYTES`] on loan, the bytes are copied. So a borrower may keep
//! a buffer as long as it likes, and a borrower that died costs its lender at most those bytes. A buffer lent to a lost peer is not
//! used again, since that peer may still read it.
//!
//! A descriptor is checked like bytes from a socket: a descriptor that points outside the arena is refused. The lender could still change a
//! buffer after lending it; only processes of one user share an arena, and these can write each other's memory anyway.

use crate::shared_memory::arena::{ARENA_BYTES, Arena, Borrowed, Line, SLOTS, Slots};
use crate::shared_memory::memory_file::{Mapping, MemoryFile};
use crate::slab::Payload;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Upper bound on the bytes on loan to one process.
pub const MAX_LENT_BYTES: usize = 2 << 20;

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 8;

/// Lends buffers to one other process.
pub struct Lender {
    arena: Arc<Arena>,
    slots: Slots,
    /// Buffers on loan, oldest first.
    lent: VecDeque<Payload>,
    /// Number of buffers that were released.
    released: u64,
    /// Bytes of `lent`, now and at most.
    bytes: usize,
    max_bytes: usize,
}

impl Lender {
    /// A lender of buffers from an arena. Its slots, all clear, are at an offset of a mapping.
    pub fn new(arena: Arc<Arena>, slots: Arc<Mapping>, offset: usize) -> Lender {
        let slots = Slots::new(slots, offset);
        Lender { arena, slots, lent: VecDeque::new(), released: 0, bytes: 0, max_bytes: MAX_LENT_BYTES }
    }

    /// Lowers the limit of bytes on loan.
    pub fn limit(&mut self, bytes: usize) {
        self.max_bytes = bytes.min(MAX_LENT_BYTES);
    }

    /// Lends a buffer. Returns the descriptor to send; `None` if the buffer has to be copied.
    pub fn lend(&mut self, payload: &Payload) -> Option<[u8; DESCRIPTOR_BYTES]> {
        let cut = payload.cut().filter(|cut| Arc::ptr_eq(&cut.arena, &self.arena))?;
        if !self.may_lend(payload.len()) {
            self.collect();
            if !self.may_lend(payload.len()) {
                return None;
            }
        }
        let loan = self.released + self.lent.len() as u64;
        let mut descriptor = [0; DESCRIPTOR_BYTES];
        descriptor[..4].copy_from_slice(&((loan % SLOTS as u64) as u32).to_le_bytes());
        descriptor[4..].copy_from_slice(&(cut.line as u32).to_le_bytes());
        // Relaxed: the borrower learns of the slot from the descriptor.
        self.slots.slot(loan).store(1, Ordering::Relaxed);
        self.bytes += payload.len();
        self.lent.push_back(payload.clone());
        Some(descriptor)
    }

    fn may_lend(&self, bytes: usize) -> bool {
        self.bytes + bytes <= self.max_bytes && self.lent.len() < SLOTS
    }

    /// Releases returned buffers, oldest first.
    pub fn collect(&mut self) {
        // Acquire: the borrower's reads come before this process writes the buffer again.
        while let Some(first) = self.lent.front()
            && self.slots.slot(self.released).load(Ordering::Acquire) == 0
        {
            self.bytes -= first.len();
            self.released += 1;
            self.lent.pop_front();
        }
    }

    /// Whether nothing is on loan.
    pub fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }
}

/// Borrows buffers from one other process.
#[derive(Clone)]
pub struct Borrower {
    memory: Arc<Mapping>,
    slots: Slots,
}

impl Borrower {
    /// A borrower from another process's arena. The slots are at an offset of a mapping.
    pub fn new(arena: &MemoryFile, slots: Arc<Mapping>, offset: usize) -> io::Result<Borrower> {
        Ok(Borrower { memory: Arc::new(arena.map_read_only(ARENA_BYTES)?), slots: Slots::new(slots, offset) })
    }

    /// The buffer of `len` bytes that a descriptor names; `None` if the descriptor is invalid.
    pub fn take(&self, descriptor: &[u8; DESCRIPTOR_BYTES], len: usize) -> Option<Payload> {
        let word = |at: usize| u32::from_le_bytes(descriptor[at..at + 4].try_into().expect("4 bytes"));
        let (slot, line, lines) = (word(0), word(4) as usize, len.div_ceil(size_of::<Line>()));
        let Borrower { memory, slots } = self.clone();
        Some(Payload::borrowed(Borrowed::new(memory, slots, slot, line, lines)?, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_memory::memory_file::Token;
    use crate::slab::Pool;
    use proptest::prelude::*;

    const TOKEN: Token = [5; 32];
    const OFFSET: usize = 512;

    /// A pool of buffers that can be lent, their lender, and its borrower.
    fn pair() -> (Pool, Lender, Borrower) {
        let (arena, file) = Arena::make(&TOKEN).unwrap();
        let slots = MemoryFile::make(4096, &TOKEN).unwrap();
        let me = std::process::id();
        let theirs = MemoryFile::open(me, file.number(), ARENA_BYTES, &TOKEN).unwrap();
        let slots_there =
            MemoryFile::open(me, slots.number(), 4096, &TOKEN).unwrap().map_shared(4096).unwrap();
        let borrower = Borrower::new(&theirs, Arc::new(slots_there), OFFSET).unwrap();
        let lender = Lender::new(arena.clone(), Arc::new(slots.map_shared(4096).unwrap()), OFFSET);
        (Pool::lending(arena), lender, borrower)
    }

    fn filled(pool: &Pool, len: usize, byte: u8) -> Payload {
        let mut slab = pool.take_for_several(len);
        slab.as_bytes_mut().fill(byte);
        slab.freeze()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Buffers are lent, kept and returned in any order: none changes while it is borrowed, and all are released in the end.
        #[test]
        fn a_borrowed_buffer_does_not_change(
            steps in prop::collection::vec((any::<bool>(), 1usize..100_000, any::<prop::sample::Index>()), 1..300),
        ) {
            let (pool, mut lender, borrower) = pair();
            let mut borrowed: Vec<(Payload, u8)> = Vec::new();
            for (k, (lends, len, which)) in steps.into_iter().enumerate() {
                if lends {
                    let byte = k as u8;
                    let payload = filled(&pool, len, byte);
                    let small = len <= 4096;
                    if let Some(descriptor) = lender.lend(&payload) {
                        prop_assert!(!small);
                        let received = borrower.take(&descriptor, len).unwrap();
                        prop_assert!(received.cut().is_none(), "borrowed buffers are not lent on");
                        borrowed.push((received, byte));
                    } else {
                        prop_assert!(small || lender.bytes + len > MAX_LENT_BYTES || lender.lent.len() == SLOTS);
                    }
                } else if !borrowed.is_empty() {
                    drop(borrowed.swap_remove(which.index(borrowed.len())));
                }
                for (payload, byte) in &borrowed {
                    prop_assert!(payload.as_bytes().iter().all(|b| b == byte));
                }
            }
            drop(borrowed);
            lender.collect();
            prop_assert_eq!((lender.lent.len(), lender.bytes, pool.in_use()), (0, 0, 0));
        }
    }

    #[test]
    fn a_borrower_that_returns_nothing_gets_no_more() {
        let (pool, mut lender, borrower) = pair();
        let mut kept = Vec::new();
        let mut lend = |lender: &mut Lender| {
            let payload = filled(&pool, 5000, 1);
            lender
                .lend(&payload)
                .map(|descriptor| kept.push(borrower.take(&descriptor, 5000).unwrap()))
                .is_some()
        };
        while lend(&mut lender) {}
        assert!(lender.bytes <= MAX_LENT_BYTES && lender.lent.len() == SLOTS);
        kept.pop();
        assert_eq!(
            (lender.lent.len(), lender.lend(&filled(&pool, 5000, 1))),
            (SLOTS, None),
            "only the youngest loan was returned"
        );
        kept.remove(0);
        assert!(lender.lend(&filled(&pool, 5000, 1)).is_some());
        lender.limit(0);
        drop(kept);
        assert_eq!((lender.lend(&filled(&pool, 5000, 1)), lender.is_empty()), (None, false));
    }

    #[test]
    fn buffers_outside_of_the_arena_are_not_lent() {
        let (pool, mut lender, _) = pair();
        assert_eq!(lender.lend(&pool.copy_of(&[3; 10_000])), None);
        assert_eq!(lender.lend(&filled(&Pool::default(), 10_000, 3)), None, "from another pool");
        assert!(lender.lend(&filled(&pool, 10_000, 3)).is_some());
    }

    #[test]
    fn a_borrowed_buffer_is_copied_before_a_write() {
        let (pool, mut lender, borrower) = pair();
        let payload = filled(&pool, 10_000, 3);
        let received = borrower.take(&lender.lend(&payload).unwrap(), 10_000).unwrap();
        let mut own = received.into_mut(|len| pool.take(len));
        own.as_bytes_mut()[0] = 4;
        assert_eq!((payload.as_bytes()[0], own.freeze().as_bytes()[..2].to_vec()), (3, vec![4, 3]));
        lender.collect();
        assert!(lender.is_empty());
    }

    #[test]
    fn invalid_descriptors_are_refused() {
        let (pool, mut lender, borrower) = pair();
        let descriptor = lender.lend(&filled(&pool, 10_000, 3)).unwrap();
        let with = |at: usize, word: u32| {
            let mut descriptor = descriptor;
            descriptor[at..at + 4].copy_from_slice(&word.to_le_bytes());
            borrower.take(&descriptor, 10_000).is_some()
        };
        let end = (ARENA_BYTES / 64 - 10_000usize.div_ceil(64)) as u32;
        assert!(with(0, 0) && with(4, end));
        assert!(!with(0, SLOTS as u32) && !with(0, u32::MAX) && !with(4, end + 1) && !with(4, u32::MAX));
    }

    #[test]
    fn a_full_arena_lends_no_new_buffers() {
        let (pool, mut lender, _) = pair();
        let all: Vec<_> = (0..ARENA_BYTES / (128 << 10) + 3).map(|_| filled(&pool, 128 << 10, 1)).collect();
        assert_eq!(all.iter().filter(|payload| payload.cut().is_some()).count(), ARENA_BYTES / (128 << 10));
        assert!(lender.lend(&all[0]).is_some() && lender.lend(all.last().unwrap()).is_none());
        drop(all);
        let again: Vec<_> = (0..4).map(|_| filled(&pool, 50_000, 8)).collect();
        assert_eq!(
            again.iter().filter(|payload| lender.lend(payload).is_some()).count(),
            1,
            "the arena has memory for one"
        );
    }
}
