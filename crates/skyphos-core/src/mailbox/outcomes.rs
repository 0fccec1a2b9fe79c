//! Outcomes of a group's calls, as far as this rank's program knows them, and whether a peer's program can know the same.
//!
//! Ranks whose programs have seen different calls fail may be at different points of the program, although their calls look
//! alike. Each frame carries a hash of the failures that its sender's program knows ([`CallSig::outcomes`]). A different hash
//! alone is no error: a call under way may fail on one rank before the others have waited for it. So both ranks send each
//! other their [`Outcomes`], and the call goes on only if these fit.

use crate::frame::OUTCOME_BITS;
use skyphos_types::CallNumber;
use std::collections::VecDeque;

/// Upper bound on the failures that a group remembers, and on the calls of which it never learns the outcome: peers request
/// both soon.
const REMEMBERED: usize = 1024;

/// A call that the program knows has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failure {
    call: CallNumber,
    /// Calls that the program had begun when it learnt of the failure.
    reported_at: CallNumber,
    /// The program learnt of it at once, before the call was under way, and may have skipped the calls after it.
    at_once: bool,
}

const HASH_MASK: u16 = (1 << OUTCOME_BITS) - 1;

/// A failed call's term of the hash.
fn hash_term(call: CallNumber) -> u16 {
    (call.0.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - OUTCOME_BITS)) as u16
}

/// A program's knowledge of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Succeeded,
    Failed(Failure),
    /// The call is under way, or the program has not read its outcome.
    Unreported,
}

/// Outcomes that a program knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcomes {
    failures: VecDeque<Failure>,
    /// Calls whose outcome the program does not know yet, in ascending order.
    unreported: VecDeque<CallNumber>,
    /// Calls whose outcome the program never learns: their `Work` was dropped, or a rank was lost, which is agreed on in its own way.
    never: VecDeque<CallNumber>,
    /// Calls before this one are forgotten.
    since: CallNumber,
    hash: u16,
}

impl Outcomes {
    /// The hash of the known failures. It is equal on ranks whose programs know of the same failures.
    pub(crate) fn hash(&self) -> u16 {
        self.hash
    }

    /// The program makes a call.
    pub(crate) fn begin(&mut self, call: CallNumber) {
        self.unreported.push_back(call);
    }

    /// The program learns that a call has succeeded.
    pub(crate) fn succeed(&mut self, call: CallNumber) {
        self.settle(call);
    }

    fn settle(&mut self, call: CallNumber) {
        if let Ok(index) = self.unreported.binary_search(&call) {
            self.unreported.remove(index);
        }
    }

    /// The program learns that a call has failed, after it has begun `begun` calls.
    pub(crate) fn fail(&mut self, call: CallNumber, begun: CallNumber, at_once: bool) {
        self.settle(call);
        if self.failures.iter().any(|failure| failure.call == call) {
            return;
        }
        if self.failures.len() == REMEMBERED {
            let oldest = self.failures.pop_front().expect("it is full");
            self.since = self.since.max(oldest.call.next());
        }
        self.failures.push_back(Failure { call, reported_at: begun, at_once });
        self.hash = self.hash.wrapping_add(hash_term(call)) & HASH_MASK;
    }

    /// The program learns that a collective, which consists of all calls from `first` on, has failed.
    pub(crate) fn fail_since(&mut self, first: CallNumber, begun: CallNumber) {
        let (before, since): (VecDeque<_>, VecDeque<_>) =
            self.failures.iter().partition(|failure| failure.call < first);
        self.failures = before;
        for failure in &since {
            self.hash = self.hash.wrapping_sub(hash_term(failure.call)) & HASH_MASK;
        }
        self.fail(first, begun, since.iter().any(|failure| failure.at_once));
    }

    /// The program will not learn how a call ends.
    pub(crate) fn forget(&mut self, call: CallNumber) {
        self.settle(call);
        if self.never.len() == REMEMBERED {
            let oldest = self.never.pop_front().expect("it is full");
            self.since = self.since.max(oldest.next());
        }
        self.never.push_back(call);
    }

    /// Whether the program never learns how a call ends.
    pub(crate) fn is_forgotten(&self, call: CallNumber) -> bool {
        self.never.contains(&call)
    }

    fn knowledge_of(&self, call: CallNumber) -> Known {
        if let Some(failure) = self.failures.iter().find(|failure| failure.call == call) {
            return Known::Failed(*failure);
        }
        match call < self.since || self.unreported.contains(&call) || self.never.contains(&call) {
            true => Known::Unreported,
            false => Known::Succeeded,
        }
    }

    /// Whether two programs that know these outcomes can be at the same point when they make a call.
    pub(crate) fn fit(&self, other: &Outcomes, call: CallNumber) -> bool {
        let explained = |one: &Outcomes, by: &Outcomes| {
            one.failures.iter().filter(|failure| failure.call < call).all(|failure| {
                match by.knowledge_of(failure.call) {
                    Known::Failed(theirs) => !failure.at_once || theirs.reported_at <= call,
                    // That program continued without knowing of the failure; this one knew, and may have skipped calls.
                    Known::Unreported => !failure.at_once || failure.call < by.since,
                    Known::Succeeded => false,
                }
            })
        };
        explained(self, other) && explained(other, self)
    }

    /// The outcomes as bytes for a peer, which fit one frame.
    pub(crate) fn to_wire(&self) -> Vec<u8> {
        let mut unreported: Vec<CallNumber> = self.never.iter().chain(&self.unreported).copied().collect();
        unreported.sort_unstable();
        let cut = unreported.len().saturating_sub(2 * REMEMBERED);
        let since = if cut > 0 { self.since.max(unreported[cut - 1].next()) } else { self.since };
        let mut out = Vec::new();
        out.extend(since.0.to_le_bytes());
        out.extend((self.failures.len() as u64).to_le_bytes());
        for failure in &self.failures {
            out.extend(failure.call.0.to_le_bytes());
            out.extend((failure.reported_at.0 << 1 | u64::from(failure.at_once)).to_le_bytes());
        }
        unreported[cut..].iter().for_each(|call| out.extend(call.0.to_le_bytes()));
        out
    }

    /// Decodes the bytes of [`Outcomes::to_wire`].
    pub(crate) fn from_wire(bytes: &[u8]) -> Option<Outcomes> {
        if !bytes.len().is_multiple_of(8) {
            return None;
        }
        let mut words =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        let (since, count) = (CallNumber(words.next()?), words.next()?);
        let mut failures = VecDeque::new();
        for _ in 0..count {
            let (call, reported) = (CallNumber(words.next()?), words.next()?);
            let (reported_at, at_once) = (CallNumber(reported >> 1), reported & 1 == 1);
            failures.push_back(Failure { call, reported_at, at_once });
        }
        let unreported = words.map(CallNumber).collect();
        Some(Outcomes { failures, unreported, never: VecDeque::new(), since, hash: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ranks have begun calls 0 to 4, and know that all but the last succeeded.
    fn pair() -> (Outcomes, Outcomes) {
        let mut one = Outcomes::default();
        (0..5).for_each(|call| one.begin(CallNumber(call)));
        (0..4).for_each(|call| one.succeed(CallNumber(call)));
        (one.clone(), one)
    }

    fn fit(one: &Outcomes, other: &Outcomes, call: CallNumber) -> bool {
        let sent = |outcomes: &Outcomes| Outcomes::from_wire(&outcomes.to_wire()).unwrap();
        let found = one.fit(&sent(other), call);
        assert_eq!(found, other.fit(&sent(one), call), "both find the same");
        found
    }

    #[test]
    fn a_failure_that_the_peer_counts_as_a_success_does_not_fit() {
        let (mut one, mut other) = pair();
        one.fail(CallNumber(4), CallNumber(5), false);
        assert_ne!(one.hash(), other.hash());
        assert!(fit(&one, &other, CallNumber(5)), "the other has not asked yet");
        other.succeed(CallNumber(4));
        assert!(!fit(&one, &other, CallNumber(5)));
        assert!(fit(&one, &other, CallNumber(4)), "what came before it is not concerned");
    }

    #[test]
    fn a_failure_raised_at_once_fits_only_if_the_peer_knew_before_its_next_call() {
        let (mut one, mut other) = pair();
        one.fail(CallNumber(4), CallNumber(5), true);
        assert!(!fit(&one, &other, CallNumber(5)), "it makes call 5 without knowing");
        let mut late = other.clone();
        late.begin(CallNumber(5));
        late.fail(CallNumber(4), CallNumber(6), false);
        assert!(!fit(&one, &late, CallNumber(5)), "it learnt after call 5");
        assert!(fit(&one, &late, CallNumber(6)));
        other.fail(CallNumber(4), CallNumber(5), false);
        assert!(fit(&one, &other, CallNumber(5)));
        assert_eq!(one.hash(), other.hash());
    }

    #[test]
    fn calls_of_one_collective_fail_as_one() {
        // Both are in a collective of calls 3 to 6. `one` leaves it after call 4 by failing call 5; `other` then fails in call 5.
        let (mut one, mut other) = pair();
        one.begin(CallNumber(5));
        one.fail(CallNumber(5), CallNumber(6), true);
        one.fail_since(CallNumber(3), CallNumber(6));
        other.begin(CallNumber(5));
        other.fail(CallNumber(5), CallNumber(6), false);
        let mut later = other.clone();
        other.fail_since(CallNumber(3), CallNumber(6));
        assert_eq!(one.hash(), other.hash());
        assert!(fit(&one, &other, CallNumber(6)));
        // `later` has completed that collective, and call 5 belongs to its next one.
        later.fail_since(CallNumber(5), CallNumber(6));
        assert_ne!(one.hash(), later.hash());
        assert!(!fit(&one, &later, CallNumber(6)));
    }

    #[test]
    fn a_dropped_work_fits_any_outcome() {
        let (mut one, mut other) = pair();
        one.fail(CallNumber(4), CallNumber(5), false);
        other.forget(CallNumber(4));
        assert!(fit(&one, &other, CallNumber(5)));
    }

    #[test]
    fn forgotten_outcomes_fit() {
        let (mut one, mut other) = pair();
        for call in 5..5 + 2 * REMEMBERED as u64 {
            for outcomes in [&mut one, &mut other] {
                outcomes.begin(CallNumber(call));
                outcomes.fail(CallNumber(call), CallNumber(call + 1), true);
            }
        }
        assert_eq!(one.failures.len(), REMEMBERED);
        assert!(fit(&one, &other, CallNumber(5 + 2 * REMEMBERED as u64)));
        assert!(one.to_wire().len() < crate::slab::CHUNK_BYTES);
    }

    #[test]
    fn malformed_bytes_are_refused() {
        for bytes in [&[][..], &[0; 8], &[1; 16], &[0; 17]] {
            assert_eq!(Outcomes::from_wire(bytes), None);
        }
    }
}
