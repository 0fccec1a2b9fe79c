//! The transport whose ranks are several processes each.

use super::flow::Flow;
use super::inflow::{Action, Inflow};
use super::input_checksums::InputChecksums;
use super::numbering::Numbering;
use super::outflow::Outflow;
use crate::clock::Clock;
use crate::extensions::{NativeCollectives, Replication, UnderReplicas};
use crate::frame::{Frame, FrameKind, Header};
use crate::slab::Payload;
use crate::transport::{Event, Facts, Health, Loss, Transport, Waker};
use skyphos_types::{CallNumber, CommId, Error, ProcessId, Result, WorldRank};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Messages up to this size are sent by all replicas.
pub const RACED_BYTES: usize = 4096;

/// Chunk size of larger messages. It is small, so that a link has chunks to several receivers at once and does not idle while one
/// receiver is busy, and so that forwarded chunks come only a little later.
pub(super) const SHARED_BYTES: usize = 32 * 1024;

/// Most unsent bytes handed to a connection. Later frames stay queued here, where they can be cancelled.
pub(super) const AHEAD_BYTES: usize = 128 * 1024;

/// How long a closing process waits for its siblings' checksums.
const CHECKSUM_WAIT: Duration = Duration::from_secs(2);

/// Upper bound on a wait, so that times do not overflow.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Time between checks whether bytes on their way have arrived, which no event reports.
const FLOW_CHECK_EVERY: Duration = Duration::from_millis(1);

/// A process whose last frame is this much older than the latest frame of its siblings is not chosen to forward chunks.
const PROMPT: Duration = Duration::from_millis(200);

/// Bytes by which one replica may lag behind another before the sender waits for it. Each replica of a sender keeps that many
/// bytes for it.
pub(super) const LAG_BYTES: usize = 128 << 20;

/// A transport whose ranks are several processes each.
pub struct Replicated {
    pub(super) inner: Box<dyn Transport>,
    /// Properties of the transport under it.
    pub(super) facts: Facts,
    pub(super) numbering: Numbering,
    pub(super) out: Outflow<Payload>,
    pub(super) inflow: Inflow<Payload>,
    pub(super) clock: Clock,
    /// By process: how it was lost, and when its last frame arrived.
    pub(super) lost: Vec<Option<(Loss, String)>>,
    pub(super) last_heard: Vec<Duration>,
    /// Calls whose abort this process has sent to its siblings.
    pub(super) aborted: BTreeSet<(CommId, CallNumber)>,
    pub(super) input_checksums: InputChecksums,
    /// The call that fails because replicas differ, and the error. If it is never made, `close` returns the error.
    pub(super) failure: Option<(CommId, CallNumber, Error)>,
    /// Events for the next poll.
    pub(super) pending_events: Vec<Event>,
    pub(super) inner_events: Vec<Event>,
    pub(super) actions: Vec<Action<Payload>>,
    pub(super) woken: Arc<AtomicBool>,
    pub(super) flow: Flow,
    /// When a sibling was last probed.
    pub(super) last_probe: Duration,
    /// When lagging replicas were last looked for.
    pub(super) last_lag_check: Duration,
    /// Maximum of each rank's backlog: once half of it has gone, `Writable` is reported. The connections below do not report it, for
    /// they may take all bytes at once.
    pub(super) backlog_peaks: Vec<usize>,
}

/// Bytes posted to a process that its system has not acknowledged, as far as the transport knows.
pub(super) fn in_flight(transport: &dyn Transport, to: ProcessId) -> usize {
    transport.unacknowledged(to.rank_below()).unwrap_or_else(|| transport.backlog(to.rank_below()))
}

impl Replicated {
    /// Forms ranks of at least `replication` processes. All processes pass the same arguments; nothing is sent.
    /// `share_hosts`: replicas of a rank may be on one host, for experiments.
    /// `waiting`: events that [`super::startup_broadcast`] has received and not used.
    pub fn new(
        mut inner: Box<dyn Transport>,
        replication: u32,
        share_hosts: bool,
        waiting: Vec<Event>,
    ) -> Result<Replicated> {
        let facts = inner.facts();
        let numbering = Numbering::new(inner.size(), replication, inner.rank().process())?;
        if !share_hosts {
            let address = |process: ProcessId| facts.addresses[process.index()].clone();
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
            inner_events: waiting,
            actions: Vec::new(),
            woken: Arc::default(),
            flow: Flow::new(processes),
            last_probe: Duration::ZERO,
            last_lag_check: Duration::ZERO,
            backlog_peaks: vec![0; numbering.ranks() as usize],
        })
    }
}

impl NativeCollectives for Replicated {}

impl UnderReplicas for Replicated {}

impl Replication for Replicated {
    fn process(&self) -> Option<(ProcessId, u32)> {
        Some((self.numbering.me(), self.numbering.processes()))
    }

    fn health(&self) -> Option<Vec<Health>> {
        let now = self.clock.now();
        let health_of = |process: ProcessId| {
            let (won, lost) = self.inflow.races(process);
            Health {
                process: process.0,
                rank: self.numbering.rank_of(process).0,
                replica: self.numbering.replica_of(process),
                address: self.facts.addresses[process.index()].clone(),
                lost: self.lost[process.index()].clone(),
                late: self.out.is_late(process),
                silent: match process == self.numbering.me() {
                    true => None,
                    false => Some(now.saturating_sub(self.last_heard[process.index()])),
                },
                won,
                lost_races: lost,
            }
        };
        Some(self.numbering.all().map(health_of).collect())
    }

    fn set_input_checksum(&mut self, comm: CommId, call: CallNumber, sum: u64) {
        let header = Header { total: sum, ..Header::control(FrameKind::InputChecksum, comm, call) };
        for sibling in self.numbering.siblings() {
            if self.lost[sibling.index()].is_none() {
                self.send(sibling, Frame { header, payload: Payload::default() });
            }
        }
        let (mismatch, mut events) =
            (self.input_checksums.begin(comm, call, sum), std::mem::take(&mut self.pending_events));
        self.fail_by_input(mismatch, &mut events);
        self.pending_events = events;
    }

    fn end_call(&mut self, comm: CommId, call: CallNumber, failed: bool) {
        self.inflow.end(comm, call);
        self.aborted.remove(&(comm, call));
        self.input_checksums.end(comm, call);
        // A call that succeeded was over before the error came: the next call fails.
        let is_it = |failure: &mut (CommId, CallNumber, Error)| (failure.0, failure.1) == (comm, call);
        if let Some((.., error)) = self.failure.take_if(is_it)
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
    fn rank(&self) -> WorldRank {
        self.numbering.rank()
    }

    fn size(&self) -> u32 {
        self.numbering.ranks()
    }

    fn facts(&self) -> Facts {
        let ranks: Vec<u32> = (0..self.numbering.ranks()).collect();
        let address = |rank: &u32| {
            let all: Vec<&str> = self
                .numbering
                .processes_of(WorldRank(*rank))
                .map(|p| &*self.facts.addresses[p.index()])
                .collect();
            all.join(" and ")
        };
        // The topology of the first replicas. Other replicas are placed alike, or their placement does not matter.
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

    fn post(&mut self, to: WorldRank, frame: Frame) {
        let Frame { header, payload } = frame;
        let (comm, call) = (header.comm, header.call);
        if header.kind == FrameKind::Data && payload.len() > RACED_BYTES {
            let (now, heard, numbering, flow) =
                (self.clock.now(), &self.last_heard, self.numbering, &self.flow);
            let prompt = |process: ProcessId| {
                let all = numbering.processes_of(numbering.rank_of(process));
                let latest = all.map(|p| heard[p.index()]).max().unwrap_or(now);
                heard[process.index()] + PROMPT >= latest && !flow.is_stuck(now, process)
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
            if self.lost[process.index()].is_none() {
                self.send(process, Frame { header, payload: payload.clone() });
            }
        }
        self.note_backlog(to);
    }

    fn cork(&mut self, corked: bool) {
        self.inner.cork(corked);
    }

    /// The backlog of the fastest replica; a slower one counts only once it lags far.
    fn backlog(&self, to: WorldRank) -> usize {
        let here = self.numbering.processes_of(to).filter(|process| self.lost[process.index()].is_none());
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
            let mut inner_events = std::mem::take(&mut self.inner_events);
            self.inner.poll(left.min(due).min(soon), &mut inner_events);
            self.inner_events = inner_events;
            self.file_events(events);
            self.send_acknowledgements();
            self.drop_laggards(self.clock.now());
            let now = self.clock.now();
            if self.out.next_check().is_some_and(|due| due <= now) {
                self.update_flow(now);
                self.out.check(now, |to| in_flight(&*self.inner, to), |to| self.flow.is_stuck(now, to));
                self.probe_quiet_sibling(now);
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
        let (until, checksums_until) = (begin + wait, begin + wait.min(CHECKSUM_WAIT));
        let mut events = Vec::new();
        loop {
            // Siblings' chunks are waited for too: a sibling may be lost without any process having noticed.
            let now = self.clock.now();
            let only_checksums = self.out.is_idle() && self.input_checksums.is_open();
            let until = if only_checksums { checksums_until } else { until };
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
        let others = self.numbering.all().filter(|process| *process != self.numbering.me());
        self.out.is_idle() && others.into_iter().all(|process| self.inner.backlog(WorldRank(process.0)) == 0)
    }
}
