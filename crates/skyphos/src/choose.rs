//! What `auto` does with sparse vectors: the algorithm that should take the least time, by the planner's model.

use crate::algorithm::Algorithm;
use crate::corrections::Corrections;
use skyphos_plan::{Parts, Prediction, Profile, Route, Work, factorisations};

/// Largest vector (mean over the ranks) for which nothing but the number of rounds counts.
const SMALL_BYTES: f64 = 16.0 * 1024.0;

/// What is to be done with sparse vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// An allreduce.
    ToAll,
    /// A reduce-scatter.
    ToParts,
}

/// What a choice looks at. The same on all ranks.
pub(crate) struct Data<'a> {
    /// What is chosen for.
    pub what: Reduction,
    /// Ranks in the group.
    pub ranks: u32,
    /// Rows of the vector, and bytes of a row.
    pub n: u64,
    /// See `n`.
    pub row_bytes: usize,
    /// Entries that the union of m ranks' vectors should have.
    pub union: &'a dyn Fn(f64) -> f64,
    /// Entries per position above which a part turns dense.
    pub dense_above: f64,
    /// Ranks of each host, if that is more than one and not all.
    pub ranks_per_host: u32,
    /// Whether there is an allreduce of the MPI library's that might be faster than ours.
    pub by_mpi: bool,
    /// What machine and network can do.
    pub profile: Profile,
    /// How much longer calls take than predicted.
    pub corrections: Corrections,
}

/// What was chosen, and what it should cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Layers of a butterfly.
    pub degrees: Vec<u32>,
    /// Its prediction, and how much longer calls by it have taken than theirs.
    pub prediction: Prediction,
    /// See `prediction`.
    pub bias: f64,
    /// What it was predicted with.
    pub profile: Profile,
    /// The next best, with the seconds that they should take.
    pub others: Vec<(Algorithm, Vec<u32>, f64)>,
    /// What was tried before this one was settled on, with the seconds that a call took.
    pub tried: Vec<(Algorithm, Vec<u32>, f64)>,
}

impl Choice {
    /// Seconds that it should take.
    pub fn seconds(&self) -> f64 {
        self.prediction.seconds() * self.bias
    }

    /// Seconds of messages that wait and of work, that it should take if bytes took none.
    pub(crate) fn beside_bytes_s(&self) -> f64 {
        self.prediction.rounds() * self.profile.latency_s + self.prediction.work_s() / self.profile.cores
    }
}

/// Others that a choice keeps.
pub(crate) const OTHERS: usize = 6;

/// DSAR forgets which rows are entries: only who names it gets that.
const FORGETS: Algorithm = Algorithm::SplitAllgatherDense;

/// Whether vectors of so many entries are too small for anything else to count.
fn only_rounds_count(ranks: u32, entries: f64, row_bytes: usize) -> bool {
    ranks == 1 || entries * (row_bytes as f64 + 4.0) <= SMALL_BYTES
}

/// Whether `auto` would ever allreduce by this algorithm where a rank has so many entries.
pub fn auto_may_take(algorithm: Algorithm, ranks: u32, entries: f64, row_bytes: usize) -> bool {
    algorithm == Algorithm::RecursiveDoubling
        || algorithm != FORGETS && !only_rounds_count(ranks, entries, row_bytes)
}

/// All choices of `auto`, the one with the least predicted time first: butterflies with all degrees, and for an allreduce
/// all other algorithms, but recursive doubling alone for small vectors.
pub(crate) fn ranked(data: &Data<'_>) -> Vec<Choice> {
    let (work, degrees) = (work(data), factorisations(data.ranks));
    if data.what == Reduction::ToParts {
        let all = work.all_reduce_scatters(&data.profile, &degrees).into_iter();
        return all.map(|prediction| choice_to_parts(prediction, data)).collect();
    }
    if only_rounds_count(data.ranks, (data.union)(1.0), data.row_bytes) {
        return vec![choice(work.predict(&data.profile, &Route::RecursiveDoubling), data)];
    }
    let by_mpi = data.by_mpi.then(|| work.predict(&data.profile, &Route::DenseElsewhere));
    let all = work.all(&data.profile, &degrees).into_iter().chain(by_mpi);
    let mut all: Vec<Choice> = all.map(|prediction| choice(prediction, data)).collect();
    all.retain(|choice| choice.algorithm != FORGETS);
    // What calls have taken changes the order of predictions.
    all.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    all
}

/// What a named algorithm should cost.
pub(crate) fn predict(data: &Data<'_>, algorithm: Algorithm, degrees: &[u32]) -> Choice {
    if data.what == Reduction::ToParts {
        return choice_to_parts(work(data).reduce_scatter(&data.profile, degrees), data);
    }
    let butterfly = |degrees: &[u32], parts| Route::Butterfly { degrees: degrees.to_vec(), parts };
    let one_layer = [data.ranks];
    let route = match algorithm {
        Algorithm::RecursiveDoubling => Route::RecursiveDoubling,
        Algorithm::SplitAllgather => butterfly(&one_layer, Parts::Sparse),
        Algorithm::SplitAllgatherDense => butterfly(&one_layer, Parts::Dense),
        Algorithm::Auto | Algorithm::Butterfly => butterfly(degrees, Parts::Auto),
        Algorithm::Ring => Route::Ring,
        Algorithm::Allgather => Route::Allgather,
        Algorithm::Dense => Route::DenseDirect,
        Algorithm::DenseRabenseifner => Route::DenseHalving,
        Algorithm::DenseRing => Route::DenseRing,
        Algorithm::DenseMpi => Route::DenseElsewhere,
    };
    Choice { algorithm, ..choice(work(data).predict(&data.profile, &route), data) }
}

fn work<'a>(data: &'a Data<'a>) -> Work<'a> {
    let Data { ranks, n, row_bytes, union, dense_above, ranks_per_host, .. } = *data;
    Work { ranks, n, row_bytes, union, dense_above, ranks_per_host }
}

/// The algorithm of a route, and the layers of a butterfly or a split.
pub fn of_route(route: &Route) -> (Algorithm, Vec<u32>) {
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
        Route::DenseElsewhere => (Algorithm::DenseMpi, Vec::new()),
    }
}

/// Of a reduce-scatter: layers of a butterfly, of which no call has told how long it took.
fn choice_to_parts(prediction: Prediction, data: &Data<'_>) -> Choice {
    Choice { algorithm: Algorithm::Butterfly, bias: 1.0, ..choice(prediction, data) }
}

fn choice(prediction: Prediction, data: &Data<'_>) -> Choice {
    let (algorithm, degrees) = of_route(&prediction.route);
    Choice {
        algorithm,
        degrees,
        bias: data.corrections.times(algorithm, prediction.seconds()),
        prediction,
        profile: data.profile,
        others: Vec::new(),
        tried: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_chosen_tells_which_rows_are_entries() {
        let n = 1 << 24;
        for (ranks, density) in [(2, 0.01f64), (4, 0.1), (8, 0.3), (8, 0.9)] {
            for profile in [Profile::one_host(ranks, 2.0), Profile::network(31e6)] {
                let data = Data {
                    what: Reduction::ToAll,
                    ranks,
                    n,
                    row_bytes: 4,
                    union: &|m| n as f64 * (1.0 - (1.0 - density).powf(m)),
                    dense_above: 0.3,
                    ranks_per_host: 1,
                    by_mpi: false,
                    profile,
                    corrections: Corrections::default(),
                };
                let all = ranked(&data);
                assert!(all.len() > 6 && all.is_sorted_by(|a, b| a.seconds() <= b.seconds()));
                assert!(all.iter().all(|one| one.algorithm != Algorithm::SplitAllgatherDense));
            }
        }
    }
}
