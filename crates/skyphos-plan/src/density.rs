//! Density of unions of power-law index sets (Kylix §IV, equations 3 to 7).
//!
//! Feature r occurs Poisson(λ r^-α) times in one rank's data. The expected density is
//! f(λ) = 1/n Σ_{r=1..n} (1 - exp(-λ r^-α)), and the union of the data of K ranks has density f(K λ).
//! f grows with λ, so bisection finds λ0 from a measured density.

/// Features up to this number r are summed one by one; from there on the sum is an integral over ln r.
const EXACT_TERMS: u64 = 4096;

/// Intervals of the integral per factor of e; the terms are smooth there (error below 1e-6).
const STEPS_PER_E: f64 = 24.0;

/// A power law over `n` features, scaled to a measured density.
#[derive(Clone, Copy, Debug)]
pub struct PowerLaw {
    n: u64,
    alpha: f64,
    lambda: f64,
}

impl PowerLaw {
    /// The law with exponent `alpha` whose expected density is `density` (clipped to 0 ..= 1).
    pub fn from_density(n: u64, density: f64, alpha: f64) -> PowerLaw {
        let density = density.clamp(0.0, 1.0);
        let with = |lambda| PowerLaw { n, alpha, lambda };
        if n == 0 || density == 0.0 {
            return with(0.0);
        }
        // f is monotone; in ln λ the search covers every density that n distinct features can have.
        let (mut low, mut high) = (-80.0f64, 80.0 + alpha * (n as f64).ln());
        for _ in 0..80 {
            let middle = (low + high) / 2.0;
            if with(middle.exp()).density(1.0) < density {
                low = middle;
            } else {
                high = middle;
            }
        }
        with(((low + high) / 2.0).exp())
    }

    /// Expected density of the union of `k` ranks' sets: f(k λ0), equation 4.
    pub fn density(&self, k: f64) -> f64 {
        let (n, scale) = (self.n, k * self.lambda);
        if n == 0 {
            return 0.0;
        }
        let term = |r: f64| -(-scale * r.powf(-self.alpha)).exp_m1();
        (sum_over(n, term) / n as f64).min(1.0)
    }

    /// λ0: expected occurrences of the first feature in one rank's data.
    pub fn lambda(&self) -> f64 {
        self.lambda
    }

    /// Expected indices of one rank after the layers above have joined `k` ranks' data in a k-th of the range: P of
    /// equation 5.
    pub fn indices_per_rank(&self, k: f64) -> f64 {
        self.n as f64 * self.density(k) / k
    }
}

/// Σ_{r=1..n} term(r).
fn sum_over(n: u64, term: impl Fn(f64) -> f64) -> f64 {
    let exact = n.min(EXACT_TERMS);
    let head: f64 = (1..=exact).map(|r| term(r as f64)).sum();
    // Σ_{r > exact} term(r) ≈ ∫ term from exact + ½ to n + ½ = ∫ term(e^u) e^u du, by Simpson's rule.
    let (from, to) = ((exact as f64 + 0.5).ln(), (n as f64 + 0.5).ln());
    let steps = ((to - from) * STEPS_PER_E / 2.0).ceil() * 2.0;
    let mut tail = 0.0;
    if n > exact {
        let h = (to - from) / steps;
        for i in 0..=steps as u64 {
            let u = from + h * i as f64;
            let weight = if i == 0 || i == steps as u64 { 1.0 } else { 2.0 + 2.0 * (i % 2) as f64 };
            tail += weight * term(u.exp()) * u.exp();
        }
        tail *= h / 3.0;
    }
    head + tail
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Plain oracle: the sum as it stands in equation 4.
    fn plain(n: u64, lambda: f64, alpha: f64) -> f64 {
        (1..=n).map(|r| 1.0 - (-lambda * (r as f64).powf(-alpha)).exp()).sum::<f64>() / n as f64
    }

    #[test]
    fn the_integral_is_the_sum() {
        for alpha in [0.5, 1.0, 1.1, 2.0] {
            for lambda in [0.01, 1.0, 300.0, 1e5] {
                let law = PowerLaw { n: 200_000, alpha, lambda };
                let (got, want) = (law.density(1.0), plain(200_000, lambda, alpha));
                assert!((got - want).abs() <= 1e-6 * want, "α={alpha} λ={lambda}: {got} against {want}");
            }
        }
    }

    proptest! {
        #[test]
        fn inversion_finds_the_density(n in 1u64..1 << 40, density in 1e-6f64..0.95, alpha in 0.3f64..2.0) {
            let law = PowerLaw::from_density(n, density, alpha);
            prop_assert!((law.density(1.0) - density).abs() < 1e-6);
            prop_assert!(law.density(4.0) >= law.density(2.0));
            prop_assert!(law.indices_per_rank(2.0) <= law.indices_per_rank(1.0) * 1.000001);
        }
    }

    #[test]
    fn extremes() {
        assert_eq!(PowerLaw::from_density(100, 0.0, 1.0).density(64.0), 0.0);
        assert!(PowerLaw::from_density(100, 1.0, 1.0).density(1.0) > 0.99);
        assert_eq!(PowerLaw::from_density(0, 0.5, 1.0).density(1.0), 0.0);
        assert!(PowerLaw::from_density(1 << 62, 1e-9, 1.1).density(8.0) > 1e-9);
    }

    #[test]
    fn density_matches_random_draws() {
        // The union of 8 independent Poisson draws, counted (xorshift, fixed seed).
        let (n, alpha) = (20_000u64, 1.1);
        let law = PowerLaw::from_density(n, 0.1, alpha);
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut uniform = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut present = 0;
        for r in 1..=n {
            let p = 1.0 - (-law.lambda * (r as f64).powf(-alpha)).exp();
            present += usize::from((0..8).any(|_| uniform() < p));
        }
        let (got, want) = (present as f64 / n as f64, law.density(8.0));
        assert!((got - want).abs() < 0.01, "{got} against {want}");
    }
}
