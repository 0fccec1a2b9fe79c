//! The algorithms for sums of outer products, and their options.

use skyphos_core::collectives::gather::Schedule;
use skyphos_core::collectives::outer_product::Level;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_types::names::{all_variants, variant_of_name};
use skyphos_types::{Element, Error, Result};
use strum::{IntoStaticStr, VariantArray};

/// An algorithm for sums of outer products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum OuterAlgorithm {
    /// The algorithm with the least predicted time.
    #[default]
    Auto,
    /// Every rank gets all factors and multiplies them.
    Allgather,
    /// Each rank multiplies its own factors; an allreduce of arrays sums the products.
    Allreduce,
    /// Each rank computes its own product; panels of the products are reduced around a ring.
    Ring,
    /// *DSOP*'s generalized Rabenseifner algorithm: each rank owns blocks.
    Rabenseifner,
    /// Each rank computes its own product; the products are reduced by halving and doubling.
    Butterfly,
}

impl OuterAlgorithm {
    /// All algorithms.
    pub const ALL: [OuterAlgorithm; 6] = all_variants();

    /// The name that users write.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The algorithm that a user named.
    pub fn from_name(name: &str) -> Result<OuterAlgorithm> {
        variant_of_name("algorithm", name)
    }
}

/// Shape of this rank's part of a call: rows and columns of the sum G, and this rank's pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterShape {
    /// Rows of G.
    pub n: usize,
    /// Columns of G.
    pub m: usize,
    /// Number of pairs on this rank.
    pub pairs: usize,
}

/// Options of [`crate::Comm::outer_product_sum`]. All ranks must pass the same, except for `fresh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OuterOptions {
    /// The algorithm.
    pub algorithm: OuterAlgorithm,
    /// The exchange of factors by `Allgather`. `None`: by prediction.
    pub exchange: Option<Schedule>,
    /// The level whose ranks own G together, for `Rabenseifner`. `None`: all ranks.
    pub level: Option<Level>,
    /// The numbers of rows and columns of blocks into which the ranks that own G together cut it, for `Rabenseifner`. `None`: the grid
    /// for which owners need the fewest factors.
    pub grid: Option<(u32, u32)>,
    /// Whether each rank gets only its own rows: an even, contiguous share.
    pub scatter: bool,
    /// Whether the memory of `out` is fresh, so its first use takes page faults.
    pub fresh: bool,
}

impl OuterOptions {
    /// The signature of a call; `extra` is a hash of the options that all ranks must share.
    pub(super) fn sig<T: Element>(&self, shape: OuterShape, factors: bool) -> CallSig {
        let mut extra = 0u32;
        let mut mix = |word: u32| extra = (extra ^ word).wrapping_mul(0x9e37_79b1).rotate_left(13);
        mix(self.algorithm as u32 | u32::from(self.scatter) << 4 | u32::from(factors) << 5);
        mix(self.exchange.map_or(0, |schedule| 1 + schedule as u32));
        mix(self.level.map_or(0, |level| 1 + level as u32));
        let (rows, cols) = self.grid.unwrap_or_default();
        mix(rows);
        mix(cols);
        mix((shape.m >> 32) as u32);
        CallSig {
            dtype: T::DTYPE as u8,
            width: shape.m as u32,
            n: shape.n as u64,
            extra,
            ..CallSig::plain(CallKind::OuterProduct)
        }
    }

    /// Refuses options that the algorithm does not have.
    pub(super) fn check(&self, factors: bool) -> Result<()> {
        use OuterAlgorithm::{Allgather, Allreduce, Auto, Butterfly, Rabenseifner};
        let name = self.algorithm.name();
        let refuse = |what: &str| Err(Error::bad_input(format!("algorithm={name:?}: {what}")));
        if self.exchange.is_some() && self.algorithm != Allgather && !factors {
            return refuse("exchange= needs algorithm=\"allgather\"");
        }
        if (self.level.is_some() || self.grid.is_some()) && self.algorithm != Rabenseifner {
            return refuse("owners= and grid= need algorithm=\"rabenseifner\"");
        }
        if self.scatter && (self.level.is_some() || self.grid.is_some()) {
            return refuse("scatter=True gives rows to all ranks, so owners= and grid= do not apply");
        }
        if self.scatter && matches!(self.algorithm, Allreduce | Butterfly) {
            return refuse("scatter=True needs auto, allgather, rabenseifner or ring");
        }
        if factors && (self.scatter || !matches!(self.algorithm, Auto | Allgather)) {
            return refuse("factors=True needs auto or allgather, and no scatter=True");
        }
        Ok(())
    }
}
