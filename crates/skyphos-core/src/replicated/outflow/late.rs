//! Detection of late siblings, which have not sent their chunks in time.

use super::next::MORE_BYTES;
use super::queue::Fallback;
use super::state::Outflow;
use crate::replicated::chunk::Body;
use skyphos_types::ProcessId;
use std::time::Duration;

/// A sibling may take as long for a chunk as this process did, plus that time divided by this.
const OWN_TIME_DIVISOR: u32 = 4;

/// More chunks than are ever sent: no limit.
const UNLIMITED: usize = usize::MAX / MORE_BYTES / 2;

/// Time without an acknowledgement of a sibling's chunks after which the sibling is probed, and the interval of the probes.
pub(in crate::replicated) const QUIET: Duration = Duration::from_millis(10);
/// Time without such an acknowledgement after which the sibling is late, if bytes to it do not arrive either.
const UNREACHABLE: Duration = Duration::from_millis(30);

impl<B: Body> Outflow<B> {
    /// Notes that a frame of this process has moved.
    pub fn note_progress(&mut self, now: Duration) {
        self.last_progress = now;
    }

    /// The sibling whose chunks were not acknowledged for longest, and since when.
    fn quietest(&mut self) -> Option<(ProcessId, Duration)> {
        let processes = self.numbering.all();
        let oldest = processes.filter_map(|to| self.first_fallback(to).map(|fallback| (to, fallback)));
        let owed: Vec<(ProcessId, Fallback)> =
            oldest.filter(|(_, fallback)| fallback.via.is_none()).collect();
        let quiet = owed.into_iter().filter_map(|(to, fallback)| {
            let sibling = self.owner(&fallback.chunk, to);
            let last = self.last_delivery.get(&sibling).copied().unwrap_or_default();
            (sibling != self.numbering.me()).then(|| (sibling, last.max(self.pending[&fallback.chunk].since)))
        });
        quiet.min_by_key(|(_, since)| *since)
    }

    /// The sibling to probe now, and every [`QUIET`] while it is the same.
    pub fn sibling_to_probe(&mut self, now: Duration) -> Option<ProcessId> {
        self.quietest().filter(|(_, since)| now >= *since + QUIET).map(|(sibling, _)| sibling)
    }

    /// Checks whether the quietest sibling is late.
    fn check_quiet(&mut self, now: Duration, stuck: &impl Fn(ProcessId) -> bool) {
        self.last_check = now;
        let Some((sibling, since)) = self.quietest() else { return };
        if now >= since + UNREACHABLE && stuck(sibling) {
            self.late.insert(sibling);
            self.sent_instead = UNLIMITED;
            self.forward_if_alone();
        }
    }

    /// When to check for late siblings, if no event comes before.
    pub fn next_check(&mut self) -> Option<Duration> {
        let overdue = self.numbering.all().filter_map(|to| self.overdue(to).map(|(at, _)| at)).min();
        let quiet = self.quietest().map(|(_, since)| (since + QUIET).max(self.last_check + QUIET / 2));
        let by_others =
            self.queues.iter().any(|queue| queue.fallback.iter().any(|fallback| fallback.via.is_some()));
        let passed = by_others.then_some(self.last_check + QUIET);
        overdue.into_iter().chain(quiet).chain(passed).min()
    }

    /// The first fallback chunk to a process, and when it is overdue.
    fn overdue(&mut self, to: ProcessId) -> Option<(Duration, Fallback)> {
        let first = self.first_fallback(to)?;
        let queue = &self.queues[to.index()];
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
        Some((quiet + (quiet - since) / OWN_TIME_DIVISOR + self.delay.limit(), first))
    }

    /// Checks which siblings are late. `in_flight`: bytes of this process that are on their way to another; if there are any, siblings'
    /// chunks may be on their way too, or the receiver cannot be reached. `stuck`: whether bytes to a process do not arrive.
    pub fn check(
        &mut self,
        now: Duration,
        in_flight: impl Fn(ProcessId) -> usize,
        stuck: impl Fn(ProcessId) -> bool,
    ) {
        self.check_quiet(now, &stuck);
        for fallback in self.queues.iter_mut().flat_map(|queue| &mut queue.fallback) {
            fallback.via = fallback.via.filter(|via| !stuck(*via));
        }
        for to in self.numbering.all() {
            let Some((at, fallback)) = self.overdue(to) else { continue };
            if at > now {
                continue;
            }
            if in_flight(to) > 0 {
                self.queues[to.index()].busy = now;
                continue;
            }
            match fallback.via {
                Some(via) => {
                    let fallbacks = self.queues[to.index()].fallback.iter_mut();
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
}
