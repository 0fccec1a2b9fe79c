//! The papers' rule for layer degrees (Kylix §III-D, §IV): at each layer the largest degree whose
//! messages are still worth sending.

use crate::density::PowerLaw;

/// Exponent assumed where none was measured: natural graphs and words lie near 1 (Kylix §IV: 0.5 to 2,
/// with little influence).
pub const DEFAULT_ALPHA: f64 = 1.0;

/// The sizes that a choice depends on. Every rank must pass the same.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Ranks in the group.
    pub ranks: u32,
    /// Size of the index space.
    pub n: u64,
    /// Mean number of indices that a rank contributes.
    pub contribute: f64,
    /// Mean number of indices that a rank wants.
    pub want: f64,
    /// Bytes of one index's values.
    pub row_bytes: f64,
    /// Exponent of the power law.
    pub alpha: f64,
}

impl Sizes {
    fn laws(&self) -> [PowerLaw; 2] {
        let n = self.n.max(1);
        [self.contribute, self.want].map(|nnz| PowerLaw::from_density(n, nnz / n as f64, self.alpha))
    }
}

/// Layer degrees by the papers' rule.
///
/// Each layer gets the largest divisor of the remaining ranks whose predicted message (a rank's rows after the layer above,
/// divided by the degree) has at least `min_packet_bytes`. If there is none, one layer joins all remaining ranks. Values go
/// down by the out-sets and come up by the in-sets; the larger direction counts. A group of one gets one layer of degree 1.
pub fn choose_degrees(sizes: &Sizes, min_packet_bytes: f64) -> Vec<u32> {
    let laws = sizes.laws();
    let (mut left, mut joined) = (sizes.ranks.max(1), 1u32);
    let mut degrees = Vec::new();
    while left > 1 {
        let bytes_per_rank =
            laws.iter().map(|law| law.indices_per_rank(f64::from(joined))).fold(0.0, f64::max)
                * sizes.row_bytes;
        let fits = |d: &u32| left % d == 0 && bytes_per_rank / f64::from(*d) >= min_packet_bytes;
        let degree = (2..=left).rev().find(fits).unwrap_or(left);
        degrees.push(degree);
        left /= degree;
        joined *= degree;
    }
    if degrees.is_empty() { vec![1] } else { degrees }
}

/// Predicted rows that one rank sends to others in each layer: (down, up).
pub fn predict_rows(sizes: &Sizes, degrees: &[u32]) -> Vec<(f64, f64)> {
    let [out, wanted] = sizes.laws();
    let mut joined = 1u32;
    degrees
        .iter()
        .map(|d| {
            let others = f64::from(d - 1) / f64::from(*d);
            let rows = (
                out.indices_per_rank(f64::from(joined)) * others,
                wanted.indices_per_rank(f64::from(joined)) * others,
            );
            joined = joined.saturating_mul(*d);
            rows
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kylix §VII-A: Twitter's followers' graph on 64 machines (60 M vertices, density 0.21).
    fn twitter(alpha: f64) -> Sizes {
        let nnz = 0.21 * 60e6;
        Sizes { ranks: 64, n: 60_000_000, contribute: nnz, want: nnz, row_bytes: 4.0, alpha }
    }

    #[test]
    fn degrees_are_those_of_the_paper() {
        for alpha in [0.5, DEFAULT_ALPHA, 1.1] {
            assert_eq!(choose_degrees(&twitter(alpha), 5e6), [8, 4, 2], "α = {alpha}");
            assert_eq!(choose_degrees(&twitter(alpha), 2e6), [16, 4], "α = {alpha}");
        }
    }

    #[test]
    fn extremes() {
        let sizes = |ranks| Sizes { ranks, ..twitter(1.0) };
        assert_eq!(choose_degrees(&sizes(64), 0.0), [64], "no message is too small: direct");
        assert_eq!(choose_degrees(&sizes(64), 1e12), [64], "all messages are too small: one layer");
        assert_eq!(choose_degrees(&sizes(1), 1e6), [1]);
        for prime in [7, 11, 13] {
            assert_eq!(choose_degrees(&sizes(prime), 1e7), [prime]);
        }
        let product: u32 = choose_degrees(&sizes(60), 3e6).iter().product();
        assert_eq!(product, 60);
    }

    #[test]
    fn predictions_shrink_down_the_layers() {
        let rows = predict_rows(&twitter(1.0), &[8, 4, 2]);
        assert!((rows[0].0 - 0.21 * 60e6 * 7.0 / 8.0).abs() < 1e3);
        assert!(rows[0].0 > rows[1].0 && rows[1].0 > rows[2].0);
    }
}
