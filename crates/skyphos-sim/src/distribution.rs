//! Named distributions of delays and of slowness.

use rand_distr::{Distribution as _, Exp, LogNormal, Normal, Pareto, Uniform};
use rand_pcg::Pcg64;
use skyphos_types::{Error, Result};
use std::str::FromStr;

/// A distribution of numbers of at least 0; negative draws count as 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Always the same.
    Constant(f64),
    /// Between two numbers.
    Uniform(f64, f64),
    /// Mean and standard deviation.
    Normal(f64, f64),
    /// Mean.
    Exponential(f64),
    /// Median, and standard deviation of the logarithm.
    LogNormal(f64, f64),
    /// The least number, and the exponent: small exponents have heavy tails.
    Pareto(f64, f64),
}

impl Distribution {
    /// Always 0.
    pub const ZERO: Distribution = Distribution::Constant(0.0);

    /// Draws a number.
    pub fn draw(&self, random: &mut Pcg64) -> f64 {
        const CHECKED: &str = "parameters were checked";
        let drawn = match *self {
            Distribution::Constant(value) => value,
            Distribution::Uniform(low, high) if low < high => {
                Uniform::new(low, high).expect(CHECKED).sample(random)
            }
            Distribution::Uniform(low, _) => low,
            Distribution::Normal(mean, deviation) => {
                Normal::new(mean, deviation).expect(CHECKED).sample(random)
            }
            Distribution::Exponential(mean) if mean > 0.0 => {
                Exp::new(1.0 / mean).expect(CHECKED).sample(random)
            }
            Distribution::Exponential(_) => 0.0,
            Distribution::LogNormal(median, sigma) if median > 0.0 => {
                LogNormal::new(median.ln(), sigma).expect(CHECKED).sample(random)
            }
            Distribution::LogNormal(..) => 0.0,
            Distribution::Pareto(least, exponent) if least > 0.0 => {
                Pareto::new(least, exponent).expect(CHECKED).sample(random)
            }
            Distribution::Pareto(..) => 0.0,
        };
        drawn.max(0.0)
    }

    /// The largest of its parameters.
    pub fn largest(&self) -> f64 {
        match *self {
            Distribution::Constant(value) | Distribution::Exponential(value) => value,
            Distribution::Uniform(a, b)
            | Distribution::Normal(a, b)
            | Distribution::LogNormal(a, b)
            | Distribution::Pareto(a, b) => a.max(b),
        }
    }

    /// Its upper bound, if it has one.
    pub fn upper_bound(&self) -> Option<f64> {
        match *self {
            Distribution::Constant(most) | Distribution::Uniform(_, most) => Some(most),
            _ => None,
        }
    }

    /// Whether every draw is 0.
    pub fn is_zero(&self) -> bool {
        *self == Distribution::ZERO
    }
}

/// As people write them: `0.001`, `uniform(0, 1e-3)`, `exponential(1e-4)`, `lognormal(1e-4, 0.8)` …
impl FromStr for Distribution {
    type Err = Error;

    fn from_str(text: &str) -> Result<Distribution> {
        let wrong = |why: &str| {
            Error::bad_input(format!(
                "{text:?} is no distribution: {why}; write a number, constant(x), uniform(low, high), normal(mean, \
                 deviation), exponential(mean), lognormal(median, sigma) or pareto(least, exponent)"
            ))
        };
        if let Ok(value) = text.trim().parse::<f64>() {
            return match value.is_finite() && value >= 0.0 {
                true => Ok(Distribution::Constant(value)),
                false => Err(wrong("it must be at least 0")),
            };
        }
        let (name, rest) = text.trim().split_once('(').ok_or_else(|| wrong("unknown name"))?;
        let inside = rest.strip_suffix(')').ok_or_else(|| wrong("its bracket does not close"))?;
        let numbers: Vec<f64> = inside
            .split(',')
            .map(|part| part.trim().parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0))
            .collect::<Option<_>>()
            .ok_or_else(|| wrong("its parameters must be numbers of at least 0"))?;
        let found = match (name.trim(), numbers.as_slice()) {
            ("constant", [value]) => Distribution::Constant(*value),
            ("uniform", [low, high]) if low <= high => Distribution::Uniform(*low, *high),
            ("normal", [mean, deviation]) => Distribution::Normal(*mean, *deviation),
            ("exponential", [mean]) => Distribution::Exponential(*mean),
            ("lognormal", [median, sigma]) => Distribution::LogNormal(*median, *sigma),
            ("pareto", [least, exponent]) if *exponent > 0.0 => Distribution::Pareto(*least, *exponent),
            ("constant" | "uniform" | "normal" | "exponential" | "lognormal" | "pareto", _) => {
                return Err(wrong("its parameters do not fit"));
            }
            _ => return Err(wrong("unknown name")),
        };
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn draws_have_the_expected_mean() {
        let mut random = Pcg64::seed_from_u64(3);
        for (text, mean) in [
            ("2", 2.0),
            ("uniform(1, 3)", 2.0),
            ("normal(5, 0.5)", 5.0),
            ("exponential(0.25)", 0.25),
            ("lognormal(2, 0.5)", 2.0 * (0.125f64).exp()),
            ("pareto(1, 3)", 1.5),
        ] {
            let distribution: Distribution = text.parse().unwrap();
            let sum: f64 = (0..40_000).map(|_| distribution.draw(&mut random)).sum();
            assert!((sum / 40_000.0 / mean - 1.0).abs() < 0.03, "{text}: {}", sum / 40_000.0);
        }
    }

    #[test]
    fn unknown_distributions_are_refused_with_the_known_ones() {
        for text in
            ["", "poisson(3)", "uniform(3, 1)", "normal(1)", "exponential(-1)", "-2", "uniform(1, 2", "nan"]
        {
            let error = text.parse::<Distribution>().unwrap_err().to_string();
            assert!(error.contains("lognormal(median"), "{text}: {error}");
        }
    }
}
