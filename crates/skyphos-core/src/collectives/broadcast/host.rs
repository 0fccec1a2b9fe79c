//! One copy of a message a host: one of its ranks brings it, in memory that the others map.
//!
//! ```text
//! leader    makes memory, and tells the others of its host where it is
//! others    map it, and say whether they could
//! leader    brings the message there; tells those who have it mapped how far it is, and sends it to those who have not
//! ```
//!
//! Each maps the bytes so that pages it writes to become its own: nobody sees what another does with a result. How many have
//! them mapped is counted in the memory's head, so that the leader knows when it may use the memory again; who dies stays
//! counted, and the system has the memory back once nobody maps it.

use super::flow::Flow;
use super::message::{Layout, Parts, Room};
use super::store::Store;
use super::words::{Came, Words};
use crate::endpoint::{Endpoint, Incoming, Outgoing};
use crate::memory::{Backing, HEAD_BYTES, Map, Mark};
use skyphos_types::Result;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Rounds: where the memory is; whether it was found; how far it is filled.
const OFFER: u32 = 0x110;
const ANSWER: u32 = 0x111;
const FILLED: u32 = 0x112;

/// Where in the head users are counted.
const USERS: usize = 64;

/// Process, file, bytes, mark.
const OFFER_BYTES: usize = 48;

/// Parts begin at multiples of it.
const ALIGNMENT: usize = 64;

/// After so many bytes those who wait are told: who hears nothing for too long ends the call.
const STRETCH: usize = 64 << 20;

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

    fn offer(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        bytes[..4].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[4..8].copy_from_slice(&self.backing.number().to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.len as u64).to_le_bytes());
        bytes[16..].copy_from_slice(&self.mark);
        bytes
    }

    /// Bytes that nobody reads before they are said to be filled.
    fn bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len, "within the memory");
        // SAFETY: within the mapping; the others wait to be told of them, and none writes.
        unsafe { std::slice::from_raw_parts_mut(self.all.at().add(HEAD_BYTES + range.start), range.len()) }
    }

    fn filled(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len, "within the memory");
        // SAFETY: within the mapping, which nobody else writes.
        unsafe { std::slice::from_raw_parts(self.all.at().add(HEAD_BYTES + range.start), range.len()) }
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
    fn take(&self, len: usize) -> Option<Region> {
        Region::take(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner), len)
    }

    fn keep(&self, region: Region) {
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
    process: u32,
}

impl HostCopy {
    fn open(offer: &[u8]) -> Option<HostCopy> {
        let word = |at: usize| Some(u32::from_le_bytes(offer.get(at..at + 4)?.try_into().ok()?));
        let len = usize::try_from(u64::from_le_bytes(offer.get(8..16)?.try_into().ok()?)).ok()?;
        let mark: Mark = offer.get(16..OFFER_BYTES)?.try_into().ok()?;
        HostCopy::of(&Backing::open(word(0)?, word(4)?, len, &mark).ok()?, len)
    }

    /// This rank is counted already.
    fn of(backing: &Backing, len: usize) -> Option<HostCopy> {
        let (own, head) = (backing.own(len).ok()?, backing.shared(0).ok()?);
        Some(HostCopy { own, head, process: std::process::id() })
    }

    /// Some of its bytes.
    ///
    /// # Safety
    /// Nobody writes them meanwhile.
    pub(super) unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
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
        if std::process::id() == self.process {
            users_in(&self.head).fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Where parts of these lengths lie in memory, and its bytes.
pub(super) fn places(lengths: &[usize]) -> (Vec<Range<usize>>, usize) {
    let mut end = 0usize;
    let place = |len: &usize| {
        let start = end.next_multiple_of(ALIGNMENT);
        end = start + len;
        start..end
    };
    let places = lengths.iter().map(place).collect();
    (places, end)
}

/// Memory that a rank brings a message to, for its host.
pub(super) struct Shared {
    region: Region,
    layout: Layout,
    /// Where the parts are in it.
    pub(super) places: Vec<Range<usize>>,
    filled: usize,
}

impl Shared {
    /// For parts of these lengths and so many ranks, if there is memory to be had.
    pub(super) fn new(ep: &Endpoint, lengths: &[usize], users: u32) -> Option<Shared> {
        let (places, bytes) = places(lengths);
        let region = if ep.node().shares_memory() { ep.node().regions.take(bytes)? } else { return None };
        users_in(&region.all).fetch_add(users, Ordering::AcqRel);
        Some(Shared { region, layout: Layout::new(lengths.iter().copied()), places, filled: 0 })
    }

    /// One rank fewer than was thought uses it.
    fn release(&self) {
        users_in(&self.region.all).fetch_sub(1, Ordering::AcqRel);
    }

    fn in_region(&self, part: usize, here: &Range<usize>) -> Range<usize> {
        let start = self.places[part].start;
        start + here.start..start + here.end
    }

    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        for (part, here, range) in self.layout.pieces(at..at + bytes.len()) {
            let place = self.in_region(part, &here);
            self.region.bytes(place).copy_from_slice(&bytes[range]);
        }
        self.filled += bytes.len();
    }

    pub(super) fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        for (part, here, range) in self.layout.pieces(at..at + bytes.len()) {
            bytes[range].copy_from_slice(self.region.filled(self.in_region(part, &here)));
        }
    }

    /// Copies the next bytes of `parts`, in order; whether there were any.
    pub(super) fn take_from(&mut self, parts: &Parts<&[u8]>, most: usize) -> bool {
        let end = self.layout.total().min(self.filled + most);
        for (part, here, range) in self.layout.pieces(self.filled..end) {
            let (at, place) = (self.filled + range.start, self.in_region(part, &here));
            parts.copy_out(at, self.region.bytes(place));
        }
        std::mem::replace(&mut self.filled, end) < end
    }

    /// A copy for this rank, which was counted among the users.
    pub(super) fn own_copy(&self) -> Option<HostCopy> {
        let copy = HostCopy::of(&self.region.backing, self.region.len);
        if copy.is_none() {
            self.release();
        }
        copy
    }

    /// Puts all into a room that has been made.
    pub(super) fn to_room(&self, room: &mut impl Room) {
        let mut at = 0;
        for place in &self.places {
            room.put(at, self.region.filled(place.clone()));
            at += place.len();
        }
    }

    /// For another message.
    pub(super) fn keep(self, ep: &Endpoint) {
        ep.node().regions.keep(self.region);
    }
}

/// The others of a leader's host.
pub(super) struct Mates {
    /// Those who have not said yet whether they have the memory.
    asked: Vec<(u32, Incoming)>,
    /// Those who have, and are told how far it is filled.
    near: Vec<Outgoing>,
    total: usize,
}

impl Mates {
    pub(super) fn none() -> Mates {
        Mates { asked: Vec::new(), near: Vec::new(), total: 0 }
    }

    /// Tells them where the memory is, if there is any.
    pub(super) fn new(ep: &Endpoint, others: &[u32], shared: Option<&Shared>, total: usize) -> Mates {
        let offer = shared.map_or(Vec::new(), |shared| shared.region.offer().to_vec());
        let offer = ep.node().pool().copy_of(&offer);
        let tell = |other: &u32| {
            Outgoing::new(*other, OFFER, offer.len() as u64).push_shared(ep, offer.clone());
            (*other, Incoming::new(*other, ANSWER))
        };
        Mates { asked: others.iter().map(tell).collect(), near: Vec::new(), total }
    }

    /// Who could not map the memory is sent the message; the others hear how far it is. Who is lost stays counted as its user.
    pub(super) fn step(
        &mut self,
        words: &Words<'_>,
        flow: &mut Flow,
        shared: Option<&Shared>,
    ) -> Result<bool> {
        let (ep, before) = (words.ep, self.asked.len());
        for (other, mut answer) in std::mem::take(&mut self.asked) {
            match words.take(other, &mut answer)? {
                Came::Chunk(chunk) if chunk.as_bytes() == [1] => {
                    self.near.push(Outgoing::new(other, FILLED, words_of(self.total)));
                }
                Came::Chunk(_) => {
                    shared.into_iter().for_each(Shared::release);
                    flow.plan_to(other);
                }
                Came::Nothing => self.asked.push((other, answer)),
                Came::Never(_) => {}
            }
        }
        let mut moved = self.asked.len() < before;
        let Some(shared) = shared else { return Ok(moved) };
        let due = match shared.filled == self.total {
            true => words_of(self.total),
            false => (shared.filled / STRETCH) as u64,
        };
        for send in &mut self.near {
            while send.sent() < due {
                send.push(ep, ep.chunk(1));
                moved = true;
            }
        }
        Ok(moved)
    }
}

/// How often who waits is told how far the memory is filled.
fn words_of(total: usize) -> u64 {
    (total / STRETCH + 1) as u64
}

/// Another rank's part.
pub(super) enum Mate {
    /// Waits to be told where the memory is.
    Waits(Incoming),
    /// Has it, and waits until it is filled.
    Has(HostCopy, Incoming),
    /// Has the message, or gets it by itself.
    Settled,
}

impl Mate {
    pub(super) fn new(leader: u32) -> Mate {
        Mate::Waits(Incoming::new(leader, OFFER))
    }

    pub(super) fn step<R: Room>(
        &mut self,
        leader: u32,
        words: &mut Words<'_>,
        flow: &mut Flow,
        store: &mut Store<'_, R>,
    ) -> Result<bool> {
        let ep = words.ep;
        match std::mem::replace(self, Mate::Settled) {
            Mate::Settled => return Ok(false),
            Mate::Waits(mut offer) => match words.take(leader, &mut offer)? {
                Came::Nothing => {
                    *self = Mate::Waits(offer);
                    return Ok(false);
                }
                Came::Never(why) => {
                    store.make()?;
                    flow.ask_for_all(words, why)?;
                }
                Came::Chunk(offer) => {
                    let copy = ep.node().shares_memory().then(|| HostCopy::open(offer.as_bytes())).flatten();
                    let answer = ep.node().pool().copy_of(&[u8::from(copy.is_some())]);
                    Outgoing::new(leader, ANSWER, 1).push_shared(ep, answer);
                    match copy {
                        Some(copy) => *self = Mate::Has(copy, Incoming::new(leader, FILLED)),
                        None => {
                            store.make()?;
                            flow.plan_from(leader);
                        }
                    }
                }
            },
            Mate::Has(copy, mut filled) => match words.take(leader, &mut filled)? {
                Came::Chunk(_) if filled.done() => {
                    store.found(copy);
                    flow.has_all();
                }
                Came::Chunk(_) => *self = Mate::Has(copy, filled),
                Came::Nothing => {
                    *self = Mate::Has(copy, filled);
                    return Ok(false);
                }
                Came::Never(why) => {
                    drop(copy);
                    store.make()?;
                    flow.ask_for_all(words, why)?;
                }
            },
        }
        Ok(true)
    }
}
