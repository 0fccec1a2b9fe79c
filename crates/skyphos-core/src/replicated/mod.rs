//! Replicas: P processes as m = ⌊P / s⌋ ranks, each of which lives as long as one of its processes does (Kylix §V).
//!
//! A [`Replicated`] is a transport over a transport. The node over it sees m ranks and no replicas, so every collective whose
//! messages do not depend on the order of arrivals runs replicated. All replicas of a rank (siblings) make the same calls with
//! the same data, and so the same messages, chunk by chunk; the first copy of a chunk counts.
//!
//! Read [`numbering`] (processes and ranks), [`outflow`] (the owner of each chunk, and fallbacks), [`inflow`] (the first copy, in
//! order, and acknowledgements), then this module, which carries out their decisions.
//!
//! **Small messages** (up to [`RACED_BYTES`]) go from every replica to every replica: the second copy is cheap, and a late replica
//! costs no time. The chunks of larger ones are divided among the replicas.
//!
//! **Replicas that differ** are found by checksums: a receiver compares copies, a sibling of a chunk's owner compares its own chunk
//! with the acknowledgement. Checksums of each call's input ([`input_checksums`]) cover data that is never sent.
//!
//! **A replica that fails alone** (interrupted, or timed out) leaves the call, and its siblings go on in its place. An error of the
//! call itself (bad input, a mismatch, other bytes) ends it on all.

mod acknowledgements;
mod chunk;
mod delay;
mod flow;
mod inflow;
mod input_checksums;
mod numbering;
mod outflow;
mod startup_broadcast;

pub use chunk::{Body, Chunk, ChunkMismatch, Over};
pub use inflow::{Acknowledgement, Action, Inflow};
pub use numbering::Numbering;
pub use outflow::Outflow;
pub use startup_broadcast::startup_broadcast;

use flow::Flow;
use input_checksums::{InputChecksums, InputMismatch};

use crate::clock::Clock;
use crate::extensions::{NativeCollectives, Replication, UnderReplicas};
use crate::frame::{Frame, FrameKind, HEADER_BYTES, Header};
use crate::slab::Payload;
use crate::transport::{Event, Facts, Health, Loss, Transport, Waker};
use skyphos_types::{Error, Result};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Messages up to this size are sent by all replicas.
pub const RACED_BYTES: usize = 4096;

/// Chunk size of larger messages. It is small, so that chunks to several receivers are on a link at once, which then never idles
/// because one receiver is busy, and forwarded chunks are only a little later.
const SHARED_BYTES: usize = 32 * 1024;

/// Most bytes handed to a connection ahead of what it has sent: the rest can be taken back.
const AHEAD_BYTES: usize = 128 * 1024;

/// Bytes by which one replica may lag behind another before the sender waits for it, and for how long: a replica that takes
/// nothing for that time, stopped or unreachable, is given up. Each replica of a sender keeps that many bytes for it.
const LAG_BYTES: usize = 128 << 20;
const STALL_LIMIT: Duration = Duration::from_secs(2);

/// How long a closing process waits for its siblings' checksums.
const CHECKSUM_WAIT: Duration = Duration::from_secs(2);

/// Time between checks for replicas that lag so far.
const LAG_CHECK_EVERY: Duration = Duration::from_millis(100);

/// In place of an acknowledgement's call: an answer is asked for.
const ASKS_ANSWER: u64 = 1;

/// Longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Time between checks whether bytes on their way have arrived, which no event reports.
const FLOW_CHECK_EVERY: Duration = Duration::from_millis(1);

/// A process that was heard of this much later than a sibling is not asked to forward chunks.
const PROMPT: Duration = Duration::from_millis(200);

/// A transport whose ranks are several processes each.
pub struct Replicated {
    inner: Box<dyn Transport>,
    /// Properties of the transport under it.
    facts: Facts,
    numbering: Numbering,
    out: Outflow<Payload>,
    inflow: Inflow<Payload>,
    clock: Clock,
    /// By process: how it was lost, and when it was last heard of.
    lost: Vec<Option<(Loss, String)>>,
    last_heard: Vec<Duration>,
    /// Calls whose abort this process has sent to its siblings.
    aborted: BTreeSet<(u64, u64)>,
    input_checksums: InputChecksums,
    /// The call that fails because replicas differ, and the error. If it is never made, `close` returns the error.
    failure: Option<(u64, u64, Error)>,
    /// Events for the next poll.
    pending_events: Vec<Event>,
    raw: Vec<Event>,
    actions: Vec<Action<Payload>>,
    woken: Arc<AtomicBool>,
    flow: Flow,
    /// When a sibling was last asked for a sign of life.
    last_ask: Duration,
    /// When lagging replicas were last looked for.
    last_lag_check: Duration,
    /// Maximum of each rank's backlog: once half of it has gone, `Writable` is reported. The connections below do not report it, for
    /// they may take all bytes at once.
    backlog_peaks: Vec<usize>,
}

/// Bytes posted to a process that its system has not acknowledged, as far as the transport knows.
fn on_way(transport: &dyn Transport, to: u32) -> usize {
    transport.unacknowledged(to).unwrap_or_else(|| transport.backlog(to))
}

impl Replicated {
    /// At least `replication` processes for each rank. All processes must call it alike; it sends nothing.
    /// `share_hosts`: replicas of a rank may be on one host, for experiments.
    /// `waiting`: events that [`startup_broadcast`] has received and not used.
    pub fn new(
        mut inner: Box<dyn Transport>,
        replication: u32,
        share_hosts: bool,
        waiting: Vec<Event>,
    ) -> Result<Replicated> {
        let facts = inner.facts();
        let numbering = Numbering::new(inner.size(), replication, inner.rank())?;
        if !share_hosts {
            let address = |process: u32| facts.addresses[process as usize].clone();
            numbering.check_hosts(facts.topology.hosts(), address)?;
        }
        inner.limit_ahead(AHEAD_BYTES);
        let clock = facts.clock.clone();
        let processes = numbering.processes() as usize;
        Ok(Replicated {
            inner,
            facts,
            numbering,
            out: Outflow::new(numbering),
            inflow: Inflow::new(numbering),
            last_heard: vec![clock.now(); processes],
            clock,
            lost: vec![None; processes],
            aborted: BTreeSet::new(),
            input_checksums: InputChecksums::new(numbering.siblings()),
            failure: None,
            pending_events: Vec::new(),
            raw: waiting,
            actions: Vec::new(),
            woken: Arc::default(),
            flow: Flow::new(processes),
            last_ask: Duration::ZERO,
            last_lag_check: Duration::ZERO,
            backlog_peaks: vec![0; numbering.ranks() as usize],
        })
    }

    /// Hands frames to the connections, as many as may go now. True if more are left.
    ///
    /// The process with the fewest bytes on their way comes first: other links are busy, and would take all of the allowance while its
    /// link idles. Among equals the one with the longest queue comes first, so that all finish together; then each process begins
    /// with another.
    fn pump(&mut self) -> bool {
        let (me, all) = (self.numbering.me(), self.numbering.processes());
        let other = |after: u32| (me + after) % all;
        let open: Vec<u32> = (1..all).filter(|after| self.takes_more(other(*after))).collect();
        if open.is_empty() {
            return false;
        }
        let now = self.clock.now();
        self.update_flow(now);
        let mut room = self.flow.room(now);
        let turn = |this: &Replicated, after: u32| {
            let on_way = this.flow.on_way(other(after)) / RACED_BYTES as u64;
            Reverse((on_way, Reverse(this.out.bytes(other(after))), after))
        };
        let mut queues: BinaryHeap<_> = open.into_iter().map(|after| turn(self, after)).collect();
        while let Some(Reverse((.., after))) = queues.pop() {
            if room == 0 {
                return true;
            }
            let process = other(after);
            let Some((header, payload)) = self.out.take(process, || on_way(&*self.inner, process)) else {
                continue;
            };
            room = room.saturating_sub(payload.len());
            self.send(process, Frame { header, payload });
            if self.takes_more(process) {
                queues.push(turn(self, after));
            }
        }
        false
    }

    /// Whether there may be a frame for a process whose connection takes one.
    fn takes_more(&self, process: u32) -> bool {
        self.out.has_any(process) && self.inner.backlog(process) < AHEAD_BYTES
    }

    fn send(&mut self, process: u32, frame: Frame) {
        let chunk = matches!(frame.header.kind, FrameKind::Data | FrameKind::Forward | FrameKind::Forwarded);
        self.flow.send(self.clock.now(), process, HEADER_BYTES + frame.payload.len(), chunk);
        self.inner.post(process, frame);
    }

    /// Asks a quiet sibling for a sign of life, unless bytes are on their way there, whose arrival shows as much.
    fn ask(&mut self, now: Duration) {
        let Some(who) = self.out.sibling_to_ask(now) else { return };
        if now >= self.last_ask + outflow::QUIET && on_way(&*self.inner, who) == 0 {
            self.last_ask = now;
            self.send(
                who,
                Frame {
                    header: Header::control(FrameKind::Acknowledge, 0, ASKS_ANSWER),
                    payload: Payload::default(),
                },
            );
        }
    }

    /// Notes whether bytes handed to the connections have moved.
    fn update_flow(&mut self, now: Duration) {
        if self.flow.update(now, |process| on_way(&*self.inner, process)) {
            self.out.note_progress(now);
        }
    }

    /// Bytes that wait here for a process.
    fn lag(&self, process: u32) -> usize {
        self.out.bytes(process) + self.inner.backlog(process)
    }

    /// Gives up processes that lag far behind their siblings and take nothing: the siblings go on in their place, and the bytes kept
    /// for them would grow without bound.
    fn drop_laggards(&mut self, now: Duration) {
        if now < self.last_lag_check + LAG_CHECK_EVERY {
            return;
        }
        self.last_lag_check = now;
        let others = (0..self.numbering.processes()).filter(|process| *process != self.numbering.me());
        let far: Vec<u32> = others.filter(|process| self.lag(*process) > LAG_BYTES).collect();
        if far.is_empty() {
            return;
        }
        self.update_flow(now);
        for process in far {
            let all = self.numbering.processes_of(self.numbering.rank_of(process));
            let goes_on = |other: u32| {
                other != process && self.lost[other as usize].is_none() && self.lag(other) <= LAG_BYTES
            };
            let still = self.flow.stalled_for(now, process);
            if still >= STALL_LIMIT && all.into_iter().any(goes_on) {
                let cause = format!(
                    "it has taken nothing for {:.1} s and is {} MB behind its other replicas: it is left behind",
                    still.as_secs_f64(),
                    self.lag(process) >> 20
                );
                self.inner.give_up(process, &cause);
            }
        }
    }

    /// Notes the backlog to a rank after a post.
    fn note_backlog(&mut self, rank: u32) {
        self.backlog_peaks[rank as usize] = self.backlog_peaks[rank as usize].max(self.backlog(rank));
    }

    /// Reports ranks whose backlog has halved, also without a post: chunks sent in a sibling's place are backlog too.
    fn report_writable(&mut self, events: &mut Vec<Event>) {
        let me = self.numbering.rank();
        for rank in (0..self.numbering.ranks()).filter(|rank| *rank != me) {
            let bytes = self.backlog(rank);
            let most = &mut self.backlog_peaks[rank as usize];
            if *most > 0 && bytes <= *most / 2 {
                *most = bytes;
                events.push(Event::Writable { rank });
            }
            *most = bytes.max(*most);
        }
    }

    /// Acknowledges chunks to the processes that might send them too.
    fn send_acknowledgements(&mut self) {
        if !self.inflow.has_acknowledgements() {
            return;
        }
        for (process, notices) in self.inflow.take_acknowledgements() {
            for some in notices.chunks(acknowledgements::MOST_CHUNKS) {
                let payload = self.facts.pool.copy_of(&acknowledgements::encode(some));
                self.send(process, Frame { header: Header::control(FrameKind::Acknowledge, 0, 0), payload });
            }
        }
    }

    fn receive(&mut self, from: u32, frame: Frame, events: &mut Vec<Event>) {
        let now = self.clock.now();
        self.last_heard[from as usize] = now;
        let (rank, Frame { header, payload }) = (self.numbering.rank_of(from), frame);
        match header.kind {
            FrameKind::Data | FrameKind::Forward | FrameKind::Forwarded => {
                let by = if header.kind == FrameKind::Forwarded { u32::from(header.origin) } else { from };
                if by >= self.numbering.processes() || self.numbering.rank_of(by) == self.numbering.rank() {
                    return self.damaged(from, "brings what no process of another rank sent", events);
                }
                let raced = payload.len() <= RACED_BYTES;
                let mismatch = self.inflow.chunk(from, by, header, payload, raced, &mut self.actions);
                self.fail_by_chunk(mismatch, events);
            }
            FrameKind::Acknowledge => {
                self.update_flow(now);
                // The system acknowledges the bytes at once with this answer.
                if header.call == ASKS_ANSWER && self.lost[from as usize].is_none() {
                    let header = Header::control(FrameKind::Acknowledge, 0, 0);
                    self.send(from, Frame { header, payload: Payload::default() });
                }
                let Some(notices) = acknowledgements::decode(payload.as_bytes(), rank) else {
                    return self.damaged(from, "sent a notice that makes no sense", events);
                };
                for Acknowledgement { chunk, sum, by } in notices {
                    let over = self.inflow.over().has(chunk.comm, chunk.call);
                    let mismatch = self.out.acknowledge(now, from, chunk, sum, by, over);
                    self.fail_by_chunk(mismatch, events);
                }
            }
            FrameKind::InputChecksum if rank != self.numbering.rank() => {
                return self.damaged(from, "sent an input checksum of another rank", events);
            }
            FrameKind::InputChecksum => {
                let place = (header.comm, header.call);
                let mismatch = self.input_checksums.receive(from, place, header.total, self.inflow.over());
                self.fail_by_input(mismatch, events);
            }
            FrameKind::Abort if concerns_one(payload.as_bytes()) => {
                self.inflow.abort(from, header, payload, &mut self.actions);
            }
            _ if rank == self.numbering.rank() && header.kind != FrameKind::Abort => {}
            _ => events.push(Event::Frame { from: rank, frame: Frame { header, payload } }),
        }
        self.apply_actions(events);
    }

    /// Carries out the actions that follow from frames.
    fn apply_actions(&mut self, events: &mut Vec<Event>) {
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Deliver(from, header, payload) => {
                    events.push(Event::Frame { from, frame: Frame { header, payload } });
                }
                Action::Forward(header, payload) => {
                    for sibling in self.numbering.siblings() {
                        self.out.forward(sibling, header, payload.clone());
                    }
                }
                Action::Left(process, comm, call) => self.out.leave(process, comm, call),
            }
        }
        self.actions = actions;
    }

    /// Fails the call in which replicas sent different bytes, or the next one if it is over.
    fn fail_by_chunk(&mut self, mismatch: Option<ChunkMismatch>, events: &mut Vec<Event>) {
        let Some(ChunkMismatch { chunk, processes: (one, other) }) = mismatch else { return };
        let (rank, one, other) = (self.numbering.rank_of(one), one.min(other), one.max(other));
        let Chunk { comm, call, round, seq, .. } = chunk;
        let message = format!(
            "its replicas, processes {one} and {other}, sent different bytes (call {call} of group {comm:x}, round {round}, chunk \
             {seq}): they hold different data or made different calls, or took in messages of another rank whose replicas do; all \
             replicas of a rank must hold the same data and make the same calls"
        );
        self.end_with(comm, call, Error::Corrupt { rank, message }, events);
    }

    /// Fails the call to which replicas had different inputs, or the next one if it is over.
    fn fail_by_input(&mut self, mismatch: Option<InputMismatch>, events: &mut Vec<Event>) {
        let Some(InputMismatch { comm, call, process }) = mismatch else { return };
        let (one, other) = (process.min(self.numbering.me()), process.max(self.numbering.me()));
        let message = format!(
            "its replicas, processes {one} and {other}, put different data into call {call} of group {comm:x}, or made different \
             calls: all replicas of a rank must hold the same data and make the same calls"
        );
        self.end_with(comm, call, Error::Corrupt { rank: self.numbering.rank(), message }, events);
    }

    fn damaged(&mut self, from: u32, what: &str, events: &mut Vec<Event>) {
        let message = format!("process {from} {what}");
        let error = Error::Corrupt { rank: self.numbering.rank_of(from), message };
        self.end_with(0, 0, error, events);
    }

    /// Fails a call of a group here, or the first one that has not ended; all ranks get the error.
    fn end_with(&mut self, comm: u64, call: u64, error: Error, events: &mut Vec<Event>) {
        let over = self.inflow.over();
        let call = if over.has(comm, call) { over.first_open(comm) } else { call };
        let header = Header::control(FrameKind::Abort, comm, call);
        let payload = self.facts.pool.copy_of(&error.to_wire());
        self.failure.get_or_insert((comm, call, error));
        events.push(Event::Frame { from: self.numbering.rank(), frame: Frame { header, payload } });
    }

    fn lose(&mut self, process: u32, loss: Loss, cause: String, events: &mut Vec<Event>) {
        self.lost[process as usize] = Some((loss, cause));
        self.out.lose(process);
        self.input_checksums.lose(process);
        let mut actions = std::mem::take(&mut self.actions);
        let last = self.inflow.lose(process, loss == Loss::Left, &mut actions);
        self.actions = actions;
        self.apply_actions(events);
        let rank = self.numbering.rank_of(process);
        if !last || rank == self.numbering.rank() {
            return;
        }
        let all: Vec<u32> = self.numbering.processes_of(rank).collect();
        let lost = |process: &u32| self.lost[*process as usize].clone().expect("all are lost");
        let causes: Vec<String> = all
            .iter()
            .map(|process| {
                format!(
                    "process {process} at {}: {}",
                    self.facts.addresses[*process as usize],
                    lost(process).1
                )
            })
            .collect();
        let losses: Vec<Loss> = all.iter().map(|process| lost(process).0).collect();
        // A process that has left had sent all chunks of its rank.
        let loss = [Loss::Left, Loss::Silent].into_iter().find(|loss| losses.contains(loss));
        let cause = match &causes[..] {
            [_] => causes[0].clone(),
            _ => format!("all its replicas are ({})", causes.join("; ")),
        };
        events.push(Event::PeerDown { rank, cause, loss: loss.unwrap_or(Loss::Ended) });
    }

    /// Files the events of the transport below.
    fn file_events(&mut self, events: &mut Vec<Event>) {
        let mut raw = std::mem::take(&mut self.raw);
        for event in raw.drain(..) {
            match event {
                Event::Frame { from, frame } => self.receive(from, frame, events),
                Event::PeerDown { rank, cause, loss } => self.lose(rank, loss, cause, events),
                // Reported by `report_writable`.
                Event::Writable { .. } => {}
            }
        }
        self.raw = raw;
    }
}

/// A frame's notices of chunks sent to `rank`, and what they are encoded again.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn fuzz_notices(bytes: &[u8], rank: u32) -> Option<(Vec<Acknowledgement>, Vec<u8>)> {
    acknowledgements::decode(bytes, rank).map(|notices| (notices.clone(), acknowledgements::encode(&notices)))
}

/// Whether a rank has left a call for a reason that concerns it alone.
fn concerns_one(error: &[u8]) -> bool {
    let error = Error::from_wire(error);
    matches!(error, Some(Error::Aborted { .. } | Error::Timeout { .. } | Error::PeerLost { .. }))
}

impl NativeCollectives for Replicated {}

impl UnderReplicas for Replicated {}

impl Replication for Replicated {
    fn process(&self) -> Option<(u32, u32)> {
        Some((self.numbering.me(), self.numbering.processes()))
    }

    fn health(&self) -> Option<Vec<Health>> {
        let now = self.clock.now();
        let of = |process: u32| {
            let (won, lost) = self.inflow.races(process);
            Health {
                process,
                rank: self.numbering.rank_of(process),
                replica: self.numbering.replica_of(process),
                address: self.facts.addresses[process as usize].clone(),
                lost: self.lost[process as usize].clone(),
                late: self.out.is_late(process),
                silent: match process == self.numbering.me() {
                    true => None,
                    false => Some(now.saturating_sub(self.last_heard[process as usize])),
                },
                won,
                lost_races: lost,
            }
        };
        Some((0..self.numbering.processes()).map(of).collect())
    }

    fn set_input_checksum(&mut self, comm: u64, call: u64, sum: u64) {
        let header = Header { total: sum, ..Header::control(FrameKind::InputChecksum, comm, call) };
        for sibling in self.numbering.siblings() {
            if self.lost[sibling as usize].is_none() {
                self.send(sibling, Frame { header, payload: Payload::default() });
            }
        }
        let (mismatch, mut events) =
            (self.input_checksums.begin(comm, call, sum), std::mem::take(&mut self.pending_events));
        self.fail_by_input(mismatch, &mut events);
        self.pending_events = events;
    }

    fn end_call(&mut self, comm: u64, call: u64, failed: bool) {
        self.inflow.end(comm, call);
        self.aborted.remove(&(comm, call));
        self.input_checksums.end(comm, call);
        // A call that succeeded was over before the error came: the next call fails.
        if let Some((.., error)) = self.failure.take_if(|(of, at, _)| (*of, *at) == (comm, call))
            && !failed
        {
            let mut events = std::mem::take(&mut self.pending_events);
            self.end_with(comm, call, error, &mut events);
            self.pending_events = events;
        }
        let over = self.inflow.over();
        self.out.end(comm, call, failed, |comm, call| over.has(comm, call));
    }
}

impl Transport for Replicated {
    fn rank(&self) -> u32 {
        self.numbering.rank()
    }

    fn size(&self) -> u32 {
        self.numbering.ranks()
    }

    fn facts(&self) -> Facts {
        let ranks: Vec<u32> = (0..self.numbering.ranks()).collect();
        let address = |rank: &u32| {
            let all: Vec<&str> =
                self.numbering.processes_of(*rank).map(|p| &*self.facts.addresses[p as usize]).collect();
            all.join(" and ")
        };
        // The places of the first replicas: others are placed alike, or it does not matter.
        let (addresses, topology) =
            (ranks.iter().map(address).collect(), self.facts.topology.of_group(&ranks));
        Facts {
            addresses,
            topology,
            clock: self.clock.clone(),
            chunk_bytes: SHARED_BYTES,
            shares_memory: true,
            is_for_callers_only: false,
            quiet_polls: 1,
            ..self.facts.clone()
        }
    }

    fn post(&mut self, to: u32, frame: Frame) {
        let Frame { header, payload } = frame;
        let (comm, call) = (header.comm, header.call);
        if header.kind == FrameKind::Data && payload.len() > RACED_BYTES {
            let (now, heard, numbering, flow) =
                (self.clock.now(), &self.last_heard, self.numbering, &self.flow);
            let prompt = |process: u32| {
                let all = numbering.processes_of(numbering.rank_of(process));
                let latest = all.map(|p| heard[p as usize]).max().unwrap_or(now);
                heard[process as usize] + PROMPT >= latest && !flow.is_stuck(now, process)
            };
            let mismatch = self.out.post(now, to, header, payload, prompt);
            let mut events = std::mem::take(&mut self.pending_events);
            self.fail_by_chunk(mismatch, &mut events);
            self.pending_events = events;
            self.pump();
            self.note_backlog(to);
            return;
        }
        if header.kind == FrameKind::Abort && self.aborted.insert((comm, call)) {
            for sibling in self.numbering.siblings() {
                self.send(sibling, Frame { header, payload: payload.clone() });
            }
        }
        for process in self.numbering.processes_of(to) {
            if self.lost[process as usize].is_none() {
                self.send(process, Frame { header, payload: payload.clone() });
            }
        }
        self.note_backlog(to);
    }

    fn cork(&mut self, corked: bool) {
        self.inner.cork(corked);
    }

    /// The backlog of the fastest replica; a slower one counts only once it lags far.
    fn backlog(&self, to: u32) -> usize {
        let here = self.numbering.processes_of(to).filter(|process| self.lost[*process as usize].is_none());
        let bytes = here.map(|process| self.lag(process));
        let (least, most) = bytes.fold((usize::MAX, 0), |(least, most), b| (least.min(b), most.max(b)));
        match () {
            () if least > most => 0,
            () if most > LAG_BYTES => most,
            () => least,
        }
    }

    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>) {
        let before = events.len();
        events.append(&mut self.pending_events);
        let until = self.clock.now() + wait.min(LONGEST_WAIT);
        let mut more = self.pump();
        loop {
            self.report_writable(events);
            let now = self.clock.now();
            let left = if events.len() > before { Duration::ZERO } else { until.saturating_sub(now) };
            let due = self.out.next_check().map_or(left, |due| due.saturating_sub(now));
            let soon = if more { FLOW_CHECK_EVERY } else { left };
            let mut raw = std::mem::take(&mut self.raw);
            self.inner.poll(left.min(due).min(soon), &mut raw);
            self.raw = raw;
            self.file_events(events);
            self.send_acknowledgements();
            self.drop_laggards(self.clock.now());
            let now = self.clock.now();
            if self.out.next_check().is_some_and(|due| due <= now) {
                self.update_flow(now);
                self.out.check(now, |to| on_way(&*self.inner, to), |to| self.flow.is_stuck(now, to));
                self.ask(now);
            }
            more = self.pump();
            let woken = self.woken.swap(false, Ordering::AcqRel);
            self.report_writable(events);
            if woken || events.len() > before || self.clock.now() >= until {
                return;
            }
        }
    }

    fn waker(&self) -> Waker {
        let (woken, inner) = (self.woken.clone(), self.inner.waker());
        Arc::new(move || {
            woken.store(true, Ordering::Release);
            inner();
        })
    }

    fn set_failure_reason(&mut self, reason: &str) {
        self.inner.set_failure_reason(reason);
    }

    fn close(&mut self, wait: Duration) -> Result<()> {
        let begin = self.clock.now();
        let (until, heard) = (begin + wait, begin + wait.min(CHECKSUM_WAIT));
        let mut events = Vec::new();
        loop {
            // A sibling that owns chunks may be lost, which no process has noticed yet.
            let now = self.clock.now();
            let until = if self.out.is_idle() && self.input_checksums.is_open() { heard } else { until };
            if now >= until || self.out.is_idle() && !self.input_checksums.is_open() {
                break;
            }
            // Chunks sent twice are better than lost ones.
            if now > begin + wait / 4 {
                self.out.take_over_all();
            }
            self.poll((until - now).min(Duration::from_millis(100)), &mut events);
            events.clear();
        }
        let closed = self.inner.close(until.saturating_sub(self.clock.now()));
        self.failure.take().map_or(closed, |(.., error)| Err(error))
    }

    fn is_idle(&self) -> bool {
        let others = (0..self.numbering.processes()).filter(|process| *process != self.numbering.me());
        self.out.is_idle() && others.into_iter().all(|process| self.inner.backlog(process) == 0)
    }
}

#[cfg(test)]
mod tests;
