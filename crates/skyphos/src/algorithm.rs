//! The schedules of allreduce, when vectors turn dense, and the settings that all ranks share.

use crate::arguments::{Shape, shape_hash};
use crate::configure::custom_tag;
use crate::quantize::QuantizeOptions;
use skyphos_core::Endpoint;
use skyphos_core::collectives::Split;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_types::{DType, Element, Error, ReduceOp, Result};

/// A schedule of allreduce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// By prediction ([`choose`](crate::choose)), or by the rule of [`choose_dense`].
    #[default]
    Auto,
    /// Fewest rounds.
    RecursiveDoubling,
    /// SparCML's SSAR: parts stay sparse.
    SplitAllgather,
    /// SparCML's DSAR: reduced parts are dense.
    SplitAllgatherDense,
    /// Nested butterfly of any degrees.
    Butterfly,
    /// Around a ring.
    Ring,
    /// Everyone sends everything to everyone.
    Allgather,
    /// Dense arrays, each rank one range, directly between all.
    Dense,
    /// Dense arrays around a ring.
    DenseRing,
    /// Dense arrays by recursive halving and doubling.
    DenseRabenseifner,
    /// Dense arrays by the MPI library under the group.
    DenseMpi,
}

impl Algorithm {
    /// Those that every group has, whatever it goes over.
    pub const OURS: [Algorithm; 10] = [
        Algorithm::Auto,
        Algorithm::RecursiveDoubling,
        Algorithm::SplitAllgather,
        Algorithm::SplitAllgatherDense,
        Algorithm::Butterfly,
        Algorithm::Ring,
        Algorithm::Allgather,
        Algorithm::Dense,
        Algorithm::DenseRing,
        Algorithm::DenseRabenseifner,
    ];

    /// All of them.
    pub const ALL: [Algorithm; 11] = {
        let mut all = [Algorithm::DenseMpi; 11];
        all.split_at_mut(Algorithm::OURS.len()).0.copy_from_slice(&Algorithm::OURS);
        all
    };

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Auto => "auto",
            Algorithm::RecursiveDoubling => "recursive_doubling",
            Algorithm::SplitAllgather => "split_allgather",
            Algorithm::SplitAllgatherDense => "split_allgather_dense",
            Algorithm::Butterfly => "butterfly",
            Algorithm::Ring => "ring",
            Algorithm::Allgather => "allgather",
            Algorithm::Dense => "dense",
            Algorithm::DenseRing => "dense_ring",
            Algorithm::DenseRabenseifner => "dense_rabenseifner",
            Algorithm::DenseMpi => "dense_mpi",
        }
    }

    /// The algorithm a user named.
    pub fn from_name(name: &str) -> Result<Algorithm> {
        Algorithm::ALL.into_iter().find(|a| a.name() == name).ok_or_else(|| {
            let known: Vec<_> = Algorithm::ALL.iter().map(|a| a.name()).collect();
            Error::bad_input(format!("unknown algorithm {name:?}: use one of {}", known.join(", ")))
        })
    }

    /// Whether it is for dense arrays.
    pub fn is_dense(self) -> bool {
        use Algorithm::{Dense, DenseMpi, DenseRabenseifner, DenseRing};
        matches!(self, Dense | DenseRing | DenseRabenseifner | DenseMpi)
    }

    /// Refuses what the group's transport has not.
    pub(crate) fn check_transport(self, ep: &Endpoint, op: &ReduceOp, dtype: DType) -> Result<()> {
        if self != Algorithm::DenseMpi || ep.has_allreduce(op, dtype) {
            return Ok(());
        }
        let why = match ep.node().transport_name() {
            "mpi" if ep.size() < ep.node().size() => {
                format!("of all {} ranks of the first group, not {}", ep.node().size(), ep.size())
            }
            "mpi" => {
                format!("of numbers and operations that MPI has as well, not {dtype} and {:?}", op.name())
            }
            other => format!("over transport=\"mpi\", not {other:?}"),
        };
        Err(Error::bad_input(format!(
            "algorithm={:?} is the MPI library's own allreduce: {why}; algorithm=\"auto\" picks one that fits",
            self.name()
        )))
    }
}

/// Entries per position at which folding into dense rows becomes faster than collecting entries (measured:
/// 0.25 to 0.35 for 4-byte values).
const SPEED_CROSSOVER: f64 = 0.3;

/// When a vector turns dense.
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
    /// As entries per position. `wide`: indices take 8 bytes.
    pub fn density(self, n: u64, row_bytes: usize, wide: bool) -> f64 {
        let index_bytes = if wide { 8 } else { 4 };
        let paper = row_bytes as f64 / (row_bytes + index_bytes) as f64;
        match self {
            DenseThreshold::Auto => paper.min(SPEED_CROSSOVER),
            DenseThreshold::Paper => paper,
            DenseThreshold::Entries(entries) => entries as f64 / n.max(1) as f64,
        }
    }
}

/// Settings of [`Comm::allreduce`]. All ranks must pass the same, but for `tell_sent`.
#[derive(Clone, Debug, Default)]
pub struct AllreduceOptions {
    /// The schedule.
    pub algorithm: Algorithm,
    /// Layers of the butterfly; `None`: one.
    pub degrees: Option<Vec<u32>>,
    /// How ranges are cut.
    pub split: Split,
    /// When vectors turn dense.
    pub dense_threshold: DenseThreshold,
    /// What is quantised, if anything.
    pub quantize: Option<QuantizeOptions>,
    /// Entries that the result should have: `Auto` need not ask the other ranks before a first call.
    pub expected_nnz: Option<u64>,
    /// Whether [`Allreduced::sent`](crate::Allreduced::sent) is wanted on this rank.
    pub tell_sent: bool,
    /// Shape of what the vector or array was made of.
    pub shape: Shape,
}

impl AllreduceOptions {
    pub(crate) fn sig<T: Element>(&self, kind: CallKind, op: &ReduceOp, n: u64, width: usize) -> CallSig {
        let mut extra = self.algorithm as u32 | (self.split as u32) << 8;
        let mut mix = |word: u32| extra = (extra ^ word).wrapping_mul(0x9e37_79b1).rotate_left(13);
        self.degrees.iter().flatten().for_each(|d| mix(*d));
        match self.dense_threshold {
            DenseThreshold::Auto => {}
            DenseThreshold::Paper => mix(1),
            DenseThreshold::Entries(entries) => mix((entries ^ entries >> 32) as u32 | 2),
        }
        self.quantize.iter().flat_map(QuantizeOptions::words).for_each(&mut mix);
        self.expected_nnz.iter().for_each(|entries| mix((entries ^ entries >> 32) as u32 ^ 3));
        let is_array = kind == CallKind::AllreduceDense;
        if self.shape.is_some() && !is_array {
            mix(shape_hash(&self.shape) ^ 4);
        }
        let width = if is_array { shape_hash(&self.shape) } else { u32::try_from(width).unwrap_or(u32::MAX) };
        CallSig {
            op: op.code(),
            dtype: T::DTYPE as u8,
            flags: custom_tag(op),
            width,
            n,
            extra,
            ..CallSig::plain(kind)
        }
    }
}

/// Arrays of which all ranks ask each other first, whether the MPI library may reduce them, have so many bytes.
const FOR_MPI_BYTES: usize = 32 * 1024;

/// The rule behind `auto` for dense arrays of `bytes`: the ring where each rank's range fills a chunk (measured: the two
/// are as fast at 1/4 to 1 of it on 2 to 8 ranks, and the ring 1.1 to 1.4 times faster from there on), else directly, or by
/// the MPI library if that is among several hosts, `by_mpi` (measured: MPICH's takes 0.8 of the time at 64 KB).
pub fn choose_dense(ranks: u32, bytes: usize, by_mpi: bool) -> Algorithm {
    match () {
        () if bytes / ranks as usize >= CHUNK_BYTES => Algorithm::DenseRing,
        () if by_mpi && bytes >= FOR_MPI_BYTES => Algorithm::DenseMpi,
        () => Algorithm::Dense,
    }
}

/// Whether there is an allreduce of the MPI library's that might be faster than ours. On one host ours take half of what
/// MPICH's take (`bench/mpi.py`).
pub(crate) fn may_go_by_mpi(ep: &Endpoint, op: &ReduceOp, dtype: DType) -> bool {
    !ep.node().on_one_host() && ep.has_allreduce(op, dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_go_by_size() {
        for (bytes, by_mpi, want) in [
            (8 << 10, true, Algorithm::Dense),
            (64 << 10, true, Algorithm::DenseMpi),
            (64 << 10, false, Algorithm::Dense),
            (1 << 20, true, Algorithm::DenseRing),
        ] {
            assert_eq!(choose_dense(8, bytes, by_mpi), want, "{bytes}");
        }
    }

    #[test]
    fn all_are_ours_and_one_more() {
        let (last, ours) = Algorithm::ALL.split_last().unwrap();
        assert_eq!((*last, ours), (Algorithm::DenseMpi, &Algorithm::OURS[..]));
        assert!(Algorithm::ALL.iter().enumerate().all(|(k, one)| *one as usize == k));
    }
}
