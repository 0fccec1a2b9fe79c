//! Indices as a model draws them.

use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Poisson, Zipf};
use rand_pcg::Pcg64;
use skyphos_plan::{PowerLaw, Union};
use std::collections::HashSet;

/// How the indices of a rank lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Law {
    /// Evenly, and apart from other ranks'.
    Uniform,
    /// Feature r occurs Poisson(λ r^-α) times (Kylix §IV); which index it has follows no order.
    PowerLaw {
        /// The exponent α.
        alpha: f64,
    },
}

impl Law {
    /// What unions of ranks' indices should hold.
    pub fn union(self, n: u64, entries: f64) -> Union {
        match self {
            Law::Uniform => Union::Uniform { n, entries },
            Law::PowerLaw { alpha } => {
                Union::PowerLaw(PowerLaw::from_density(n, entries / n.max(1) as f64, alpha))
            }
        }
    }
}

/// Draws indices of many ranks.
pub(super) struct Sampler {
    n: u64,
    kind: Kind,
}

enum Kind {
    /// So many, evenly.
    Uniform(u64),
    /// How often a feature occurs in all, which it is, and what takes it to its index.
    PowerLaw { occurrences: f64, feature: Zipf<f64>, factor: u64 },
}

impl Sampler {
    pub(super) fn new(law: Law, n: u64, entries: f64) -> Sampler {
        let kind = match law {
            Law::Uniform => Kind::Uniform(entries.round() as u64),
            Law::PowerLaw { alpha } => {
                let occurrences = PowerLaw::from_density(n, entries / n as f64, alpha).occurrences();
                let feature = Zipf::new(n as f64, alpha).expect("an exponent of at least 0");
                Kind::PowerLaw { occurrences, feature, factor: coprime(n) }
            }
        };
        Sampler { n, kind }
    }

    /// The indices of one rank, ascending.
    pub(super) fn draw(&self, seed: u64, rank: u32) -> Vec<u64> {
        let mut random = Pcg64::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank));
        let n = self.n;
        let mut indices: Vec<u64> = match &self.kind {
            Kind::Uniform(count) => apart(n, *count, &mut random),
            Kind::PowerLaw { occurrences, feature, factor } => {
                let count = match *occurrences > 0.0 {
                    true => Poisson::new(*occurrences).expect("above 0").sample(&mut random) as u64,
                    false => 0,
                };
                let index = |drawn: f64| ((drawn as u128 - 1) * u128::from(*factor) % u128::from(n)) as u64;
                (0..count).map(|_| index(feature.sample(&mut random))).collect()
            }
        };
        indices.sort_unstable();
        indices.dedup();
        indices
    }
}

/// So many different numbers below n.
fn apart(n: u64, count: u64, random: &mut Pcg64) -> Vec<u64> {
    if count * 4 > n {
        // Of many, each in its turn with the probability that is left (Knuth, Algorithm S).
        let (mut left, mut chosen) = (count, Vec::with_capacity(count as usize));
        for index in 0..n {
            if random.random_range(0..n - index) < left {
                chosen.push(index);
                left -= 1;
            }
        }
        return chosen;
    }
    let mut chosen = HashSet::with_capacity(count as usize);
    while (chosen.len() as u64) < count {
        chosen.insert(random.random_range(0..n));
    }
    chosen.into_iter().collect()
}

/// A number without a common factor with n, near its golden section: multiplying by it spreads neighbours.
fn coprime(n: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let mut shift = ((n as f64 * 0.618) as u64).max(1);
    while gcd(shift, n) != 1 {
        shift += 1;
    }
    shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_the_model_says_and_unions_too() {
        let n = 100_000;
        for law in [Law::Uniform, Law::PowerLaw { alpha: 1.1 }, Law::PowerLaw { alpha: 0.7 }] {
            for entries in [0.0, 50.0, 5_000.0, 40_000.0] {
                let sets: Vec<Vec<u64>> =
                    (0..8).map(|rank| Sampler::new(law, n, entries).draw(3, rank)).collect();
                assert!(sets.iter().all(|set| set.windows(2).all(|w| w[0] < w[1])));
                let mean = sets.iter().map(Vec::len).sum::<usize>() as f64 / 8.0;
                assert!((mean - entries).abs() <= 0.05 * entries + 8.0, "{law:?}: {mean} of {entries}");
                let mut all = sets.concat();
                all.sort_unstable();
                all.dedup();
                let want = law.union(n, entries).entries(8.0);
                assert!(
                    (all.len() as f64 - want).abs() <= 0.05 * want + 20.0,
                    "{law:?}: {} of {want}",
                    all.len()
                );
            }
        }
        assert_eq!(Sampler::new(Law::Uniform, 10, 10.0).draw(1, 0), (0..10).collect::<Vec<_>>());
    }
}
