//! What replicas of a rank put into each call: compared by checksum, whether or not it is ever sent.
//!
//! A call's messages tell less: a rank that has all processes sends none, and what a rank keeps of its own goes nowhere. So each
//! replica tells its siblings at the beginning of a call, and nobody waits for that.

use super::chunk::Over;
use std::collections::{BTreeMap, BTreeSet};

/// Calls that are kept, at most, of siblings that are far behind or ahead.
const KEPT: usize = 1 << 16;

/// A group's number and a call's.
type Place = (u64, u64);

/// Two replicas put different data into a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unlike {
    pub(super) comm: u64,
    pub(super) call: u64,
    /// The sibling.
    pub(super) process: u32,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Vouched {
    /// Who is there to be compared with.
    siblings: BTreeSet<u32>,
    /// Calls made here: checksum, and whose is not known yet.
    mine: BTreeMap<Place, (u64, BTreeSet<u32>)>,
    /// What siblings said of calls that were not made here so far.
    theirs: BTreeMap<Place, BTreeMap<u32, u64>>,
}

impl Vouched {
    pub(super) fn new(siblings: impl Iterator<Item = u32>) -> Vouched {
        Vouched { siblings: siblings.collect(), ..Vouched::default() }
    }

    /// A call is made here.
    pub(super) fn make(&mut self, comm: u64, call: u64, sum: u64) -> Option<Unlike> {
        let said = self.theirs.remove(&(comm, call)).unwrap_or_default();
        let open: BTreeSet<u32> = self.siblings.iter().filter(|p| !said.contains_key(p)).copied().collect();
        if !open.is_empty() {
            self.mine.insert((comm, call), (sum, open));
            limit(&mut self.mine);
        }
        let (process, _) = said.into_iter().find(|(_, theirs)| *theirs != sum)?;
        Some(Unlike { comm, call, process })
    }

    /// A sibling has made a call.
    pub(super) fn hear(
        &mut self,
        process: u32,
        (comm, call): Place,
        sum: u64,
        over: &Over,
    ) -> Option<Unlike> {
        let place = (comm, call);
        let Some((own, open)) = self.mine.get_mut(&place) else {
            // Over without a word: it had failed here before anything was put in.
            if !over.has(comm, call) {
                self.theirs.entry(place).or_default().insert(process, sum);
                limit(&mut self.theirs);
            }
            return None;
        };
        let unlike = *own != sum && open.contains(&process);
        open.remove(&process);
        if open.is_empty() {
            self.mine.remove(&place);
        }
        unlike.then_some(Unlike { comm, call, process })
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

    /// Whether siblings have yet to make calls that were made here.
    pub(super) fn is_open(&self) -> bool {
        !self.mine.is_empty()
    }
}

fn limit<V>(calls: &mut BTreeMap<Place, V>) {
    if calls.len() > KEPT {
        calls.pop_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_first_it_is_compared_once() {
        let over = Over::default();
        let unlike = |call, process| Some(Unlike { comm: 0, call, process });
        let mut vouched = Vouched::new([3, 6].into_iter());
        assert_eq!(vouched.make(0, 0, 7), None);
        assert_eq!(vouched.hear(3, (0, 0), 7, &over), None);
        assert!(vouched.is_open(), "6 has not come");
        assert_eq!(vouched.hear(6, (0, 0), 8, &over), unlike(0, 6));
        assert!(!vouched.is_open());
        assert_eq!(vouched.hear(6, (0, 1), 5, &over), None);
        assert_eq!(vouched.make(0, 1, 4), unlike(1, 6));
        assert_eq!(vouched.hear(3, (0, 1), 4, &over), None);
        assert!(!vouched.is_open());
    }

    #[test]
    fn nobody_waits_for_who_is_gone_or_for_a_call_that_failed_here() {
        let mut over = Over::default();
        let mut vouched = Vouched::new([1].into_iter());
        assert_eq!(vouched.hear(1, (0, 0), 1, &over), None);
        over.end(0, 0);
        vouched.end(0, 0);
        assert_eq!(vouched.hear(1, (0, 0), 1, &over), None);
        assert!(vouched.theirs.is_empty());
        assert_eq!(vouched.make(0, 1, 2), None);
        vouched.lose(1);
        assert!(!vouched.is_open());
        assert_eq!(vouched.make(0, 2, 2), None);
        assert!(!vouched.is_open());
    }

    #[test]
    fn a_sibling_far_behind_does_not_fill_the_memory() {
        let mut vouched = Vouched::new([1].into_iter());
        for call in 0..2 * KEPT as u64 {
            assert_eq!(vouched.make(0, call, call), None);
        }
        assert_eq!(vouched.mine.len(), KEPT);
        assert_eq!(vouched.hear(1, (0, 0), 1, &Over::default()), None, "forgotten");
    }
}
