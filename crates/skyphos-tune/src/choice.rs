//! Choices by prediction: every algorithm's time by the planner's model, corrected by the durations of earlier calls.

use crate::algorithm::{Algorithm, algorithm_of_route};
use crate::corrections::Corrections;
use crate::parameters::TuningParameters;
use skyphos_plan::{Prediction, Profile, Route, Work, factorisations};
use skyphos_types::Seconds;

/// A reduction of sparse vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Every rank gets the whole result.
    Allreduce,
    /// Every rank gets one range of it.
    ReduceScatter,
}

/// The work for which an algorithm is chosen. The same on all ranks.
pub struct Workload<'a> {
    /// The collective.
    pub reduction: Reduction,
    /// Ranks in the group.
    pub ranks: u32,
    /// Rows of the vector.
    pub n: u64,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Expected entries of the union of m ranks' vectors.
    pub union: &'a dyn Fn(f64) -> f64,
    /// Entries per position above which a part turns dense.
    pub dense_above: f64,
    /// Ranks of each host, if there are several hosts with equally many; else 1.
    pub ranks_per_host: u32,
    /// Whether the MPI library's own allreduce may be faster than ours.
    pub has_native: bool,
    /// Numbers of machine and network.
    pub profile: Profile,
    /// Ratios of measured to predicted durations.
    pub corrections: Corrections,
    /// The tuner's constants.
    pub parameters: &'a TuningParameters,
}

/// A chosen algorithm, with its predicted time.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Layers of a butterfly.
    pub degrees: Vec<u32>,
    /// Its prediction, uncorrected.
    pub prediction: Prediction,
    /// Factor by which calls of this algorithm have taken longer than predicted.
    pub bias: f64,
    /// The profile that the prediction used.
    pub profile: Profile,
    /// The next best algorithms, with their predicted durations.
    pub others: Vec<TimedAlgorithm>,
    /// Algorithms that were tried and dropped, with the duration of a call.
    pub tried: Vec<TimedAlgorithm>,
}

/// An algorithm, and the duration of a call by it.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedAlgorithm {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Layers of a butterfly.
    pub degrees: Vec<u32>,
    /// Predicted or measured.
    pub duration: Seconds,
}

impl Choice {
    /// The predicted duration, corrected.
    pub fn duration(&self) -> Seconds {
        self.bias * self.prediction.duration()
    }

    /// Predicted latency and processor time: the call's duration if bytes took no time.
    pub(crate) fn latency_and_work(&self) -> Seconds {
        let latency_s = self.prediction.rounds() * self.profile.latency_s;
        Seconds(latency_s + self.prediction.work().0 / self.profile.cores)
    }

    /// Its algorithm with a duration.
    pub(crate) fn timed(&self, duration: Seconds) -> TimedAlgorithm {
        TimedAlgorithm { algorithm: self.algorithm, degrees: self.degrees.clone(), duration }
    }

    fn of(prediction: Prediction, workload: &Workload<'_>) -> Choice {
        let (mut algorithm, degrees) = algorithm_of_route(&prediction.route);
        let mut bias = workload.corrections.factor(workload.parameters, algorithm, prediction.duration());
        if workload.reduction == Reduction::ReduceScatter {
            // Predictions of reduce-scatters are not corrected, and their timings correct no others.
            (algorithm, bias) = (Algorithm::Butterfly, 1.0);
        }
        let (others, tried) = (Vec::new(), Vec::new());
        Choice { algorithm, degrees, bias, prediction, profile: workload.profile, others, tried }
    }
}

/// DSAR's result does not show which rows are entries, so it runs only where the caller names it.
const LOSES_ENTRIES: Algorithm = Algorithm::SplitAllgatherDense;

/// Whether vectors of this many entries are so small that only the number of rounds counts.
fn only_rounds_count(parameters: &TuningParameters, ranks: u32, entries: f64, row_bytes: usize) -> bool {
    ranks == 1 || entries * (row_bytes as f64 + 4.0) <= parameters.rounds_only_bytes
}

/// Whether `auto` may choose this algorithm for vectors of this many entries per rank.
pub fn auto_may_take(algorithm: Algorithm, ranks: u32, entries: f64, row_bytes: usize) -> bool {
    algorithm == Algorithm::RecursiveDoubling
        || algorithm != LOSES_ENTRIES
            && !only_rounds_count(&TuningParameters::DEFAULT, ranks, entries, row_bytes)
}

impl Workload<'_> {
    fn work(&self) -> Work<'_> {
        let Workload { ranks, n, row_bytes, union, dense_above, ranks_per_host, .. } = *self;
        Work { ranks, n, row_bytes, union, dense_above, ranks_per_host }
    }

    /// All choices of `auto`, the one with the least predicted time first: butterflies of all degrees, and for an allreduce
    /// all other algorithms; for small vectors recursive doubling alone.
    pub fn ranked(&self) -> Vec<Choice> {
        let (work, degrees) = (self.work(), factorisations(self.ranks));
        if self.reduction == Reduction::ReduceScatter {
            let all = work.all_reduce_scatters(&self.profile, &degrees).into_iter();
            return all.map(|prediction| Choice::of(prediction, self)).collect();
        }
        if only_rounds_count(self.parameters, self.ranks, (self.union)(1.0), self.row_bytes) {
            return vec![Choice::of(work.predict(&self.profile, &Route::RecursiveDoubling), self)];
        }
        let native = self.has_native.then(|| work.predict(&self.profile, &Route::DenseNative));
        let all = work.all(&self.profile, &degrees).into_iter().chain(native);
        let mut all: Vec<Choice> = all.map(|prediction| Choice::of(prediction, self)).collect();
        all.retain(|choice| choice.algorithm != LOSES_ENTRIES);
        // Corrections change the order of predictions.
        all.sort_by(|a, b| a.duration().total_cmp(&b.duration()));
        all
    }

    /// The predicted cost of a named algorithm.
    pub fn predict(&self, algorithm: Algorithm, degrees: &[u32]) -> Choice {
        if self.reduction == Reduction::ReduceScatter {
            return Choice::of(self.work().reduce_scatter(&self.profile, degrees), self);
        }
        let route = algorithm.route(self.ranks, degrees);
        Choice { algorithm, ..Choice::of(self.work().predict(&self.profile, &route), self) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn workload(ranks: u32, union: &dyn Fn(f64) -> f64, profile: Profile) -> Workload<'_> {
        Workload {
            reduction: Reduction::Allreduce,
            ranks,
            n: 1 << 24,
            row_bytes: 4,
            union,
            dense_above: 0.3,
            ranks_per_host: 1,
            has_native: false,
            profile,
            corrections: Corrections::default(),
            parameters: &TuningParameters::DEFAULT,
        }
    }

    pub(crate) fn even(n: u64, density: f64) -> impl Fn(f64) -> f64 {
        move |m| n as f64 * (1.0 - (1.0 - density).powf(m))
    }

    #[test]
    fn choices_are_sorted_by_duration_and_exclude_split_allgather_dense() {
        for (ranks, density) in [(2, 0.01f64), (4, 0.1), (8, 0.3), (8, 0.9)] {
            let union = even(1 << 24, density);
            for profile in [Profile::one_host(ranks, 2.0), Profile::network(31e6)] {
                let all = workload(ranks, &union, profile).ranked();
                assert!(all.len() > 6 && all.is_sorted_by(|a, b| a.duration() <= b.duration()));
                assert!(all.iter().all(|one| one.algorithm != Algorithm::SplitAllgatherDense));
            }
        }
    }

    #[test]
    fn small_vectors_take_recursive_doubling_and_native_allreduces_are_candidates() {
        let (small, large) = (even(1 << 24, 1e-5), even(1 << 24, 0.3));
        let algorithms = |workload: &Workload<'_>| -> Vec<Algorithm> {
            workload.ranked().iter().map(|one| one.algorithm).collect()
        };
        let profile = Profile::network(118e6);
        assert_eq!(algorithms(&workload(8, &small, profile)), [Algorithm::RecursiveDoubling]);
        let native = Workload { has_native: true, ..workload(8, &large, profile) };
        assert!(algorithms(&native).contains(&Algorithm::DenseMpi));
        assert!(!algorithms(&workload(8, &large, profile)).contains(&Algorithm::DenseMpi));
        let scatter = Workload { reduction: Reduction::ReduceScatter, ..workload(8, &large, profile) };
        assert_eq!(algorithms(&scatter), [Algorithm::Butterfly; 4]);
        assert!(!auto_may_take(Algorithm::SplitAllgatherDense, 8, 1e6, 4));
        for (entries, may) in [(100.0, false), (1e6, true)] {
            assert_eq!(auto_may_take(Algorithm::Ring, 8, entries, 4), may);
            assert!(auto_may_take(Algorithm::RecursiveDoubling, 8, entries, 4));
        }
    }
}
