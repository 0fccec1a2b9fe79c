//! What comes from the replicas of other ranks: the first copy of each chunk, in order, as if its sender were one.

use super::chunk::{Body, Chunk, Differ, Over};
use super::numbering::Numbering;
use crate::frame::{FrameKind, Header};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Calls whose checksums are remembered after they have ended: copies that come late are compared too.
const REMEMBERED: usize = 256;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step<B> {
    /// Something for this rank, from another.
    Deliver(u32, Header, B),
    /// A chunk to be passed on to the siblings.
    PassOn(Header, B),
    /// A process has left a call, while others of its rank go on.
    Left(u32, u64, u64),
}

/// "I have this chunk", for one who might send it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Have {
    /// Which; its rank is the sender's.
    pub chunk: Chunk,
    /// What it is like.
    pub sum: u32,
    /// The process it came from.
    pub by: u32,
}

/// A message on its way in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stream<B> {
    next: u32,
    /// Chunks that came before others that are due first.
    ahead: BTreeMap<u32, (Header, B)>,
    /// Checksum and sender of each chunk that came.
    sums: BTreeMap<u32, (u32, u32)>,
}

impl<B> Default for Stream<B> {
    fn default() -> Stream<B> {
        Stream { next: 0, ahead: BTreeMap::new(), sums: BTreeMap::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Call<B> {
    /// Processes of which something came in it.
    brought: BTreeSet<u32>,
    /// By round and sender's rank.
    streams: BTreeMap<(u32, u32), Stream<B>>,
    /// Who has left it, and what the last one of each rank said.
    left: BTreeMap<u32, (BTreeSet<u32>, Header, B)>,
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inflow<B> {
    numbering: Numbering,
    gone: BTreeSet<u32>,
    /// Those of them that had made all their calls.
    done: BTreeSet<u32>,
    /// Processes that have left a call, and may have made none after it.
    failed: BTreeSet<u32>,
    calls: BTreeMap<(u64, u64), Call<B>>,
    over: Over,
    /// Calls that have ended and are remembered.
    ended: VecDeque<(u64, u64)>,
    /// What others are to be told.
    have: BTreeMap<u32, Vec<Have>>,
    /// By process: chunks of which it brought the first copy, and others.
    won: Vec<u64>,
    lost: Vec<u64>,
}

impl<B: Body> Inflow<B> {
    /// Nothing yet.
    pub fn new(numbering: Numbering) -> Inflow<B> {
        let none = vec![0; numbering.processes() as usize];
        Inflow {
            numbering,
            gone: BTreeSet::new(),
            done: BTreeSet::new(),
            failed: BTreeSet::new(),
            calls: BTreeMap::new(),
            over: Over::default(),
            ended: VecDeque::new(),
            have: BTreeMap::new(),
            won: none.clone(),
            lost: none,
        }
    }

    fn call(&mut self, comm: u64, call: u64) -> &mut Call<B> {
        let fresh = || Call { brought: BTreeSet::new(), streams: BTreeMap::new(), left: BTreeMap::new() };
        self.calls.entry((comm, call)).or_insert_with(fresh)
    }

    /// A chunk that process `by` made has come from `from`, `raced` if every replica sends it anyway.
    pub fn chunk(
        &mut self,
        from: u32,
        by: u32,
        header: Header,
        body: B,
        raced: bool,
        steps: &mut Vec<Step<B>>,
    ) -> Option<Differ> {
        let rank = self.numbering.rank_of(by);
        let chunk = Chunk::of(&header, rank);
        if header.kind == FrameKind::PassOn {
            let passed = Header { kind: FrameKind::Passed, origin: by as u16, ..header };
            steps.push(Step::PassOn(passed, body.clone()));
        }
        let over = self.over.has(chunk.comm, chunk.call);
        if over && !self.calls.contains_key(&(chunk.comm, chunk.call)) {
            self.lost[by as usize] += 1;
            return None;
        }
        let sum = body.checksum();
        let of_call = self.call(chunk.comm, chunk.call);
        of_call.brought.insert(by);
        let stream = of_call.streams.entry((chunk.round, rank)).or_default();
        if let Some((first, whose)) = stream.sums.get(&chunk.seq) {
            let differ = (*first != sum).then_some(Differ { chunk, processes: (*whose, by) });
            self.lost[by as usize] += 1;
            return differ;
        }
        if over {
            return None;
        }
        stream.sums.insert(chunk.seq, (sum, by));
        stream.ahead.insert(chunk.seq, (Header { kind: FrameKind::Data, origin: 0, ..header }, body));
        while let Some((header, body)) = stream.ahead.remove(&stream.next) {
            stream.next += 1;
            steps.push(Step::Deliver(rank, header, body));
        }
        self.won[by as usize] += 1;
        if !raced {
            let told = self.numbering.processes_of(rank).filter(|process| *process != from);
            for process in told.filter(|process| !self.gone.contains(process)) {
                self.have.entry(process).or_default().push(Have { chunk, sum, by });
            }
        }
        None
    }

    /// A process has left a call and says why, for a reason that concerns it alone.
    pub fn abort(&mut self, from: u32, header: Header, body: B, steps: &mut Vec<Step<B>>) {
        let (comm, call, rank) = (header.comm, header.call, self.numbering.rank_of(from));
        if self.over.has(comm, call) {
            return;
        }
        self.failed.insert(from);
        let left = &mut self.call(comm, call).left;
        let (who, ..) = left.entry(rank).or_insert_with(|| (BTreeSet::new(), header, body));
        who.insert(from);
        steps.push(Step::Left(from, comm, call));
        self.all_left(rank, steps);
    }

    /// Tells of calls that all processes of a rank have left, or will never make. Who has made one and is done has brought all
    /// that its rank owed in it, which may have been nothing.
    fn all_left(&mut self, rank: u32, steps: &mut Vec<Step<B>>) {
        let (numbering, gone, done, failed) = (self.numbering, &self.gone, &self.done, &self.failed);
        for call in self.calls.values_mut() {
            let all = call.left.get(&rank).is_some_and(|(who, ..)| {
                let made = |p: &u32| done.contains(p) && (call.brought.contains(p) || !failed.contains(p));
                numbering
                    .processes_of(rank)
                    .all(|p| p == numbering.me() || who.contains(&p) || gone.contains(&p) && !made(&p))
            });
            if all && rank != numbering.rank() {
                let (_, header, body) = call.left.remove(&rank).expect("seen");
                steps.push(Step::Deliver(rank, header, body));
            }
        }
    }

    /// A process is gone, `done` if it had made all its calls. Whether its rank has none left.
    pub fn lose(&mut self, process: u32, done: bool, steps: &mut Vec<Step<B>>) -> bool {
        self.gone.insert(process);
        if done {
            self.done.insert(process);
        }
        self.have.remove(&process);
        let rank = self.numbering.rank_of(process);
        self.all_left(rank, steps);
        self.numbering.processes_of(rank).all(|process| self.gone.contains(&process))
    }

    /// A call is over here.
    pub fn end(&mut self, comm: u64, call: u64) {
        self.over.end(comm, call);
        if let Some(ended) = self.calls.get_mut(&(comm, call)) {
            ended.left.clear();
            ended.streams.values_mut().for_each(|stream| stream.ahead.clear());
            self.ended.push_back((comm, call));
        }
        while self.ended.len() > REMEMBERED {
            let oldest = self.ended.pop_front().expect("some");
            self.calls.remove(&oldest);
        }
    }

    /// Calls that are over.
    pub fn over(&self) -> &Over {
        &self.over
    }

    /// What others are to be told, by process.
    pub fn take_have(&mut self) -> BTreeMap<u32, Vec<Have>> {
        std::mem::take(&mut self.have)
    }

    /// Whether there is anything to tell.
    pub fn has_news(&self) -> bool {
        !self.have.is_empty()
    }

    /// Chunks of which a process brought the first copy, and later ones.
    pub fn races(&self, process: u32) -> (u64, u64) {
        (self.won[process as usize], self.lost[process as usize])
    }
}
