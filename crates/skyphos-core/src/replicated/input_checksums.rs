//! Checksums of each call's input, compared between the replicas of a rank.
//!
//! Comparing messages is not enough: a single-rank group sends none, and a rank's own share never leaves it. So each replica sends
//! its checksum to its siblings at the beginning of a call, and no replica waits for it.

use super::chunk::Over;
use std::collections::{BTreeMap, BTreeSet};

/// Most calls that are remembered, if siblings are far behind or ahead.
const REMEMBERED: usize = 1 << 16;

/// A group's number and a call's.
type Place = (u64, u64);

/// Two replicas have different inputs to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InputMismatch {
    pub(super) comm: u64,
    pub(super) call: u64,
    /// The sibling.
    pub(super) process: u32,
}

/// Checksums that wait for a sibling's.
#[derive(Debug, Default)]
pub(super) struct InputChecksums {
    /// Siblings that are not lost.
    siblings: BTreeSet<u32>,
    /// Calls begun here: the checksum, and the siblings whose checksum has not come.
    mine: BTreeMap<Place, (u64, BTreeSet<u32>)>,
    /// Checksums of siblings for calls that were not begun here yet.
    theirs: BTreeMap<Place, BTreeMap<u32, u64>>,
}

impl InputChecksums {
    pub(super) fn new(siblings: impl Iterator<Item = u32>) -> InputChecksums {
        InputChecksums { siblings: siblings.collect(), ..InputChecksums::default() }
    }

    /// This process begins a call.
    pub(super) fn begin(&mut self, comm: u64, call: u64, sum: u64) -> Option<InputMismatch> {
        let received = self.theirs.remove(&(comm, call)).unwrap_or_default();
        let open: BTreeSet<u32> =
            self.siblings.iter().filter(|p| !received.contains_key(p)).copied().collect();
        if !open.is_empty() {
            self.mine.insert((comm, call), (sum, open));
            limit(&mut self.mine);
        }
        let (process, _) = received.into_iter().find(|(_, theirs)| *theirs != sum)?;
        Some(InputMismatch { comm, call, process })
    }

    /// A sibling has begun a call.
    pub(super) fn receive(
        &mut self,
        process: u32,
        (comm, call): Place,
        sum: u64,
        over: &Over,
    ) -> Option<InputMismatch> {
        let place = (comm, call);
        let Some((own, open)) = self.mine.get_mut(&place) else {
            // A call that is over without a checksum has failed here before its input was read.
            if !over.has(comm, call) {
                self.theirs.entry(place).or_default().insert(process, sum);
                limit(&mut self.theirs);
            }
            return None;
        };
        let differ = *own != sum && open.contains(&process);
        open.remove(&process);
        if open.is_empty() {
            self.mine.remove(&place);
        }
        differ.then_some(InputMismatch { comm, call, process })
    }

    /// A call has ended here.
    pub(super) fn end(&mut self, comm: u64, call: u64) {
        self.theirs.remove(&(comm, call));
    }

    /// A process is gone.
    pub(super) fn lose(&mut self, process: u32) {
        if self.siblings.remove(&process) {
            self.mine.retain(|_, (_, open)| {
                open.remove(&process);
                !open.is_empty()
            });
        }
    }

    /// Whether calls that were begun here were not begun by all siblings.
    pub(super) fn is_open(&self) -> bool {
        !self.mine.is_empty()
    }
}

fn limit<V>(calls: &mut BTreeMap<Place, V>) {
    if calls.len() > REMEMBERED {
        calls.pop_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_is_compared_once_whichever_comes_first() {
        let over = Over::default();
        let mismatch = |call, process| Some(InputMismatch { comm: 0, call, process });
        let mut checksums = InputChecksums::new([3, 6].into_iter());
        assert_eq!(checksums.begin(0, 0, 7), None);
        assert_eq!(checksums.receive(3, (0, 0), 7, &over), None);
        assert!(checksums.is_open(), "6 has not come");
        assert_eq!(checksums.receive(6, (0, 0), 8, &over), mismatch(0, 6));
        assert!(!checksums.is_open());
        assert_eq!(checksums.receive(6, (0, 1), 5, &over), None);
        assert_eq!(checksums.begin(0, 1, 4), mismatch(1, 6));
        assert_eq!(checksums.receive(3, (0, 1), 4, &over), None);
        assert!(!checksums.is_open());
    }

    #[test]
    fn lost_siblings_and_calls_that_failed_here_are_not_waited_for() {
        let mut over = Over::default();
        let mut checksums = InputChecksums::new([1].into_iter());
        assert_eq!(checksums.receive(1, (0, 0), 1, &over), None);
        over.end(0, 0);
        checksums.end(0, 0);
        assert_eq!(checksums.receive(1, (0, 0), 1, &over), None);
        assert!(checksums.theirs.is_empty());
        assert_eq!(checksums.begin(0, 1, 2), None);
        checksums.lose(1);
        assert!(!checksums.is_open());
        assert_eq!(checksums.begin(0, 2, 2), None);
        assert!(!checksums.is_open());
    }

    #[test]
    fn a_sibling_far_behind_does_not_fill_the_memory() {
        let mut checksums = InputChecksums::new([1].into_iter());
        for call in 0..2 * REMEMBERED as u64 {
            assert_eq!(checksums.begin(0, call, call), None);
        }
        assert_eq!(checksums.mine.len(), REMEMBERED);
        assert_eq!(checksums.receive(1, (0, 0), 1, &Over::default()), None, "forgotten");
    }
}
