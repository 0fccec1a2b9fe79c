//! Corrections of predictions: per algorithm, the ratio of measured to predicted duration.
//!
//! A short call says little about a long one: the cost of a message may be wrong where the cost of a byte is right. So a
//! correction is stored with its predicted seconds, and its weight falls with the distance from them.

use crate::algorithm::Algorithm;
use crate::numbers::{largest, lower_median};
use crate::parameters::TuningParameters;
use skyphos_types::Seconds;

/// Number of calls that a [`Recent`] holds.
const RECENT: usize = TuningParameters::DEFAULT.recent_calls;

/// The most recent values, in any order. Their median hides a single disturbed call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Recent<T> {
    values: [T; RECENT],
    count: usize,
}

impl<T: Copy> Recent<T> {
    /// Adds a value; it replaces the oldest one.
    pub(crate) fn push(&mut self, value: T) {
        self.values[self.count % RECENT] = value;
        self.count += 1;
    }

    fn values(&self) -> &[T] {
        &self.values[..self.count.min(RECENT)]
    }

    fn latest(&self) -> Option<T> {
        self.count.checked_sub(1).map(|last| self.values[last % RECENT])
    }
}

impl Recent<f64> {
    /// The lower median; 0 without a value.
    pub(crate) fn median(&self) -> f64 {
        lower_median(self.values().iter().copied())
    }
}

/// The correction of one algorithm; `factor` is 0 where no call has been measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Correction {
    /// Ratio of the measured to the predicted duration.
    factor: f64,
    predicted: Seconds,
}

impl Correction {
    /// The weight of this correction for a call of this predicted duration: from 0 to 1.
    fn weight(&self, parameters: &TuningParameters, duration: Seconds) -> f64 {
        match self.factor > 0.0 && duration > Seconds(0.0) {
            true => (-(duration / self.predicted).ln().abs() / parameters.correction_reach.ln()).exp(),
            false => 0.0,
        }
    }
}

/// The recent calls of this rank by each algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CorrectionHistory([Recent<Correction>; Algorithm::ALL.len()]);

impl CorrectionHistory {
    /// Records a call.
    pub(crate) fn push(&mut self, algorithm: Algorithm, predicted: Seconds, measured: Seconds) {
        self.0[algorithm as usize].push(Correction { factor: measured / predicted, predicted });
    }

    /// This rank's words in a survey, two per algorithm: the median factor of the calls about as long as the latest call, and
    /// the predicted seconds of the latest call.
    pub(crate) fn words(&self, parameters: &TuningParameters) -> impl Iterator<Item = f64> {
        let same_length = parameters.same_length;
        self.0.into_iter().flat_map(move |calls| {
            let predicted_s = calls.latest().map_or(0.0, |one| one.predicted.0);
            let as_long = |one: &&Correction| {
                one.predicted.0.max(predicted_s) <= same_length * one.predicted.0.min(predicted_s)
            };
            [lower_median(calls.values().iter().filter(as_long).map(|one| one.factor)), predicted_s]
        })
    }
}

/// The corrections of all algorithms, as all ranks agreed on them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Corrections([Correction; Algorithm::ALL.len()]);

impl Corrections {
    /// The corrections of the slowest ranks, since a call is complete when its last rank is. `gathered(k)`: word k of all ranks.
    pub(crate) fn agreed(gathered: impl Fn(usize) -> Vec<f64>) -> Corrections {
        Corrections(std::array::from_fn(|k| Correction {
            factor: largest(gathered(2 * k)),
            predicted: Seconds(largest(gathered(2 * k + 1))),
        }))
    }

    /// The factor by which a call of this algorithm takes longer than this predicted duration.
    pub fn factor(&self, parameters: &TuningParameters, algorithm: Algorithm, duration: Seconds) -> f64 {
        let (mut weighted_sum, mut weights) = (0.0, 0.0);
        for one in self.0.iter().filter(|one| one.factor > 0.0) {
            let weight = one.weight(parameters, duration);
            weighted_sum += weight * one.factor.ln();
            weights += weight;
        }
        // A slow machine also slows the algorithms without a measurement.
        let others = weighted_sum / f64::max(weights, 1.0);
        let one = &self.0[algorithm as usize];
        let own_weight = one.weight(parameters, duration);
        let known = if own_weight > 0.0 { own_weight * one.factor.ln() } else { 0.0 };
        let limit = parameters.max_correction;
        (known + (1.0 - own_weight) * others).exp().clamp(1.0 / limit, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Algorithm::{Allgather, Butterfly, Ring};

    const PARAMETERS: TuningParameters = TuningParameters::DEFAULT;

    fn agreed(calls: &CorrectionHistory) -> Corrections {
        Corrections::agreed(|k| vec![calls.words(&PARAMETERS).nth(k).unwrap(); 3])
    }

    /// From (calls: algorithm, predicted ms, measured ms) to (algorithm, predicted ms, least and largest factor).
    #[test]
    fn factors_follow_from_the_history() {
        type Calls<'a> = &'a [(Algorithm, f64, f64)];
        type Want<'a> = &'a [(Algorithm, f64, f64, f64)];
        const SLOW: Calls<'_> = &[(Ring, 1.0, 2.0)];
        let table: &[(&str, Calls<'_>, Want<'_>)] = &[
            ("nothing measured", &[], &[(Ring, 1.0, 1.0, 1.0)]),
            ("the same call", SLOW, &[(Ring, 1.0, 1.99, 2.01)]),
            ("a slow machine slows other algorithms", SLOW, &[(Butterfly, 1.0, 1.99, 2.01)]),
            ("weight falls with the distance", SLOW, &[(Ring, 4.0, 1.2, 1.6), (Ring, 1000.0, 1.0, 1.05)]),
            (
                "opposite errors cancel out for others",
                &[(Ring, 1.0, 2.0), (Allgather, 1.0, 0.5)],
                &[(Butterfly, 1.0, 0.99, 1.01), (Ring, 1.0, 1.99, 2.01), (Allgather, 1.0, 0.49, 0.51)],
            ),
            (
                "of two calls the faster counts",
                &[(Ring, 1.0, 50.0), (Ring, 1.1, 1.1)],
                &[(Ring, 1.0, 0.99, 1.01)],
            ),
            (
                "the median rises with the third slow call",
                &[(Ring, 1.0, 1.0), (Ring, 1.0, 1.0), (Ring, 1.0, 1.5), (Ring, 1.0, 1.5), (Ring, 1.0, 1.5)],
                &[(Ring, 1.0, 1.49, 1.51)],
            ),
            (
                "one disturbed call does not show",
                &[(Ring, 1.0, 1.5), (Ring, 1.0, 1.5), (Ring, 1.0, 1.5), (Ring, 1.0, 80.0)],
                &[(Ring, 1.0, 1.49, 1.51)],
            ),
            (
                "the median falls with the third fast call",
                &[
                    (Ring, 1.0, 3.0),
                    (Ring, 1.0, 3.0),
                    (Ring, 1.0, 3.0),
                    (Ring, 1.0, 0.5),
                    (Ring, 1.0, 0.5),
                    (Ring, 1.0, 0.5),
                ],
                &[(Ring, 1.0, 0.49, 0.51)],
            ),
            (
                "calls of another length start anew",
                &[(Ring, 1.0, 1.5), (Ring, 1.0, 1.5), (Ring, 1000.0, 800.0)],
                &[(Ring, 1000.0, 0.79, 0.81)],
            ),
            ("at most fourfold", &[(Butterfly, 1.0, 1000.0)], &[(Butterfly, 1.0, 4.0, 4.0)]),
            ("at least a fourth", &[(Butterfly, 1000.0, 1.0)], &[(Butterfly, 1000.0, 0.25, 0.25)]),
        ];
        for (name, calls, wants) in table {
            let mut history = CorrectionHistory::default();
            for (algorithm, predicted, measured) in *calls {
                history.push(*algorithm, Seconds(predicted * 1e-3), Seconds(measured * 1e-3));
            }
            for (algorithm, predicted, least, most) in *wants {
                let factor = agreed(&history).factor(&PARAMETERS, *algorithm, Seconds(predicted * 1e-3));
                assert!((*least..=*most).contains(&factor), "{name}: {algorithm:?} {predicted}: {factor}");
            }
        }
    }

    #[test]
    fn the_slowest_rank_counts() {
        let mut histories = [CorrectionHistory::default(); 2];
        histories[0].push(Ring, Seconds(1e-3), Seconds(1e-3));
        histories[1].push(Ring, Seconds(1e-3), Seconds(3e-3));
        let all = Corrections::agreed(|k| {
            histories.iter().map(|one| one.words(&PARAMETERS).nth(k).unwrap()).collect()
        });
        assert!((all.factor(&PARAMETERS, Ring, Seconds(1e-3)) - 3.0).abs() < 1e-9);
    }
}
