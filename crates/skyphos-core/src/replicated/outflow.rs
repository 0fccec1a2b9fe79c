//! Sending from replicated ranks: each chunk reaches every replica of its receiver once, from one replica of its sender.
//!
//! ```text
//! chunk c of a message to replica d:   replica (c + d) mod s of the sender owns it, the next one if that one is missing
//! the owner sends it;                  its siblings keep it until the receiver acknowledges it
//! not acknowledged in time:            the owner is late, and the next one sends, from a message's last chunk back
//! only one replica is left to send:    it sends each chunk to one of the receivers, which forwards it to its siblings
//! ```
//!
//! So a link carries each message once, as without replication. Owner and fallback send from opposite ends of a message; a chunk
//! that the other has delivered is dropped here before it is sent. Delivery does not depend on guesses about which process is
//! late or lost: each process keeps each chunk until the receiver has it, or the receiver's connection does.
//!
//! This state machine does not wait, send or know the time.

use super::chunk::{Body, Chunk, ChunkMismatch};
use super::delay::DelayEstimate;
use super::numbering::Numbering;
use crate::frame::{FrameKind, Header};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// A sibling gets this process's own time for a chunk, plus that time divided by this.
const LONGER: u32 = 4;

/// Bytes by which the limit of bytes on their way grows with each chunk sent in place of a late sibling.
const MORE_BYTES: usize = 256 * 1024;

/// More chunks than are ever sent: no limit.
const SURE: usize = usize::MAX / MORE_BYTES / 2;

/// Time without an acknowledgement of a sibling's chunks after which, and at which intervals, the sibling is asked for one; and
/// the time after which a sibling that cannot be reached either is late.
pub(super) const QUIET: Duration = Duration::from_millis(10);
const STILL: Duration = Duration::from_millis(30);

/// A chunk that some receivers may not have yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pending<B> {
    header: Header,
    body: B,
    /// A bit for each replica of the receiver that has not acknowledged it.
    missing: u32,
    /// Number of the exchange that it belongs to, in the order of their beginnings.
    exchange: u64,
    since: Duration,
}

/// A chunk that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Queued<B> {
    /// A chunk of this rank's, which the receiver is to forward or not.
    Own { chunk: Chunk, bytes: usize, pass_on: bool },
    /// A chunk of another rank, for a sibling.
    Passed(Header, B),
}

impl<B: Body> Queued<B> {
    fn bytes(&self) -> usize {
        match self {
            Queued::Own { bytes, .. } => *bytes,
            Queued::Passed(_, body) => body.bytes(),
        }
    }
}

/// A chunk that another process should send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Fallback {
    chunk: Chunk,
    /// The receiver's sibling that got it from here and forwards it.
    via: Option<u32>,
}

/// The chunks to one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Queue<B> {
    queued: VecDeque<Queued<B>>,
    fallback: VecDeque<Fallback>,
    /// Bytes in `queued`.
    bytes: usize,
    /// When bytes of this process were last seen on their way there.
    busy: Duration,
}

/// Chunks to be sent, and chunks that siblings should send.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outflow<B> {
    numbering: Numbering,
    /// Lost processes.
    lost: BTreeSet<u32>,
    /// Siblings that have not sent their chunks in time.
    late: BTreeSet<u32>,
    /// Chunks sent in place of late siblings, since one is late.
    sent_instead: usize,
    /// Group, call and process: processes that have left a call.
    left: BTreeSet<(u64, u64, u32)>,
    queues: Vec<Queue<B>>,
    pending: BTreeMap<Chunk, Pending<B>>,
    /// The exchange of the chunk that was posted last, and its number.
    last: (u64, u64, u32),
    exchanges: u64,
    /// Acknowledged chunks that this process has not posted yet: bits of the receivers, checksum, and sender.
    early_acks: BTreeMap<Chunk, (u32, u32, u32)>,
    /// When a frame of this process last moved: siblings' frames will be moving too.
    last_progress: Duration,
    /// When a chunk of each sibling's was last acknowledged.
    last_delivery: BTreeMap<u32, Duration>,
    /// When siblings were last compared.
    last_check: Duration,
    delay: DelayEstimate,
}

impl<B: Body> Outflow<B> {
    /// An empty state.
    pub fn new(numbering: Numbering) -> Outflow<B> {
        let queue =
            || Queue { queued: VecDeque::new(), fallback: VecDeque::new(), bytes: 0, busy: Duration::ZERO };
        Outflow {
            numbering,
            lost: BTreeSet::new(),
            late: BTreeSet::new(),
            sent_instead: 0,
            left: BTreeSet::new(),
            queues: (0..numbering.processes()).map(|_| queue()).collect(),
            pending: BTreeMap::new(),
            last: (0, 0, 0),
            exchanges: 0,
            early_acks: BTreeMap::new(),
            last_progress: Duration::ZERO,
            last_delivery: BTreeMap::new(),
            last_check: Duration::ZERO,
            delay: DelayEstimate::default(),
        }
    }

    /// Processes of a rank that take part in a call.
    fn receivers(&self, rank: u32, comm: u64, call: u64) -> impl Iterator<Item = u32> + use<'_, B> {
        let here = move |p: &u32| !self.lost.contains(p) && !self.left.contains(&(comm, call, *p));
        self.numbering.processes_of(rank).filter(here)
    }

    /// Whether a replica of this rank sends its chunks.
    fn is_active(&self, process: u32, chunk: &Chunk) -> bool {
        process == self.numbering.me()
            || !self.lost.contains(&process)
                && !self.late.contains(&process)
                && !self.left.contains(&(chunk.comm, chunk.call, process))
    }

    /// The replica of this rank that owns a chunk to a process.
    fn owner(&self, chunk: &Chunk, to: u32) -> u32 {
        let all = self.numbering.processes_of(self.numbering.rank());
        let count = all.clone().count() as u32;
        // Messages of one chunk are spread too.
        let words = [chunk.round, chunk.rank, self.numbering.replica_of(to)];
        let turn = words.into_iter().fold(chunk.seq, u32::wrapping_add);
        let in_turn = all.clone().skip((turn % count) as usize).chain(all.take((turn % count) as usize));
        in_turn.into_iter().find(|process| self.is_active(*process, chunk)).unwrap_or(self.numbering.me())
    }

    fn bit(&self, process: u32) -> u32 {
        1 << self.numbering.replica_of(process)
    }

    /// Posts a chunk to all replicas of `to`. `prompt`: whether a process has been heard of lately. Returns a mismatch if a
    /// sibling has sent other bytes.
    pub fn post(
        &mut self,
        now: Duration,
        to: u32,
        header: Header,
        body: B,
        prompt: impl Fn(u32) -> bool,
    ) -> Option<ChunkMismatch> {
        let chunk = Chunk::of(&header, to);
        let mut receivers: Vec<u32> = self.receivers(to, chunk.comm, chunk.call).collect();
        let mut mismatch = None;
        if let Some((has, sum, by)) = self.early_acks.remove(&chunk) {
            receivers.retain(|process| has & self.bit(*process) == 0);
            if sum != body.checksum() {
                mismatch = Some(ChunkMismatch { chunk, processes: (self.numbering.me(), by) });
            }
        }
        if receivers.is_empty() {
            return mismatch;
        }
        let alone = self.numbering.siblings().all(|process| !self.is_active(process, &chunk));
        let bytes = body.bytes();
        let missing = receivers.iter().map(|process| self.bit(*process)).sum();
        let key = (chunk.comm, chunk.call, chunk.round);
        self.exchanges += u64::from(std::mem::replace(&mut self.last, key) != key);
        let exchange = self.exchanges;
        self.pending.insert(chunk, Pending { header, body, missing, exchange, since: now });
        if alone && receivers.len() > 1 {
            let mut first: Vec<u32> = receivers.iter().copied().filter(|process| prompt(*process)).collect();
            if first.is_empty() {
                first.clone_from(&receivers);
            }
            let via = first[(chunk.seq.wrapping_add(chunk.round) as usize) % first.len()];
            self.queues[via as usize].push(Queued::Own { chunk, bytes, pass_on: true });
            for process in receivers.into_iter().filter(|process| *process != via) {
                self.queues[process as usize].fallback.push_back(Fallback { chunk, via: Some(via) });
            }
            return mismatch;
        }
        for process in receivers {
            let mine = self.owner(&chunk, process) == self.numbering.me();
            let queue = &mut self.queues[process as usize];
            match mine {
                true => queue.push(Queued::Own { chunk, bytes, pass_on: false }),
                false => queue.fallback.push_back(Fallback { chunk, via: None }),
            }
        }
        mismatch
    }

    /// Forwards another rank's chunk to a sibling.
    pub fn forward(&mut self, to: u32, header: Header, body: B) {
        if !self.lost.contains(&to) {
            self.queues[to as usize].push(Queued::Passed(header, body));
        }
    }

    /// Process `at` acknowledges a chunk with this checksum from `by`. Returns a mismatch if this process has other bytes.
    pub fn acknowledge(
        &mut self,
        now: Duration,
        at: u32,
        chunk: Chunk,
        sum: u32,
        by: u32,
        over: bool,
    ) -> Option<ChunkMismatch> {
        self.is_active_again(by);
        self.last_delivery.insert(by, now);
        let bit = self.bit(at);
        let Some(pending) = self.pending.get_mut(&chunk) else {
            if !over {
                let early = self.early_acks.entry(chunk).or_insert((0, sum, by));
                early.0 |= bit;
                if early.1 != sum {
                    return Some(ChunkMismatch { chunk, processes: (early.2, by) });
                }
            }
            return None;
        };
        let mismatch = (pending.body.checksum() != sum)
            .then(|| ChunkMismatch { chunk, processes: (self.numbering.me(), by) });
        if pending.missing & bit != 0 {
            pending.missing &= !bit;
            if by != self.numbering.me() {
                self.delay.add(now.saturating_sub(pending.since.max(self.last_progress)));
            }
            if pending.missing == 0 {
                self.pending.remove(&chunk);
            }
        }
        mismatch
    }

    /// A process that was late has sent a chunk, or is lost.
    fn is_active_again(&mut self, process: u32) {
        if self.late.remove(&process) && self.late.is_empty() {
            self.sent_instead = 0;
        }
    }

    /// Whether there may be a frame for a process.
    pub fn has_any(&self, to: u32) -> bool {
        let queue = &self.queues[to as usize];
        !queue.queued.is_empty() || !queue.fallback.is_empty() && self.has_missing_sender()
    }

    /// The next frame for a process, if there is one. From then on its connection is responsible for it.
    /// `on_way`: bytes that are on their way there.
    ///
    /// Order: queued chunks of the same exchange or an earlier one, then chunks in a sibling's place, then queued chunks of later
    /// exchanges, which may depend on them.
    pub fn take(&mut self, to: u32, on_way: impl FnOnce() -> usize) -> Option<(Header, B)> {
        let bit = self.bit(to);
        let next = self.queues[to as usize].queued.iter().find_map(|queued| match queued {
            Queued::Own { chunk, .. } => self
                .pending
                .get(chunk)
                .filter(|pending| pending.missing & bit != 0)
                .map(|pending| pending.exchange),
            Queued::Passed(..) => Some(0),
        });
        let instead = self.instead_of_others(to, next.unwrap_or(u64::MAX), on_way);
        while instead.is_none()
            && let Some(queued) = self.queues[to as usize].queued.pop_front()
        {
            self.queues[to as usize].bytes -= queued.bytes();
            match queued {
                Queued::Passed(header, body) => return Some((header, body)),
                Queued::Own { chunk, pass_on, .. } => {
                    let kind = if pass_on { FrameKind::Forward } else { FrameKind::Data };
                    if let Some((header, body)) = self.hand_over(&chunk, bit) {
                        return Some((Header { kind, ..header }, body));
                    }
                }
            }
        }
        let fallback = self.queues[to as usize].fallback.remove(instead?).expect("seen");
        self.sent_instead += 1;
        self.hand_over(&fallback.chunk, bit)
    }

    /// Index of the next fallback chunk that this process sends in its owner's place, if its exchange is before `before`. While an
    /// owner is merely late they go one by one at first, so that few are sent twice.
    fn instead_of_others(&mut self, to: u32, before: u64, on_way: impl FnOnce() -> usize) -> Option<usize> {
        if !self.has_missing_sender() {
            return None;
        }
        self.first_fallback(to)?;
        let (bit, fallback) = (self.bit(to), &self.queues[to as usize].fallback);
        let exchange = |fallback: &Fallback| {
            self.pending
                .get(&fallback.chunk)
                .filter(|pending| pending.missing & bit != 0)
                .map(|pending| pending.exchange)
        };
        let is_mine = |fallback: &Fallback| {
            fallback.via.is_none() && self.owner(&fallback.chunk, to) == self.numbering.me()
        };
        // They are in the order of their exchanges; some have arrived meanwhile.
        let earlier = fallback
            .iter()
            .enumerate()
            .filter_map(|(place, fallback)| Some((place, fallback, exchange(fallback)?)));
        let mut mine = earlier
            .take_while(|(.., exchange)| *exchange < before)
            .filter(|(_, fallback, _)| is_mine(fallback));
        let (first, _, of) = mine.next()?;
        // A late owner sends from the front, so this process begins at the back.
        let place = match self.late.is_empty() {
            true => first,
            false => {
                mine.take_while(|(.., exchange)| *exchange == of).last().map_or(first, |(place, ..)| place)
            }
        };
        (self.late.is_empty() || on_way() <= self.sent_instead * MORE_BYTES).then_some(place)
    }

    /// Whether this process may have to send a sibling's chunks, or chunks that a receiver should forward.
    fn has_missing_sender(&self) -> bool {
        !self.late.is_empty() || !self.left.is_empty() || !self.lost.is_empty()
    }

    fn is_missing(&self, chunk: &Chunk, bit: u32) -> bool {
        self.pending.get(chunk).is_some_and(|pending| pending.missing & bit != 0)
    }

    /// Takes a chunk that a receiver misses, and counts it as sent.
    fn hand_over(&mut self, chunk: &Chunk, bit: u32) -> Option<(Header, B)> {
        let pending = self.pending.get_mut(chunk).filter(|pending| pending.missing & bit != 0)?;
        pending.missing &= !bit;
        let frame = (pending.header, pending.body.clone());
        if pending.missing == 0 {
            self.pending.remove(chunk);
        }
        Some(frame)
    }

    /// A frame of this process has moved.
    pub fn note_progress(&mut self, now: Duration) {
        self.last_progress = now;
    }

    /// The sibling whose chunks were not acknowledged for longest, and since when.
    fn quietest(&mut self) -> Option<(u32, Duration)> {
        let processes = 0..self.numbering.processes();
        let oldest = processes.filter_map(|to| self.first_fallback(to).map(|fallback| (to, fallback)));
        let owed: Vec<(u32, Fallback)> = oldest.filter(|(_, fallback)| fallback.via.is_none()).collect();
        let quiet = owed.into_iter().filter_map(|(to, fallback)| {
            let who = self.owner(&fallback.chunk, to);
            let last = self.last_delivery.get(&who).copied().unwrap_or_default();
            (who != self.numbering.me()).then(|| (who, last.max(self.pending[&fallback.chunk].since)))
        });
        quiet.min_by_key(|(_, since)| *since)
    }

    /// The sibling to ask for a sign of life, each [`QUIET`].
    pub fn sibling_to_ask(&mut self, now: Duration) -> Option<u32> {
        self.quietest().filter(|(_, since)| now >= *since + QUIET).map(|(who, _)| who)
    }

    /// Checks whether the quietest sibling is late.
    fn check_quiet(&mut self, now: Duration, stuck: &impl Fn(u32) -> bool) {
        self.last_check = now;
        let Some((who, since)) = self.quietest() else { return };
        if now >= since + STILL && stuck(who) {
            self.late.insert(who);
            self.sent_instead = SURE;
            self.forward_if_alone();
        }
    }

    /// When to check for late siblings, if nothing comes before.
    pub fn next_check(&mut self) -> Option<Duration> {
        let overdue =
            (0..self.numbering.processes()).filter_map(|to| self.overdue(to).map(|(at, _)| at)).min();
        let still = self.quietest().map(|(_, since)| (since + QUIET).max(self.last_check + QUIET / 2));
        let by_others =
            self.queues.iter().any(|queue| queue.fallback.iter().any(|fallback| fallback.via.is_some()));
        let passed = by_others.then_some(self.last_check + QUIET);
        overdue.into_iter().chain(still).chain(passed).min()
    }

    /// The first fallback chunk to a process, and when it is overdue.
    fn overdue(&mut self, to: u32) -> Option<(Duration, Fallback)> {
        let first = self.first_fallback(to)?;
        let queue = &self.queues[to as usize];
        if !queue.queued.is_empty() {
            return None;
        }
        if first.via.is_none() && self.owner(&first.chunk, to) == self.numbering.me() {
            return None; // it is sent as soon as the queue is free
        }
        if first.via.is_some_and(|via| self.is_missing(&first.chunk, self.bit(via))) {
            return None; // the sibling that forwards it has not got it
        }
        // A chunk that took long here may take a little longer there.
        let since = self.pending[&first.chunk].since;
        let quiet = since.max(self.last_progress).max(queue.busy);
        Some((quiet + (quiet - since) / LONGER + self.delay.limit(), first))
    }

    /// The first chunk to a process that another one should send.
    fn first_fallback(&mut self, to: u32) -> Option<Fallback> {
        let bit = self.bit(to);
        while let Some(front) = self.queues[to as usize].fallback.front()
            && !self.is_missing(&front.chunk, bit)
        {
            self.queues[to as usize].fallback.pop_front();
        }
        self.queues[to as usize].fallback.front().copied()
    }

    /// Checks which siblings are late. `on_way`: bytes of this process that are on their way to another; if there are any, siblings'
    /// chunks may be on their way too, or the receiver cannot be reached. `stuck`: whether bytes to a process do not arrive.
    pub fn check(&mut self, now: Duration, on_way: impl Fn(u32) -> usize, stuck: impl Fn(u32) -> bool) {
        self.check_quiet(now, &stuck);
        for fallback in self.queues.iter_mut().flat_map(|queue| &mut queue.fallback) {
            fallback.via = fallback.via.filter(|via| !stuck(*via));
        }
        for to in 0..self.numbering.processes() {
            let Some((at, fallback)) = self.overdue(to) else { continue };
            if at > now {
                continue;
            }
            if on_way(to) > 0 {
                self.queues[to as usize].busy = now;
                continue;
            }
            match fallback.via {
                Some(via) => {
                    let fallbacks = self.queues[to as usize].fallback.iter_mut();
                    fallbacks
                        .filter(|fallback| fallback.via == Some(via))
                        .for_each(|fallback| fallback.via = None);
                }
                None => {
                    self.late.insert(self.owner(&fallback.chunk, to));
                    self.forward_if_alone();
                }
            }
        }
    }

    /// Takes over all chunks of siblings.
    pub fn take_over_all(&mut self) {
        self.late.extend(self.numbering.siblings().filter(|process| !self.lost.contains(process)));
        self.queues.iter_mut().flat_map(|queue| &mut queue.fallback).for_each(|fallback| fallback.via = None);
    }

    /// A process is lost.
    pub fn lose(&mut self, process: u32) {
        if !self.lost.insert(process) {
            return;
        }
        self.is_active_again(process);
        let queue = &mut self.queues[process as usize];
        (queue.queued, queue.fallback, queue.bytes) = Default::default();
        for fallback in self.queues.iter_mut().flat_map(|queue| queue.fallback.iter_mut()) {
            fallback.via = fallback.via.filter(|via| *via != process);
        }
        let (rank, bit) = (self.numbering.rank_of(process), self.bit(process));
        self.pending.retain(|chunk, pending| {
            pending.missing &= if chunk.rank == rank { !bit } else { !0 };
            pending.missing != 0
        });
        self.forward_if_alone();
    }

    /// If this process is the only active one of its rank, a receiver forwards its unsent chunks to the receiver's siblings, which would
    /// have got them from a sibling of this process.
    fn forward_if_alone(&mut self) {
        let missing = |process: u32| self.lost.contains(&process) || self.late.contains(&process);
        if !self.numbering.siblings().all(missing) {
            return;
        }
        let own = |(to, queue): (usize, &Queue<B>)| -> Vec<(Chunk, u32)> {
            let chunk = |queued: &Queued<B>| match queued {
                Queued::Own { chunk, .. } => Some((*chunk, to as u32)),
                Queued::Passed(..) => None,
            };
            queue.queued.iter().filter_map(chunk).collect()
        };
        let queued: BTreeMap<Chunk, u32> = self.queues.iter().enumerate().flat_map(own).collect();
        let mut passed = BTreeSet::new();
        for fallback in self.queues.iter_mut().flat_map(|queue| queue.fallback.iter_mut()) {
            if let Some(via) = queued.get(&fallback.chunk).filter(|_| fallback.via.is_none()) {
                fallback.via = Some(*via);
                passed.insert((fallback.chunk, *via));
            }
        }
        for (to, queue) in self.queues.iter_mut().enumerate() {
            for queued in &mut queue.queued {
                if let Queued::Own { chunk, pass_on, .. } = queued {
                    *pass_on |= passed.contains(&(*chunk, to as u32));
                }
            }
        }
    }

    /// A process has left a call: it sends and receives nothing more in it.
    pub fn leave(&mut self, process: u32, comm: u64, call: u64) {
        self.left.insert((comm, call, process));
        let (rank, bit) = (self.numbering.rank_of(process), self.bit(process));
        self.pending.retain(|chunk, pending| {
            if (chunk.comm, chunk.call, chunk.rank) == (comm, call, rank) {
                pending.missing &= !bit;
            }
            pending.missing != 0
        });
    }

    /// A call is over here. `failed`: its unsent chunks are dropped.
    pub fn end(&mut self, comm: u64, call: u64, failed: bool, over: impl Fn(u64, u64) -> bool) {
        let is_it = |chunk: &Chunk| (chunk.comm, chunk.call) == (comm, call);
        self.early_acks.retain(|chunk, _| !is_it(chunk));
        if failed {
            self.pending.retain(|chunk, _| !is_it(chunk));
        }
        if !self.left.is_empty() {
            let pending: BTreeSet<(u64, u64)> =
                self.pending.keys().map(|chunk| (chunk.comm, chunk.call)).collect();
            self.left.retain(|(comm, call, _)| !over(*comm, *call) || pending.contains(&(*comm, *call)));
        }
    }

    /// Bytes queued for a process.
    pub fn bytes(&self, to: u32) -> usize {
        self.queues[to as usize].bytes
    }

    /// Whether nothing is queued or pending.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.queues.iter().all(|queue| queue.queued.is_empty())
    }

    /// Whether a sibling is late.
    pub fn is_late(&self, process: u32) -> bool {
        self.late.contains(&process)
    }
}

impl<B: Body> Queue<B> {
    fn push(&mut self, queued: Queued<B>) {
        self.bytes += queued.bytes();
        self.queued.push_back(queued);
    }
}
