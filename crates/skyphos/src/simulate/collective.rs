//! The collectives that can be simulated.

use skyphos_types::Result;
use skyphos_types::names::{all_variants, variant_of_name};
use strum::{IntoStaticStr, VariantArray};

/// A collective that can be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Collective {
    /// `barrier`.
    Barrier,
    /// `configure`.
    Configure,
    /// `configure`, then reductions of its plan.
    Reduce,
    /// `configure_reduce`.
    ConfigureReduce,
    /// `allreduce` of sparse vectors.
    Allreduce,
    /// `allreduce` of arrays.
    AllreduceDense,
    /// `reduce_scatter`.
    ReduceScatter,
    /// `reduce` to a root.
    ReduceToRoot,
    /// `allgather`.
    Allgather,
    /// `gather`.
    Gather,
    /// `alltoall`.
    Alltoall,
    /// `topk_allreduce`.
    TopkAllreduce,
    /// `broadcast`.
    Broadcast,
    /// The exchange of blocks of a shuffle.
    Shuffle,
    /// `outer_product_sum`.
    OuterProductSum,
}

impl Collective {
    /// All collectives.
    pub const ALL: [Collective; 15] = all_variants();

    /// The name of the collective.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The collective of a name.
    pub fn from_name(name: &str) -> Result<Collective> {
        variant_of_name("collective", name)
    }

    /// Whether its input is an array of n numbers.
    pub fn is_dense(self) -> bool {
        self == Collective::AllreduceDense
    }

    /// Whether its input is a sparse vector or an index set, whose indices are drawn.
    pub fn has_indices(self) -> bool {
        use Collective::{AllreduceDense, Barrier, Broadcast, OuterProductSum, Shuffle};
        !matches!(self, Barrier | AllreduceDense | Broadcast | Shuffle | OuterProductSum)
    }

    /// Whether it can run with lengths in place of data.
    pub fn has_sized(self) -> bool {
        self.is_plan()
            || matches!(self, Collective::Broadcast | Collective::Shuffle | Collective::OuterProductSum)
    }

    /// Whether it configures or runs a plan.
    pub(super) fn is_plan(self) -> bool {
        matches!(self, Collective::Configure | Collective::Reduce)
    }

    /// The names of the collectives that run, in order.
    pub(super) fn phases(self, repeats: usize) -> Vec<&'static str> {
        let again = std::iter::repeat_n(self.name(), repeats);
        let first = (self == Collective::Reduce).then_some("configure");
        first.into_iter().chain(again).collect()
    }
}
