//! How much longer calls by each algorithm take than was predicted.
//!
//! What calls of one length showed says less of calls of another: what is wrong about a message is not what is wrong about a
//! byte. So a correction is remembered with the seconds that were predicted, and counts the less the farther it is.

use crate::algorithm::Algorithm;
use skyphos_core::stream::largest;

/// How much the last call counts, here and in what [`crate::observe`] keeps.
pub(crate) const FRESH: f64 = 0.3;

/// A call that took so much longer than those before counts as one that took that much longer: something disturbed it.
const DISTURBED: f64 = 2.0;

/// The most by which a prediction is taken to be wrong.
const MOST: f64 = 4.0;

/// A correction counts 1/e for calls that are predicted to take so many times as long, or as short.
const FAR: f64 = 4.0;

/// Of one algorithm: nothing where `times` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Correction {
    /// Seconds that a call took over those predicted, which were `of_s`.
    times: f64,
    of_s: f64,
}

impl Correction {
    /// How much it says of calls that are predicted to take `seconds`: from 0 to 1.
    fn weight(&self, seconds: f64) -> f64 {
        match self.times > 0.0 && seconds > 0.0 {
            true => (-(seconds / self.of_s).ln().abs() / FAR.ln()).exp(),
            false => 0.0,
        }
    }
}

/// Of all algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Corrections([Correction; Algorithm::ALL.len()]);

impl Corrections {
    /// Takes note of a call.
    pub(crate) fn note(&mut self, algorithm: Algorithm, predicted_s: f64, took_s: f64) {
        let (one, now) = (&mut self.0[algorithm as usize], took_s / predicted_s);
        let weight = one.weight(predicted_s);
        let times = if weight > 0.0 {
            let before = one.times.powf(weight);
            before + FRESH.max(1.0 - weight) * (now.min(DISTURBED * before) - before)
        } else {
            now
        };
        *one = Correction { times, of_s: predicted_s };
    }

    /// What this rank says of them.
    pub(crate) fn words(&self) -> impl Iterator<Item = f64> {
        self.0.into_iter().flat_map(|one| [one.times, one.of_s])
    }

    /// Those of the slowest ranks, for a call is done when its last rank is; `said(k)`: what all said in that place of their
    /// words.
    pub(crate) fn agreed(said: impl Fn(usize) -> Vec<f64>) -> Corrections {
        Corrections(std::array::from_fn(|k| Correction {
            times: largest(said(2 * k)),
            of_s: largest(said(2 * k + 1)),
        }))
    }

    /// How much longer a call by this algorithm takes that is predicted to take `seconds`.
    pub(crate) fn times(&self, algorithm: Algorithm, seconds: f64) -> f64 {
        let (mut all, mut weights) = (0.0, 0.0);
        for one in self.0.iter().filter(|one| one.times > 0.0) {
            let weight = one.weight(seconds);
            all += weight * one.times.ln();
            weights += weight;
        }
        // What slows those that were tried down slows all.
        let others = all / f64::max(weights, 1.0);
        let (one, own) = (&self.0[algorithm as usize], self.0[algorithm as usize].weight(seconds));
        let known = if own > 0.0 { own * one.times.ln() } else { 0.0 };
        (known + (1.0 - own) * others).exp().clamp(1.0 / MOST, MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Algorithm::{Allgather, Butterfly, Ring};

    fn near(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 0.01
    }

    #[test]
    fn what_was_seen_counts_near_by() {
        let mut all = Corrections::default();
        assert_eq!(all.times(Ring, 1e-3), 1.0);
        all.note(Ring, 1e-3, 2e-3);
        assert!(near(all.times(Ring, 1e-3), 2.0));
        assert!(near(all.times(Butterfly, 1e-3), 2.0), "what slows one down slows all");
        assert!(all.times(Ring, 4e-3) < 1.6 && all.times(Ring, 1.0) < 1.05, "far away it says little");
        all.note(Allgather, 1e-3, 0.5e-3);
        assert!(near(all.times(Butterfly, 1e-3), 1.0) && near(all.times(Ring, 1e-3), 2.0));
        let agreed = Corrections::agreed(|k| vec![all.words().nth(k).unwrap(); 3]);
        assert_eq!(agreed, all);
    }

    #[test]
    fn the_last_calls_count_most_and_one_that_is_disturbed_little() {
        let mut all = Corrections::default();
        all.note(Ring, 1e-3, 1e-3);
        all.note(Ring, 1e-3, 50e-3);
        assert!(near(all.times(Ring, 1e-3), 1.3));
        (0..20).for_each(|_| all.note(Ring, 1e-3, 1.5e-3));
        assert!(near(all.times(Ring, 1e-3), 1.5));
        // Another length begins anew.
        all.note(Ring, 1.0, 0.8);
        assert!((all.times(Ring, 1.0) - 0.8).abs() < 0.05);
        all.note(Butterfly, 1e-3, 1.0);
        assert_eq!(all.times(Butterfly, 1e-3), MOST);
    }
}
