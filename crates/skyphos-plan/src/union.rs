//! Models of unions: the number of indices in the union of m ranks' sets.
//!
//! Three models: indices drawn evenly (SparCML, appendix B), a power law (Kylix, Proposition 4.1), and a curve measured on the
//! data. The exponent of a power law follows from the densities of one rank's set and of the union of all.

use crate::density::PowerLaw;

/// A model of unions.
#[derive(Clone, Debug)]
pub enum Union {
    /// Indices drawn evenly and independently: n (1 - (1 - d)^m).
    Uniform {
        /// Size of the index space.
        n: u64,
        /// Entries of a rank.
        entries: f64,
    },
    /// A power law: a few features are in nearly every set.
    PowerLaw(PowerLaw),
    /// Pairs of m and entries, by ascending m; interpolated linearly in logarithms.
    Measured(Vec<(f64, f64)>),
}

impl Union {
    /// Entries of the union of m sets.
    pub fn entries(&self, m: f64) -> f64 {
        match self {
            Union::Uniform { n, entries } => {
                let n = *n as f64;
                // Precise for small densities too.
                -n * (m * (-(entries / n.max(1.0)).min(1.0)).ln_1p()).exp_m1()
            }
            Union::PowerLaw(law) => law.indices_per_rank(m) * m,
            Union::Measured(points) => interpolate(points, m),
        }
    }

    /// Evenly drawn sets, such that the union of `sets` of them has `entries`.
    pub fn drawn_evenly(n: u64, entries: f64, sets: u32) -> Union {
        let all = (entries / n.max(1) as f64).clamp(0.0, 1.0);
        // 1 - (1 - all)^(1/m), precise for small densities too. A full union has no unique density, so it counts as nearly full.
        let one = -((-all.min(1.0 - 1e-9)).ln_1p() / f64::from(sets.max(1))).exp_m1();
        Union::Uniform { n, entries: one * n as f64 }
    }

    /// This model tabulated at the divisors of `ranks`, the only m that butterflies need.
    pub fn at_divisors(&self, ranks: u32) -> Union {
        let divisors = (1..=ranks).filter(|m| ranks.is_multiple_of(*m)).map(f64::from);
        Union::Measured(divisors.map(|m| (m, self.entries(m))).collect())
    }

    /// The power law of density `one` in a set and `all` in the union of `m` sets; an exponent near 0 is a uniform
    /// draw. Unions that are larger than a uniform draw's, or hardly larger than one set, get the nearest exponent.
    pub fn fit(n: u64, one: f64, m: f64, all: f64) -> (f64, Union) {
        let law = |alpha: f64| PowerLaw::from_density(n, one, alpha);
        let (mut low, mut high) = (0.0, 4.0);
        // A larger exponent means more overlap, so a smaller union.
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            match law(middle).density(m) > all {
                true => low = middle,
                false => high = middle,
            }
        }
        let alpha = (low + high) / 2.0;
        (alpha, Union::PowerLaw(law(alpha)))
    }
}

fn interpolate(points: &[(f64, f64)], m: f64) -> f64 {
    let after = points.partition_point(|(at, _)| *at < m);
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return 0.0 };
    if after == 0 {
        return first.1;
    }
    if after == points.len() {
        return last.1;
    }
    let ((a, below), (b, above)) = (points[after - 1], points[after]);
    if below <= 0.0 {
        return above;
    }
    let share = (m / a).ln() / (b / a).ln();
    below * (above / below).powf(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_is_the_closed_form() {
        let union = Union::Uniform { n: 512, entries: 16.0 };
        for (m, want) in [(1.0, 16.0), (2.0, 31.5), (8.0, 114.84), (64.0, 444.88)] {
            assert!((union.entries(m) - want).abs() < 0.01, "{m}");
        }
        // So small a density d would be lost in 1 - d.
        let sparse = Union::Uniform { n: 1 << 60, entries: 3.0 };
        assert!((sparse.entries(4.0) - 12.0).abs() < 1e-6);
        assert_eq!(Union::Uniform { n: 10, entries: 10.0 }.entries(3.0), 10.0);
    }

    #[test]
    fn measured_curves_go_through_their_points() {
        let union = Union::Measured(vec![(1.0, 100.0), (2.0, 180.0), (8.0, 500.0)]);
        for (m, want) in [(0.5, 100.0), (1.0, 100.0), (2.0, 180.0), (8.0, 500.0), (64.0, 500.0)] {
            assert!((union.entries(m) - want).abs() < 1e-9);
        }
        assert!((union.entries(4.0) - (180.0f64 * 500.0).sqrt()).abs() < 1e-9);
        assert_eq!(Union::Measured(vec![]).entries(3.0), 0.0);
    }

    #[test]
    fn an_exponent_is_found_again() {
        for (n, density, alpha) in [(60_000_000, 0.21, 1.1), (1 << 20, 0.01, 0.7), (1 << 24, 0.001, 1.6)] {
            let law = PowerLaw::from_density(n, density, alpha);
            let (found, union) = Union::fit(n, density, 64.0, law.density(64.0));
            assert!((found - alpha).abs() < 0.01, "{found}, expected {alpha}");
            assert!((union.entries(8.0) / (law.density(8.0) * n as f64) - 1.0).abs() < 0.01);
        }
        let (flat, _) = Union::fit(1 << 20, 0.01, 8.0, 1.0 - 0.99f64.powi(8));
        assert!(flat < 0.05, "{flat}");
    }
}
