//! What this process sends so that its rank's messages reach every replica of every receiver once, from whichever
//! replica of the rank is first.
//!
//! ```text
//! chunk c of a message to replica d:   replica (c + d) mod s of the sender owes it, the next one if that one is missing
//! who owes it sends it;                the others keep it until the receiver says that it has it
//! not said in time:                    who owes it is late, and the next one sends, from a message's last chunk back
//! only one replica is left to send:    it sends each chunk to one of the receivers, who passes it on to its siblings
//! ```
//!
//! So a link carries each message once, as without replication, and the two halves of a race meet somewhere in between: what
//! the other has delivered is dropped here before it is sent. That everyone gets everything rests on nobody's opinion of
//! who is late or gone, but on this: each process keeps each chunk until the receiver has it, or it is with the receiver's
//! connection.
//!
//! Nothing here waits, sends or knows the time.

use super::chunk::{Body, Chunk, Differ};
use super::numbering::Numbering;
use super::patience::Patience;
use crate::frame::{FrameKind, Header};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// A part of the time that a replica's own part took is given to a sibling beyond that.
const LONGER: u32 = 4;

/// For each chunk that has gone in place of one who is late so many more bytes may be on their way at once.
const MORE_BYTES: usize = 256 * 1024;

/// As good as any number of chunks.
const SURE: usize = usize::MAX / MORE_BYTES / 2;

/// A sibling of whose chunks nothing was told for so long is asked for a sign of life, and again as often; once it was so much
/// longer, and the sibling cannot be reached either, it is late.
pub(super) const QUIET: Duration = Duration::from_millis(10);
const STILL: Duration = Duration::from_millis(30);

/// A chunk that some receivers may not have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kept<B> {
    header: Header,
    body: B,
    /// A bit for each replica of the receiver that is not known to have it.
    missing: u32,
    /// The exchange that it is of, counted as they begin.
    step: u64,
    since: Duration,
}

/// What a lane is to carry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Due<B> {
    /// A chunk of this rank's, to be passed on or not.
    Own { chunk: Chunk, bytes: usize, pass_on: bool },
    /// Another rank's, for a sibling.
    Passed(Header, B),
}

impl<B: Body> Due<B> {
    fn bytes(&self) -> usize {
        match self {
            Due::Own { bytes, .. } => *bytes,
            Due::Passed(_, body) => body.bytes(),
        }
    }
}

/// A chunk that somebody else should bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Spare {
    chunk: Chunk,
    /// The receiver's sibling that got it from here and passes it on.
    via: Option<u32>,
}

/// What goes to one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lane<B> {
    due: VecDeque<Due<B>>,
    spare: VecDeque<Spare>,
    /// Bytes that are due.
    bytes: usize,
    /// When something of this process's was last seen on its way there.
    busy: Duration,
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outflow<B> {
    numbering: Numbering,
    /// Processes that are gone for good.
    gone: BTreeSet<u32>,
    /// Siblings that did not bring in time what they owed.
    late: BTreeSet<u32>,
    /// Chunks sent in place of those who are late, since somebody is.
    instead: usize,
    /// Processes that left a call: its group and number.
    left: BTreeSet<(u64, u64, u32)>,
    lanes: Vec<Lane<B>>,
    kept: BTreeMap<Chunk, Kept<B>>,
    /// The exchange of which a chunk was posted last, and its number.
    last: (u64, u64, u32),
    steps: u64,
    /// Chunks that receivers have and this process has not come to: by which of them, what, and from whom.
    early: BTreeMap<Chunk, (u32, u32, u32)>,
    /// When something that this process sends last moved: what others owe will be moving too.
    moved: Duration,
    /// When something of each sibling's was last told of.
    brought: BTreeMap<u32, Duration>,
    /// When it was last looked who is behind.
    compared: Duration,
    patience: Patience,
}

impl<B: Body> Outflow<B> {
    /// Nothing yet.
    pub fn new(numbering: Numbering) -> Outflow<B> {
        let lane = || Lane { due: VecDeque::new(), spare: VecDeque::new(), bytes: 0, busy: Duration::ZERO };
        Outflow {
            numbering,
            gone: BTreeSet::new(),
            late: BTreeSet::new(),
            instead: 0,
            left: BTreeSet::new(),
            lanes: (0..numbering.processes()).map(|_| lane()).collect(),
            kept: BTreeMap::new(),
            last: (0, 0, 0),
            steps: 0,
            early: BTreeMap::new(),
            moved: Duration::ZERO,
            brought: BTreeMap::new(),
            compared: Duration::ZERO,
            patience: Patience::default(),
        }
    }

    /// Processes of a rank that take part in a call.
    fn receivers(&self, rank: u32, comm: u64, call: u64) -> impl Iterator<Item = u32> + use<'_, B> {
        let here = move |p: &u32| !self.gone.contains(p) && !self.left.contains(&(comm, call, *p));
        self.numbering.processes_of(rank).filter(here)
    }

    /// Whether a replica of this rank brings what it owes.
    fn is_there(&self, process: u32, chunk: &Chunk) -> bool {
        process == self.numbering.me()
            || !self.gone.contains(&process)
                && !self.late.contains(&process)
                && !self.left.contains(&(chunk.comm, chunk.call, process))
    }

    /// Which replica of this rank owes a chunk to a process.
    fn owes(&self, chunk: &Chunk, to: u32) -> u32 {
        let all = self.numbering.processes_of(self.numbering.rank());
        let count = all.clone().count() as u32;
        // Messages of one chunk are spread too.
        let words = [chunk.round, chunk.rank, self.numbering.replica_of(to)];
        let turn = words.into_iter().fold(chunk.seq, u32::wrapping_add);
        let in_turn = all.clone().skip((turn % count) as usize).chain(all.take((turn % count) as usize));
        in_turn.into_iter().find(|process| self.is_there(*process, chunk)).unwrap_or(self.numbering.me())
    }

    fn bit(&self, process: u32) -> u32 {
        1 << self.numbering.replica_of(process)
    }

    /// Takes a chunk to be sent to all replicas of `to`. `prompt`: whether a process has been heard of lately. What it says if
    /// a sibling has sent other bytes.
    pub fn post(
        &mut self,
        now: Duration,
        to: u32,
        header: Header,
        body: B,
        prompt: impl Fn(u32) -> bool,
    ) -> Option<Differ> {
        let chunk = Chunk::of(&header, to);
        let mut receivers: Vec<u32> = self.receivers(to, chunk.comm, chunk.call).collect();
        let mut differ = None;
        if let Some((has, sum, by)) = self.early.remove(&chunk) {
            receivers.retain(|process| has & self.bit(*process) == 0);
            if sum != body.checksum() {
                differ = Some(Differ { chunk, processes: (self.numbering.me(), by) });
            }
        }
        if receivers.is_empty() {
            return differ;
        }
        let alone = self.numbering.siblings().all(|process| !self.is_there(process, &chunk));
        let bytes = body.bytes();
        let missing = receivers.iter().map(|process| self.bit(*process)).sum();
        let exchange = (chunk.comm, chunk.call, chunk.round);
        self.steps += u64::from(std::mem::replace(&mut self.last, exchange) != exchange);
        let step = self.steps;
        self.kept.insert(chunk, Kept { header, body, missing, step, since: now });
        if alone && receivers.len() > 1 {
            let mut first: Vec<u32> = receivers.iter().copied().filter(|process| prompt(*process)).collect();
            if first.is_empty() {
                first.clone_from(&receivers);
            }
            let via = first[(chunk.seq.wrapping_add(chunk.round) as usize) % first.len()];
            self.lanes[via as usize].push(Due::Own { chunk, bytes, pass_on: true });
            for process in receivers.into_iter().filter(|process| *process != via) {
                self.lanes[process as usize].spare.push_back(Spare { chunk, via: Some(via) });
            }
            return differ;
        }
        for process in receivers {
            let mine = self.owes(&chunk, process) == self.numbering.me();
            let lane = &mut self.lanes[process as usize];
            match mine {
                true => lane.push(Due::Own { chunk, bytes, pass_on: false }),
                false => lane.spare.push_back(Spare { chunk, via: None }),
            }
        }
        differ
    }

    /// Takes another rank's chunk for a sibling.
    pub fn pass(&mut self, to: u32, header: Header, body: B) {
        if !self.gone.contains(&to) {
            self.lanes[to as usize].push(Due::Passed(header, body));
        }
    }

    /// Process `at` has a chunk with this checksum from `by`. What it says if this process has other bytes.
    pub fn have(
        &mut self,
        now: Duration,
        at: u32,
        chunk: Chunk,
        sum: u32,
        by: u32,
        over: bool,
    ) -> Option<Differ> {
        self.is_back(by);
        self.brought.insert(by, now);
        let bit = self.bit(at);
        let Some(kept) = self.kept.get_mut(&chunk) else {
            if !over {
                let early = self.early.entry(chunk).or_insert((0, sum, by));
                early.0 |= bit;
                if early.1 != sum {
                    return Some(Differ { chunk, processes: (early.2, by) });
                }
            }
            return None;
        };
        let differ =
            (kept.body.checksum() != sum).then(|| Differ { chunk, processes: (self.numbering.me(), by) });
        if kept.missing & bit != 0 {
            kept.missing &= !bit;
            if by != self.numbering.me() {
                self.patience.took(now.saturating_sub(kept.since.max(self.moved)));
            }
            if kept.missing == 0 {
                self.kept.remove(&chunk);
            }
        }
        differ
    }

    /// Who was late brings something, or is gone.
    fn is_back(&mut self, process: u32) {
        if self.late.remove(&process) && self.late.is_empty() {
            self.instead = 0;
        }
    }

    /// Whether there may be a frame for a process.
    pub fn has_any(&self, to: u32) -> bool {
        let lane = &self.lanes[to as usize];
        !lane.due.is_empty() || !lane.spare.is_empty() && self.anyone_missing()
    }

    /// The next frame for a process, if there is one. Once its connection has taken it, the connection answers for it.
    /// `on_way`: bytes that are on their way there.
    ///
    /// What is to be brought in another's place is older than what follows from it on those who had it, and goes first: what
    /// is due of the same exchange or an earlier one before it, what is due of later ones after it.
    pub fn take(&mut self, to: u32, on_way: impl FnOnce() -> usize) -> Option<(Header, B)> {
        let bit = self.bit(to);
        let next = self.lanes[to as usize].due.iter().find_map(|due| match due {
            Due::Own { chunk, .. } => {
                self.kept.get(chunk).filter(|kept| kept.missing & bit != 0).map(|kept| kept.step)
            }
            Due::Passed(..) => Some(0),
        });
        let instead = self.instead_of_others(to, next.unwrap_or(u64::MAX), on_way);
        while instead.is_none()
            && let Some(due) = self.lanes[to as usize].due.pop_front()
        {
            self.lanes[to as usize].bytes -= due.bytes();
            match due {
                Due::Passed(header, body) => return Some((header, body)),
                Due::Own { chunk, pass_on, .. } => {
                    let kind = if pass_on { FrameKind::PassOn } else { FrameKind::Data };
                    if let Some((header, body)) = self.give(&chunk, bit) {
                        return Some((Header { kind, ..header }, body));
                    }
                }
            }
        }
        let spare = self.lanes[to as usize].spare.remove(instead?).expect("seen");
        self.instead += 1;
        self.give(&spare.chunk, bit)
    }

    /// Where among what others owe to a process the next chunk is that this one brings in their place, if it is of an earlier
    /// step than `before`. That goes one by one at first if somebody is merely late, so that little goes for nothing.
    fn instead_of_others(&mut self, to: u32, before: u64, on_way: impl FnOnce() -> usize) -> Option<usize> {
        if !self.anyone_missing() {
            return None;
        }
        self.front(to)?;
        let (bit, spare) = (self.bit(to), &self.lanes[to as usize].spare);
        let step = |spare: &Spare| {
            self.kept.get(&spare.chunk).filter(|kept| kept.missing & bit != 0).map(|kept| kept.step)
        };
        let is_mine =
            |spare: &Spare| spare.via.is_none() && self.owes(&spare.chunk, to) == self.numbering.me();
        // They are in the order of their steps; some have come meanwhile.
        let earlier =
            spare.iter().enumerate().filter_map(|(place, spare)| Some((place, spare, step(spare)?)));
        let mut mine = earlier.take_while(|(.., step)| *step < before).filter(|(_, spare, _)| is_mine(spare));
        let (first, _, of) = mine.next()?;
        // One who is late comes towards us.
        let place = match self.late.is_empty() {
            true => first,
            false => mine.take_while(|(.., step)| *step == of).last().map_or(first, |(place, ..)| place),
        };
        (self.late.is_empty() || on_way() <= self.instead * MORE_BYTES).then_some(place)
    }

    /// Whether some sibling's part, or what a receiver should pass on, may be this process's to send.
    fn anyone_missing(&self) -> bool {
        !self.late.is_empty() || !self.left.is_empty() || !self.gone.is_empty()
    }

    fn misses(&self, chunk: &Chunk, bit: u32) -> bool {
        self.kept.get(chunk).is_some_and(|kept| kept.missing & bit != 0)
    }

    /// A chunk that a receiver misses, which is then no more kept for it.
    fn give(&mut self, chunk: &Chunk, bit: u32) -> Option<(Header, B)> {
        let kept = self.kept.get_mut(chunk).filter(|kept| kept.missing & bit != 0)?;
        kept.missing &= !bit;
        let frame = (kept.header, kept.body.clone());
        if kept.missing == 0 {
            self.kept.remove(chunk);
        }
        Some(frame)
    }

    /// Something that this process sends has moved.
    pub fn moves(&mut self, now: Duration) {
        self.moved = now;
    }

    /// The sibling that has brought nothing of what it owes for longest, and since when.
    fn quiet(&mut self) -> Option<(u32, Duration)> {
        let processes = 0..self.numbering.processes();
        let oldest = processes.filter_map(|to| self.front(to).map(|spare| (to, spare)));
        let owed: Vec<(u32, Spare)> = oldest.filter(|(_, spare)| spare.via.is_none()).collect();
        let quiet = owed.into_iter().filter_map(|(to, spare)| {
            let who = self.owes(&spare.chunk, to);
            let last = self.brought.get(&who).copied().unwrap_or_default();
            (who != self.numbering.me()).then(|| (who, last.max(self.kept[&spare.chunk].since)))
        });
        quiet.min_by_key(|(_, since)| *since)
    }

    /// Whom to ask for a sign of life, each [`QUIET`].
    pub fn doubtful(&mut self, now: Duration) -> Option<u32> {
        self.quiet().filter(|(_, since)| now >= *since + QUIET).map(|(who, _)| who)
    }

    /// Looks whether a sibling stands still.
    fn compare(&mut self, now: Duration, stuck: &impl Fn(u32) -> bool) {
        self.compared = now;
        let Some((who, since)) = self.quiet() else { return };
        if now >= since + STILL && stuck(who) {
            self.late.insert(who);
            self.instead = SURE;
            self.alone();
        }
    }

    /// When it is to be looked whether somebody is late, if nothing comes before.
    pub fn due(&mut self) -> Option<Duration> {
        let overdue =
            (0..self.numbering.processes()).filter_map(|to| self.overdue(to).map(|(at, _)| at)).min();
        let still = self.quiet().map(|(_, since)| (since + QUIET).max(self.compared + QUIET / 2));
        let by_others = self.lanes.iter().any(|lane| lane.spare.iter().any(|spare| spare.via.is_some()));
        let passed = by_others.then_some(self.compared + QUIET);
        overdue.into_iter().chain(still).chain(passed).min()
    }

    /// When the first chunk that others owe to a process will be overdue.
    fn overdue(&mut self, to: u32) -> Option<(Duration, Spare)> {
        let first = self.front(to)?;
        let lane = &self.lanes[to as usize];
        if !lane.due.is_empty() {
            return None;
        }
        if first.via.is_none() && self.owes(&first.chunk, to) == self.numbering.me() {
            return None; // it goes as soon as the lane is free
        }
        if first.via.is_some_and(|via| self.misses(&first.chunk, self.bit(via))) {
            return None; // who shall pass it on has not been sent it
        }
        // What took long here may take a little longer there.
        let since = self.kept[&first.chunk].since;
        let quiet = since.max(self.moved).max(lane.busy);
        Some((quiet + (quiet - since) / LONGER + self.patience.most(), first))
    }

    /// The first chunk that others owe to a process.
    fn front(&mut self, to: u32) -> Option<Spare> {
        let bit = self.bit(to);
        while let Some(front) = self.lanes[to as usize].spare.front()
            && !self.misses(&front.chunk, bit)
        {
            self.lanes[to as usize].spare.pop_front();
        }
        self.lanes[to as usize].spare.front().copied()
    }

    /// Looks who is late. `on_way`: bytes of this process's that are on their way to another. Where there are some, what others
    /// owe may still be on its way too, or its receiver cannot be reached. `stuck`: whether what was sent to a process does not come
    /// there.
    pub fn look(&mut self, now: Duration, on_way: impl Fn(u32) -> usize, stuck: impl Fn(u32) -> bool) {
        self.compare(now, &stuck);
        for spare in self.lanes.iter_mut().flat_map(|lane| &mut lane.spare) {
            spare.via = spare.via.filter(|via| !stuck(*via));
        }
        for to in 0..self.numbering.processes() {
            let Some((at, spare)) = self.overdue(to) else { continue };
            if at > now {
                continue;
            }
            if on_way(to) > 0 {
                self.lanes[to as usize].busy = now;
                continue;
            }
            match spare.via {
                Some(via) => {
                    let spares = self.lanes[to as usize].spare.iter_mut();
                    spares.filter(|spare| spare.via == Some(via)).for_each(|spare| spare.via = None);
                }
                None => {
                    self.late.insert(self.owes(&spare.chunk, to));
                    self.alone();
                }
            }
        }
    }

    /// Takes on whatever others owe.
    pub fn hurry(&mut self) {
        self.late.extend(self.numbering.siblings().filter(|process| !self.gone.contains(process)));
        self.lanes.iter_mut().flat_map(|lane| &mut lane.spare).for_each(|spare| spare.via = None);
    }

    /// A process is gone.
    pub fn lose(&mut self, process: u32) {
        if !self.gone.insert(process) {
            return;
        }
        self.is_back(process);
        let lane = &mut self.lanes[process as usize];
        (lane.due, lane.spare, lane.bytes) = Default::default();
        for spare in self.lanes.iter_mut().flat_map(|lane| lane.spare.iter_mut()) {
            spare.via = spare.via.filter(|via| *via != process);
        }
        let (rank, bit) = (self.numbering.rank_of(process), self.bit(process));
        self.kept.retain(|chunk, kept| {
            kept.missing &= if chunk.rank == rank { !bit } else { !0 };
            kept.missing != 0
        });
        self.alone();
    }

    /// If this process is the only one of its rank that is there, what it has not sent yet to one receiver goes on to the others
    /// from there, who would have got it from a sibling.
    fn alone(&mut self) {
        let missing = |process: u32| self.gone.contains(&process) || self.late.contains(&process);
        if !self.numbering.siblings().all(missing) {
            return;
        }
        let own = |(to, lane): (usize, &Lane<B>)| -> Vec<(Chunk, u32)> {
            let chunk = |due: &Due<B>| match due {
                Due::Own { chunk, .. } => Some((*chunk, to as u32)),
                Due::Passed(..) => None,
            };
            lane.due.iter().filter_map(chunk).collect()
        };
        let due: BTreeMap<Chunk, u32> = self.lanes.iter().enumerate().flat_map(own).collect();
        let mut passed = BTreeSet::new();
        for spare in self.lanes.iter_mut().flat_map(|lane| lane.spare.iter_mut()) {
            if let Some(via) = due.get(&spare.chunk).filter(|_| spare.via.is_none()) {
                spare.via = Some(*via);
                passed.insert((spare.chunk, *via));
            }
        }
        for (to, lane) in self.lanes.iter_mut().enumerate() {
            for due in &mut lane.due {
                if let Due::Own { chunk, pass_on, .. } = due {
                    *pass_on |= passed.contains(&(*chunk, to as u32));
                }
            }
        }
    }

    /// A process has left a call: it sends and takes nothing more in it.
    pub fn leave(&mut self, process: u32, comm: u64, call: u64) {
        self.left.insert((comm, call, process));
        let (rank, bit) = (self.numbering.rank_of(process), self.bit(process));
        self.kept.retain(|chunk, kept| {
            if (chunk.comm, chunk.call, chunk.rank) == (comm, call, rank) {
                kept.missing &= !bit;
            }
            kept.missing != 0
        });
    }

    /// A call is over here. `failed`: and what it was to send does not matter any more.
    pub fn end(&mut self, comm: u64, call: u64, failed: bool, over: impl Fn(u64, u64) -> bool) {
        let is_it = |chunk: &Chunk| (chunk.comm, chunk.call) == (comm, call);
        self.early.retain(|chunk, _| !is_it(chunk));
        if failed {
            self.kept.retain(|chunk, _| !is_it(chunk));
        }
        if !self.left.is_empty() {
            let kept: BTreeSet<(u64, u64)> = self.kept.keys().map(|chunk| (chunk.comm, chunk.call)).collect();
            self.left.retain(|(comm, call, _)| !over(*comm, *call) || kept.contains(&(*comm, *call)));
        }
    }

    /// Bytes that are due to a process.
    pub fn bytes(&self, to: u32) -> usize {
        self.lanes[to as usize].bytes
    }

    /// Whether nothing is due, nor kept for anyone.
    pub fn is_idle(&self) -> bool {
        self.kept.is_empty() && self.lanes.iter().all(|lane| lane.due.is_empty())
    }

    /// Whether a sibling is late.
    pub fn is_late(&self, process: u32) -> bool {
        self.late.contains(&process)
    }
}

impl<B: Body> Lane<B> {
    fn push(&mut self, due: Due<B>) {
        self.bytes += due.bytes();
        self.due.push_back(due);
    }
}
