//! The tuner of one group: its cache, and this rank's observations.

use crate::cache::{CallReport, Recalled, TuningCache};
use crate::choice::Choice;
use crate::observations::{Observations, Timing};
use crate::parameters::TuningParameters;
use skyphos_types::Bytes;
use std::collections::HashMap;
use std::hash::Hash;

/// The tuner of one rank of a group. `K` is the kind of a call.
#[derive(Clone, Debug)]
pub struct Tuner<K> {
    parameters: TuningParameters,
    /// This rank's measurements.
    pub observations: Observations,
    cache: TuningCache<K>,
    /// Mean bytes of the items of the latest allgather of each kind.
    item_bytes: HashMap<K, u64>,
    /// Number of the group's mismatches when the cache was last cleared.
    mismatches: u64,
}

impl<K: Copy + Eq + Hash> Tuner<K> {
    /// A tuner without calls.
    pub fn new(parameters: TuningParameters, observations: Observations) -> Tuner<K> {
        let cache = TuningCache::new(parameters);
        Tuner { parameters, observations, cache, item_bytes: HashMap::new(), mismatches: 0 }
    }

    /// Its constants.
    pub fn parameters(&self) -> &TuningParameters {
        &self.parameters
    }

    /// How the next call of a kind runs, and the stamp that its signature carries. `mismatches`: the number of mismatches in the
    /// group so far; a new one clears the cache, because ranks in different calls may have recorded different entries.
    pub fn recall(&mut self, kind: &K, mismatches: u64) -> (Recalled, Option<u32>) {
        self.clear_after(mismatches);
        self.cache.recall(kind)
    }

    /// Records a finished blocking call of a kind. `moved`: its traffic. `choice`: the prediction that its timing corrects.
    pub fn finish(
        &mut self,
        kind: K,
        report: CallReport,
        timing: &Timing,
        moved: Bytes,
        choice: Option<&Choice>,
    ) {
        self.cache.finish(kind, report, timing.duration);
        self.record(timing, moved, choice);
    }

    /// Records a finished blocking call whose kind has no entry in the cache.
    pub fn record(&mut self, timing: &Timing, moved: Bytes, choice: Option<&Choice>) {
        self.observations.record(&self.parameters, timing, moved, choice);
    }

    /// Mean bytes of the items of the latest blocking allgather of this kind.
    pub fn item_bytes(&mut self, kind: &K, mismatches: u64) -> Option<u64> {
        self.clear_after(mismatches);
        self.item_bytes.get(kind).copied()
    }

    /// Records a finished blocking allgather. `item_bytes`: mean length of its items.
    pub fn finish_allgather(&mut self, kind: K, item_bytes: u64) {
        if self.item_bytes.len() >= self.parameters.max_kinds && !self.item_bytes.contains_key(&kind) {
            self.item_bytes.clear();
        }
        self.item_bytes.insert(kind, item_bytes);
    }

    fn clear_after(&mut self, mismatches: u64) {
        if self.mismatches != mismatches {
            self.mismatches = mismatches;
            self.cache.clear();
            self.item_bytes.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::cache::{ResultSize, SurveyResult};
    use crate::trials::{Trials, Variant};
    use skyphos_types::Seconds;

    #[test]
    fn mismatches_clear_the_cache() {
        let parameters = TuningParameters::DEFAULT;
        let variant = Variant { algorithm: Algorithm::Ring, degrees: vec![], bounds: vec![], choice: None };
        let survey = SurveyResult { trials: Trials::begin(&parameters, vec![variant.clone()]), hint: None };
        let size = Some(ResultSize { entries: 9, largest_range: 3 });
        let timing = Timing { duration: Seconds(1e-3), busy: None };
        let mut tuner = Tuner::new(parameters, Observations::default());
        tuner.finish(0, CallReport { survey: Some(survey), size }, &timing, Bytes(1 << 20), None);
        tuner.finish_allgather(0, 77);
        for (mismatches, known) in [(0, true), (0, true), (1, false), (1, false)] {
            let (recalled, stamp) = tuner.recall(&0, mismatches);
            let want = if known { Recalled::Run(variant.clone()) } else { Recalled::Survey(None) };
            assert_eq!((recalled, stamp.is_some()), (want, known), "after {mismatches} mismatches");
            assert_eq!(tuner.item_bytes(&0, mismatches), known.then_some(77));
        }
        assert_eq!(tuner.recall(&1, 1), (Recalled::Survey(None), None), "another kind");
    }

    #[test]
    fn item_sizes_of_many_kinds_do_not_fill_the_memory() {
        let mut tuner = Tuner::new(TuningParameters::DEFAULT, Observations::default());
        for kind in 0..200u64 {
            tuner.finish_allgather(kind, kind);
            assert_eq!(tuner.item_bytes(&kind, 0), Some(kind));
        }
        assert!(tuner.item_bytes.len() <= TuningParameters::DEFAULT.max_kinds);
    }
}
