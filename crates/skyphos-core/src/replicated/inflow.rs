//! Receiving from replicated ranks: the first copy of each chunk, in order, as if its sender were one process.

use super::chunk::{Body, Chunk, ChunkMismatch, EndedCalls};
use super::numbering::Numbering;
use crate::frame::{FrameKind, Header};
use skyphos_types::{CallNumber, CommId, ProcessId, Round, WorldRank};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Calls whose checksums are remembered after they have ended: copies that come late are compared too.
const REMEMBERED: usize = 256;

/// An action that follows from a received frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action<B> {
    /// Deliver a frame of another rank to this one.
    Deliver(WorldRank, Header, B),
    /// Forward a chunk to the siblings.
    Forward(Header, B),
    /// A process has left a call, while others of its rank go on.
    Left(ProcessId, CommId, CallNumber),
}

/// Acknowledges a chunk, to a process that might send it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acknowledgement {
    /// The chunk; its rank is the sender's.
    pub chunk: Chunk,
    /// Its checksum.
    pub sum: u32,
    /// The process it came from.
    pub by: ProcessId,
}

/// A message on its way in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stream<B> {
    next: u32,
    /// Chunks that have overtaken earlier ones.
    ahead: BTreeMap<u32, (Header, B)>,
    /// Checksum and sender of each chunk that came.
    sums: BTreeMap<u32, (u32, ProcessId)>,
}

impl<B> Default for Stream<B> {
    fn default() -> Stream<B> {
        Stream { next: 0, ahead: BTreeMap::new(), sums: BTreeMap::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Call<B> {
    /// The processes that sent chunks of the call.
    senders: BTreeSet<ProcessId>,
    /// By round and sender's rank.
    streams: BTreeMap<(Round, WorldRank), Stream<B>>,
    /// By rank: the processes that have left the call, and the abort of one of them.
    left: BTreeMap<WorldRank, (BTreeSet<ProcessId>, Header, B)>,
}

/// Chunks that have arrived, by call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inflow<B> {
    numbering: Numbering,
    lost_processes: BTreeSet<ProcessId>,
    /// Lost processes that had made all their calls.
    done: BTreeSet<ProcessId>,
    /// Processes that have left a call, and may have made none after it.
    failed: BTreeSet<ProcessId>,
    calls: BTreeMap<(CommId, CallNumber), Call<B>>,
    over: EndedCalls,
    /// Calls that have ended and are remembered.
    ended: VecDeque<(CommId, CallNumber)>,
    /// Acknowledgements to be sent, by process.
    acknowledgements: BTreeMap<ProcessId, Vec<Acknowledgement>>,
    /// By process: number of chunks of which its copy came first, and of which it came later.
    won: Vec<u64>,
    lost_races: Vec<u64>,
}

impl<B: Body> Inflow<B> {
    /// An empty state.
    pub fn new(numbering: Numbering) -> Inflow<B> {
        let none = vec![0; numbering.processes() as usize];
        Inflow {
            numbering,
            lost_processes: BTreeSet::new(),
            done: BTreeSet::new(),
            failed: BTreeSet::new(),
            calls: BTreeMap::new(),
            over: EndedCalls::default(),
            ended: VecDeque::new(),
            acknowledgements: BTreeMap::new(),
            won: none.clone(),
            lost_races: none,
        }
    }

    fn call(&mut self, comm: CommId, call: CallNumber) -> &mut Call<B> {
        let fresh = || Call { senders: BTreeSet::new(), streams: BTreeMap::new(), left: BTreeMap::new() };
        self.calls.entry((comm, call)).or_insert_with(fresh)
    }

    /// Takes a chunk of process `by` that has arrived from process `from`. `raced`: every replica sends it.
    pub fn chunk(
        &mut self,
        from: ProcessId,
        by: ProcessId,
        header: Header,
        body: B,
        raced: bool,
        actions: &mut Vec<Action<B>>,
    ) -> Option<ChunkMismatch> {
        let rank = self.numbering.rank_of(by);
        let chunk = Chunk::of(&header, rank);
        if header.kind == FrameKind::Forward {
            let passed = Header { kind: FrameKind::Forwarded, origin: by.0 as u16, ..header };
            actions.push(Action::Forward(passed, body.clone()));
        }
        let over = self.over.has(chunk.comm, chunk.call);
        if over && !self.calls.contains_key(&(chunk.comm, chunk.call)) {
            self.lost_races[by.index()] += 1;
            return None;
        }
        let sum = body.checksum();
        let of_call = self.call(chunk.comm, chunk.call);
        of_call.senders.insert(by);
        let stream = of_call.streams.entry((chunk.round, rank)).or_default();
        if let Some((first, whose)) = stream.sums.get(&chunk.seq) {
            let mismatch = (*first != sum).then_some(ChunkMismatch { chunk, processes: (*whose, by) });
            self.lost_races[by.index()] += 1;
            return mismatch;
        }
        if over {
            return None;
        }
        stream.sums.insert(chunk.seq, (sum, by));
        stream.ahead.insert(chunk.seq, (Header { kind: FrameKind::Data, origin: 0, ..header }, body));
        while let Some((header, body)) = stream.ahead.remove(&stream.next) {
            stream.next += 1;
            actions.push(Action::Deliver(rank, header, body));
        }
        self.won[by.index()] += 1;
        if !raced {
            let senders = self.numbering.processes_of(rank).filter(|process| *process != from);
            for process in senders.filter(|process| !self.lost_processes.contains(process)) {
                self.acknowledgements.entry(process).or_default().push(Acknowledgement { chunk, sum, by });
            }
        }
        None
    }

    /// Notes that a process has left a call, for a reason that concerns it alone.
    pub fn abort(&mut self, from: ProcessId, header: Header, body: B, actions: &mut Vec<Action<B>>) {
        let (comm, call, rank) = (header.comm, header.call, self.numbering.rank_of(from));
        if self.over.has(comm, call) {
            return;
        }
        self.failed.insert(from);
        let left = &mut self.call(comm, call).left;
        let (processes, ..) = left.entry(rank).or_insert_with(|| (BTreeSet::new(), header, body));
        processes.insert(from);
        actions.push(Action::Left(from, comm, call));
        self.deliver_aborts_of(rank, actions);
    }

    /// Delivers the aborts of a rank: of calls that all its processes have left, or will never make. A process that is done has sent all
    /// chunks of its rank in the calls that it made.
    fn deliver_aborts_of(&mut self, rank: WorldRank, actions: &mut Vec<Action<B>>) {
        let (numbering, gone, done, failed) =
            (self.numbering, &self.lost_processes, &self.done, &self.failed);
        for call in self.calls.values_mut() {
            let all = call.left.get(&rank).is_some_and(|(processes, ..)| {
                let made =
                    |p: &ProcessId| done.contains(p) && (call.senders.contains(p) || !failed.contains(p));
                numbering
                    .processes_of(rank)
                    .all(|p| p == numbering.me() || processes.contains(&p) || gone.contains(&p) && !made(&p))
            });
            if all && rank != numbering.rank() {
                let (_, header, body) = call.left.remove(&rank).expect("seen");
                actions.push(Action::Deliver(rank, header, body));
            }
        }
    }

    /// Notes that a process is lost. `done`: it had made all its calls. Returns whether its rank has no process left.
    pub fn lose(&mut self, process: ProcessId, done: bool, actions: &mut Vec<Action<B>>) -> bool {
        self.lost_processes.insert(process);
        if done {
            self.done.insert(process);
        }
        self.acknowledgements.remove(&process);
        let rank = self.numbering.rank_of(process);
        self.deliver_aborts_of(rank, actions);
        self.numbering.processes_of(rank).all(|process| self.lost_processes.contains(&process))
    }

    /// Notes that a call is over here.
    pub fn end(&mut self, comm: CommId, call: CallNumber) {
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
    pub fn over(&self) -> &EndedCalls {
        &self.over
    }

    /// Takes the acknowledgements to be sent, by process.
    pub fn take_acknowledgements(&mut self) -> BTreeMap<ProcessId, Vec<Acknowledgement>> {
        std::mem::take(&mut self.acknowledgements)
    }

    /// Whether there are acknowledgements to be sent.
    pub fn has_acknowledgements(&self) -> bool {
        !self.acknowledgements.is_empty()
    }

    /// Number of chunks of which a process's copy came first, and of which it came later.
    pub fn races(&self, process: ProcessId) -> (u64, u64) {
        (self.won[process.index()], self.lost_races[process.index()])
    }
}
