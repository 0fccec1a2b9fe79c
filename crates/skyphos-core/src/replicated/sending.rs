//! Sending on the connections below: the order of processes, and processes that lag.

use super::acknowledgements;
use super::outflow::QUIET;
use super::transport::{AHEAD_BYTES, LAG_BYTES, RACED_BYTES, Replicated, in_flight};
use crate::frame::{Frame, FrameKind, HEADER_BYTES, Header};
use crate::slab::Payload;
use crate::transport::{Event, Transport};
use skyphos_types::{CallNumber, CommId, ProcessId, WorldRank};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A replica that lags by [`LAG_BYTES`] and has taken nothing for this time, stopped or unreachable, is given up.
const STALL_LIMIT: Duration = Duration::from_secs(2);

/// Time between checks for such replicas.
const LAG_CHECK_EVERY: Duration = Duration::from_millis(100);

/// The call number of an acknowledgement frame that requests an answer.
pub(super) const WANTS_ANSWER: CallNumber = CallNumber(1);

impl Replicated {
    /// Passes frames to the connections, as many as flow control allows. Returns whether more are left.
    ///
    /// The process with the fewest bytes on their way comes first: the other links are busy, and would use up the allowance while its
    /// link idles. Among equals the process with the longest queue comes first, so all finish together; after that the order begins at
    /// another process on each replica.
    pub(super) fn pump(&mut self) -> bool {
        let (me, all) = (self.numbering.me(), self.numbering.processes());
        let other = |after: u32| ProcessId((me.0 + after) % all);
        let open: Vec<u32> = (1..all).filter(|after| self.takes_more(other(*after))).collect();
        if open.is_empty() {
            return false;
        }
        let now = self.clock.now();
        self.update_flow(now);
        let mut allowance = self.flow.allowance(now);
        let turn = |this: &Replicated, after: u32| {
            let in_flight = this.flow.in_flight(other(after)) / RACED_BYTES as u64;
            Reverse((in_flight, Reverse(this.out.bytes(other(after))), after))
        };
        let mut queues: BinaryHeap<_> = open.into_iter().map(|after| turn(self, after)).collect();
        while let Some(Reverse((.., after))) = queues.pop() {
            if allowance == 0 {
                return true;
            }
            let process = other(after);
            let Some((header, payload)) = self.out.take(process, || in_flight(&*self.inner, process)) else {
                continue;
            };
            allowance = allowance.saturating_sub(payload.len());
            self.send(process, Frame { header, payload });
            if self.takes_more(process) {
                queues.push(turn(self, after));
            }
        }
        false
    }

    /// Whether there may be a frame for a process whose connection takes one.
    pub(super) fn takes_more(&self, process: ProcessId) -> bool {
        self.out.has_any(process) && self.inner.backlog(process.rank_below()) < AHEAD_BYTES
    }

    pub(super) fn send(&mut self, process: ProcessId, frame: Frame) {
        let chunk = matches!(frame.header.kind, FrameKind::Data | FrameKind::Forward | FrameKind::Forwarded);
        self.flow.send(self.clock.now(), process, HEADER_BYTES + frame.payload.len(), chunk);
        self.inner.post(process.rank_below(), frame);
    }

    /// Requests a sign of life from a quiet sibling, unless bytes are on their way there: their arrival shows the same.
    pub(super) fn probe_quiet_sibling(&mut self, now: Duration) {
        let Some(sibling) = self.out.sibling_to_probe(now) else { return };
        if now >= self.last_probe + QUIET && in_flight(&*self.inner, sibling) == 0 {
            self.last_probe = now;
            self.send(
                sibling,
                Frame {
                    header: Header::control(FrameKind::Acknowledge, CommId(0), WANTS_ANSWER),
                    payload: Payload::default(),
                },
            );
        }
    }

    /// Notes whether bytes handed to the connections have moved.
    pub(super) fn update_flow(&mut self, now: Duration) {
        if self.flow.update(now, |process| in_flight(&*self.inner, process)) {
            self.out.note_progress(now);
        }
    }

    /// Bytes that wait here for a process.
    pub(super) fn lag(&self, process: ProcessId) -> usize {
        self.out.bytes(process) + self.inner.backlog(process.rank_below())
    }

    /// Gives up processes that lag far behind their siblings and take no bytes: their siblings continue, and the bytes kept for them
    /// would grow without bound.
    pub(super) fn drop_laggards(&mut self, now: Duration) {
        if now < self.last_lag_check + LAG_CHECK_EVERY {
            return;
        }
        self.last_lag_check = now;
        let others = self.numbering.all().filter(|process| *process != self.numbering.me());
        let laggards: Vec<ProcessId> = others.filter(|process| self.lag(*process) > LAG_BYTES).collect();
        if laggards.is_empty() {
            return;
        }
        self.update_flow(now);
        for process in laggards {
            let all = self.numbering.processes_of(self.numbering.rank_of(process));
            let goes_on = |other: ProcessId| {
                other != process && self.lost[other.index()].is_none() && self.lag(other) <= LAG_BYTES
            };
            let still = self.flow.stalled_for(now, process);
            if still >= STALL_LIMIT && all.into_iter().any(goes_on) {
                let cause = format!(
                    "it has taken nothing for {:.1} s and is {} MB behind its other replicas: it is left behind",
                    still.as_secs_f64(),
                    self.lag(process) >> 20
                );
                self.inner.give_up(process.rank_below(), &cause);
            }
        }
    }

    /// Notes the backlog to a rank after a post.
    pub(super) fn note_backlog(&mut self, rank: WorldRank) {
        self.backlog_peaks[rank.index()] = self.backlog_peaks[rank.index()].max(self.backlog(rank));
    }

    /// Reports ranks whose backlog has halved, also without a post: chunks sent in a sibling's place are backlog too.
    pub(super) fn report_writable(&mut self, events: &mut Vec<Event>) {
        let me = self.numbering.rank();
        for rank in (0..self.numbering.ranks()).filter(|rank| *rank != me.0) {
            let bytes = self.backlog(WorldRank(rank));
            let peak = &mut self.backlog_peaks[rank as usize];
            if *peak > 0 && bytes <= *peak / 2 {
                *peak = bytes;
                events.push(Event::Writable { rank: WorldRank(rank) });
            }
            *peak = bytes.max(*peak);
        }
    }

    /// Acknowledges chunks to the processes that might send them too.
    pub(super) fn send_acknowledgements(&mut self) {
        if !self.inflow.has_acknowledgements() {
            return;
        }
        for (process, all) in self.inflow.take_acknowledgements() {
            for of_frame in all.chunks(acknowledgements::MAX_CHUNKS) {
                let payload = self.facts.pool.copy_of(&acknowledgements::encode(of_frame));
                self.send(
                    process,
                    Frame {
                        header: Header::control(FrameKind::Acknowledge, CommId(0), CallNumber(0)),
                        payload,
                    },
                );
            }
        }
    }
}
