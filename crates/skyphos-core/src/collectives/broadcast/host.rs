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

use super::message::{Layout, Source};
use super::relay::send_down;
use super::{Room, Way};
use crate::clock::Effort;
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

/// What a leader does for the others of its host: room for a message that it shares with them.
pub(super) struct Leader<'a> {
    ep: &'a Endpoint,
    region: Option<Region>,
    layout: Layout,
    places: Vec<Range<usize>>,
    /// Those who have the memory, and are told how far it is filled.
    near: Vec<Outgoing>,
    /// Those who have not.
    far: Vec<u32>,
    filled: usize,
}

impl<'a> Leader<'a> {
    /// Makes memory for parts of these lengths and tells `others` where it is. `keeps`: this rank wants a copy as well.
    pub(super) async fn new(
        ep: &'a Endpoint,
        others: &[u32],
        lengths: &[usize],
        keeps: bool,
    ) -> Result<Leader<'a>> {
        let (places, bytes) = places(lengths);
        let region = if ep.node().shares_memory() { ep.node().regions.take(bytes) } else { None };
        let offer = region.as_ref().map_or(Vec::new(), |region| region.offer().to_vec());
        let users = |region: &Region, change: u32| {
            users_in(&region.all).fetch_add(change, Ordering::AcqRel);
        };
        if let Some(region) = &region {
            users(region, others.len() as u32 + u32::from(keeps));
        }
        let to = others.iter().map(|other| (*other, ep.message_of(&offer))).collect();
        ep.exchange(OFFER, to, &[]).await?;
        let answers = ep.exchange(ANSWER, Vec::new(), others).await?;
        let (mut near, mut far) = (Vec::new(), Vec::new());
        let layout = Layout::new(lengths.iter().copied());
        let words = (layout.total() / STRETCH + 1) as u64;
        for (other, answer) in others.iter().zip(answers) {
            match answer.as_bytes() == [1] {
                true => near.push(Outgoing::new(*other, FILLED, words)),
                false => far.push(*other),
            }
        }
        if let Some(region) = &region {
            users(region, (far.len() as u32).wrapping_neg());
        }
        Ok(Leader { ep, region, layout, places, near, far, filled: 0 })
    }

    /// Whether there is memory to share.
    pub(super) fn has_memory(&self) -> bool {
        self.region.is_some()
    }

    /// Copies the whole message into the memory, if there is any.
    pub(super) fn fill(&mut self, source: &impl Source) {
        let Some(region) = &mut self.region else { return };
        self.ep.spend(Effort::Dense { bytes: 2 * source.total() });
        let mut at = 0;
        for place in &self.places {
            source.copy_out(at, region.bytes(place.clone()));
            at += place.len();
        }
        self.filled = at;
    }

    fn tell(&mut self) {
        let due = (self.filled / STRETCH) as u64;
        for send in &mut self.near {
            while send.sent() < due && !send.done() {
                send.push(self.ep, self.ep.chunk(1));
            }
        }
    }

    /// The message is complete, here or at `source`: those who have the memory hear of it, the others are sent it. This rank's own
    /// copy, if it keeps one, and where the parts are.
    pub(super) async fn finish(
        mut self,
        source: Option<&(impl Source + Sync)>,
        way: Way,
        keeps: bool,
    ) -> Result<Option<(HostCopy, Vec<Range<usize>>)>> {
        for send in &mut self.near {
            while !send.done() {
                send.push(self.ep, self.ep.chunk(1));
            }
        }
        let far = std::mem::take(&mut self.far);
        if !far.is_empty() {
            match source {
                Some(source) => send_down(self.ep, source, way, &far).await?,
                None => send_down(self.ep, &self, way, &far).await?,
            }
        }
        let Some(region) = self.region.take() else { return Ok(None) };
        let copy = keeps.then(|| HostCopy::of(&region.backing, region.len)).flatten();
        self.ep.node().regions.keep(region);
        Ok(copy.map(|copy| (copy, self.places)))
    }
}

impl Room for Leader<'_> {
    fn make(&mut self, _: &[usize]) -> Result<()> {
        Ok(())
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let Some(region) = &mut self.region else { return };
        for (part, here, range) in self.layout.pieces(at..at + bytes.len()) {
            let start = self.places[part].start;
            region.bytes(start + here.start..start + here.end).copy_from_slice(&bytes[range]);
        }
        self.filled += bytes.len();
        self.tell();
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        let Some(region) = &self.region else { return };
        for (part, here, range) in self.layout.pieces(at..at + bytes.len()) {
            let start = self.places[part].start;
            bytes[range].copy_from_slice(region.filled(start + here.start..start + here.end));
        }
    }

    fn share(&mut self, _: HostCopy, _: Vec<Range<usize>>) {}
}

impl Source for Leader<'_> {
    fn total(&self) -> usize {
        self.layout.total()
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        Room::copy_out(self, at, bytes);
    }
}

/// Another rank's part: the memory, if it can be had here and the leader has any.
pub(super) async fn map_offer(ep: &Endpoint, leader: u32) -> Result<Option<HostCopy>> {
    let offer = ep.exchange(OFFER, Vec::new(), &[leader]).await?;
    let copy = if ep.node().shares_memory() { HostCopy::open(offer[0].as_bytes()) } else { None };
    let answer = ep.message_of(&[u8::from(copy.is_some())]);
    ep.exchange(ANSWER, vec![(leader, answer)], &[]).await?;
    Ok(copy)
}

/// Waits until the leader has filled the memory.
pub(super) async fn wait_until_filled(ep: &Endpoint, leader: u32) -> Result<()> {
    let mut words = Incoming::new(leader, FILLED);
    while !words.done() {
        if words.next(ep)?.is_none() {
            ep.progress().await?;
        }
    }
    Ok(())
}
