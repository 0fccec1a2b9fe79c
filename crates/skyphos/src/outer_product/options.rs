//! The ways to sum outer products that users name, and the settings that all ranks share.

use skyphos_core::collectives::gather::Schedule;
use skyphos_core::collectives::outer_product::Level;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_types::names::{all_variants, variant_of_name};
use skyphos_types::{Element, Error, Result};
use strum::{IntoStaticStr, VariantArray};

/// A way to sum outer products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum OuterAlgorithm {
    /// What should take the least time.
    #[default]
    Auto,
    /// All factors to all ranks, which multiply them.
    Allgather,
    /// Each rank's product, then an allreduce of arrays.
    Allreduce,
    /// The same around a ring, panel by panel.
    Ring,
    /// The paper's generalized Rabenseifner: owners of blocks.
    Rabenseifner,
    /// Each rank's product, then halving and doubling.
    Butterfly,
}

impl OuterAlgorithm {
    /// All of them.
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

/// Shape of this rank's part of a call: rows and columns of G, and this rank's pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterShape {
    /// Rows of G.
    pub n: usize,
    /// Its columns.
    pub m: usize,
    /// Pairs of this rank.
    pub pairs: usize,
}

/// Settings of [`crate::Comm::outer_product_sum`]. All ranks must pass the same, but for `fresh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OuterOptions {
    /// The way.
    pub algorithm: OuterAlgorithm,
    /// Of `Allgather`: how factors travel. `None`: by prediction.
    pub exchange: Option<Schedule>,
    /// Of `Rabenseifner`: whose ranks own G together. `None`: all.
    pub level: Option<Level>,
    /// Of `Rabenseifner`: rows and columns of blocks of a sub-group. `None`: what needs the least of the factors.
    pub grid: Option<(u32, u32)>,
    /// Each rank gets its rows alone: an even, contiguous share.
    pub scatter: bool,
    /// The system has yet to give the memory of `out`.
    pub fresh: bool,
}

impl OuterOptions {
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

    /// Refuses settings of another algorithm.
    pub(super) fn check(&self, factors: bool) -> Result<()> {
        use OuterAlgorithm::{Allgather, Allreduce, Auto, Butterfly, Rabenseifner};
        let name = self.algorithm.name();
        let refuse = |what: &str| Err(Error::bad_input(format!("algorithm={name:?}: {what}")));
        if self.exchange.is_some() && self.algorithm != Allgather && !factors {
            return refuse("exchange= is of algorithm=\"allgather\"");
        }
        if (self.level.is_some() || self.grid.is_some()) && self.algorithm != Rabenseifner {
            return refuse("owners= and grid= are of algorithm=\"rabenseifner\"");
        }
        if self.scatter && (self.level.is_some() || self.grid.is_some()) {
            return refuse("scatter=True deals rows to all ranks: without owners= and grid=");
        }
        if self.scatter && matches!(self.algorithm, Allreduce | Butterfly) {
            return refuse("scatter=True goes by auto, allgather, rabenseifner or ring");
        }
        if factors && (self.scatter || !matches!(self.algorithm, Auto | Allgather)) {
            return refuse("factors=True gathers them: without scatter=True, by auto or allgather");
        }
        Ok(())
    }
}
