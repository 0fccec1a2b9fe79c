//! The tuning cache: the results of earlier surveys by kind of call, so that the next call need not survey the ranks again.
//!
//! A survey costs a small message in each of ⌈log2 P⌉ rounds, and data seldom changes from call to call. So blocking calls
//! reuse its result, more often each time another survey confirms it. Where several variants are in trial, calls run them
//! in turn until the next survey ([`crate::trials`]).
//!
//! All ranks must hold the same entries. These follow from surveys and results, which all ranks have, and from the number of
//! calls; only blocking calls change them, so that they change at the same place of every rank's program. Each call
//! sends the stamp of its entry in its signature. If a rank was interrupted where others went on, stamps differ: the call is a
//! mismatch on all ranks, and after any mismatch all ranks clear their caches ([`crate::Tuner::recall`]).

use crate::parameters::TuningParameters;
use crate::trials::{Trials, Variant};
use skyphos_types::Seconds;
use std::collections::HashMap;
use std::hash::Hash;

/// How the next call runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Recalled {
    /// The call runs this variant.
    Run(Variant),
    /// The ranks survey their data first. The trials, if any, end with this call.
    Survey(Option<Trials>),
}

impl Default for Recalled {
    fn default() -> Recalled {
        Recalled::Survey(None)
    }
}

/// The decision after a survey.
#[derive(Clone, Debug, PartialEq)]
pub struct SurveyResult {
    /// The variants of the next calls; the call that surveyed ran the first one.
    pub trials: Trials,
    /// Expected entries of the result, where a hint replaced the survey.
    pub hint: Option<u64>,
}

/// A call's report to the cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallReport {
    /// The survey's result, if there was one.
    pub survey: Option<SurveyResult>,
    /// The result's size; `None` if it is dense and does not say which rows are entries. Such results confirm nothing.
    pub size: Option<ResultSize>,
}

/// The size of a result, which shows whether the data has changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResultSize {
    /// Entries.
    pub entries: usize,
    /// Entries of the largest range.
    pub largest_range: usize,
}

/// One kind of call: its trials, its result sizes, and its calls since the survey.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    trials: Trials,
    /// Entries of the first result, and the largest range of each variant's first result: variants divide indices differently.
    entries: Option<usize>,
    largest_ranges: Vec<Option<usize>>,
    /// Calls since the survey, and the number of calls after which the next survey comes.
    calls: u32,
    interval: u32,
    /// Changes of the data, minus surveys that found it unchanged.
    changes: u32,
    /// The number of the latest call, among those of all kinds.
    latest: u64,
}

impl Entry {
    fn next_variant(&self) -> usize {
        self.calls as usize % self.trials.variants.len()
    }

    /// Whether a variant's result is about as large as its first one, which is recorded.
    fn confirms(&mut self, parameters: &TuningParameters, variant: usize, now: ResultSize) -> bool {
        let near = |before: &mut Option<usize>, now| near(parameters, *before.get_or_insert(now), now);
        near(&mut self.entries, now.entries) && near(&mut self.largest_ranges[variant], now.largest_range)
    }

    /// A hash of everything that determines the next call; never 0.
    fn stamp(&self) -> u32 {
        let Entry { trials, calls, interval, changes, .. } = self;
        let words = [*calls, *interval, trials.rounds, *changes]
            .map(u64::from)
            .into_iter()
            .chain(self.entries.map(|n| n as u64));
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let variants = trials.variants.iter().flat_map(|variant| {
            let degrees = variant.degrees.iter().map(|d| u64::from(*d));
            [variant.algorithm as u64].into_iter().chain(degrees).chain(variant.bounds.iter().copied())
        });
        (words.chain(variants).fold(1, mix) >> 32) as u32 | 1
    }
}

fn within(factor: f64, a: usize, b: usize) -> bool {
    a.max(b) as f64 <= factor * a.min(b).max(1) as f64
}

fn near(parameters: &TuningParameters, a: usize, b: usize) -> bool {
    (a as f64 - b as f64).abs() <= parameters.drift * a.max(b) as f64
}

/// Whether both surveys tried only one variant, of the same algorithm.
fn same_variant(before: &Trials, now: &Trials) -> bool {
    let only = |trials: &Trials| match &trials.variants[..] {
        [variant] => Some(variant.algorithm),
        _ => None,
    };
    only(before).is_some_and(|algorithm| Some(algorithm) == only(now))
}

/// The cache of one group. `K` is the kind of a call: calls of one kind share an entry.
#[derive(Clone, Debug)]
pub struct TuningCache<K> {
    parameters: TuningParameters,
    entries: HashMap<K, Entry>,
    calls: u64,
}

impl<K: Copy + Eq + Hash> TuningCache<K> {
    /// An empty cache.
    pub fn new(parameters: TuningParameters) -> TuningCache<K> {
        TuningCache { parameters, entries: HashMap::new(), calls: 0 }
    }

    /// Drops all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// How the next call of a kind runs, and the stamp of its entry if there is one.
    pub fn recall(&self, kind: &K) -> (Recalled, Option<u32>) {
        let Some(entry) = self.entries.get(kind) else { return (Recalled::default(), None) };
        let recalled = match entry.calls < entry.interval {
            true => Recalled::Run(entry.trials.variants[entry.next_variant()].clone()),
            false => {
                let stays = entry.changes < self.parameters.max_changes;
                Recalled::Survey(stays.then(|| entry.trials.clone()))
            }
        };
        (recalled, Some(entry.stamp()))
    }

    /// Records that a call of a kind finished after this duration.
    pub fn finish(&mut self, kind: K, report: CallReport, duration: Seconds) {
        self.calls += 1;
        match report.survey {
            Some(survey) => self.record_survey(kind, survey, report.size),
            None => self.record_call(kind, report.size, duration),
        }
    }

    fn record_survey(&mut self, kind: K, survey: SurveyResult, size: Option<ResultSize>) {
        let parameters = &self.parameters;
        let SurveyResult { trials, hint } = survey;
        let entries = size.map(|size| size.entries);
        let before = self.entries.get(&kind);
        let unchanged = before
            .and_then(|before| before.entries)
            .zip(entries)
            .is_some_and(|(before, now)| near(parameters, now, before));
        let changes = before.map_or(0, |before| match size.is_none() || unchanged {
            true => before.changes.saturating_sub(1),
            false => before.changes + u32::from(before.changes >= parameters.max_changes),
        });
        let changes = changes.min(2 * parameters.max_changes);
        let misled = hint
            .zip(entries)
            .is_some_and(|(hint, entries)| !within(parameters.hint_factor, entries, hint as usize));
        let confirmed = before.filter(|before| unchanged && same_variant(&before.trials, &trials));
        let interval = match confirmed {
            _ if misled || changes >= parameters.max_changes => 0,
            _ if trials.variants.len() > 1 => trials.variants.len() as u32 * trials.calls_each(parameters),
            Some(before) => (before.interval * 2).clamp(parameters.first_interval, parameters.last_interval),
            None => parameters.first_interval,
        };
        let mut largest_ranges = vec![None; trials.variants.len()];
        largest_ranges[0] = size.map(|size| size.largest_range);
        let latest = self.calls;
        let entry = Entry { trials, entries, largest_ranges, calls: 0, interval, changes, latest };
        if self.entries.len() >= parameters.max_kinds && !self.entries.contains_key(&kind) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.latest).map(|(kind, _)| *kind);
            oldest.map(|kind| self.entries.remove(&kind));
        }
        self.entries.insert(kind, entry);
    }

    fn record_call(&mut self, kind: K, size: Option<ResultSize>, duration: Seconds) {
        let (parameters, latest) = (&self.parameters, self.calls);
        let Some(entry) = self.entries.get_mut(&kind) else { return };
        entry.latest = latest;
        let variant = entry.next_variant();
        if size.is_none_or(|size| entry.confirms(parameters, variant, size)) {
            entry.trials.record(parameters, entry.calls as usize, duration);
            entry.calls += 1;
        } else {
            // The entry describes other data: the next call surveys.
            (entry.changes, entry.interval, entry.calls) = (entry.changes + 1, 0, 0);
            entry.trials = Trials::begin(parameters, std::mem::take(&mut entry.trials.variants));
            entry.entries = size.map(|size| size.entries);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm::{self, Butterfly, Ring};

    const PARAMETERS: TuningParameters = TuningParameters::DEFAULT;

    fn size(entries: usize) -> Option<ResultSize> {
        Some(ResultSize { entries, largest_range: entries / 2 })
    }

    fn variant(algorithm: Algorithm) -> Variant {
        Variant { algorithm, degrees: vec![], bounds: vec![0, 5, 9], choice: None }
    }

    fn trials(algorithms: &[Algorithm]) -> Trials {
        Trials::begin(&PARAMETERS, algorithms.iter().copied().map(variant).collect())
    }

    fn survey(algorithms: &[Algorithm], hint: Option<u64>, size: Option<ResultSize>) -> CallReport {
        CallReport { survey: Some(SurveyResult { trials: trials(algorithms), hint }), size }
    }

    fn ran(size: Option<ResultSize>) -> CallReport {
        CallReport { survey: None, size }
    }

    fn runs(cache: &TuningCache<u64>, kind: u64) -> bool {
        matches!(cache.recall(&kind).0, Recalled::Run(_))
    }

    /// A state of one entry: its algorithms, calls, interval, changes, and entries of the first result.
    type State<'a> = (&'a [Algorithm], u32, u32, u32, Option<usize>);

    fn state_of(entry: &Entry) -> (Vec<Algorithm>, u32, u32, u32, Option<usize>) {
        let algorithms = entry.trials.variants.iter().map(|variant| variant.algorithm).collect();
        (algorithms, entry.calls, entry.interval, entry.changes, entry.entries)
    }

    /// How the next call runs.
    #[derive(Debug, PartialEq)]
    enum Next {
        Run(Algorithm),
        Survey { with_trials: bool },
    }
    use Next::{Run, Survey};

    fn next(cache: &TuningCache<u64>) -> Next {
        match cache.recall(&0).0 {
            Recalled::Run(variant) => Run(variant.algorithm),
            Recalled::Survey(trials) => Survey { with_trials: trials.is_some() },
        }
    }

    /// Name, state, event, state after it, next call.
    type Transition<'a> = (&'a str, Option<State<'a>>, CallReport, Option<State<'a>>, Next);

    /// Every transition: (state, event) → (state, next call).
    #[test]
    #[rustfmt::skip]
    fn transitions() {
        const SURVEY: Next = Survey { with_trials: false };
        const SURVEY_AFTER_TRIALS: Next = Survey { with_trials: true };
        let one: &[Algorithm] = &[Ring];
        let two: &[Algorithm] = &[Ring, Butterfly];
        let table: Vec<Transition<'_>> = vec![
            // The first call.
            ("nothing known, nothing surveyed", None, ran(size(100)), None, SURVEY),
            ("first survey, one variant", None, survey(one, None, size(100)),
                Some((one, 0, 4, 0, Some(100))), Run(Ring)),
            ("first survey, two variants", None, survey(two, None, size(100)),
                Some((two, 0, 4, 0, Some(100))), Run(Ring)),
            ("first survey, dense result", None, survey(one, None, None),
                Some((one, 0, 4, 0, None)), Run(Ring)),
            ("a hint that is right", None, survey(one, Some(150), size(100)),
                Some((one, 0, 4, 0, Some(100))), Run(Ring)),
            ("a hint that is twice as large", None, survey(one, Some(200), size(100)),
                Some((one, 0, 4, 0, Some(100))), Run(Ring)),
            ("a hint that misleads", None, survey(one, Some(201), size(100)),
                Some((one, 0, 0, 0, Some(100))), SURVEY_AFTER_TRIALS),
            ("a hint, and a dense result, which does not check it", None, survey(one, Some(10_000), None),
                Some((one, 0, 4, 0, None)), Run(Ring)),
            // Calls between two surveys.
            ("a call of the only variant", Some((one, 0, 4, 0, Some(100))), ran(size(90)),
                Some((one, 1, 4, 0, Some(100))), Run(Ring)),
            ("the last call before a survey", Some((one, 3, 4, 0, Some(100))), ran(size(100)),
                Some((one, 4, 4, 0, Some(100))), SURVEY_AFTER_TRIALS),
            ("trials take turns", Some((two, 0, 4, 0, Some(100))), ran(size(100)),
                Some((two, 1, 4, 0, Some(100))), Run(Butterfly)),
            ("trials take turns again", Some((two, 1, 4, 0, Some(100))), ran(size(100)),
                Some((two, 2, 4, 0, Some(100))), Run(Ring)),
            ("the last trial", Some((two, 3, 4, 0, Some(100))), ran(size(100)),
                Some((two, 4, 4, 0, Some(100))), SURVEY_AFTER_TRIALS),
            ("dense results confirm", Some((one, 0, 4, 0, None)), ran(None),
                Some((one, 1, 4, 0, None)), Run(Ring)),
            ("the first result that states a size", Some((one, 0, 4, 0, None)), ran(size(50)),
                Some((one, 1, 4, 0, Some(50))), Run(Ring)),
            ("an empty result stays empty", Some((one, 0, 4, 0, Some(0))), ran(size(0)),
                Some((one, 1, 4, 0, Some(0))), Run(Ring)),
            // The result's size changes.
            ("24 % fewer entries", Some((one, 2, 8, 0, Some(100))), ran(size(76)),
                Some((one, 3, 8, 0, Some(100))), Run(Ring)),
            ("26 % fewer entries", Some((one, 2, 8, 0, Some(100))), ran(size(74)),
                Some((one, 0, 0, 1, Some(74))), SURVEY_AFTER_TRIALS),
            ("34 % more entries", Some((one, 2, 8, 0, Some(100))), ran(size(134)),
                Some((one, 0, 0, 1, Some(134))), SURVEY_AFTER_TRIALS),
            ("another largest range", Some((one, 2, 8, 0, Some(100))),
                ran(Some(ResultSize { entries: 100, largest_range: 90 })),
                Some((one, 0, 0, 1, Some(100))), SURVEY_AFTER_TRIALS),
            ("a change ends the trials", Some((two, 1, 4, 0, Some(100))), ran(size(300)),
                Some((two, 0, 0, 1, Some(300))), SURVEY_AFTER_TRIALS),
            ("the second change in a row", Some((one, 1, 4, 1, Some(100))), ran(size(300)),
                Some((one, 0, 0, 2, Some(300))), SURVEY),
            // Surveys again.
            ("a survey confirms", Some((one, 4, 4, 0, Some(100))), survey(one, None, size(100)),
                Some((one, 0, 8, 0, Some(100))), Run(Ring)),
            ("the longest interval", Some((one, 64, 64, 0, Some(100))), survey(one, None, size(100)),
                Some((one, 0, 64, 0, Some(100))), Run(Ring)),
            ("a survey of other data", Some((one, 64, 64, 0, Some(100))), survey(one, None, size(300)),
                Some((one, 0, 4, 0, Some(300))), Run(Ring)),
            ("a survey that chooses another algorithm", Some((one, 8, 8, 0, Some(100))),
                survey(&[Butterfly], None, size(100)),
                Some((&[Butterfly], 0, 4, 0, Some(100))), Run(Butterfly)),
            ("a survey with a dense result confirms nothing", Some((one, 8, 8, 0, Some(100))), survey(one, None, None),
                Some((one, 0, 4, 0, None)), Run(Ring)),
            ("trials end with one variant", Some((two, 4, 4, 0, Some(100))), survey(one, None, size(100)),
                Some((one, 0, 4, 0, Some(100))), Run(Ring)),
            ("trials go on", Some((two, 4, 4, 0, Some(100))), survey(two, None, size(100)),
                Some((two, 0, 4, 0, Some(100))), Run(Ring)),
            ("unchanged data is trusted more", Some((one, 0, 0, 1, Some(100))), survey(one, None, size(100)),
                Some((one, 0, 4, 0, Some(100))), Run(Ring)),
            ("changed once, and again", Some((one, 0, 0, 1, Some(100))), survey(one, None, size(300)),
                Some((one, 0, 4, 1, Some(300))), Run(Ring)),
            ("unstable data is surveyed each time", Some((one, 0, 0, 2, Some(100))), survey(one, None, size(300)),
                Some((one, 0, 0, 3, Some(300))), SURVEY),
            ("the count of changes has a limit", Some((one, 0, 0, 4, Some(100))), survey(one, None, size(300)),
                Some((one, 0, 0, 4, Some(300))), SURVEY),
            ("unstable data that stays once", Some((one, 0, 0, 3, Some(100))), survey(one, None, size(100)),
                Some((one, 0, 0, 2, Some(100))), SURVEY),
            ("unstable data that stays again", Some((one, 0, 0, 2, Some(100))), survey(one, None, size(100)),
                Some((one, 0, 4, 1, Some(100))), Run(Ring)),
        ];
        for (name, before, report, after, then) in table {
            let mut cache = TuningCache::new(PARAMETERS);
            if let Some((algorithms, calls, interval, changes, entries)) = before {
                let largest_ranges = vec![entries.map(|n| n / 2); algorithms.len()];
                let trials = trials(algorithms);
                cache.entries.insert(0u64, Entry { trials, entries, largest_ranges, calls, interval, changes, latest: 0 });
            }
            let stamp = cache.recall(&0).1;
            cache.finish(0, report, Seconds(1.0));
            let found = cache.entries.get(&0).map(state_of);
            assert_eq!(found, after.map(|(a, b, c, d, e)| (a.to_vec(), b, c, d, e)), "{name}");
            assert_eq!(next(&cache), then, "{name}");
            if before.is_some() && name != "the count of changes has a limit" {
                assert_ne!(cache.recall(&0).1, stamp, "{name}: ranks in different states have different stamps");
            }
        }
    }

    #[test]
    fn trials_record_the_calls_of_each_variant() {
        let mut cache = TuningCache::new(PARAMETERS);
        cache.finish(0, survey(&[Ring, Butterfly], None, size(100)), Seconds(9.0));
        for (call, seconds) in [3.0, 5.0, 2.0, 6.0].into_iter().enumerate() {
            assert_eq!(cache.recall(&0).0, Recalled::Run(variant([Ring, Butterfly][call % 2])));
            // Variants divide indices differently, so their largest ranges differ.
            let largest_range = if call % 2 == 0 { 50 } else { 0 };
            cache.finish(0, ran(Some(ResultSize { entries: 100, largest_range })), Seconds(seconds));
        }
        let Recalled::Survey(Some(trials)) = cache.recall(&0).0 else { panic!("the round is over") };
        assert_eq!(trials.local, [3.0, 2.0, 5.0, 6.0].map(Seconds));
    }

    #[test]
    fn a_survey_serves_more_calls_each_time_it_is_confirmed() {
        let mut cache = TuningCache::new(PARAMETERS);
        let mut served = Vec::new();
        for _ in 0..6 {
            cache.finish(0, survey(&[Butterfly], None, size(100)), Seconds(1.0));
            let mut stamps = Vec::new();
            while let (Recalled::Run(_), Some(stamp)) = cache.recall(&0) {
                assert!(stamp != 0 && !stamps.contains(&stamp));
                stamps.push(stamp);
                cache.finish(0, ran(size(90)), Seconds(1.0));
            }
            served.push(stamps.len());
        }
        assert_eq!(served, [4, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn data_that_changes_all_the_time_is_surveyed_each_time() {
        let mut cache = TuningCache::new(PARAMETERS);
        let mut call = |entries: usize| {
            let surveys = !runs(&cache, 0);
            let report = if surveys { survey(&[Ring], None, size(entries)) } else { ran(size(entries)) };
            cache.finish(0, report, Seconds(1.0));
            surveys
        };
        let changing: Vec<bool> = (0..20).map(|turn| call(if turn % 2 == 0 { 1000 } else { 1 })).collect();
        assert!(changing[4..].iter().all(|surveys| *surveys), "{changing:?}");
        let same: Vec<bool> = (0..20).map(|_| call(1000)).collect();
        assert!(same.iter().filter(|surveys| **surveys).count() < 8 && !same[19], "{same:?}");
    }

    #[test]
    fn the_kind_that_was_called_longest_ago_is_dropped() {
        let mut cache = TuningCache::new(PARAMETERS);
        for kind in 0..1000 {
            cache.finish(kind, survey(&[Ring], None, size(100)), Seconds(1.0));
            let report = if runs(&cache, 7) { ran(size(100)) } else { survey(&[Ring], None, size(100)) };
            cache.finish(7, report, Seconds(1.0));
        }
        assert_eq!(cache.entries.len(), PARAMETERS.max_kinds);
        assert!([7, 999].iter().all(|kind| cache.entries.contains_key(kind)));
        assert!(!cache.entries.contains_key(&900));
    }
}
