//! What a call learned about the data of all ranks, so that the next one of its kind need not ask them again.
//!
//! A sample of all ranks' indices says which algorithms may suit them and where ranges are best cut. It costs a small
//! message in each of ⌈log2 P⌉ rounds, and data seldom changes from call to call. So blocking calls remember what they
//! learned.
//!
//! Where several algorithms are predicted to take about as long, the calls that follow try them in turn. Then another
//! sample is taken, with which ranks tell what each took them. Those that took clearly longer are left out, the others
//! are tried again, and in the end all go on with the one whose slowest rank took least.
//!
//! All ranks must remember the same. What is kept follows from samples and results, which all have; only blocking calls
//! keep anything, so that every rank has it at the same place of its program; and each call tells the others by a number
//! in its signature what it relies on. If a rank was interrupted where others went on, that number differs: the call is
//! a mismatch on all ranks, and after any mismatch all forget.

use crate::algorithm::Algorithm;
use crate::choose::Choice;
use skyphos_core::frame::CallSig;
use skyphos_types::Result;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// By how many times a hint may be off before the others are asked after all.
const MISLED: f64 = 2.0;

/// Calls after which a sample is taken again: the first time, and at most.
const SOON: u32 = 4;
const LATE: u32 = 64;

/// By how much a result may have more or fewer entries than the one when the sample was taken.
const DRIFT: f64 = 0.25;

/// Ways that are tried, at most.
pub(crate) const MOST_WAYS: usize = 4;

/// How often calls are tried by each way in a round, at most.
pub(crate) const MOST_TRIES: usize = 2;

/// Shorter calls are tried so often, others once. (Of ranks that share cores any one call of 10 ms may take 40, and what is
/// left out for it is not tried again.)
const SHORT_S: f64 = 50e-3;

/// Kinds of calls that are remembered, those called last: a program that asks for something else each time must not fill the
/// memory.
const MOST_KINDS: usize = 64;

/// Data that has changed so often is not trusted to stay: each call asks, until it has stayed as often.
const RESTLESS: u32 = 2;

/// A way to do a call.
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

/// What a call is to go by.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Recalled {
    /// How to do it; `None`: ask the others first.
    pub(crate) known: Option<Known>,
    /// What has been tried, where the others are to be asked again.
    pub(crate) tried: Option<Tried>,
}

/// What calls took here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tried {
    /// By each of these ways.
    pub(crate) ways: Vec<Known>,
    /// Seconds of each call since all were asked; infinite where there was none.
    pub(crate) here: Vec<[f64; MOST_TRIES]>,
    /// The least seconds of rounds before, each those of the slowest rank; infinite where there was none.
    pub(crate) took: Vec<f64>,
    /// Rounds of tries before this one.
    pub(crate) rounds: u32,
}

impl Tried {
    /// Nothing yet.
    pub(crate) fn begin(ways: Vec<Known>) -> Tried {
        let took = vec![f64::INFINITY; ways.len()];
        Tried { here: nothing(ways.len()), ways, took, rounds: 0 }
    }
}

/// No call by any of so many ways.
pub(crate) fn nothing(ways: usize) -> Vec<[f64; MOST_TRIES]> {
    vec![[f64::INFINITY; MOST_TRIES]; ways]
}

/// What a sample said.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Learned {
    /// Ways to do calls of this kind, the one that should be fastest first; the call that took the sample went by it.
    pub(crate) next: Tried,
    /// Entries that the result should have, where nobody was asked.
    pub(crate) hint: Option<u64>,
}

/// What a call tells beside its result.
pub(crate) struct Told {
    /// What a sample said, if one was taken.
    pub(crate) learned: Option<Learned>,
    /// Size of the result, unless it is dense and does not say: then what was learned serves few calls.
    pub(crate) size: Option<Size>,
}

/// What a result shows of whether data is still what it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Size {
    pub(crate) entries: usize,
    /// Entries of the largest part.
    pub(crate) largest: usize,
}

fn within(times: f64, a: usize, b: usize) -> bool {
    a.max(b) as f64 <= times * a.min(b).max(1) as f64
}

fn near(a: usize, b: usize) -> bool {
    (a as f64 - b as f64).abs() <= DRIFT * a.max(b) as f64
}

struct Kept {
    tried: Tried,
    /// Of the first result that says, and of the first by each way: parts differ.
    entries: Option<usize>,
    largest: Vec<Option<usize>>,
    /// Calls that used it, and after how many a new sample is due.
    uses: u32,
    most: u32,
    /// How often data has changed, less how often it has stayed.
    changes: u32,
    /// Number of the last call of this kind among all.
    call: u64,
}

impl Kept {
    /// The way that the next call goes.
    fn turn(&self) -> usize {
        self.uses as usize % self.tried.ways.len()
    }

    /// Whether a way's result shows data as it was.
    fn is_as_before(&mut self, way: usize, now: Size) -> bool {
        let near = |before: &mut Option<usize>, now: usize| near(*before.get_or_insert(now), now);
        near(&mut self.entries, now.entries) && near(&mut self.largest[way], now.largest)
    }

    /// A number that differs where anything differs, and is never 0.
    fn stamp(&self) -> u32 {
        let Kept { tried, uses, most, changes, .. } = self;
        let words = [*uses, *most, tried.rounds, *changes]
            .map(u64::from)
            .into_iter()
            .chain(self.entries.map(|n| n as u64));
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let ways = self.tried.ways.iter().flat_map(|way| {
            let degrees = way.degrees.iter().map(|d| u64::from(*d));
            [way.algorithm as u64].into_iter().chain(degrees).chain(way.bounds.iter().copied())
        });
        (words.chain(ways).fold(1, mix) >> 32) as u32 | 1
    }
}

/// What calls of a group have learned, by what they asked for.
#[derive(Default)]
pub(crate) struct Memory {
    kept: Mutex<HashMap<CallSig, Kept>>,
    /// Mean bytes of what was gathered.
    items: Mutex<HashMap<CallSig, u64>>,
    /// Calls so far, and mismatches when what is kept was begun.
    calls: AtomicU64,
    mismatches: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    fn kept(&self) -> MutexGuard<'_, HashMap<CallSig, Kept>> {
        locked(&self.kept)
    }

    /// Mean bytes of the items that the last blocking allgather of this kind brought.
    pub(crate) fn item_bytes(&self, asked: &CallSig) -> Option<u64> {
        locked(&self.items).get(asked).copied()
    }

    /// Takes from a blocking allgather how large its items were.
    pub(crate) fn after_items<R>(
        &self,
        asked: CallSig,
        done: Result<R>,
        bytes: impl Fn(&R) -> u64,
    ) -> Result<R> {
        if let Ok(result) = &done {
            let mut items = locked(&self.items);
            if items.len() >= MOST_KINDS && !items.contains_key(&asked) {
                items.clear();
            }
            items.insert(asked, bytes(result));
        }
        done
    }

    /// Forgets all if there have been other mismatches than so many: if ranks did not call the same, perhaps they do not know
    /// the same.
    pub(crate) fn forget_unless(&self, mismatches: u64) {
        if self.mismatches.swap(mismatches, Ordering::Relaxed) != mismatches {
            self.kept().clear();
            locked(&self.items).clear();
        }
    }

    /// What is known for a call, and the signature that says so to the others.
    pub(crate) fn recall(&self, asked: CallSig) -> (Recalled, CallSig) {
        let all = self.kept();
        let Some(kept) = all.get(&asked) else { return (Recalled::default(), asked) };
        let recalled = match kept.uses < kept.most {
            true => Recalled { known: Some(kept.tried.ways[kept.turn()].clone()), tried: None },
            false => Recalled { known: None, tried: (kept.changes < RESTLESS).then(|| kept.tried.clone()) },
        };
        (recalled, CallSig { extra: asked.extra.rotate_left(7) ^ kept.stamp(), ..asked })
    }

    /// Takes from a blocking call what it learned, and how many seconds it took.
    pub(crate) fn after<R>(&self, asked: CallSig, done: (R, Told), seconds: f64) -> R {
        let (result, Told { learned, size }) = done;
        self.keep(asked, learned, size, seconds);
        result
    }

    /// A call relied on what was known, or took a sample that said `learned`; its result has this size.
    fn keep(&self, asked: CallSig, learned: Option<Learned>, size: Option<Size>, seconds: f64) {
        let (mut all, call) = (self.kept(), self.calls.fetch_add(1, Ordering::Relaxed));
        match (learned, all.get_mut(&asked)) {
            (Some(learned), before) => {
                let stays = |before: &Kept| {
                    let entries = size.zip(before.entries);
                    entries.is_some_and(|(now, before)| near(now.entries, before))
                };
                let changes = before.as_deref().map_or(0, |before| match size.is_none() || stays(before) {
                    true => before.changes.saturating_sub(1),
                    false => before.changes + u32::from(before.changes >= RESTLESS),
                });
                let changes = changes.min(2 * RESTLESS);
                let most = match before.filter(|before| alike(before, &learned) && stays(before)) {
                    _ if changes >= RESTLESS => 0,
                    _ if learned.next.ways.len() > 1 => learned.next.ways.len() as u32 * tries(&learned.next),
                    Some(before) => (before.most * 2).clamp(SOON, LATE),
                    None => SOON,
                };
                let Learned { next: tried, hint } = learned;
                let off = |hint: u64| size.is_some_and(|size| !within(MISLED, size.entries, hint as usize));
                let most = if hint.is_some_and(off) { 0 } else { most };
                let mut largest = vec![None; tried.ways.len()];
                largest[0] = size.map(|size| size.largest);
                let entries = size.map(|size| size.entries);
                if all.len() >= MOST_KINDS && !all.contains_key(&asked) {
                    let oldest = all.iter().min_by_key(|(_, kept)| kept.call).map(|(sig, _)| *sig);
                    oldest.map(|sig| all.remove(&sig));
                }
                all.insert(asked, Kept { tried, entries, largest, uses: 0, most, changes, call });
            }
            (None, Some(kept)) => {
                kept.call = call;
                let turn = kept.turn();
                match size.is_none_or(|size| kept.is_as_before(turn, size)) {
                    true => {
                        let round = kept.uses as usize / kept.tried.ways.len();
                        // The only one is called many times.
                        let call = &mut kept.tried.here[turn][round.min(MOST_TRIES - 1)];
                        *call = call.min(seconds);
                        kept.uses += 1;
                    }
                    // What was known is of other data: the next call asks.
                    false => {
                        (kept.changes, kept.most, kept.uses) = (kept.changes + 1, 0, 0);
                        kept.tried = Tried::begin(std::mem::take(&mut kept.tried.ways));
                        kept.entries = size.map(|size| size.entries);
                    }
                }
            }
            (None, None) => {}
        }
    }
}

/// How often each of several ways is tried, the first of which is expected to be the best.
fn tries(next: &Tried) -> u32 {
    let expected_s = next.ways[0].choice.as_ref().map_or(0.0, |choice| choice.seconds());
    let seconds = next.took.iter().copied().fold(f64::INFINITY, f64::min);
    if is_short(if seconds.is_finite() { seconds } else { expected_s }) { MOST_TRIES as u32 } else { 1 }
}

/// Whether calls of so many seconds are tried more often, for little disturbs them much.
pub(crate) fn is_short(seconds: f64) -> bool {
    seconds < SHORT_S
}

/// Whether a sample confirms the only way there was.
fn alike(before: &Kept, now: &Learned) -> bool {
    let only = |ways: &[Known]| <&[Known; 1]>::try_from(ways).ok().map(|[way]| way.algorithm);
    only(&before.tried.ways).is_some_and(|way| Some(way) == only(&now.next.ways))
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

    fn learned(algorithms: &[Algorithm]) -> Option<Learned> {
        let next = Tried::begin(algorithms.iter().copied().map(known).collect());
        Some(Learned { next, hint: None })
    }

    fn has(memory: &Memory, sig: CallSig) -> bool {
        memory.recall(sig).0.known.is_some()
    }

    #[test]
    fn a_sample_serves_more_calls_each_time_it_is_confirmed() {
        let (memory, sig) = (Memory::default(), CallSig::plain(CallKind::Allreduce));
        assert_eq!(memory.recall(sig), (Recalled::default(), sig));
        let mut served = Vec::new();
        for _ in 0..5 {
            memory.keep(sig, learned(&[Algorithm::Butterfly]), of(100), 1.0);
            let mut stamps = Vec::new();
            while let (Recalled { known: Some(found), .. }, with) = memory.recall(sig) {
                assert_eq!(found, known(Algorithm::Butterfly));
                assert!(with.extra != sig.extra && !stamps.contains(&with.extra));
                stamps.push(with.extra);
                memory.keep(sig, None, of(90), 1.0);
            }
            served.push(stamps.len());
        }
        assert_eq!(served, [4, 8, 16, 32, 64]);
    }

    #[test]
    fn a_hint_that_misleads_is_not_believed_twice() {
        let (memory, sig) = (Memory::default(), CallSig::plain(CallKind::Allreduce));
        let hinted = |hint| learned(&[Algorithm::Ring]).map(|l| Learned { hint: Some(hint), ..l });
        memory.keep(sig, hinted(150), of(100), 1.0);
        assert!(memory.recall(sig).0.known.is_some());
        memory.keep(sig, hinted(10_000), of(100), 1.0);
        let (recalled, with) = memory.recall(sig);
        assert!(recalled.known.is_none() && recalled.tried.is_some() && with != sig);
    }

    #[test]
    fn ways_are_tried_in_turn() {
        let (memory, sig) = (Memory::default(), CallSig::plain(CallKind::Allreduce));
        let ways = [Algorithm::Ring, Algorithm::Butterfly];
        memory.keep(sig, learned(&ways), of(100), 9.0);
        for (turn, seconds) in [3.0, 5.0, 2.0, 6.0].into_iter().enumerate() {
            assert_eq!(memory.recall(sig).0.known, Some(known(ways[turn % 2])));
            // Each way has parts of its own.
            let largest = if turn % 2 == 0 { 50 } else { 0 };
            memory.keep(sig, None, Some(Size { entries: 100, largest }), seconds);
        }
        let (recalled, with) = memory.recall(sig);
        assert!(recalled.known.is_none() && with != sig);
        let tried = recalled.tried.unwrap();
        assert_eq!(tried.here, [[3.0, 2.0], [5.0, 6.0]]);
        memory.keep(sig, learned(&[Algorithm::Ring]), of(100), 2.0);
        for _ in 0..SOON {
            assert_eq!(memory.recall(sig).0.known, Some(known(Algorithm::Ring)));
            memory.keep(sig, None, of(100), 2.0);
        }
        assert!(memory.recall(sig).0.known.is_none());
    }

    #[test]
    fn other_data_is_noticed() {
        let (memory, sig) = (Memory::default(), CallSig::plain(CallKind::Allreduce));
        let (other, ring) = (CallSig { n: 7, ..sig }, || learned(&[Algorithm::Ring]));
        memory.keep(sig, ring(), of(100), 1.0);
        assert!(!has(&memory, other));
        memory.keep(sig, None, of(300), 1.0);
        assert!(!has(&memory, sig), "three times the entries");
        memory.keep(sig, ring(), of(100), 1.0);
        memory.keep(sig, None, Some(Size { entries: 100, largest: 90 }), 1.0);
        assert!(!has(&memory, sig), "most of it in one part");
        let memory = Memory::default();
        for _ in 0..3 {
            memory.keep(sig, ring(), None, 1.0);
            for _ in 0..SOON {
                assert!(memory.recall(sig).0.known.is_some());
                memory.keep(sig, None, None, 1.0);
            }
            assert!(memory.recall(sig).0.known.is_none(), "dense results confirm nothing");
        }
        memory.keep(sig, ring(), of(0), 1.0);
        memory.keep(sig, None, of(0), 1.0);
        assert!(has(&memory, sig));
        memory.forget_unless(0);
        assert!(has(&memory, sig));
        memory.forget_unless(1);
        assert_eq!(memory.recall(sig), (Recalled::default(), sig), "ranks had called different things");
    }

    #[test]
    fn data_that_changes_all_the_time_is_asked_for_each_time() {
        let (memory, sig) = (Memory::default(), CallSig::plain(CallKind::Allreduce));
        let call = |entries: usize| {
            let asked = !has(&memory, sig);
            memory.keep(sig, if asked { learned(&[Algorithm::Ring]) } else { None }, of(entries), 1.0);
            asked
        };
        let turns: Vec<bool> = (0..20).map(|turn| call(if turn % 2 == 0 { 1000 } else { 1 })).collect();
        assert!(turns[4..].iter().all(|asked| *asked), "{turns:?}");
        let same: Vec<bool> = (0..20).map(|_| call(1000)).collect();
        assert!(same.iter().filter(|asked| **asked).count() < 8 && !same[19], "{same:?}");
    }

    #[test]
    fn kinds_that_were_called_last_are_kept() {
        let (memory, sig) = (Memory::default(), CallSig::plain(CallKind::Allreduce));
        let kind = |n: u64| CallSig { n, ..sig };
        for n in 0..1000 {
            memory.keep(kind(n), learned(&[Algorithm::Ring]), of(100), 1.0);
            if has(&memory, kind(7)) {
                memory.keep(kind(7), None, of(100), 1.0);
            } else {
                memory.keep(kind(7), learned(&[Algorithm::Ring]), of(100), 1.0);
            }
        }
        assert_eq!(memory.kept().len(), MOST_KINDS);
        assert!(memory.kept().contains_key(&kind(7)) && memory.kept().contains_key(&kind(999)));
    }
}
