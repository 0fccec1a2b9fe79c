//! Checksums of each call's input, compared between the replicas of a rank.
//!
//! Comparing messages is not enough: a single-rank group sends none, and a rank's own share never leaves it. So each replica sends
//! its checksum to its siblings at the beginning of a call, and no replica waits for it.

use super::chunk::EndedCalls;
use skyphos_types::{CallNumber, CommId, ProcessId};
use std::collections::{BTreeMap, BTreeSet};

/// Upper bound on the calls that are remembered, for siblings that are far behind or ahead.
const REMEMBERED: usize = 1 << 16;

/// A group's number and a call's.
type CallId = (CommId, CallNumber);

/// Two replicas have different inputs to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InputMismatch {
    pub(super) comm: CommId,
    pub(super) call: CallNumber,
    /// The sibling.
    pub(super) process: ProcessId,
}

/// Checksums that wait for a sibling's.
#[derive(Debug, Default)]
pub(super) struct InputChecksums {
    /// Siblings that are not lost.
    siblings: BTreeSet<ProcessId>,
    /// Calls begun here: the checksum, and the siblings whose checksum has not come.
    mine: BTreeMap<CallId, (u64, BTreeSet<ProcessId>)>,
    /// Checksums of siblings for calls that were not begun here yet.
    theirs: BTreeMap<CallId, BTreeMap<ProcessId, u64>>,
}

impl InputChecksums {
    pub(super) fn new(siblings: impl Iterator<Item = ProcessId>) -> InputChecksums {
        InputChecksums { siblings: siblings.collect(), ..InputChecksums::default() }
    }

    /// This process begins a call. Returns a sibling whose checksum came before and differs.
    pub(super) fn begin(&mut self, comm: CommId, call: CallNumber, sum: u64) -> Option<InputMismatch> {
        let received = self.theirs.remove(&(comm, call)).unwrap_or_default();
        let open: BTreeSet<ProcessId> =
            self.siblings.iter().filter(|p| !received.contains_key(p)).copied().collect();
        if !open.is_empty() {
            self.mine.insert((comm, call), (sum, open));
            limit(&mut self.mine);
        }
        let (process, _) = received.into_iter().find(|(_, theirs)| *theirs != sum)?;
        Some(InputMismatch { comm, call, process })
    }

    /// A sibling has begun a call. Returns the mismatch, if this process has begun it with another checksum.
    pub(super) fn receive(
        &mut self,
        process: ProcessId,
        (comm, call): CallId,
        sum: u64,
        over: &EndedCalls,
    ) -> Option<InputMismatch> {
        let id = (comm, call);
        let Some((own, open)) = self.mine.get_mut(&id) else {
            // A call that is over without a checksum has failed here before its input was read.
            if !over.has(comm, call) {
                self.theirs.entry(id).or_default().insert(process, sum);
                limit(&mut self.theirs);
            }
            return None;
        };
        let differ = *own != sum && open.contains(&process);
        open.remove(&process);
        if open.is_empty() {
            self.mine.remove(&id);
        }
        differ.then_some(InputMismatch { comm, call, process })
    }

    /// A call has ended here.
    pub(super) fn end(&mut self, comm: CommId, call: CallNumber) {
        self.theirs.remove(&(comm, call));
    }

    /// A process is gone.
    pub(super) fn lose(&mut self, process: ProcessId) {
        if self.siblings.remove(&process) {
            self.mine.retain(|_, (_, open)| {
                open.remove(&process);
                !open.is_empty()
            });
        }
    }

    /// Whether a call that was begun here has not been begun by all siblings.
    pub(super) fn is_open(&self) -> bool {
        !self.mine.is_empty()
    }
}

fn limit<V>(calls: &mut BTreeMap<CallId, V>) {
    if calls.len() > REMEMBERED {
        calls.pop_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_is_compared_once_whichever_comes_first() {
        let over = EndedCalls::default();
        let mismatch = |call, process| Some(InputMismatch { comm: CommId(0), call, process });
        let mut checksums = InputChecksums::new([3, 6].map(ProcessId).into_iter());
        assert_eq!(checksums.begin(CommId(0), CallNumber(0), 7), None);
        assert_eq!(checksums.receive(ProcessId(3), (CommId(0), CallNumber(0)), 7, &over), None);
        assert!(checksums.is_open(), "6 has not come");
        assert_eq!(
            checksums.receive(ProcessId(6), (CommId(0), CallNumber(0)), 8, &over),
            mismatch(CallNumber(0), ProcessId(6))
        );
        assert!(!checksums.is_open());
        assert_eq!(checksums.receive(ProcessId(6), (CommId(0), CallNumber(1)), 5, &over), None);
        assert_eq!(checksums.begin(CommId(0), CallNumber(1), 4), mismatch(CallNumber(1), ProcessId(6)));
        assert_eq!(checksums.receive(ProcessId(3), (CommId(0), CallNumber(1)), 4, &over), None);
        assert!(!checksums.is_open());
    }

    #[test]
    fn lost_siblings_and_calls_that_failed_here_are_not_waited_for() {
        let mut over = EndedCalls::default();
        let mut checksums = InputChecksums::new([1].map(ProcessId).into_iter());
        assert_eq!(checksums.receive(ProcessId(1), (CommId(0), CallNumber(0)), 1, &over), None);
        over.end(CommId(0), CallNumber(0));
        checksums.end(CommId(0), CallNumber(0));
        assert_eq!(checksums.receive(ProcessId(1), (CommId(0), CallNumber(0)), 1, &over), None);
        assert!(checksums.theirs.is_empty());
        assert_eq!(checksums.begin(CommId(0), CallNumber(1), 2), None);
        checksums.lose(ProcessId(1));
        assert!(!checksums.is_open());
        assert_eq!(checksums.begin(CommId(0), CallNumber(2), 2), None);
        assert!(!checksums.is_open());
    }

    #[test]
    fn a_sibling_far_behind_does_not_fill_the_memory() {
        let mut checksums = InputChecksums::new([1].map(ProcessId).into_iter());
        for call in 0..2 * REMEMBERED as u64 {
            assert_eq!(checksums.begin(CommId(0), CallNumber(call), call), None);
        }
        assert_eq!(checksums.mine.len(), REMEMBERED);
        assert_eq!(
            checksums.receive(ProcessId(1), (CommId(0), CallNumber(0)), 1, &EndedCalls::default()),
            None,
            "forgotten"
        );
    }
}
