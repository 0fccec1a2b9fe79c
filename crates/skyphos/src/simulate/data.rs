//! Random index sets of ranks, drawn from a model distribution.

use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Poisson};
use rand_pcg::Pcg64;
use skyphos_plan::{PowerLaw, Union};
use skyphos_types::{Error, Result};
use std::collections::HashSet;

/// The distribution of a rank's indices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Law {
    /// Uniform, and independent of other ranks.
    Uniform,
    /// Feature r occurs Poisson(λ r^-α) times (Kylix §IV). Indices of features are a permutation.
    PowerLaw {
        /// The exponent α.
        alpha: f64,
    },
}

impl Law {
    /// The expected sizes of unions of ranks' index sets.
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
    /// The number of indices, which are uniform.
    Uniform(u64),
    /// Features, and the factor that maps a feature to its index.
    PowerLaw { features: Features, factor: u64 },
}

/// Draws between two checks for an interrupt.
const CHECK_EVERY: u64 = 1 << 20;

/// Counts draws, and checks for interrupts.
struct DrawCounter<'a> {
    draws: u64,
    go_on: &'a mut dyn FnMut() -> bool,
}

impl DrawCounter<'_> {
    /// Counts a draw. Fails if `go_on` has returned false.
    fn count(&mut self) -> Result<()> {
        self.draws += 1;
        match self.draws.is_multiple_of(CHECK_EVERY) && !(self.go_on)() {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }
}

impl Sampler {
    pub(super) fn new(law: Law, n: u64, entries: f64) -> Sampler {
        let kind = match law {
            Law::Uniform => Kind::Uniform(entries.round() as u64),
            Law::PowerLaw { alpha } => {
                let lambda = PowerLaw::from_density(n, entries / n as f64, alpha).lambda();
                Kind::PowerLaw { features: Features::new(n, lambda, alpha), factor: coprime(n) }
            }
        };
        Sampler { n, kind }
    }

    /// The indices of one rank, ascending. Drawing ends with an error once `go_on`, called from time to time, returns false.
    pub(super) fn draw(&self, seed: u64, rank: u32, go_on: &mut dyn FnMut() -> bool) -> Result<Vec<u64>> {
        let mut random = Pcg64::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank));
        let mut counter = DrawCounter { draws: 0, go_on };
        let n = self.n;
        let mut indices: Vec<u64> = match &self.kind {
            Kind::Uniform(count) => distinct(n, *count, &mut random, &mut counter)?,
            Kind::PowerLaw { features, factor } => {
                let mut drawn = features.draw(&mut random, &mut counter)?;
                let index = |r: u64| (u128::from(r - 1) * u128::from(*factor) % u128::from(n)) as u64;
                drawn.iter_mut().for_each(|r| *r = index(*r));
                drawn
            }
        };
        indices.sort_unstable();
        indices.dedup();
        Ok(indices)
    }
}

/// A random subset of features 1..=n that has feature r with probability 1 - exp(-λ r^-α). The time to draw it is bounded by
/// its expected size.
///
/// ```text
/// r ≤ R = λ^(1/α), where λ r^-α ≥ 1: one trial each (each is drawn with more than 63 %)
/// r > R: points x of a Poisson process of rate λ x^-α on (R, n]; r = ⌈x⌉ is kept with probability (x/r)^α
///        ∫_{r-1}^{r} λ x^-α (x/r)^α dx = λ r^-α, and few features are drawn twice
/// ```
struct Features {
    n: u64,
    lambda: f64,
    alpha: f64,
    /// R, at least 1.
    last_of_head: u64,
    /// ln(n / R).
    tail_span: f64,
}

impl Features {
    fn new(n: u64, lambda: f64, alpha: f64) -> Features {
        let last_of_head = (lambda.ln() / alpha).exp().max(1.0).min(n as f64) as u64;
        let tail_span = (n as f64 / last_of_head as f64).ln().max(0.0);
        Features { n, lambda, alpha, last_of_head, tail_span }
    }

    /// Expected points beyond R: λ ∫ x^-α.
    fn points(&self) -> f64 {
        let (slope, head) = (1.0 - self.alpha, self.last_of_head as f64);
        let integral = if slope == 0.0 { self.tail_span } else { (slope * self.tail_span).exp_m1() / slope };
        self.lambda * head.powf(slope) * integral
    }

    /// The quantile u: the point x below which a share u of the expected points lies.
    fn quantile(&self, u: f64) -> f64 {
        let slope = 1.0 - self.alpha;
        let log_ratio = match slope == 0.0 {
            true => u * self.tail_span,
            false => (u * (slope * self.tail_span).exp_m1()).ln_1p() / slope,
        };
        self.last_of_head as f64 * log_ratio.exp()
    }

    fn draw(&self, random: &mut Pcg64, counter: &mut DrawCounter<'_>) -> Result<Vec<u64>> {
        let mut drawn = Vec::new();
        if self.lambda == 0.0 {
            return Ok(drawn);
        }
        for r in 1..=self.last_of_head {
            counter.count()?;
            if random.random::<f64>() < -(-self.lambda * (r as f64).powf(-self.alpha)).exp_m1() {
                drawn.push(r);
            }
        }
        let points = self.points();
        let count =
            if points > 0.0 { Poisson::new(points).expect("above 0").sample(random) as u64 } else { 0 };
        for _ in 0..count {
            counter.count()?;
            let x = self.quantile(random.random());
            let r = x.ceil().clamp(self.last_of_head as f64 + 1.0, self.n as f64);
            if random.random::<f64>() < (x / r).powf(self.alpha) {
                drawn.push((r as u64).min(self.n));
            }
        }
        Ok(drawn)
    }
}

/// `count` distinct numbers below n.
fn distinct(n: u64, count: u64, random: &mut Pcg64, counter: &mut DrawCounter<'_>) -> Result<Vec<u64>> {
    if count > n / 4 {
        // If many are needed: each number in turn, with the probability that remains (Knuth, Algorithm S).
        let (mut left, mut chosen) = (count, Vec::with_capacity(count as usize));
        for index in 0..n {
            counter.count()?;
            if random.random_range(0..n - index) < left {
                chosen.push(index);
                left -= 1;
            }
        }
        return Ok(chosen);
    }
    let mut chosen = HashSet::with_capacity(count as usize);
    while (chosen.len() as u64) < count {
        counter.count()?;
        chosen.insert(random.random_range(0..n));
    }
    Ok(chosen.into_iter().collect())
}

/// A number coprime to n, near its golden section, so that multiplying by it spreads neighbours.
fn coprime(n: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let mut factor = ((n as f64 * 0.618) as u64).max(1);
    while gcd(factor, n) != 1 {
        factor += 1;
    }
    factor
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(law: Law, n: u64, entries: f64, seed: u64, rank: u32) -> Vec<u64> {
        Sampler::new(law, n, entries).draw(seed, rank, &mut || true).unwrap()
    }

    #[test]
    fn sets_and_unions_have_the_expected_sizes() {
        let n = 100_000;
        for law in [Law::Uniform, Law::PowerLaw { alpha: 1.1 }, Law::PowerLaw { alpha: 0.7 }] {
            for entries in [0.0, 50.0, 5_000.0, 40_000.0] {
                let sets: Vec<Vec<u64>> = (0..8).map(|rank| drawn(law, n, entries, 3, rank)).collect();
                assert!(sets.iter().all(|set| set.windows(2).all(|w| w[0] < w[1])));
                let mean = sets.iter().map(Vec::len).sum::<usize>() as f64 / 8.0;
                assert!((mean - entries).abs() <= 0.05 * entries + 8.0, "{law:?}: {mean}, not {entries}");
                let mut all = sets.concat();
                all.sort_unstable();
                all.dedup();
                let want = law.union(n, entries).entries(8.0);
                assert!(
                    (all.len() as f64 - want).abs() <= 0.05 * want + 20.0,
                    "{law:?}: {}, not {want}",
                    all.len()
                );
            }
        }
        assert_eq!(drawn(Law::Uniform, 10, 10.0, 1, 0), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn features_have_the_probabilities_of_the_law_and_take_few_draws() {
        for alpha in [0.0, 0.5, 1.0, 1.1, 2.0, 5.0, 10.0] {
            let law = Law::PowerLaw { alpha };
            for (n, entries) in
                [(1000, 1000.0), (100_000, 99_000.0), (100_000, 50_000.0), (1 << 62, 1000.0), (1, 1.0)]
            {
                let sampler = Sampler::new(law, n, entries);
                let Kind::PowerLaw { features, .. } = &sampler.kind else { panic!("a power law") };
                assert!(
                    features.last_of_head as f64 + features.points() < 4.0 * entries + 2.0,
                    "α={alpha}: {n} {entries}"
                );
                let indices = sampler.draw(5, 0, &mut || true).unwrap();
                assert!(
                    (indices.len() as f64 - entries).abs() <= 0.05 * entries + 8.0,
                    "α={alpha}: {}, not {entries}",
                    indices.len()
                );
                assert_eq!(indices, sampler.draw(5, 0, &mut || true).unwrap());
            }
            let (n, rounds) = (12, 100_000);
            let features = Features::new(n, 3.0, alpha);
            let (mut random, mut counts) = (Pcg64::seed_from_u64(7), [0u32; 13]);
            for _ in 0..rounds {
                let mut drawn =
                    features.draw(&mut random, &mut DrawCounter { draws: 0, go_on: &mut || true }).unwrap();
                drawn.sort_unstable();
                drawn.dedup();
                drawn.iter().for_each(|r| counts[*r as usize] += 1);
            }
            for r in 1..=n {
                let want = -(-3.0 * (r as f64).powf(-alpha)).exp_m1();
                let got = f64::from(counts[r as usize]) / f64::from(rounds);
                assert!((got - want).abs() < 0.01, "α={alpha}: feature {r} in {got}, not {want}");
            }
        }
        assert_eq!(drawn(Law::PowerLaw { alpha: 1.1 }, 5000, 5000.0, 1, 0), (0..5000).collect::<Vec<_>>());
    }

    #[test]
    fn drawing_can_be_interrupted() {
        for law in [Law::Uniform, Law::PowerLaw { alpha: 1.1 }] {
            let sampler = Sampler::new(law, 1 << 30, 5e8);
            assert!(matches!(sampler.draw(1, 0, &mut || false), Err(Error::Interrupted)));
        }
    }
}
