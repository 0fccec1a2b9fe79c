//! Memory that one rank fills and the other ranks of its host map.
//!
//! Each rank maps the memory copy-on-write, so no rank sees what another one does with its result. A counter in the memory's head
//! has the number of ranks that map it; the owner reuses the memory once the counter is zero. A rank that dies stays counted,
//! and the system frees the memory once no process maps it.

use super::memory_file::{HEAD_BYTES, Mapping, MemoryFile, Token};
use crate::process::Process;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Offset of the users' counter in the head.
const USERS_OFFSET: usize = 64;

/// Bytes of an offer: process, file, length, token.
const OFFER_BYTES: usize = 48;

/// The length of a region is a multiple of this: a huge page.
const LEN_UNIT: usize = 2 << 20;

/// Upper bound on the regions that a node keeps for later messages.
const MAX_KEPT: usize = 2;

/// Memory that this rank fills.
pub(crate) struct Region {
    file: MemoryFile,
    map: Mapping,
    len: usize,
    token: Token,
}

impl Region {
    fn make(len: usize) -> std::io::Result<Region> {
        let (random, mut token) = (RandomState::new(), Token::default());
        for (k, eight) in token.chunks_exact_mut(8).enumerate() {
            eight.copy_from_slice(&random.hash_one(k).to_le_bytes());
        }
        let file = MemoryFile::make(len, &token)?;
        let map = file.map_shared(len)?;
        Ok(Region { file, map, len, token })
    }

    /// Takes a kept region that no rank uses any more, else makes one; `None` if the system has no memory.
    fn take(kept: &mut Vec<Region>, len: usize) -> Option<Region> {
        let free = |region: &Region| users_in(&region.map).load(Ordering::Acquire) == 0;
        let fits = |region: &Region| (len..=2 * len.max(LEN_UNIT)).contains(&region.len) && free(region);
        if let Some(found) = kept.iter().position(fits) {
            return Some(kept.swap_remove(found));
        }
        kept.retain(|region| !free(region));
        Region::make(len.checked_next_multiple_of(LEN_UNIT)?).ok()
    }

    /// A description with which other ranks of the host can map the region.
    pub(crate) fn offer(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        bytes[..4].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[4..8].copy_from_slice(&self.file.number().to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.len as u64).to_le_bytes());
        bytes[16..].copy_from_slice(&self.token);
        bytes
    }

    /// A range of bytes, to be filled before the other ranks get the report that they may read it.
    pub(crate) fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len, "within the region");
        // SAFETY: within the mapping, which `&mut self` borrows exclusively. Other processes never write it, and read it only
        // after the report that it is filled.
        unsafe {
            std::slice::from_raw_parts_mut(self.map.as_ptr().add(HEAD_BYTES + range.start), range.len())
        }
    }

    /// The bytes of a range.
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len, "within the region");
        // SAFETY: within the mapping, which no other process writes; this one needs `&mut self` to write.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(HEAD_BYTES + range.start), range.len()) }
    }

    /// Counts more users.
    pub(crate) fn add_users(&self, count: u32) {
        users_in(&self.map).fetch_add(count, Ordering::AcqRel);
    }

    /// Counts one user less.
    pub(crate) fn release(&self) {
        users_in(&self.map).fetch_sub(1, Ordering::AcqRel);
    }

    /// A copy of the filled region for this rank, which is one of the counted users. If it fails, the rank is counted no more.
    pub(crate) fn own_copy(&self) -> Option<HostCopy> {
        let copy = HostCopy::map(&self.file, self.len);
        if copy.is_none() {
            self.release();
        }
        copy
    }
}

/// The counter of users in a region's head.
fn users_in(head: &Mapping) -> &AtomicU32 {
    // SAFETY: every mapping that is passed here begins with the head. The counter is aligned in it, and all processes access it
    // as an atomic only.
    unsafe { &*head.as_ptr().add(USERS_OFFSET).cast() }
}

/// The regions that a node keeps for broadcasts within its host.
#[derive(Default)]
pub(crate) struct Regions(std::sync::Mutex<Vec<Region>>);

impl Regions {
    /// A free region of at least `len` bytes; `None` if the system has no memory.
    pub(crate) fn take(&self, len: usize) -> Option<Region> {
        Region::take(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner), len)
    }

    /// Keeps a region for a later message.
    pub(crate) fn keep(&self, region: Region) {
        let mut kept = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        kept.push(region);
        if kept.len() > MAX_KEPT {
            kept.remove(0);
        }
    }
}

/// A rank's copy of a region, as a copy-on-write mapping.
pub struct HostCopy {
    own: Mapping,
    head: Mapping,
    process: Process,
}

/// A copy of a region that its owner is still filling.
pub(crate) struct UnfilledCopy(HostCopy);

impl UnfilledCopy {
    /// Maps the region of a peer's offer. The peer has counted this rank among the users.
    pub(crate) fn open(offer: &[u8]) -> Option<UnfilledCopy> {
        let word = |at: usize| Some(u32::from_le_bytes(offer.get(at..at + 4)?.try_into().ok()?));
        let len = usize::try_from(u64::from_le_bytes(offer.get(8..16)?.try_into().ok()?)).ok()?;
        let token: Token = offer.get(16..OFFER_BYTES)?.try_into().ok()?;
        HostCopy::map(&MemoryFile::open(word(0)?, word(4)?, len, &token).ok()?, len).map(UnfilledCopy)
    }

    /// The copy, after the owner's report that the region is filled. The owner does not write it again while this rank is a user.
    pub(crate) fn filled(self) -> HostCopy {
        self.0
    }
}

impl HostCopy {
    fn map(file: &MemoryFile, len: usize) -> Option<HostCopy> {
        let (own, head) = (file.map_private(len).ok()?, file.map_shared(0).ok()?);
        Some(HostCopy { own, head, process: Process::this() })
    }

    /// The bytes of a range.
    ///
    /// # Panics
    /// If the range exceeds the copy.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        let len = range.len();
        // SAFETY: within the mapping. The region's owner does not write it while this rank is counted as a user; this process
        // writes only through `as_mut_ptr`, whose callers exclude references to the same bytes.
        unsafe { std::slice::from_raw_parts(self.as_mut_ptr(range), len) }
    }

    /// The address of some bytes. A caller that writes them sees to it that no reference to them exists meanwhile.
    ///
    /// # Panics
    /// If the range exceeds the copy.
    pub fn as_mut_ptr(&self, range: Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.own.len(), "within the copy");
        // SAFETY: within the mapping.
        unsafe { self.own.as_ptr().add(range.start) }
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        // A forked child has inherited the mapping, but is not counted as a user.
        if self.process.is_this() {
            users_in(&self.head).fetch_sub(1, Ordering::AcqRel);
        }
    }
}
