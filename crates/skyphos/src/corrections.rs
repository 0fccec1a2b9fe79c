//! How much longer calls by each algorithm take than was predicted.
//!
//! What calls of one length showed says less of calls of another: what is wrong about a message is not what is wrong about a
//! byte. So a correction is remembered with the seconds that were predicted, and counts the less the farther it is.

use crate::algorithm::Algorithm;
use skyphos_core::collectives::largest;

/// Calls that are remembered, here and in what [`crate::observe`] keeps: their median minds no single one that was disturbed.
const LAST: usize = 5;

/// The most by which a prediction is taken to be wrong.
const MOST: f64 = 4.0;

/// A correction counts 1/e for calls that are predicted to take so many times as long, or as short.
const FAR: f64 = 4.0;

/// Calls are as long as each other that are predicted to take not more than so many times as long.
const AS_LONG: f64 = 2.0;

/// What the last calls showed, in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Last<T> {
    all: [T; LAST],
    count: usize,
}

impl<T: Copy> Last<T> {
    /// Takes the place of the oldest one.
    pub(crate) fn note(&mut self, one: T) {
        self.all[self.count % LAST] = one;
        self.count += 1;
    }

    fn known(&self) -> &[T] {
        &self.all[..self.count.min(LAST)]
    }

    fn latest(&self) -> Option<T> {
        self.count.checked_sub(1).map(|last| self.all[last % LAST])
    }
}

impl Last<f64> {
    /// 0 where there is nothing.
    pub(crate) fn median(&self) -> f64 {
        lower_median(self.known().iter().copied())
    }
}

/// Of two in the middle the lesser, for it is the larger that was disturbed; 0 of nothing.
fn lower_median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

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

/// The last calls of this rank by each algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Calls([Last<Correction>; Algorithm::ALL.len()]);

impl Calls {
    /// Takes note of a call.
    pub(crate) fn note(&mut self, algorithm: Algorithm, predicted_s: f64, took_s: f64) {
        self.0[algorithm as usize].note(Correction { times: took_s / predicted_s, of_s: predicted_s });
    }

    /// What this rank says of them: of those as long as the last one.
    pub(crate) fn words(&self) -> impl Iterator<Item = f64> {
        self.0.into_iter().flat_map(|calls| {
            let of_s = calls.latest().map_or(0.0, |one| one.of_s);
            let as_long = |one: &&Correction| one.of_s.max(of_s) <= AS_LONG * one.of_s.min(of_s);
            [lower_median(calls.known().iter().filter(as_long).map(|one| one.times)), of_s]
        })
    }
}

/// Of all algorithms, as all ranks go by them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Corrections([Correction; Algorithm::ALL.len()]);

impl Corrections {
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

    fn agreed(calls: &Calls) -> Corrections {
        Corrections::agreed(|k| vec![calls.words().nth(k).unwrap(); 3])
    }

    #[test]
    fn what_was_seen_counts_near_by() {
        let mut calls = Calls::default();
        assert_eq!(agreed(&calls).times(Ring, 1e-3), 1.0);
        calls.note(Ring, 1e-3, 2e-3);
        let all = agreed(&calls);
        assert!(near(all.times(Ring, 1e-3), 2.0));
        assert!(near(all.times(Butterfly, 1e-3), 2.0), "what slows one down slows all");
        assert!(all.times(Ring, 4e-3) < 1.6 && all.times(Ring, 1.0) < 1.05, "far away it says little");
        calls.note(Allgather, 1e-3, 0.5e-3);
        let all = agreed(&calls);
        assert!(near(all.times(Butterfly, 1e-3), 1.0) && near(all.times(Ring, 1e-3), 2.0));
    }

    #[test]
    fn one_call_that_is_disturbed_says_nothing() {
        let mut calls = Calls::default();
        calls.note(Ring, 1e-3, 50e-3);
        calls.note(Ring, 1.1e-3, 1.1e-3);
        assert!(near(agreed(&calls).times(Ring, 1e-3), 1.0));
        (0..2).for_each(|_| calls.note(Ring, 1e-3, 1.5e-3));
        calls.note(Ring, 1e-3, 80e-3);
        assert!(near(agreed(&calls).times(Ring, 1e-3), 1.5));
        // Another length begins anew.
        calls.note(Ring, 1.0, 0.8);
        assert!(near(agreed(&calls).times(Ring, 1.0), 0.8));
        calls.note(Butterfly, 1e-3, 1.0);
        assert_eq!(agreed(&calls).times(Butterfly, 1e-3), MOST);
    }
}
