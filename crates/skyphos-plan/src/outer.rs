//! Predicted time of each algorithm that sums outer products: *DSOP* §5, with the rate of products and the cost of memory.
//!
//! Algorithms and letters are those of `skyphos_core::collectives::outer_product`: G, the sum of all products, has N rows and M
//! columns; all ranks together have K pairs, and one rank has r.

use crate::predict::{Route, Work};
use crate::profile::Profile;
use crate::stage::{CHUNK_BYTES, Stage, exchange};
use skyphos_types::Seconds;

/// A pass over G multiplies at least this many pairs, or all of them if a call has fewer.
const PASS_PAIRS: f64 = 256.0;

/// The sizes of a sum. All ranks must pass the same.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterWork {
    /// Ranks.
    pub ranks: u32,
    /// Rows of G.
    pub n: usize,
    /// Columns of G.
    pub m: usize,
    /// Number of pairs on all ranks.
    pub pairs: usize,
    /// Pairs of the rank with the most pairs.
    pub max_pairs: usize,
    /// Bytes of a number on the wire.
    pub bytes: usize,
    /// Bytes of a number in a sum.
    pub sum_bytes: usize,
    /// Whether each rank keeps only its own rows.
    pub scatter: bool,
    /// Whether the result's memory is fresh, so that its first use takes page faults.
    pub fresh: bool,
    /// Seconds per byte of one pass over the result.
    pub pass_byte_s: f64,
    /// Additional seconds per byte of fresh memory.
    pub fresh_byte_s: f64,
}

/// The schedule of an allgather of factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Each rank sends its factors to every rank at once.
    Direct,
    /// Factors travel around a ring.
    Ring,
    /// Factors are exchanged in ⌈log2 P⌉ rounds.
    Doubling,
}

/// An algorithm for a sum of outer products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OuterRoute {
    /// Every rank gets all factors and multiplies them.
    Allgather(Spread),
    /// Each sub-group owns all of G, and each of its ranks one block of a grid.
    Owners {
        /// Ranks of a sub-group.
        group: u32,
        /// How many rows and how many columns of blocks.
        grid: (u32, u32),
        /// Whether a sub-group shares a host, so that blocks pass no link.
        near: bool,
    },
    /// Each rank computes its own product; an allreduce sums the products.
    Allreduce,
    /// Each rank computes its own product; panels are reduced around a ring.
    Ring,
    /// Each rank computes its own product; the products are reduced by halving and doubling.
    Butterfly,
}

/// The predicted cost of an algorithm.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterPrediction {
    /// The algorithm.
    pub route: OuterRoute,
    /// Its stages.
    pub stages: Vec<Stage>,
    /// Seconds of the whole call.
    pub duration: Seconds,
}

impl OuterWork {
    fn numbers(&self) -> f64 {
        self.n as f64 * self.m as f64
    }

    /// Numbers of the result on one rank.
    fn result_numbers(&self) -> f64 {
        if self.scatter { self.numbers() / f64::from(self.ranks) } else { self.numbers() }
    }

    /// Additional seconds for this many numbers if the result is fresh.
    fn fresh_s(&self, numbers: f64) -> f64 {
        if self.fresh { numbers * self.bytes as f64 * self.fresh_byte_s } else { 0.0 }
    }

    /// Processor time to multiply `pairs` pairs into `numbers` numbers of G, in one or several passes.
    fn multiply_s(&self, profile: &Profile, numbers: f64, pairs: f64) -> f64 {
        let passes = if self.bytes < self.sum_bytes { 1.0 } else { (pairs / PASS_PAIRS).floor().max(1.0) };
        let sums = self.sum_bytes as f64;
        numbers * pairs * profile.product_s * sums / 8.0
            + numbers * sums * self.pass_byte_s * (2.0 * passes - 1.0)
    }

    /// Fraction of a product that is computed before the last factors arrive.
    fn overlapped(&self) -> f64 {
        let groups = (self.pairs as f64 / PASS_PAIRS).floor().min(f64::from(self.ranks)).max(1.0);
        if self.bytes < self.sum_bytes { 0.0 } else { (groups - 1.0) / groups }
    }

    /// Predicts one algorithm.
    pub fn predict(&self, profile: &Profile, route: OuterRoute) -> OuterPrediction {
        let mut stages = match route {
            OuterRoute::Allgather(spread) => self.allgather(profile, spread),
            OuterRoute::Owners { group, grid, near } => self.owners(profile, group, grid, near),
            OuterRoute::Allreduce | OuterRoute::Ring | OuterRoute::Butterfly => self.reduced(profile, route),
        };
        if self.ranks > 1 {
            stages[0].seconds += profile.call_s;
        }
        let duration = Seconds(stages.iter().map(|stage| stage.seconds).sum());
        OuterPrediction { route, stages, duration }
    }

    /// Predicts these algorithms, fastest first.
    pub fn ranked(&self, profile: &Profile, routes: &[OuterRoute]) -> Vec<OuterPrediction> {
        let mut all: Vec<OuterPrediction> =
            routes.iter().map(|route| self.predict(profile, *route)).collect();
        all.sort_by(|a, b| a.duration.total_cmp(&b.duration));
        all
    }

    /// The stages `first`, an exchange, and `last`, not timed yet. A fraction of the product is computed during the exchange.
    fn then_multiply(&self, profile: &Profile, first: Stage, multiply_s: f64, last: Stage) -> Vec<Stage> {
        let overlapped = if self.ranks > 1 { self.overlapped() } else { 0.0 };
        let first = Stage { compute_s: first.compute_s + overlapped * multiply_s, ..first };
        let last = Stage { compute_s: last.compute_s + (1.0 - overlapped) * multiply_s, ..last };
        vec![first.timed(profile), last]
    }

    fn allgather(&self, profile: &Profile, spread: Spread) -> Vec<Stage> {
        let (p, width) = (f64::from(self.ranks), (self.n + self.m) as f64);
        let received_numbers = (self.pairs as f64 - self.pairs as f64 / p) * width;
        let bytes = received_numbers * self.bytes as f64;
        let halvings = f64::from(self.ranks.next_power_of_two().ilog2());
        let (messages, rounds, senders) = match spread {
            _ if self.ranks == 1 => Default::default(),
            Spread::Direct => (p - 1.0, 1.0, p - 1.0),
            Spread::Ring => (p - 1.0, p - 1.0, 1.0),
            Spread::Doubling => (halvings, halvings, 1.0),
        };
        let compute_s =
            received_numbers * (self.bytes + self.sum_bytes) as f64 * profile.kernels.dense_byte_s;
        let stage =
            Stage { sent: bytes, received: bytes, messages, rounds, senders, compute_s, ..Stage::default() };
        let multiply_s = self.multiply_s(profile, self.result_numbers(), self.pairs as f64)
            + self.fresh_s(self.result_numbers());
        let link = if spread == Spread::Ring { profile.in_ring() } else { *profile };
        let [first, last] = self.then_multiply(&link, stage, multiply_s, Stage::default())[..] else {
            unreachable!("two stages")
        };
        vec![first, last.timed(profile)]
    }

    fn owners(&self, profile: &Profile, group: u32, (rows, cols): (u32, u32), near: bool) -> Vec<Stage> {
        let (p, g) = (f64::from(self.ranks), f64::from(group));
        let slices = self.n as f64 / f64::from(rows) + self.m as f64 / f64::from(cols);
        let others = p - 1.0;
        let received_numbers = (self.pairs as f64 - self.pairs as f64 / p) * slices;
        let sent = self.max_pairs as f64 * others * slices;
        let compute_s =
            (received_numbers + sent) * (self.bytes + self.sum_bytes) as f64 * profile.kernels.dense_byte_s;
        let first = Stage {
            sent: sent * self.bytes as f64,
            received: received_numbers * self.bytes as f64,
            ..exchange(0.0, others, compute_s)
        };
        let numbers = self.numbers() / g;
        let multiply_s = self.multiply_s(profile, numbers, self.pairs as f64) + self.fresh_s(numbers);
        if self.scatter || group == 1 {
            let [first, last] = self.then_multiply(profile, first, multiply_s, Stage::default())[..] else {
                unreachable!("two stages")
            };
            return vec![first, last.timed(profile)];
        }
        let (bytes, steps) = (numbers * (g - 1.0) * self.bytes as f64, g - 1.0);
        let copied_s = 3.0 * bytes * profile.kernels.dense_byte_s + self.fresh_s(numbers * (g - 1.0));
        let link = if near { profile.within_host() } else { profile.in_ring() };
        let last = Stage {
            sent: bytes,
            received: bytes,
            messages: steps,
            rounds: 1.0,
            senders: 1.0,
            compute_s: copied_s,
            ..Stage::default()
        };
        let [first, last] = self.then_multiply(profile, first, multiply_s, last)[..] else {
            unreachable!("two stages")
        };
        let array = Profile { byte_s: link.array_byte_s, ..link };
        let mut last = last.timed(&array);
        // A block's first chunk is passed on while the others arrive. With few chunks the link waits for the latency.
        let block_s = numbers * self.bytes as f64 / link.rate;
        let chunk_s = block_s.min(CHUNK_BYTES / link.rate);
        last.seconds += (steps - 1.0) * (link.latency_s + chunk_s - block_s).max(0.0);
        vec![first, last]
    }

    fn reduced(&self, profile: &Profile, route: OuterRoute) -> Vec<Stage> {
        let numbers = self.n * self.m;
        let multiply_s = self.multiply_s(profile, self.numbers(), self.max_pairs as f64)
            + self.fresh_s(self.result_numbers());
        let dense = Work {
            ranks: self.ranks,
            n: numbers as u64,
            row_bytes: self.sum_bytes,
            union: &|_| numbers as f64,
            dense_above: 0.0,
            ranks_per_host: 1,
        };
        let allreduce = match route {
            OuterRoute::Butterfly => Route::DenseHalving,
            OuterRoute::Allreduce
                if numbers * self.sum_bytes / (self.ranks as usize) < CHUNK_BYTES as usize =>
            {
                Route::DenseDirect
            }
            _ => Route::DenseRing,
        };
        let product = Stage { compute_s: multiply_s, ..Stage::default() };
        if self.ranks == 1 {
            return vec![product.timed(profile)];
        }
        // The ring follows the order of hosts and racks.
        let link = if allreduce == Route::DenseRing { profile.in_ring() } else { *profile };
        let without_call = Profile { call_s: 0.0, ..link };
        let mut reduce = dense.predict(&without_call, &allreduce).stages;
        if self.scatter {
            let half =
                |stage: Stage| Stage { sent: stage.sent / 2.0, received: stage.received / 2.0, ..stage };
            reduce = reduce.into_iter().map(|stage| half(stage).timed(&link)).collect();
        }
        if route == OuterRoute::Ring {
            // Panels are computed between messages.
            let first = Stage { compute_s: reduce[0].compute_s + multiply_s, ..reduce[0] };
            let array = Profile { byte_s: link.array_byte_s, ..link };
            reduce[0] = first.timed(&array);
            return reduce;
        }
        // The product is in a second array, which is copied.
        let copy_s = if route == OuterRoute::Allreduce {
            self.numbers() * self.sum_bytes as f64 * self.pass_byte_s
        } else {
            0.0
        };
        let product = Stage { compute_s: product.compute_s + copy_s, ..product };
        [vec![product.timed(profile)], reduce].concat()
    }
}

/// A sum of products of sparse factors. All ranks must pass the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseOuterWork {
    /// Ranks.
    pub ranks: u32,
    /// Numbers of G.
    pub numbers: f64,
    /// Entries of all ranks' a.
    pub a_entries: f64,
    /// Entries of all ranks' b.
    pub b_entries: f64,
    /// Products of an entry of a with one of b, in all pairs.
    pub multiply_adds: f64,
    /// Bytes of a number.
    pub bytes: usize,
    /// Whether each rank keeps only its own rows.
    pub scatter: bool,
}

/// Approximate bytes of an encoded index.
const INDEX_BYTES: f64 = 1.5;

/// Processor time of a multiply-add of sparse factors: reading, marking and sorting.
const SPARSE_MULTIPLY_S: f64 = 4e-9;

impl SparseOuterWork {
    /// Entries of a sum with this many evenly drawn products.
    fn entries(&self, products: f64) -> f64 {
        if self.numbers <= 0.0 { 0.0 } else { self.numbers * -(-products / self.numbers).exp_m1() }
    }

    fn stage(&self, profile: &Profile, sent: f64, received: f64, compute_s: f64) -> f64 {
        let each = self.bytes as f64 + INDEX_BYTES;
        let others = f64::from(self.ranks - 1);
        let code_s = profile.kernels.encode_s * sent.min(received) + profile.kernels.place_s * received;
        let stage = exchange(0.0, others, compute_s + code_s);
        Stage { sent: sent * each, received: received * each, ..stage }.timed(profile).seconds
    }

    /// Fraction of the entries that comes from other ranks.
    fn foreign(&self) -> f64 {
        1.0 - 1.0 / f64::from(self.ranks)
    }

    /// Seconds if every rank gets all factors.
    pub fn allgather_s(&self, profile: &Profile) -> f64 {
        let received_numbers = (self.a_entries + self.b_entries) * self.foreign();
        let share = if self.scatter { 1.0 / f64::from(self.ranks) } else { 1.0 };
        self.stage(
            profile,
            received_numbers,
            received_numbers,
            self.multiply_adds * share * SPARSE_MULTIPLY_S,
        )
    }

    /// Seconds if each rank computes its own rows.
    pub fn owners_s(&self, profile: &Profile) -> f64 {
        let p = f64::from(self.ranks);
        let received_numbers = (self.a_entries / p + self.b_entries) * self.foreign();
        let first = self.stage(
            profile,
            received_numbers,
            received_numbers,
            self.multiply_adds / p * SPARSE_MULTIPLY_S,
        );
        if self.scatter {
            return first;
        }
        let rows = self.entries(self.multiply_adds) * self.foreign();
        first + self.stage(profile, rows, rows, 0.0)
    }

    /// Seconds of an allreduce of the ranks' own products.
    pub fn allreduce_s(&self, profile: &Profile) -> f64 {
        let p = f64::from(self.ranks);
        let own = self.entries(self.multiply_adds / p) * self.foreign();
        let rows = self.entries(self.multiply_adds) * self.foreign();
        let fold_s = own * profile.kernels.block_s;
        self.stage(profile, own, own, self.multiply_adds / p * SPARSE_MULTIPLY_S + fold_s)
            + self.stage(profile, rows, rows, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(n: usize, pairs: usize) -> OuterWork {
        OuterWork {
            ranks: 8,
            n,
            m: n,
            pairs: 8 * pairs,
            max_pairs: pairs,
            bytes: 8,
            sum_bytes: 8,
            scatter: false,
            fresh: false,
            pass_byte_s: 0.1e-9,
            fresh_byte_s: 0.5e-9,
        }
    }

    const OWNERS: OuterRoute = OuterRoute::Owners { group: 8, grid: (4, 2), near: false };
    const GATHER: OuterRoute = OuterRoute::Allgather(Spread::Direct);

    #[test]
    fn thin_factors_take_an_allgather_and_thick_ones_owners() {
        let network = Profile::network(118e6);
        let best = |profile: &Profile, n, pairs| {
            work(n, pairs).ranked(profile, &[GATHER, OWNERS, OuterRoute::Ring])[0].route
        };
        assert_eq!(best(&network, 4000, 1), GATHER);
        // The factors are as large as G, and an allgather would multiply eight times as much.
        let shared = Profile { cores: 0.25, ..network };
        assert_eq!(best(&shared, 4000, 256), OWNERS);
        assert_eq!(best(&shared, 1000, 8000), OuterRoute::Ring);
    }

    #[test]
    fn bytes_are_those_of_the_paper() {
        let (network, work) = (Profile::network(118e6), work(4000, 1));
        let gather = work.predict(&network, GATHER);
        assert_eq!(gather.stages.iter().map(|s| s.received).sum::<f64>(), 7.0 * 8000.0 * 8.0);
        // The paper's first stage sends whole vectors: 8,000 numbers, not 3,000.
        let owners = work.predict(&network, OWNERS);
        assert_eq!(owners.stages[0].received, 7.0 * 3000.0 * 8.0);
        assert_eq!(owners.stages[1].received, 7.0 / 8.0 * 16e6 * 8.0);
        let ring = work.predict(&network, OuterRoute::Ring);
        assert_eq!(ring.stages.iter().map(|s| s.received).sum::<f64>(), 2.0 * 7.0 / 8.0 * 16e6 * 8.0);
        assert!(ring.duration.0 < work.predict(&network, OuterRoute::Allreduce).duration.0);
    }

    /// Four racks, whose links carry a quarter of the hosts' rate. A ring passes each of them once.
    #[test]
    fn rings_cross_each_link_between_racks_once() {
        let racks = Profile { ring_gain: 4.0, ..Profile::network(118e6) };
        let (flat, work) = (Profile { ring_gain: 1.0, ..racks }, work(4000, 64));
        let direct = |profile| work.predict(profile, GATHER).duration.0;
        assert_eq!(direct(&racks), direct(&flat));
        for (route, slower) in [
            (OuterRoute::Allgather(Spread::Ring), 1.4),
            (OWNERS, 2.0),
            (OuterRoute::Ring, 3.5),
            (OuterRoute::Butterfly, 1.0),
        ] {
            let seconds = |profile| work.predict(profile, route).duration.0;
            let (with_gain, without) = (seconds(&racks), seconds(&flat));
            assert!(without >= slower * with_gain, "{route:?}: {with_gain} and {without}");
        }
    }

    #[test]
    fn fresh_memory_takes_longer_and_one_rank_sends_nothing() {
        let (network, known) = (Profile::network(118e6), work(2000, 2));
        let fresh = OuterWork { fresh: true, ..known.clone() };
        let more = fresh.predict(&network, GATHER).duration.0 - known.predict(&network, GATHER).duration.0;
        assert!((more - 4e6 * 8.0 * 0.5e-9).abs() < 1e-6, "{more}");
        let alone = OuterWork { ranks: 1, pairs: 2, ..known };
        for route in [
            GATHER,
            OuterRoute::Ring,
            OuterRoute::Allreduce,
            OuterRoute::Owners { group: 1, grid: (1, 1), near: false },
        ] {
            let found = alone.predict(&network, route);
            assert!(found.duration.0 > 0.0 && found.stages.iter().all(|s| s.sent == 0.0), "{found:?}");
        }
    }

    #[test]
    fn sparse_factors_take_the_algorithm_with_the_least_traffic() {
        let network = Profile::network(12.5e6);
        let sparse = SparseOuterWork {
            ranks: 8,
            numbers: 1e10,
            a_entries: 8000.0,
            b_entries: 8000.0,
            multiply_adds: 8e6,
            bytes: 4,
            scatter: false,
        };
        assert!(sparse.allgather_s(&network) < sparse.owners_s(&network));
        // A thousand times as many entries, in so many pairs that few of them meet.
        let thick = SparseOuterWork { multiply_adds: 800.0, a_entries: 8e6, b_entries: 8e6, ..sparse };
        assert!(thick.allreduce_s(&network) < thick.allgather_s(&network));
        // Many products, which add up in few places of G.
        let heavy = SparseOuterWork { multiply_adds: 8e9, numbers: 1e7, ..sparse };
        assert!(heavy.owners_s(&network) < heavy.allgather_s(&network));
    }
}
