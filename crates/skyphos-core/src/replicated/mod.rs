//! Replicas: P processes as m = ⌊P / s⌋ ranks that live as long as one process of each does (Kylix §V).
//!
//! A [`Replicated`] is a transport over a transport. What stands on it sees m ranks and knows of no replicas, so every
//! collective runs replicated whose messages do not depend on the order in which things come. All replicas of a rank make
//! the same calls with the same data, and so the same messages, chunk by chunk; who brings a chunk first wins.
//!
//! Read [`numbering`] (who is a replica of whom), [`outflow`] (who sends what, and when somebody else does), [`inflow`] (the first
//! copy, in order, and who is told that it came), then this: what these decide, done.
//!
//! **Small messages** (up to [`RACED_BYTES`]) go from every replica to every replica: two copies of little, and no time is lost
//! when one is late. Larger ones are shared out.
//!
//! **Replicas that differ** are found by checksums: those of copies where they come, those of chunks shared out where the
//! sibling that did not send them is told that they came. What is never sent is told by [`vouch`].
//!
//! **Who fails alone is alone**: a replica that is interrupted, or waits too long, leaves the call, and its siblings go on in its
//! place. What is wrong with a call (bad input, a mismatch, other bytes) ends it on all.

mod begin;
mod chunk;
mod flow;
mod inflow;
mod notice;
mod numbering;
mod outflow;
mod patience;
mod vouch;

pub use begin::first_tells;
pub use chunk::{Body, Chunk, Differ, Over};
pub use inflow::{Have, Inflow, Step};
pub use numbering::Numbering;
pub use outflow::Outflow;

use flow::Flow;
use vouch::{Unlike, Vouched};

use crate::clock::Clock;
use crate::frame::{Frame, FrameKind, HEADER_BYTES, Header};
use crate::slab::{Payload, Pool};
use crate::topology::Topology;
use crate::transport::{Event, Health, Loss, Transport, Waker};
use skyphos_types::{Error, Result};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Messages up to this size are sent by all.
pub const RACED_BYTES: usize = 4096;

/// Larger ones go in chunks of so much: several to each receiver fit into what a link carries in a moment, so that it never stands
/// still because some receivers are busy, and what is passed on comes a little later only.
const SHARED_BYTES: usize = 32 * 1024;

/// Bytes handed to a connection ahead of what it has sent: what is still here can be taken back.
const AHEAD_BYTES: usize = 128 * 1024;

/// Bytes by which one replica may fall behind another before the sender waits for it, and how long that is: one that takes
/// nothing for so long, stopped or unreachable, is left behind for good. Kept for it are as many bytes from each replica of a
/// sender.
const LAG_BYTES: usize = 128 << 20;
const STANDS_STILL: Duration = Duration::from_secs(2);

/// How long a process that closes waits to hear what its siblings put into calls that it has made.
const VOUCH: Duration = Duration::from_secs(2);

/// How often it is looked who is that far behind.
const JUDGE_EVERY: Duration = Duration::from_millis(100);

/// In the place of a notice's call: an answer is asked for.
const ANSWER: u64 = 1;

/// The longest wait that is asked for.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The wait for what is on its way to move: nothing tells that it has.
const FEEL_EVERY: Duration = Duration::from_millis(1);

/// A process of which nothing was heard for so much longer than of a sibling is not asked to pass things on.
const PROMPT: Duration = Duration::from_millis(200);

/// See the module's text.
pub struct Replicated {
    inner: Box<dyn Transport>,
    numbering: Numbering,
    out: Outflow<Payload>,
    inflow: Inflow<Payload>,
    clock: Clock,
    /// How processes were lost, and when they were last heard of.
    lost: Vec<Option<(Loss, String)>>,
    heard: Vec<Duration>,
    /// Calls that this process has told its siblings it left.
    told: BTreeSet<(u64, u64)>,
    vouched: Vouched,
    /// The call that is to end with what replicas differ in. If nobody makes it, `close` tells.
    ending: Option<(u64, u64, Error)>,
    /// What happened before anyone asked.
    waiting: Vec<Event>,
    raw: Vec<Event>,
    steps: Vec<Step<Payload>>,
    woken: Arc<AtomicBool>,
    flow: Flow,
    /// When a sibling was last asked for a sign of life.
    asked: Duration,
    /// When it was last looked who is too far behind.
    judged: Duration,
    /// How large each rank's backlog was: who waits hears once half of it has gone. What is here goes to connections that may take
    /// it at once, and have nothing to tell.
    watched: Vec<usize>,
}

impl Replicated {
    /// `replication` processes at least for each rank. Collective in that all processes must do it alike; sends nothing.
    /// `share_hosts`: replicas of a rank may be on one host, to try things out.
    /// `waiting`: what [`first_tells`] has heard and not taken.
    pub fn new(
        mut inner: Box<dyn Transport>,
        replication: u32,
        share_hosts: bool,
        waiting: Vec<Event>,
    ) -> Result<Replicated> {
        let numbering = Numbering::new(inner.size(), replication, inner.rank())?;
        if !share_hosts {
            let topology = inner.topology();
            numbering.check_hosts(topology.hosts(), |process| inner.address(process))?;
        }
        inner.hold_back(AHEAD_BYTES);
        let clock = inner.clock();
        let processes = numbering.processes() as usize;
        Ok(Replicated {
            inner,
            numbering,
            out: Outflow::new(numbering),
            inflow: Inflow::new(numbering),
            heard: vec![clock.now(); processes],
            clock,
            lost: vec![None; processes],
            told: BTreeSet::new(),
            vouched: Vouched::new(numbering.siblings()),
            ending: None,
            waiting: Vec::new(),
            raw: waiting,
            steps: Vec::new(),
            woken: Arc::default(),
            flow: Flow::new(processes),
            asked: Duration::ZERO,
            judged: Duration::ZERO,
            watched: vec![0; numbering.ranks() as usize],
        })
    }

    /// Hands what may go now to the connections. Whether more is to go once that has moved.
    ///
    /// First to whom least is on its way: the others' links are busy, and would hold all that may be handed over while this one's
    /// stands still. Among equals first to whom most is due, so that all are done together; then each process begins with another.
    fn pump(&mut self) -> bool {
        let (me, all) = (self.numbering.me(), self.numbering.processes());
        let other = |after: u32| (me + after) % all;
        let open: Vec<u32> = (1..all).filter(|after| self.takes_more(other(*after))).collect();
        if open.is_empty() {
            return false;
        }
        let now = self.clock.now();
        self.feel(now);
        let mut room = self.flow.room(now);
        let turn = |this: &Replicated, after: u32| {
            let on_way = this.flow.on_way(other(after)) / RACED_BYTES as u64;
            Reverse((on_way, Reverse(this.out.bytes(other(after))), after))
        };
        let mut lanes: BinaryHeap<_> = open.into_iter().map(|after| turn(self, after)).collect();
        while let Some(Reverse((.., after))) = lanes.pop() {
            if room == 0 {
                return true;
            }
            let process = other(after);
            let Some((header, payload)) = self.out.take(process, || self.inner.on_way(process)) else {
                continue;
            };
            room = room.saturating_sub(payload.len());
            self.send(process, Frame { header, payload });
            if self.takes_more(process) {
                lanes.push(turn(self, after));
            }
        }
        false
    }

    /// Whether there may be a frame for a process, and its connection takes one.
    fn takes_more(&self, process: u32) -> bool {
        self.out.has_any(process) && self.inner.backlog(process) < AHEAD_BYTES
    }

    fn send(&mut self, process: u32, frame: Frame) {
        let chunk = matches!(frame.header.kind, FrameKind::Data | FrameKind::PassOn | FrameKind::Passed);
        self.flow.send(self.clock.now(), process, HEADER_BYTES + frame.payload.len(), chunk);
        self.inner.post(process, frame);
    }

    /// Asks a sibling that is quiet for a sign of life, if nothing is on its way there that would tell as much.
    fn ask(&mut self, now: Duration) {
        let Some(who) = self.out.doubtful(now) else { return };
        if now >= self.asked + outflow::QUIET && self.inner.on_way(who) == 0 {
            self.asked = now;
            self.send(
                who,
                Frame { header: Header::control(FrameKind::Have, 0, ANSWER), payload: Payload::default() },
            );
        }
    }

    /// Looks whether what is with the connections moves.
    fn feel(&mut self, now: Duration) {
        if self.flow.look(now, |process| self.inner.on_way(process)) {
            self.out.moves(now);
        }
    }

    /// Bytes that wait here for a process.
    fn lag(&self, process: u32) -> usize {
        self.out.bytes(process) + self.inner.backlog(process)
    }

    /// Leaves behind for good who is far behind its siblings and takes nothing: they go on in its place, and what is kept for it
    /// would be ever more.
    fn judge(&mut self, now: Duration) {
        if now < self.judged + JUDGE_EVERY {
            return;
        }
        self.judged = now;
        let others = (0..self.numbering.processes()).filter(|process| *process != self.numbering.me());
        let far: Vec<u32> = others.filter(|process| self.lag(*process) > LAG_BYTES).collect();
        if far.is_empty() {
            return;
        }
        self.feel(now);
        for process in far {
            let all = self.numbering.processes_of(self.numbering.rank_of(process));
            let goes_on = |other: u32| {
                other != process && self.lost[other as usize].is_none() && self.lag(other) <= LAG_BYTES
            };
            let still = self.flow.stands_still(now, process);
            if still >= STANDS_STILL && all.into_iter().any(goes_on) {
                let cause = format!(
                    "it has taken nothing for {:.1} s and is {} MB behind its other replicas: it is left behind",
                    still.as_secs_f64(),
                    self.lag(process) >> 20
                );
                self.inner.give_up(process, &cause);
            }
        }
    }

    /// Something was posted for a rank.
    fn watch(&mut self, rank: u32) {
        self.watched[rank as usize] = self.watched[rank as usize].max(self.backlog(rank));
    }

    /// Tells of ranks of whose backlog half has gone. Not only of those that something was posted for: what is sent in another's
    /// place is backlog too.
    fn relieve(&mut self, events: &mut Vec<Event>) {
        let me = self.numbering.rank();
        for rank in (0..self.numbering.ranks()).filter(|rank| *rank != me) {
            let bytes = self.backlog(rank);
            let most = &mut self.watched[rank as usize];
            if *most > 0 && bytes <= *most / 2 {
                *most = bytes;
                events.push(Event::Writable { rank });
            }
            *most = bytes.max(*most);
        }
    }

    /// Tells who might send it too what has come.
    fn tell(&mut self) {
        if !self.inflow.has_news() {
            return;
        }
        for (process, notices) in self.inflow.take_have() {
            for some in notices.chunks(notice::MOST) {
                let payload = self.inner.pool().copy_of(&notice::encode(some));
                self.send(process, Frame { header: Header::control(FrameKind::Have, 0, 0), payload });
            }
        }
    }

    fn came(&mut self, from: u32, frame: Frame, events: &mut Vec<Event>) {
        let now = self.clock.now();
        self.heard[from as usize] = now;
        let (rank, Frame { header, payload }) = (self.numbering.rank_of(from), frame);
        match header.kind {
            FrameKind::Data | FrameKind::PassOn | FrameKind::Passed => {
                let by = if header.kind == FrameKind::Passed { u32::from(header.origin) } else { from };
                if by >= self.numbering.processes() || self.numbering.rank_of(by) == self.numbering.rank() {
                    return self.damaged(from, "brings what no process of another rank sent", events);
                }
                let raced = payload.len() <= RACED_BYTES;
                let differ = self.inflow.chunk(from, by, header, payload, raced, &mut self.steps);
                self.differ(differ, events);
            }
            FrameKind::Have => {
                self.feel(now);
                // With it goes the acknowledgement, which would wait otherwise.
                if header.call == ANSWER && self.lost[from as usize].is_none() {
                    let header = Header::control(FrameKind::Have, 0, 0);
                    self.send(from, Frame { header, payload: Payload::default() });
                }
                let Some(notices) = notice::decode(payload.as_bytes(), rank) else {
                    return self.damaged(from, "sent a notice that makes no sense", events);
                };
                for Have { chunk, sum, by } in notices {
                    let over = self.inflow.over().has(chunk.comm, chunk.call);
                    let differ = self.out.have(now, from, chunk, sum, by, over);
                    self.differ(differ, events);
                }
            }
            FrameKind::Vouch if rank != self.numbering.rank() => {
                return self.damaged(from, "vouches for what another rank puts in", events);
            }
            FrameKind::Vouch => {
                let place = (header.comm, header.call);
                let unlike = self.vouched.hear(from, place, header.total, self.inflow.over());
                self.unlike(unlike, events);
            }
            FrameKind::Abort if concerns_one(payload.as_bytes()) => {
                self.inflow.abort(from, header, payload, &mut self.steps);
            }
            _ if rank == self.numbering.rank() && header.kind != FrameKind::Abort => {}
            _ => events.push(Event::Frame { from: rank, frame: Frame { header, payload } }),
        }
        self.follow(events);
    }

    /// Does what follows from what came.
    fn follow(&mut self, events: &mut Vec<Event>) {
        let mut steps = std::mem::take(&mut self.steps);
        for step in steps.drain(..) {
            match step {
                Step::Deliver(from, header, payload) => {
                    events.push(Event::Frame { from, frame: Frame { header, payload } });
                }
                Step::PassOn(header, payload) => {
                    for sibling in self.numbering.siblings() {
                        self.out.pass(sibling, header, payload.clone());
                    }
                }
                Step::Left(process, comm, call) => self.out.leave(process, comm, call),
            }
        }
        self.steps = steps;
    }

    /// Ends the call in which replicas differ, or the next one if it is over.
    fn differ(&mut self, differ: Option<Differ>, events: &mut Vec<Event>) {
        let Some(Differ { chunk, processes: (one, other) }) = differ else { return };
        let (rank, one, other) = (self.numbering.rank_of(one), one.min(other), one.max(other));
        let Chunk { comm, call, round, seq, .. } = chunk;
        let message = format!(
            "its replicas, processes {one} and {other}, sent different bytes (call {call} of group {comm:x}, round {round}, chunk \
             {seq}): they hold different data or made different calls, or took in messages of another rank whose replicas do; all \
             replicas of a rank must hold the same data and make the same calls"
        );
        self.end_with(comm, call, Error::Corrupt { rank, message }, events);
    }

    /// Ends the call into which replicas put different data, or the next one if it is over.
    fn unlike(&mut self, unlike: Option<Unlike>, events: &mut Vec<Event>) {
        let Some(Unlike { comm, call, process }) = unlike else { return };
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

    /// Lets a call of a group fail here, or the first one that has not ended; that tells all others.
    fn end_with(&mut self, comm: u64, call: u64, error: Error, events: &mut Vec<Event>) {
        let over = self.inflow.over();
        let call = if over.has(comm, call) { over.first_open(comm) } else { call };
        let header = Header::control(FrameKind::Abort, comm, call);
        let payload = self.inner.pool().copy_of(&error.to_wire());
        self.ending.get_or_insert((comm, call, error));
        events.push(Event::Frame { from: self.numbering.rank(), frame: Frame { header, payload } });
    }

    fn lose(&mut self, process: u32, loss: Loss, cause: String, events: &mut Vec<Event>) {
        self.lost[process as usize] = Some((loss, cause));
        self.out.lose(process);
        self.vouched.lose(process);
        let mut steps = std::mem::take(&mut self.steps);
        let last = self.inflow.lose(process, loss == Loss::Left, &mut steps);
        self.steps = steps;
        self.follow(events);
        let rank = self.numbering.rank_of(process);
        if !last || rank == self.numbering.rank() {
            return;
        }
        let all: Vec<u32> = self.numbering.processes_of(rank).collect();
        let lost = |process: &u32| self.lost[*process as usize].clone().expect("all are lost");
        let causes: Vec<String> = all
            .iter()
            .map(|process| {
                format!("process {process} at {}: {}", self.inner.address(*process), lost(process).1)
            })
            .collect();
        let losses: Vec<Loss> = all.iter().map(|process| lost(process).0).collect();
        // One that has left had sent all that it owed, for all of them.
        let loss = [Loss::Left, Loss::Silent].into_iter().find(|loss| losses.contains(loss));
        let cause = match &causes[..] {
            [_] => causes[0].clone(),
            _ => format!("all its replicas are ({})", causes.join("; ")),
        };
        events.push(Event::PeerDown { rank, cause, loss: loss.unwrap_or(Loss::Ended) });
    }

    /// Takes up what the transport below reports.
    fn sort(&mut self, events: &mut Vec<Event>) {
        let mut raw = std::mem::take(&mut self.raw);
        for event in raw.drain(..) {
            match event {
                Event::Frame { from, frame } => self.came(from, frame, events),
                Event::PeerDown { rank, cause, loss } => self.lose(rank, loss, cause, events),
                // Of what is here and with the connection it is told below.
                Event::Writable { .. } => {}
            }
        }
        self.raw = raw;
    }
}

/// A frame's notices of chunks sent to `rank`, and what they are encoded again.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn fuzz_notices(bytes: &[u8], rank: u32) -> Option<(Vec<Have>, Vec<u8>)> {
    notice::decode(bytes, rank).map(|notices| (notices.clone(), notice::encode(&notices)))
}

/// Whether a rank has left a call for a reason that need not trouble others.
fn concerns_one(error: &[u8]) -> bool {
    let error = Error::from_wire(error);
    matches!(error, Some(Error::Aborted { .. } | Error::Timeout { .. } | Error::PeerLost { .. }))
}

impl Transport for Replicated {
    fn rank(&self) -> u32 {
        self.numbering.rank()
    }

    fn size(&self) -> u32 {
        self.numbering.ranks()
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn address(&self, rank: u32) -> String {
        let all: Vec<String> = self.numbering.processes_of(rank).map(|p| self.inner.address(p)).collect();
        all.join(" and ")
    }

    fn ranks_on_host(&self) -> usize {
        self.inner.ranks_on_host()
    }

    fn on_one_host(&self) -> bool {
        self.inner.on_one_host()
    }

    fn is_proven(&self) -> bool {
        self.inner.is_proven()
    }

    /// Where the first replicas are: others are placed alike, or it does not matter.
    fn topology(&self) -> Topology {
        let first: Vec<u32> = (0..self.numbering.ranks()).collect();
        self.inner.topology().of_group(&first)
    }

    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn pool(&self) -> Pool {
        self.inner.pool()
    }

    fn post(&mut self, to: u32, frame: Frame) {
        let Frame { header, payload } = frame;
        let (comm, call) = (header.comm, header.call);
        if header.kind == FrameKind::Data && payload.len() > RACED_BYTES {
            let (now, heard, numbering, flow) = (self.clock.now(), &self.heard, self.numbering, &self.flow);
            let prompt = |process: u32| {
                let all = numbering.processes_of(numbering.rank_of(process));
                let latest = all.map(|p| heard[p as usize]).max().unwrap_or(now);
                heard[process as usize] + PROMPT >= latest && !flow.is_stuck(now, process)
            };
            let differ = self.out.post(now, to, header, payload, prompt);
            let mut events = std::mem::take(&mut self.waiting);
            self.differ(differ, &mut events);
            self.waiting = events;
            self.pump();
            self.watch(to);
            return;
        }
        if header.kind == FrameKind::Abort && self.told.insert((comm, call)) {
            for sibling in self.numbering.siblings() {
                self.send(sibling, Frame { header, payload: payload.clone() });
            }
        }
        for process in self.numbering.processes_of(to) {
            if self.lost[process as usize].is_none() {
                self.send(process, Frame { header, payload: payload.clone() });
            }
        }
        self.watch(to);
    }

    fn cork(&mut self, corked: bool) {
        self.inner.cork(corked);
    }

    /// Of the replica that has least; one that lags counts only once it lags far.
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
        events.append(&mut self.waiting);
        let until = self.clock.now() + wait.min(FOR_EVER);
        let mut more = self.pump();
        loop {
            self.relieve(events);
            let now = self.clock.now();
            let left = if events.len() > before { Duration::ZERO } else { until.saturating_sub(now) };
            let due = self.out.due().map_or(left, |due| due.saturating_sub(now));
            let soon = if more { FEEL_EVERY } else { left };
            let mut raw = std::mem::take(&mut self.raw);
            self.inner.poll(left.min(due).min(soon), &mut raw);
            self.raw = raw;
            self.sort(events);
            self.tell();
            self.judge(self.clock.now());
            let now = self.clock.now();
            if self.out.due().is_some_and(|due| due <= now) {
                self.feel(now);
                self.out.look(now, |to| self.inner.on_way(to), |to| self.flow.is_stuck(now, to));
                self.ask(now);
            }
            more = self.pump();
            let woken = self.woken.swap(false, Ordering::AcqRel);
            self.relieve(events);
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

    fn vouch(&mut self, comm: u64, call: u64, sum: u64) {
        let header = Header { total: sum, ..Header::control(FrameKind::Vouch, comm, call) };
        for sibling in self.numbering.siblings() {
            if self.lost[sibling as usize].is_none() {
                self.send(sibling, Frame { header, payload: Payload::default() });
            }
        }
        let (unlike, mut events) = (self.vouched.make(comm, call, sum), std::mem::take(&mut self.waiting));
        self.unlike(unlike, &mut events);
        self.waiting = events;
    }

    fn say_why(&mut self, why: &str) {
        self.inner.say_why(why);
    }

    fn close(&mut self, wait: Duration) -> Result<()> {
        let begin = self.clock.now();
        let (until, heard) = (begin + wait, begin + wait.min(VOUCH));
        let mut events = Vec::new();
        loop {
            // A sibling that owes something may be gone, and nobody know it yet.
            let now = self.clock.now();
            let until = if self.out.is_idle() && self.vouched.is_open() { heard } else { until };
            if now >= until || self.out.is_idle() && !self.vouched.is_open() {
                break;
            }
            // Rather twice than not at all.
            if now > begin + wait / 4 {
                self.out.hurry();
            }
            self.poll((until - now).min(Duration::from_millis(100)), &mut events);
            events.clear();
        }
        let closed = self.inner.close(until.saturating_sub(self.clock.now()));
        self.ending.take().map_or(closed, |(.., error)| Err(error))
    }

    fn chunk_bytes(&self) -> usize {
        SHARED_BYTES
    }

    fn goes_on(&self) -> bool {
        true
    }

    fn is_idle(&self) -> bool {
        let others = (0..self.numbering.processes()).filter(|process| *process != self.numbering.me());
        self.out.is_idle() && others.into_iter().all(|process| self.inner.backlog(process) == 0)
    }

    fn place(&self) -> (u32, u32) {
        (self.numbering.me(), self.numbering.processes())
    }

    fn end(&mut self, comm: u64, call: u64, failed: bool) {
        self.inflow.end(comm, call);
        self.told.remove(&(comm, call));
        self.vouched.end(comm, call);
        // Where it went well it was over before it heard: the next one hears.
        if let Some((.., error)) = self.ending.take_if(|(of, at, _)| (*of, *at) == (comm, call))
            && !failed
        {
            let mut events = std::mem::take(&mut self.waiting);
            self.end_with(comm, call, error, &mut events);
            self.waiting = events;
        }
        let over = self.inflow.over();
        self.out.end(comm, call, failed, |comm, call| over.has(comm, call));
    }

    fn health(&self) -> Option<Vec<Health>> {
        let now = self.clock.now();
        let of = |process: u32| {
            let (won, lost) = self.inflow.races(process);
            Health {
                process,
                rank: self.numbering.rank_of(process),
                replica: self.numbering.replica_of(process),
                address: self.inner.address(process),
                lost: self.lost[process as usize].clone(),
                late: self.out.is_late(process),
                silent: match process == self.numbering.me() {
                    true => None,
                    false => Some(now.saturating_sub(self.heard[process as usize])),
                },
                won,
                lost_races: lost,
            }
        };
        Some((0..self.numbering.processes()).map(of).collect())
    }
}

#[cfg(test)]
mod tests;
