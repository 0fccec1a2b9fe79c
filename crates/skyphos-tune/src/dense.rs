//! The density above which a vector turns dense, and the choice of a schedule for dense arrays.

use crate::algorithm::Algorithm;
use crate::parameters::TuningParameters;
use skyphos_plan::CHUNK_BYTES;

/// The number of entries above which a vector turns dense.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum DenseThreshold {
    /// At the smaller of the paper's crossover and the measured one.
    #[default]
    Auto,
    /// N·isize/(c + isize) entries, for indices of c bytes and values of isize (SparCML §5.1).
    Paper,
    /// Above this many entries.
    Entries(u64),
}

impl DenseThreshold {
    /// The threshold in entries per position. `wide`: indices take 8 bytes instead of 4.
    pub fn density(self, n: u64, row_bytes: usize, wide: bool) -> f64 {
        let index_bytes = if wide { 8 } else { 4 };
        let paper = row_bytes as f64 / (row_bytes + index_bytes) as f64;
        match self {
            DenseThreshold::Auto => paper.min(TuningParameters::DEFAULT.dense_crossover),
            DenseThreshold::Paper => paper,
            DenseThreshold::Entries(entries) => entries as f64 / n.max(1) as f64,
        }
    }
}

/// The schedule that `auto` takes for dense arrays of `bytes`.
///
/// If each rank's range fills a chunk, the ring: on 2 to 8 ranks it is as fast as direct exchange at 1/4 to 1 chunk, and 1.1 to
/// 1.4 times faster above. Smaller arrays take direct exchange, or the MPI library's allreduce (`has_native`).
pub fn choose_dense(ranks: u32, bytes: usize, has_native: bool) -> Algorithm {
    match () {
        () if (bytes / ranks as usize) as f64 >= CHUNK_BYTES => Algorithm::DenseRing,
        () if has_native && bytes >= TuningParameters::DEFAULT.native_bytes => Algorithm::DenseMpi,
        () => Algorithm::Dense,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_depends_on_the_arrays_size() {
        for (bytes, has_native, want) in [
            (8 << 10, true, Algorithm::Dense),
            (64 << 10, true, Algorithm::DenseMpi),
            (64 << 10, false, Algorithm::Dense),
            ((1 << 20) - 8, false, Algorithm::Dense),
            (1 << 20, true, Algorithm::DenseRing),
        ] {
            assert_eq!(choose_dense(8, bytes, has_native), want, "{bytes}");
        }
    }

    #[test]
    fn thresholds() {
        for (threshold, row_bytes, wide, want) in [
            (DenseThreshold::Auto, 4, false, 0.3),
            (DenseThreshold::Auto, 1, false, 0.2),
            (DenseThreshold::Paper, 4, false, 0.5),
            (DenseThreshold::Paper, 8, true, 0.5),
            (DenseThreshold::Entries(25), 8, true, 0.25),
        ] {
            assert_eq!(threshold.density(100, row_bytes, wide), want, "{threshold:?} {row_bytes}");
        }
        assert_eq!(DenseThreshold::Entries(3).density(0, 4, false), 3.0);
    }
}
