//! The algorithms of an allreduce.

use skyphos_plan::{Parts, Route};
use skyphos_types::Result;
use skyphos_types::names::{all_variants, variant_of_name};
use strum::{IntoStaticStr, VariantArray};

/// An algorithm of an allreduce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Algorithm {
    /// The tuner's choice ([`crate::choice`]); for dense arrays that of [`crate::choose_dense`].
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
    /// Sparse parts travel around a ring.
    Ring,
    /// Each rank sends all its entries to every rank.
    Allgather,
    /// Dense arrays by direct exchange: each rank reduces one range and sends it to all ranks.
    Dense,
    /// Dense arrays around a ring.
    DenseRing,
    /// Dense arrays by recursive halving and doubling.
    DenseRabenseifner,
    /// Dense arrays by the MPI library under the group.
    DenseMpi,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 11] = all_variants();

    /// The algorithms that run over any transport: all but [`Algorithm::DenseMpi`].
    pub const OURS: [Algorithm; 10] = *Algorithm::ALL.first_chunk().expect("ALL has one more");

    /// The name that users write.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The algorithm that a user named.
    pub fn from_name(name: &str) -> Result<Algorithm> {
        variant_of_name("algorithm", name)
    }

    /// Whether it reduces dense arrays.
    pub fn is_dense(self) -> bool {
        use Algorithm::{Dense, DenseMpi, DenseRabenseifner, DenseRing};
        matches!(self, Dense | DenseRing | DenseRabenseifner | DenseMpi)
    }

    /// Whether each rank reduces a range of a sparse vector's indices.
    pub fn has_ranges(self) -> bool {
        !matches!(self, Algorithm::RecursiveDoubling | Algorithm::Allgather) && !self.is_dense()
    }

    /// The route by which the planner predicts it.
    pub(crate) fn route(self, ranks: u32, degrees: &[u32]) -> Route {
        let butterfly = |degrees: &[u32], parts| Route::Butterfly { degrees: degrees.to_vec(), parts };
        match self {
            Algorithm::RecursiveDoubling => Route::RecursiveDoubling,
            Algorithm::SplitAllgather => butterfly(&[ranks], Parts::Sparse),
            Algorithm::SplitAllgatherDense => butterfly(&[ranks], Parts::Dense),
            Algorithm::Auto | Algorithm::Butterfly => butterfly(degrees, Parts::Auto),
            Algorithm::Ring => Route::Ring,
            Algorithm::Allgather => Route::Allgather,
            Algorithm::Dense => Route::DenseDirect,
            Algorithm::DenseRabenseifner => Route::DenseHalving,
            Algorithm::DenseRing => Route::DenseRing,
            Algorithm::DenseMpi => Route::DenseNative,
        }
    }
}

/// The algorithm of a route, and the layers of a butterfly or a split.
pub fn algorithm_of_route(route: &Route) -> (Algorithm, Vec<u32>) {
    match route {
        Route::RecursiveDoubling => (Algorithm::RecursiveDoubling, Vec::new()),
        Route::Butterfly { degrees, parts: Parts::Auto } => (Algorithm::Butterfly, degrees.clone()),
        Route::Butterfly { degrees, parts: Parts::Sparse } => (Algorithm::SplitAllgather, degrees.clone()),
        Route::Butterfly { degrees, parts: Parts::Dense } => {
            (Algorithm::SplitAllgatherDense, degrees.clone())
        }
        Route::Ring => (Algorithm::Ring, Vec::new()),
        Route::Allgather => (Algorithm::Allgather, Vec::new()),
        Route::DenseRing => (Algorithm::DenseRing, Vec::new()),
        Route::DenseDirect => (Algorithm::Dense, Vec::new()),
        Route::DenseHalving => (Algorithm::DenseRabenseifner, Vec::new()),
        Route::DenseNative => (Algorithm::DenseMpi, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dense_mpi_needs_a_transport_of_its_own() {
        let (last, ours) = Algorithm::ALL.split_last().unwrap();
        assert_eq!((*last, ours), (Algorithm::DenseMpi, &Algorithm::OURS[..]));
        assert!(Algorithm::ALL.iter().enumerate().all(|(k, one)| *one as usize == k));
        let names = Algorithm::ALL.map(Algorithm::name).join(" ");
        assert_eq!(
            names,
            "auto recursive_doubling split_allgather split_allgather_dense butterfly ring allgather dense dense_ring \
             dense_rabenseifner dense_mpi"
        );
        assert!(Algorithm::ALL.iter().all(|one| Algorithm::from_name(one.name()) == Ok(*one)));
        assert!(Algorithm::from_name("fast").unwrap_err().to_string().ends_with("dense_mpi"));
    }

    #[test]
    fn routes_lead_back_to_their_algorithms() {
        for algorithm in Algorithm::ALL.into_iter().filter(|one| *one != Algorithm::Auto) {
            assert_eq!(algorithm_of_route(&algorithm.route(6, &[3, 2])).0, algorithm);
        }
        let auto = algorithm_of_route(&Algorithm::Auto.route(6, &[3, 2]));
        assert_eq!(auto, (Algorithm::Butterfly, vec![3, 2]));
    }
}
