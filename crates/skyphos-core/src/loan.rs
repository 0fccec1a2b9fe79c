//! Buffers that other processes of a host read where they lie, instead of a copy of each that is sent.
//!
//! A process cuts the buffers that several of the others get from an [`Arena`], memory that they have open too. With each of them it
//! has a row of slots, bytes in memory that only the two share:
//!
//! ```text
//! lender     marks the next slot, keeps the buffer, sends a slip: which slot, where the buffer lies
//! borrower   reads the buffer there; clears the slot when it needs it no more
//! lender     finds the slot clear, and lets the buffer go
//! ```
//!
//! Nobody waits for anybody: where a slot is not free, or more than [`MOST`] is lent, the bytes are copied as before. So a borrower may
//! keep what it has as long as it likes, and one that died costs its lender no more than that. A buffer that was lent to one who
//! is lost is not used again, for who is lost may read on.
//!
//! What the other process writes is believed no more than what comes of a socket: a slip that points outside is refused. But
//! it may write to its own memory after it has lent it. Only processes of one user can be here, which could write to each other's memory anyway.

use crate::arena::{ARENA_BYTES, Arena, Borrowed, Line, SLOTS, Slots};
use crate::memory::{Backing, Map};
use crate::slab::Payload;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes lent to one process at a time, at most.
pub const MOST: usize = 2 << 20;

/// Bytes of a slip.
pub const SLIP_BYTES: usize = 8;

/// Lends to one other process.
pub struct Lender {
    arena: Arc<Arena>,
    slots: Slots,
    /// What is lent, the longest first, and how many were before it.
    lent: VecDeque<Payload>,
    gone: u64,
    bytes: usize,
    most: usize,
}

impl Lender {
    /// For buffers of this arena. The slots lie there in the mapping, and are clear.
    pub fn new(arena: Arc<Arena>, slots: Arc<Map>, at: usize) -> Lender {
        let slots = Slots::new(slots, at);
        Lender { arena, slots, lent: VecDeque::new(), gone: 0, bytes: 0, most: MOST }
    }

    /// Lends no more than so many bytes at a time from now on.
    pub fn limit(&mut self, bytes: usize) {
        self.most = bytes.min(MOST);
    }

    /// Lends a buffer if that can be: the slip to send.
    pub fn lend(&mut self, payload: &Payload) -> Option<[u8; SLIP_BYTES]> {
        let cut = payload.cut().filter(|cut| Arc::ptr_eq(&cut.arena, &self.arena))?;
        if !self.may_lend(payload.len()) {
            self.collect();
            if !self.may_lend(payload.len()) {
                return None;
            }
        }
        let number = self.gone + self.lent.len() as u64;
        let mut slip = [0; SLIP_BYTES];
        slip[..4].copy_from_slice(&((number % SLOTS as u64) as u32).to_le_bytes());
        slip[4..].copy_from_slice(&(cut.line as u32).to_le_bytes());
        self.slots.slot(number).store(1, Ordering::Relaxed); // seen with the slip
        self.bytes += payload.len();
        self.lent.push_back(payload.clone());
        Some(slip)
    }

    fn may_lend(&self, bytes: usize) -> bool {
        self.bytes + bytes <= self.most && self.lent.len() < SLOTS
    }

    /// Lets go of what came back.
    pub fn collect(&mut self) {
        // Acquire: what the borrower has read it has read before this buffer is written again.
        while let Some(first) = self.lent.front()
            && self.slots.slot(self.gone).load(Ordering::Acquire) == 0
        {
            self.bytes -= first.len();
            self.gone += 1;
            self.lent.pop_front();
        }
    }

    /// Whether nothing is lent.
    pub fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }
}

/// Borrows from one other process.
#[derive(Clone)]
pub struct Borrower {
    memory: Arc<Map>,
    slots: Slots,
}

impl Borrower {
    /// From the process whose arena that is. The slots lie there in their mapping.
    pub fn new(arena: &Backing, slots: Arc<Map>, at: usize) -> io::Result<Borrower> {
        Ok(Borrower { memory: Arc::new(arena.readable(ARENA_BYTES)?), slots: Slots::new(slots, at) })
    }

    /// The buffer of `len` bytes that a slip is about; `None` if there can be none.
    pub fn take(&self, slip: &[u8; SLIP_BYTES], len: usize) -> Option<Payload> {
        let word = |at: usize| u32::from_le_bytes(slip[at..at + 4].try_into().expect("4 bytes"));
        let (slot, line, lines) = (word(0), word(4) as usize, len.div_ceil(size_of::<Line>()));
        if slot as usize >= SLOTS || (line + lines) * size_of::<Line>() > ARENA_BYTES {
            return None;
        }
        let Borrower { memory, slots } = self.clone();
        Some(Payload::borrowed(Borrowed { memory, slots, slot, line, lines }, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mark;
    use crate::slab::Pool;
    use proptest::prelude::*;

    const MARK: Mark = [5; 32];
    const AT: usize = 512;

    /// A pool that lends, its lender, and who borrows from it.
    fn pair() -> (Pool, Lender, Borrower) {
        let (arena, file) = Arena::make(&MARK).unwrap();
        let slots = Backing::make(4096, &MARK).unwrap();
        let me = std::process::id();
        let theirs = Backing::open(me, file.number(), ARENA_BYTES, &MARK).unwrap();
        let slots_there = Backing::open(me, slots.number(), 4096, &MARK).unwrap().shared(4096).unwrap();
        let borrower = Borrower::new(&theirs, Arc::new(slots_there), AT).unwrap();
        let lender = Lender::new(arena.clone(), Arc::new(slots.shared(4096).unwrap()), AT);
        (Pool::lending(arena), lender, borrower)
    }

    fn filled(pool: &Pool, len: usize, byte: u8) -> Payload {
        let mut slab = pool.take_for_several(len);
        slab.as_bytes_mut().fill(byte);
        slab.freeze()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Whatever is lent, kept and given back in which order, nothing changes while it is borrowed, and all comes back.
        #[test]
        fn what_is_borrowed_stays_as_it_was(
            steps in prop::collection::vec((any::<bool>(), 1usize..100_000, any::<prop::sample::Index>()), 1..300),
        ) {
            let (pool, mut lender, borrower) = pair();
            let mut have: Vec<(Payload, u8)> = Vec::new();
            for (k, (lends, len, which)) in steps.into_iter().enumerate() {
                if lends {
                    let byte = k as u8;
                    let payload = filled(&pool, len, byte);
                    let small = len <= 4096;
                    if let Some(slip) = lender.lend(&payload) {
                        prop_assert!(!small);
                        let came = borrower.take(&slip, len).unwrap();
                        prop_assert!(came.cut().is_none(), "nobody lends what he has borrowed");
                        have.push((came, byte));
                    } else {
                        prop_assert!(small || lender.bytes + len > MOST || lender.lent.len() == SLOTS);
                    }
                } else if !have.is_empty() {
                    drop(have.swap_remove(which.index(have.len())));
                }
                for (payload, byte) in &have {
                    prop_assert!(payload.as_bytes().iter().all(|b| b == byte));
                }
            }
            drop(have);
            lender.collect();
            prop_assert_eq!((lender.lent.len(), lender.bytes, pool.held()), (0, 0, 0));
        }
    }

    #[test]
    fn a_borrower_that_keeps_all_ends_the_lending() {
        let (pool, mut lender, borrower) = pair();
        let mut kept = Vec::new();
        let mut lend = |lender: &mut Lender| {
            let payload = filled(&pool, 5000, 1);
            lender.lend(&payload).map(|slip| kept.push(borrower.take(&slip, 5000).unwrap())).is_some()
        };
        while lend(&mut lender) {}
        assert!(lender.bytes <= MOST && lender.lent.len() == SLOTS);
        kept.pop();
        assert_eq!(
            (lender.lent.len(), lender.lend(&filled(&pool, 5000, 1))),
            (SLOTS, None),
            "it was the youngest"
        );
        kept.remove(0);
        assert!(lender.lend(&filled(&pool, 5000, 1)).is_some());
        lender.limit(0);
        drop(kept);
        assert_eq!((lender.lend(&filled(&pool, 5000, 1)), lender.is_empty()), (None, false));
    }

    #[test]
    fn what_one_gets_is_not_lent() {
        let (pool, mut lender, _) = pair();
        assert_eq!(lender.lend(&pool.copy_of(&[3; 10_000])), None);
        assert_eq!(lender.lend(&filled(&Pool::default(), 10_000, 3)), None, "it lies elsewhere");
        assert!(lender.lend(&filled(&pool, 10_000, 3)).is_some());
    }

    #[test]
    fn what_is_borrowed_is_copied_to_be_written() {
        let (pool, mut lender, borrower) = pair();
        let payload = filled(&pool, 10_000, 3);
        let came = borrower.take(&lender.lend(&payload).unwrap(), 10_000).unwrap();
        let mut own = came.into_mut(|len| pool.take(len));
        own.as_bytes_mut()[0] = 4;
        assert_eq!((payload.as_bytes()[0], own.freeze().as_bytes()[..2].to_vec()), (3, vec![4, 3]));
        lender.collect();
        assert!(lender.is_empty());
    }

    #[test]
    fn slips_that_make_no_sense_are_refused() {
        let (pool, mut lender, borrower) = pair();
        let slip = lender.lend(&filled(&pool, 10_000, 3)).unwrap();
        let with = |at: usize, word: u32| {
            let mut slip = slip;
            slip[at..at + 4].copy_from_slice(&word.to_le_bytes());
            borrower.take(&slip, 10_000).is_some()
        };
        let end = (ARENA_BYTES / 64 - 10_000usize.div_ceil(64)) as u32;
        assert!(with(0, 0) && with(4, end));
        assert!(!with(0, SLOTS as u32) && !with(0, u32::MAX) && !with(4, end + 1) && !with(4, u32::MAX));
    }

    #[test]
    fn buffers_beyond_the_arena_are_not_lent() {
        let (pool, mut lender, _) = pair();
        let all: Vec<_> = (0..ARENA_BYTES / (128 << 10) + 3).map(|_| filled(&pool, 128 << 10, 1)).collect();
        assert_eq!(all.iter().filter(|payload| payload.cut().is_some()).count(), ARENA_BYTES / (128 << 10));
        assert!(lender.lend(&all[0]).is_some() && lender.lend(all.last().unwrap()).is_none());
        drop(all);
        let again: Vec<_> = (0..4).map(|_| filled(&pool, 50_000, 8)).collect();
        assert_eq!(
            again.iter().filter(|payload| lender.lend(payload).is_some()).count(),
            1,
            "three are not of the arena"
        );
    }
}
