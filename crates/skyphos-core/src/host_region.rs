//! Memory that one rank fills and the other ranks of its host map.
//!
//! Each rank maps the bytes so that pages it writes to become its own: no rank sees what another does with a result. The memory's head
//! counts the ranks that map it, so that its owner knows when it may be used again. A rank that dies stays counted; the system frees the
//! memory once no process maps it.

use crate::memory::{Backing, HEAD_BYTES, Map, Mark};
use crate::process::Process;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where in the head users are counted.
const USERS: usize = 64;

/// Process, file, bytes, mark.
const OFFER_BYTES: usize = 48;

/// Memory is made in multiples of it.
const WHOLE: usize = 2 << 20;

/// Memory that a node keeps for the next messages.
const KEEP: usize = 2;

/// Memory that a leader has made.
pub(crate) struct Region {
    backing: Backing,
    all: Map,
    len: usize,
    mark: Mark,
}

impl Region {
    fn make(len: usize) -> std::io::Result<Region> {
        let (random, mut mark) = (RandomState::new(), Mark::default());
        for (k, eight) in mark.chunks_exact_mut(8).enumerate() {
            eight.copy_from_slice(&random.hash_one(k).to_le_bytes());
        }
        let backing = Backing::make(len, &mark)?;
        let all = backing.shared(len)?;
        Ok(Region { backing, all, len, mark })
    }

    /// One that was kept and that nobody uses any more, or a new one; `None` if the system gives none.
    fn take(kept: &mut Vec<Region>, len: usize) -> Option<Region> {
        let free = |region: &Region| users_in(&region.all).load(Ordering::Acquire) == 0;
        let fits = |region: &Region| (len..=2 * len.max(WHOLE)).contains(&region.len) && free(region);
        if let Some(found) = kept.iter().position(fits) {
            return Some(kept.swap_remove(found));
        }
        kept.retain(|region| !free(region));
        Region::make(len.checked_next_multiple_of(WHOLE)?).ok()
    }

    /// Where it is, for the ranks that are to map it.
    pub(crate) fn offer(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        bytes[..4].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[4..8].copy_from_slice(&self.backing.number().to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.len as u64).to_le_bytes());
        bytes[16..].copy_from_slice(&self.mark);
        bytes
    }

    /// Bytes that nobody reads before they are said to be filled.
    pub(crate) fn bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len, "within the memory");
        // SAFETY: within the mapping; the others wait to be told of them, and none writes.
        unsafe { std::slice::from_raw_parts_mut(self.all.at().add(HEAD_BYTES + range.start), range.len()) }
    }

    /// Bytes that have been filled.
    pub(crate) fn filled(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len, "within the memory");
        // SAFETY: within the mapping, which nobody else writes.
        unsafe { std::slice::from_raw_parts(self.all.at().add(HEAD_BYTES + range.start), range.len()) }
    }
}

impl Region {
    /// Counts more ranks that map it.
    pub(crate) fn add_users(&self, count: u32) {
        users_in(&self.all).fetch_add(count, Ordering::AcqRel);
    }

    /// One rank fewer maps it.
    pub(crate) fn release(&self) {
        users_in(&self.all).fetch_sub(1, Ordering::AcqRel);
    }

    /// A copy for this rank, which has been counted among the users; it is no longer, if there is none.
    pub(crate) fn own_copy(&self) -> Option<HostCopy> {
        let copy = HostCopy::of(&self.backing, self.len);
        if copy.is_none() {
            self.release();
        }
        copy
    }
}

fn users_in(head: &Map) -> &AtomicU32 {
    // SAFETY: inside of the head, aligned; any bytes are such a value.
    unsafe { &*head.at().add(USERS).cast() }
}

/// Memory that a node keeps for broadcasts to its host.
#[derive(Default)]
pub(crate) struct Regions(std::sync::Mutex<Vec<Region>>);

impl Regions {
    /// A free region of at least `len` bytes; `None` if the system gives none.
    pub(crate) fn take(&self, len: usize) -> Option<Region> {
        Region::take(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner), len)
    }

    /// Keeps a region for the next message.
    pub(crate) fn keep(&self, region: Region) {
        let mut kept = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        kept.push(region);
        if kept.len() > KEEP {
            kept.remove(0);
        }
    }
}

/// A message in memory that ranks of a host share; pages that are written to become this rank's own.
pub struct HostCopy {
    own: Map,
    head: Map,
    process: Process,
}

impl HostCopy {
    /// Maps the region that a peer offers; this rank is counted among its users already.
    pub(crate) fn open(offer: &[u8]) -> Option<HostCopy> {
        let word = |at: usize| Some(u32::from_le_bytes(offer.get(at..at + 4)?.try_into().ok()?));
        let len = usize::try_from(u64::from_le_bytes(offer.get(8..16)?.try_into().ok()?)).ok()?;
        let mark: Mark = offer.get(16..OFFER_BYTES)?.try_into().ok()?;
        HostCopy::of(&Backing::open(word(0)?, word(4)?, len, &mark).ok()?, len)
    }

    /// This rank is counted already.
    fn of(backing: &Backing, len: usize) -> Option<HostCopy> {
        let (own, head) = (backing.own(len).ok()?, backing.shared(0).ok()?);
        Some(HostCopy { own, head, process: Process::this() })
    }

    /// Some of its bytes.
    ///
    /// # Safety
    /// Nobody writes them meanwhile.
    pub(crate) unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        let len = range.len();
        // SAFETY: within the mapping; the caller sees to the rest.
        unsafe { std::slice::from_raw_parts(self.at(range), len) }
    }

    /// Where some of its bytes are, which this rank alone reads and writes.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn at(&self, range: Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.own.len(), "within the memory");
        // SAFETY: within the mapping.
        unsafe { self.own.at().add(range.start) }
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        // A forked child has its parent's memory, and is counted nowhere.
        if self.process.is_this() {
            users_in(&self.head).fetch_sub(1, Ordering::AcqRel);
        }
    }
}
