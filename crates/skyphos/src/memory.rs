//! What a call learned about the data of all ranks, so that the next one of its kind need not ask them again.
//!
//! A sample of all ranks' indices says which algorithm suits them and where ranges are best cut. It costs a small message
//! in each of ⌈log2 P⌉ rounds, and data seldom changes from call to call. So blocking calls remember what they learned.
//!
//! All ranks must remember the same. What is kept follows from samples and results, which all have; only blocking calls
//! keep anything, so that every rank has it at the same place of its program; and each call tells the others by a number
//! in its signature what it relies on. If a rank was interrupted where others went on, that number differs: the call is
//! a mismatch on all ranks, and all forget.

use crate::algorithm::Algorithm;
use crate::choose::Choice;
use skyphos_core::frame::CallSig;
use skyphos_types::{Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Calls after which a sample is taken again: the first time, and at most.
const SOON: u32 = 4;
const LATE: u32 = 64;

/// By how much a result may have more or fewer entries than the one when the sample was taken.
const DRIFT: f64 = 0.25;

/// What a sample said.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Known {
    /// The algorithm that suits the data, and its layers if they are not the caller's affair.
    pub(crate) algorithm: Algorithm,
    pub(crate) degrees: Vec<u32>,
    /// Bounds of the ranks' ranges; none if the algorithm has no ranges.
    pub(crate) bounds: Vec<u64>,
    /// What was predicted, where `auto` chose.
    pub(crate) choice: Option<Arc<Choice>>,
}

/// What a call tells beside its result.
pub(crate) struct Told {
    /// What a sample said, if one was taken.
    pub(crate) learned: Option<Known>,
    /// Size of the result, unless it is dense and does not say.
    pub(crate) size: Option<Size>,
}

/// What a result shows of whether data is still what it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Size {
    pub(crate) entries: usize,
    /// Entries of the largest part.
    pub(crate) largest: usize,
}

impl Size {
    fn near(self, other: Size) -> bool {
        let near = |a: usize, b: usize| (a as f64 - b as f64).abs() <= DRIFT * a.max(b) as f64;
        near(self.entries, other.entries) && near(self.largest, other.largest)
    }
}

struct Kept {
    known: Known,
    /// Of the result when the sample was taken.
    size: Size,
    /// Calls that used it, and after how many a new sample is due.
    uses: u32,
    most: u32,
}

impl Kept {
    /// A number that differs where anything differs, and is never 0.
    fn stamp(&self) -> u32 {
        let words =
            [self.known.algorithm as u64, self.uses.into(), self.most.into(), self.size.entries as u64];
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let degrees = self.known.degrees.iter().map(|d| u64::from(*d));
        (words.into_iter().chain(degrees).chain(self.known.bounds.iter().copied()).fold(1, mix) >> 32) as u32
            | 1
    }
}

/// What calls of a group have learned, by what they asked for.
#[derive(Default)]
pub(crate) struct Memory(Mutex<HashMap<CallSig, Kept>>);

impl Memory {
    fn kept(&self) -> std::sync::MutexGuard<'_, HashMap<CallSig, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known for a call, unless it should ask again, and the signature that says so to the others.
    pub(crate) fn recall(&self, asked: CallSig) -> (Option<Known>, CallSig) {
        match self.kept().get(&asked).filter(|kept| kept.uses < kept.most) {
            Some(kept) => {
                let extra = asked.extra.rotate_left(7) ^ kept.stamp();
                (Some(kept.known.clone()), CallSig { extra, ..asked })
            }
            None => (None, asked),
        }
    }

    /// Takes from a blocking call what it learned.
    pub(crate) fn after<R>(&self, asked: CallSig, done: Result<(R, Told)>) -> Result<R> {
        match done {
            Ok((result, Told { learned, size })) => {
                self.keep(asked, learned, size);
                Ok(result)
            }
            Err(error) => {
                if matches!(error, Error::Mismatch { .. }) {
                    self.kept().clear(); // perhaps ranks do not know the same
                }
                Err(error)
            }
        }
    }

    /// A call relied on what was known, or took a sample that said `learned`; its result has this size.
    fn keep(&self, asked: CallSig, learned: Option<Known>, size: Option<Size>) {
        let mut all = self.kept();
        let Some(size) = size else {
            // A dense result does not say how much is in it.
            all.remove(&asked);
            return;
        };
        match (learned, all.get_mut(&asked)) {
            (Some(known), Some(before)) => {
                let alike = known.algorithm == before.known.algorithm && size.near(before.size);
                let most = if alike { (before.most * 2).min(LATE) } else { SOON };
                *before = Kept { known, size, uses: 0, most };
            }
            (Some(known), None) => {
                all.insert(asked, Kept { known, size, uses: 0, most: SOON });
            }
            (None, Some(kept)) if size.near(kept.size) => kept.uses += 1,
            (None, _) => {
                all.remove(&asked);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skyphos_core::frame::CallKind;

    fn of(entries: usize) -> Option<Size> {
        Some(Size { entries, largest: entries / 2 })
    }

    fn known(algorithm: Algorithm) -> Known {
        Known { algorithm, degrees: vec![], bounds: vec![0, 5, 9], choice: None }
    }

    #[test]
    fn a_sample_serves_more_calls_each_time_it_is_confirmed() {
        let (memory, sig) = (Memory::default(), CallSig::plain(CallKind::Allreduce));
        let mut served = Vec::new();
        for _ in 0..5 {
            assert_eq!(memory.recall(sig), (None, sig));
            memory.keep(sig, Some(known(Algorithm::Butterfly)), of(100));
            let mut stamps = Vec::new();
            while let (Some(found), with) = memory.recall(sig) {
                assert_eq!(found, known(Algorithm::Butterfly));
                assert!(with.extra != sig.extra && !stamps.contains(&with.extra));
                stamps.push(with.extra);
                memory.keep(sig, None, of(90));
            }
            served.push(stamps.len());
        }
        assert_eq!(served, [4, 8, 16, 32, 64]);
    }

    #[test]
    fn other_data_is_noticed() {
        let (memory, sig) = (Memory::default(), CallSig::plain(CallKind::Allreduce));
        let other = CallSig { n: 7, ..sig };
        memory.keep(sig, Some(known(Algorithm::Ring)), of(100));
        assert_eq!(memory.recall(other).0, None);
        memory.keep(sig, None, of(300));
        assert_eq!(memory.recall(sig).0, None, "three times the entries");
        memory.keep(sig, Some(known(Algorithm::Ring)), of(100));
        memory.keep(sig, None, Some(Size { entries: 100, largest: 90 }));
        assert_eq!(memory.recall(sig).0, None, "most of it in one part");
        memory.keep(sig, Some(known(Algorithm::Ring)), of(100));
        memory.keep(sig, None, None);
        assert_eq!(memory.recall(sig).0, None, "a dense result");
        memory.keep(sig, Some(known(Algorithm::Ring)), of(0));
        memory.keep(sig, None, of(0));
        assert!(memory.recall(sig).0.is_some());
        let differ =
            || Error::Mismatch { left: 0, left_call: String::new(), right: 1, right_call: String::new() };
        assert!(memory.after::<()>(sig, Err(Error::bad_input("5 is no rank"))).is_err());
        assert!(memory.recall(sig).0.is_some());
        assert!(memory.after::<()>(sig, Err(differ())).is_err());
        assert_eq!(memory.recall(sig).0, None);
    }
}
