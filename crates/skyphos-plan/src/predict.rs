//! Predicted time, bytes and rounds of an allreduce by each algorithm.
//!
//! An algorithm is a sequence of stages. In a stage a rank sends and receives while it computes, so the stage takes as long as
//! the slower of link and processor, plus the latency of messages that wait for each other. Counts are those of our
//! algorithms (tests compare them with the bounds of SparCML §5.3). The caller passes a function for the size of unions.

use crate::profile::{Kernels, Profile};
use crate::stage::{Stage, exchange};
use skyphos_types::Seconds;

/// An algorithm of an allreduce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// ⌈log2 P⌉ rounds that overlap (SSAR_Recursive_double).
    RecursiveDoubling,
    /// A nested butterfly; one layer of degree P is SparCML's split allgather.
    Butterfly {
        /// The degrees of its layers; their product is P.
        degrees: Vec<u32>,
        /// The form of reduced parts.
        parts: Parts,
    },
    /// Sparse parts travel twice around a ring.
    Ring,
    /// Every rank gets all vectors and adds them.
    Allgather,
    /// Dense arrays around a ring, chunk by chunk.
    DenseRing,
    /// Dense arrays by direct exchange: each rank reduces one range and sends it to all ranks.
    DenseDirect,
    /// Dense arrays by recursive halving and doubling (Rabenseifner 2004).
    DenseHalving,
    /// Dense arrays by the transport's own allreduce, whose algorithm is unknown.
    DenseNative,
}

/// The form of a butterfly's reduced parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// The smaller of the two.
    Auto,
    /// Sparse (SSAR).
    Sparse,
    /// Dense (DSAR).
    Dense,
}

/// The sizes of a reduction. All ranks must pass the same.
pub struct Work<'a> {
    /// Ranks in the group.
    pub ranks: u32,
    /// Rows of the vector.
    pub n: u64,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Entries of the union of m ranks' vectors; for m = 1 the mean.
    pub union: &'a dyn Fn(f64) -> f64,
    /// Entries per position above which a part turns dense.
    pub dense_above: f64,
    /// Ranks of each host; the order in which layers are formed keeps them together.
    pub ranks_per_host: u32,
}

/// The predicted cost of a route, on one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The route.
    pub route: Route,
    /// Its stages; the first one includes `call_s`.
    pub stages: Vec<Stage>,
    /// The profile's additional seconds of each call.
    pub call_s: f64,
}

impl Prediction {
    /// The duration of the whole call.
    pub fn duration(&self) -> Seconds {
        Seconds(self.stages.iter().map(|s| s.seconds).sum())
    }

    /// Expected bytes that a rank sends.
    pub fn sent_bytes(&self) -> f64 {
        self.stages.iter().map(|s| s.sent).sum()
    }

    /// Messages that a rank sends.
    pub fn messages(&self) -> f64 {
        self.stages.iter().map(|s| s.messages).sum()
    }

    /// Processor time of a rank.
    pub fn work(&self) -> Seconds {
        Seconds(self.stages.iter().map(|s| s.work_s).sum())
    }

    /// Messages in sequence, each of which waits for the one before.
    pub fn rounds(&self) -> f64 {
        self.stages.iter().map(|s| s.rounds).sum()
    }
}

/// Bytes of a segment of a stream; an overlapped stage is at least one segment behind the stage before.
const SEGMENT_BYTES: f64 = 32.0 * 1024.0;

/// Bytes of each rank's message in a survey: entries, samples, a sketch and observations, as many as in
/// `skyphos_core::collectives::survey`.
fn survey_bytes(ranks: u32) -> f64 {
    let each = (4096 / ranks.max(1)).clamp(16, 64);
    8.0 * f64::from(42 + 2 * each)
}

/// Bytes of the headers of a frame and a segment.
const HEAD_BYTES: f64 = 96.0;

fn fastest_first(mut all: Vec<Prediction>) -> Vec<Prediction> {
    all.sort_by(|a, b| a.duration().total_cmp(&b.duration()));
    all
}

impl Work<'_> {
    fn row(&self) -> f64 {
        self.row_bytes as f64
    }

    fn union(&self, ranks: f64) -> f64 {
        (self.union)(ranks).clamp(0.0, self.n as f64)
    }

    /// Bytes of `entries` among `positions`: a bitmap, or gaps of log2(positions/entries) + 2.3 bits, because the widest
    /// gap of a packed block is ln 128 times the mean.
    pub fn sparse_bytes(&self, entries: f64, positions: f64) -> f64 {
        if entries <= 0.0 {
            return HEAD_BYTES;
        }
        let gap = (positions / entries).max(1.0);
        let index = ((gap.log2() + 2.3) / 8.0).min(gap / 8.0);
        let body = entries * (self.row() + index);
        body + HEAD_BYTES * (1.0 + body / SEGMENT_BYTES)
    }

    /// Bytes of entries in the part's form.
    fn part_bytes(&self, entries: f64, positions: f64, parts: Parts) -> f64 {
        let dense = positions * self.row() + HEAD_BYTES;
        match parts {
            Parts::Sparse => self.sparse_bytes(entries, positions),
            Parts::Dense => dense,
            Parts::Auto => self.sparse_bytes(entries, positions).min(dense),
        }
    }

    /// Processor time of reducing `entries` of several sources in a range of `positions`.
    fn fold_s(&self, profile: &Profile, entries: f64, sources: f64, positions: f64) -> f64 {
        let k = &profile.kernels;
        let merged = entries * (k.merge_s + k.merge_more_s * sources);
        let blocks = entries * k.block_s + positions.min(entries * 512.0) * k.position_s;
        merged.min(blocks) * self.weight()
    }

    /// Factor of an entry's time for rows wider than 4 bytes.
    fn weight(&self) -> f64 {
        Kernels::weight(self.row_bytes)
    }

    /// Predicts one route.
    pub fn predict(&self, profile: &Profile, route: &Route) -> Prediction {
        let stages = match route {
            Route::RecursiveDoubling => self.recursive_doubling(profile),
            Route::Butterfly { degrees, parts } => self.butterfly(profile, degrees, *parts),
            Route::Ring => self.ring(profile),
            Route::Allgather => self.allgather(profile),
            Route::DenseRing => self.dense_ring(profile),
            Route::DenseDirect => self.dense_direct(profile),
            Route::DenseHalving => self.dense_halving(profile),
            Route::DenseNative => self.dense_native(profile),
        };
        self.with_call(profile, route.clone(), stages)
    }

    /// Adds the profile's `call_s` to the first stage.
    fn with_call(&self, profile: &Profile, route: Route, mut stages: Vec<Stage>) -> Prediction {
        let call_s = if self.ranks > 1 { profile.call_s } else { 0.0 };
        stages[0].seconds += call_s;
        Prediction { route, stages, call_s }
    }

    /// Predicts all routes that may be best, fastest first.
    pub fn all(&self, profile: &Profile, degrees: &[Vec<u32>]) -> Vec<Prediction> {
        let mut routes = vec![Route::RecursiveDoubling, Route::Ring, Route::Allgather];
        routes.extend([Route::DenseRing, Route::DenseDirect, Route::DenseHalving]);
        for parts in [Parts::Sparse, Parts::Dense] {
            routes.push(Route::Butterfly { degrees: vec![self.ranks], parts });
        }
        routes.extend(degrees.iter().map(|d| Route::Butterfly { degrees: d.clone(), parts: Parts::Auto }));
        fastest_first(routes.iter().map(|route| self.predict(profile, route)).collect())
    }

    /// Predicts reduce-scatters of these degrees, fastest first.
    pub fn all_reduce_scatters(&self, profile: &Profile, degrees: &[Vec<u32>]) -> Vec<Prediction> {
        fastest_first(degrees.iter().map(|d| self.reduce_scatter(profile, d)).collect())
    }

    fn recursive_doubling(&self, profile: &Profile) -> Vec<Stage> {
        let (n, k) = (self.n as f64, &profile.kernels);
        let core = 1u32 << self.ranks.ilog2();
        let extra = self.ranks - core;
        let mut stages = Vec::new();
        let mut all = Stage { senders: 1.0, rounds: f64::from(core.ilog2()), ..Stage::default() };
        // After the first exchange, a rank with an extra partner has the entries of two.
        let joined = f64::from(self.ranks) / f64::from(core);
        if extra > 0 {
            let bytes = self.sparse_bytes(self.union(1.0), n);
            let compute_s = self.fold_s(profile, 2.0 * self.union(1.0), 2.0, n)
                + self.union(1.0) * k.encode_s * self.weight();
            let stage =
                Stage { sent: bytes, received: bytes, messages: 1.0, senders: 1.0, rounds: 1.0, ..all };
            stages.push(Stage { compute_s, ..stage });
        }
        for i in 0..core.ilog2() {
            let entries = self.union(joined * f64::from(1u32 << i));
            let bytes = self.sparse_bytes(entries, n);
            all.sent += bytes;
            all.received += bytes;
            all.messages += 1.0;
            all.compute_s +=
                entries * k.encode_s * self.weight() + self.fold_s(profile, 2.0 * entries, 2.0, n);
        }
        let segment = SEGMENT_BYTES.min(self.sparse_bytes(self.union(1.0), n));
        let mut last = all.timed(profile);
        // Each round is one segment behind the one before.
        last.seconds += all.rounds * segment * (1.0 / profile.rate + profile.byte_s / profile.cores);
        if extra > 0 {
            let first = stages.remove(0).timed(profile);
            let total = self.union(f64::from(self.ranks));
            let bytes = self.sparse_bytes(total, n);
            let compute_s = total * (k.encode_s + k.place_s) * self.weight();
            let out = Stage { sent: bytes, messages: 1.0, rounds: 1.0, ..Stage::default() };
            return vec![first, last, Stage { compute_s, ..out }.timed(profile)];
        }
        vec![last]
    }

    /// Predicts a reduce-scatter. Where hosts have several ranks, several layers follow the topology, and a last message
    /// brings each part to its rank.
    pub fn reduce_scatter(&self, profile: &Profile, degrees: &[u32]) -> Prediction {
        let mut spans = 1;
        let mut stages = self.down(degrees, |degree| {
            spans *= degree;
            within(profile, self.ranks_per_host, spans)
        });
        if degrees.len() > 1 && self.ranks_per_host > 1 {
            let ranks = f64::from(self.ranks);
            let part = self.union(ranks) / ranks;
            let bytes = self.sparse_bytes(part, self.n as f64 / ranks);
            let k = &profile.kernels;
            let compute_s = part * (k.encode_s + k.place_s) * self.weight();
            stages.push(exchange(bytes, 1.0, compute_s).timed(profile));
        }
        let route = Route::Butterfly { degrees: degrees.to_vec(), parts: Parts::Sparse };
        self.with_call(profile, route, stages)
    }

    /// The layers of a reduction; `layer_profile(d)` is the profile of the messages in the next layer, of degree d.
    fn down(&self, degrees: &[u32], mut layer_profile: impl FnMut(u32) -> Profile) -> Vec<Stage> {
        let n = self.n as f64;
        let (mut stages, mut joined) = (Vec::new(), 1.0);
        for degree in degrees {
            let d = f64::from(*degree);
            // A rank's entries before this layer, in a range of n / joined positions.
            let entries = self.union(joined) / joined;
            let bytes = self.sparse_bytes(entries, n / joined) * (d - 1.0) / d;
            let profile = layer_profile(*degree);
            let encode_s = entries * profile.kernels.encode_s * self.weight();
            let compute_s = encode_s + self.fold_s(&profile, entries, d, n / joined / d);
            stages.push(exchange(bytes, d - 1.0, compute_s).timed(&profile));
            joined *= d;
        }
        stages
    }

    fn butterfly(&self, profile: &Profile, degrees: &[u32], parts: Parts) -> Vec<Stage> {
        let (n, k, weight) = (self.n as f64, &profile.kernels, self.weight());
        let mut spans = 1;
        let mut all = self.down(degrees, |degree| {
            spans *= degree;
            within(profile, self.ranks_per_host, spans)
        });
        let joined = f64::from(spans);
        // In a last layer of pairs, both ranks exchange all their entries and reduce them, so nothing goes up.
        let pairs = degrees.len() > 1 && degrees.last() == Some(&2) && parts == Parts::Auto;
        if pairs {
            let entries = self.union(joined / 2.0) / (joined / 2.0);
            let range = n / (joined / 2.0);
            let profile = within(profile, self.ranks_per_host, spans);
            let compute_s = entries * profile.kernels.encode_s * weight
                + self.fold_s(&profile, 2.0 * entries, 2.0, range);
            let stage = exchange(self.sparse_bytes(entries, range), 1.0, compute_s).timed(&profile);
            *all.last_mut().expect("several layers") = stage;
        }
        let part = self.union(joined) / joined;
        let part_bytes = self.part_bytes(part, n / joined, parts);
        let dense = parts == Parts::Dense || part > self.dense_above * n / joined && parts == Parts::Auto;
        // A rank's parts before each layer going up.
        let mut held_parts = 1.0;
        for degree in degrees.iter().rev() {
            let d = f64::from(*degree);
            if pairs && held_parts == 1.0 {
                all.push(Stage::default());
                held_parts = 2.0;
                continue;
            }
            let bytes = held_parts * part_bytes * (d - 1.0);
            let last = held_parts * d >= joined;
            let profile = &within(profile, self.ranks_per_host, (joined / held_parts) as u32);
            let place_s = self.place_s(profile, joined * part, dense, parts);
            let bitmap_s = if dense && parts == Parts::Auto { k.bitmap_s } else { 0.0 };
            let first = held_parts == if pairs { 2.0 } else { 1.0 };
            let encode_s = if first { held_parts * part * (k.encode_s * weight + bitmap_s) } else { 0.0 };
            let compute_s = encode_s + if last { place_s } else { 0.0 };
            all.push(exchange(bytes, d - 1.0, compute_s).timed(profile));
            held_parts *= d;
        }
        all
    }

    /// Processor time of placing `entries` of dense or sparse parts in the result.
    fn place_s(&self, profile: &Profile, entries: f64, dense: bool, parts: Parts) -> f64 {
        let (k, bytes) = (&profile.kernels, self.n as f64 * self.row());
        match parts {
            Parts::Dense => bytes * (k.fresh_byte_s + k.dense_byte_s),
            Parts::Auto if dense => {
                bytes * k.fresh_byte_s + entries * (k.place_s * self.weight() + k.bitmap_s)
            }
            _ => entries * k.place_s * self.weight(),
        }
    }

    fn ring(&self, profile: &Profile) -> Vec<Stage> {
        let (n, p, k) = (self.n as f64, f64::from(self.ranks), &profile.kernels);
        let mut all =
            Stage { senders: 1.0, rounds: 2.0 * (p - 1.0), messages: 2.0 * (p - 1.0), ..Stage::default() };
        for m in 1..self.ranks {
            let entries = self.union(f64::from(m)) / p;
            let bytes = self.sparse_bytes(entries, n / p);
            all.sent += bytes;
            all.compute_s += entries * k.encode_s * self.weight()
                + self.fold_s(profile, entries + self.union(1.0) / p, 2.0, n / p);
        }
        let total = self.union(p);
        all.sent += (p - 1.0) * self.part_bytes(total / p, n / p, Parts::Auto);
        let part = total / p;
        all.compute_s += self.place_s(profile, total, part > self.dense_above * n / p, Parts::Auto);
        all.received = all.sent;
        vec![all.timed(profile)]
    }

    fn allgather(&self, profile: &Profile) -> Vec<Stage> {
        let (n, p, k) = (self.n as f64, f64::from(self.ranks), &profile.kernels);
        let own = self.union(1.0);
        let bytes = self.sparse_bytes(own, n) * (p - 1.0);
        let compute_s = own * k.encode_s * self.weight() + self.fold_s(profile, own * p, p, n);
        vec![exchange(bytes, p - 1.0, compute_s).timed(profile)]
    }

    /// A rank's traffic if the parts of an array of `array` bytes, one per rank, travel twice around a ring.
    fn twice_round(array: f64, ranks: f64) -> Stage {
        let moved = 2.0 * array * (ranks - 1.0) / ranks;
        let messages = 2.0 * (ranks - 1.0);
        Stage { sent: moved, received: moved, messages, rounds: messages, senders: 1.0, ..Stage::default() }
    }

    /// The ring adds in the received buffers and copies results once.
    fn dense_ring(&self, profile: &Profile) -> Vec<Stage> {
        let bytes = self.n as f64 * self.row();
        self.dense(profile, Self::twice_round(bytes, f64::from(self.ranks)), 1.0, 1.0)
    }

    /// Each range is copied when sent and when received, and the result is a separate allocation.
    fn dense_direct(&self, profile: &Profile) -> Vec<Stage> {
        let (bytes, p) = (self.n as f64 * self.row(), f64::from(self.ranks));
        let stage = Stage { senders: p - 1.0, rounds: 2.0, ..Self::twice_round(bytes, p) };
        self.dense(profile, stage, 4.0, 2.0)
    }

    /// Halves are copied when sent. Ranks beyond the largest power of two send everything to a partner, and get the result
    /// back.
    fn dense_halving(&self, profile: &Profile) -> Vec<Stage> {
        let (bytes, core) = (self.n as f64 * self.row(), 1u32 << self.ranks.ilog2());
        let steps = 2.0 * f64::from(core.ilog2());
        let all = Self::twice_round(bytes, f64::from(core));
        let mut stage = Stage { messages: steps, rounds: steps, ..all };
        if core < self.ranks {
            (stage.sent, stage.received) = (stage.sent + bytes, stage.received + bytes);
            (stage.messages, stage.rounds) = (stage.messages + 1.0, stage.rounds + 2.0);
        }
        self.dense(profile, stage, 2.0, 1.0)
    }

    /// As long as the best of the three schedules above, plus an agreement of all ranks and two copies of the array.
    fn dense_native(&self, profile: &Profile) -> Vec<Stage> {
        let ours = [self.dense_ring(profile), self.dense_direct(profile), self.dense_halving(profile)];
        let seconds = |stages: &[Stage]| stages.iter().map(|stage| stage.seconds).sum::<f64>();
        let mut best = ours.into_iter().min_by(|a, b| seconds(a).total_cmp(&seconds(b))).expect("three");
        let compute_s = 2.0 * self.n as f64 * self.row() * profile.kernels.dense_byte_s;
        let rounds = f64::from(self.ranks.next_power_of_two().ilog2());
        let agreement = Stage { messages: rounds, rounds, senders: 1.0, compute_s, ..Stage::default() };
        best.insert(0, agreement.timed(profile));
        best
    }

    /// A stage on arrays, with a number of passes over their bytes and a number of fresh buffers.
    fn dense(&self, profile: &Profile, stage: Stage, passes: f64, fresh: f64) -> Vec<Stage> {
        let (bytes, k) = (self.n as f64 * self.row(), &profile.kernels);
        let array_s = bytes * (passes * k.dense_byte_s + fresh * k.fresh_byte_s);
        let compute_s = array_s + self.union(1.0) * k.place_s * self.weight();
        let profile = &Profile { byte_s: profile.array_byte_s, ..*profile };
        vec![Stage { compute_s, ..stage }.timed(profile)]
    }
}

/// The profile of messages among `span` consecutive ranks.
pub(crate) fn within(profile: &Profile, ranks_per_host: u32, span: u32) -> Profile {
    let near = ranks_per_host.is_multiple_of(span) && span > 1;
    if near { profile.within_host() } else { *profile }
}

/// The survey of `ranks` ranks, which comes before a first call and occasionally later.
pub fn survey_stage(ranks: u32, profile: &Profile) -> Stage {
    let (bytes, rounds) = (survey_bytes(ranks) * f64::from(ranks - 1), f64::from(ranks).log2().ceil());
    let (sent, received, messages, senders) = (bytes, bytes, rounds, 1.0);
    Stage { sent, received, messages, senders, rounds, ..Stage::default() }.timed(profile)
}

/// Ordered factorisations that are considered, at most: all of every number below 4,320, and of most larger ones.
const MAX_FACTORISATIONS: u64 = 20_000;

/// Every ordered factorisation of P into factors of at least 2; `[1]` for one rank. If there are too many, only those whose
/// factors do not rise: a rank's entries shrink from layer to layer, and so does the best degree.
pub fn factorisations(ranks: u32) -> Vec<Vec<u32>> {
    if ranks <= 1 {
        return vec![vec![1]];
    }
    let divisors: Vec<u32> = (1..=ranks).filter(|d| ranks.is_multiple_of(*d)).collect();
    // For each first factor, a divisor has as many factorisations as the quotient by that factor.
    let mut counts: Vec<u64> = vec![1];
    for (k, whole) in divisors.iter().enumerate().skip(1) {
        let rests = divisors[..k].iter().zip(&counts).filter(|(rest, _)| whole.is_multiple_of(**rest));
        counts.push(rests.map(|(_, count)| count).fold(0, |sum, count| sum.saturating_add(*count)));
    }
    let falling = counts[counts.len() - 1] > MAX_FACTORISATIONS;
    let (mut all, mut begun) = (Vec::new(), Vec::new());
    factorise(ranks, &divisors, falling, &mut begun, &mut all);
    all
}

/// Adds the factorisations that begin with `begun` and continue with factors of `left`.
fn factorise(left: u32, divisors: &[u32], falling: bool, begun: &mut Vec<u32>, all: &mut Vec<Vec<u32>>) {
    if left == 1 {
        return all.push(begun.clone());
    }
    let max_factor = if falling { begun.last().copied().unwrap_or(left) } else { left };
    for factor in divisors.iter().copied().filter(|d| *d > 1 && *d <= max_factor && left.is_multiple_of(*d)) {
        begun.push(factor);
        factorise(left / factor, divisors, falling, begun, all);
        begun.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: u64 = 1 << 24;
    const K: f64 = 131_072.0;

    fn uniform(m: f64) -> f64 {
        N as f64 * (1.0 - (1.0 - K / N as f64).powf(m))
    }

    fn work<'a>(ranks: u32, union: &'a dyn Fn(f64) -> f64) -> Work<'a> {
        Work { ranks, n: N, row_bytes: 4, union, dense_above: 0.3, ranks_per_host: 1 }
    }

    /// The bytes sent are at least `low` words (an index or a value, about 4 bytes here) and at most `high` bytes plus 10 %.
    fn assert_in_bounds(prediction: &Prediction, low: f64, high: f64) {
        let sent = prediction.sent_bytes();
        assert!(sent >= low * 4.0 && sent <= high * 1.1, "{sent} not in {low}..{high}: {prediction:?}");
    }

    /// SparCML §5.3: no overlap and full overlap bound the bytes sent, for entries of 4 bytes whose index costs less than
    /// another 4.
    #[test]
    fn sent_bytes_are_between_the_bounds_of_the_paper() {
        for p in [2u32, 4, 8, 16, 64] {
            let (profile, ranks, pair) = (Profile::network(125e6), f64::from(p), 8.0);
            for overlap in [0.0, 0.5, 1.0] {
                let union = move |m: f64| K * (1.0 + (m - 1.0) * (1.0 - overlap));
                let work = work(p, &union);
                let log = ranks.log2();
                let doubling = work.predict(&profile, &Route::RecursiveDoubling);
                assert_in_bounds(&doubling, log * K, (ranks - 1.0) * K * pair);
                assert_eq!(doubling.rounds(), log);
                let split = Route::Butterfly { degrees: vec![p], parts: Parts::Sparse };
                let others = (ranks - 1.0) / ranks;
                // The paper lets every rank end with k entries at most.
                assert_in_bounds(&work.predict(&profile, &split), 2.0 * others * K, ranks * K * pair);
                let dsar = Route::Butterfly { degrees: vec![p], parts: Parts::Dense };
                let arrays = others * N as f64;
                assert_in_bounds(&work.predict(&profile, &dsar), arrays, K * pair + arrays * 4.0);
                let dense = work.predict(&profile, &Route::DenseRing);
                assert_eq!(dense.sent_bytes(), 2.0 * others * N as f64 * 4.0);
            }
        }
    }

    /// Lemma 5.2: an allreduce with dense parts is at most 2/κ times as fast as the dense allreduce.
    #[test]
    fn dense_parts_are_at_most_two_over_kappa_faster() {
        let union = |m: f64| (N as f64 / 64.0 * m).min(N as f64);
        let work = work(64, &union);
        let profile = Profile { latency_s: 0.0, cores: f64::INFINITY, incast: 0.0, ..Profile::network(1e8) };
        let dsar = work.predict(&profile, &Route::Butterfly { degrees: vec![64], parts: Parts::Dense });
        let dense = work.predict(&profile, &Route::DenseRing);
        assert!(dense.duration().0 / dsar.duration().0 <= 2.0);
    }

    /// Measured with 8 ranks on 2 cores (`bench/README.md`), 131,072 of 2^24 uniform entries a rank.
    #[test]
    fn predictions_are_near_measurements() {
        let (work, split) = (work(8, &uniform), Route::Butterfly { degrees: vec![8], parts: Parts::Auto });
        let check = |profile: &Profile, route: &Route, ms: f64, tolerance: f64| {
            let got = work.predict(profile, route).duration().0 * 1e3;
            assert!((got / ms - 1.0).abs() < tolerance, "{route:?}: {got} predicted, {ms} measured");
        };
        let host = Profile::one_host(8, 2.0);
        check(&host, &Route::RecursiveDoubling, 48.0, 0.2);
        check(&host, &split, 29.0, 0.2);
        check(&host, &Route::Allgather, 40.0, 0.2);
        let wire = 1448.0 / 1514.0;
        let lab = |rate: f64| Profile { byte_s: 1e-9, cores: 0.25, ..Profile::network(rate * wire) };
        check(&lab(125e6), &Route::RecursiveDoubling, 73.0, 0.2);
        check(&lab(125e6), &split, 57.0, 0.2);
        check(&lab(31.25e6), &Route::RecursiveDoubling, 166.0, 0.15);
        check(&lab(31.25e6), &split, 180.0, 0.15);
        check(&lab(31.25e6), &Route::Allgather, 178.0, 0.15);
        check(&lab(31.25e6), &Route::DenseRing, 3940.0, 0.02);
    }

    #[test]
    fn all_factorisations_are_found() {
        assert_eq!(factorisations(1), [[1]]);
        assert_eq!(factorisations(7), [[7]]);
        let eight = [vec![2, 2, 2], vec![2, 4], vec![4, 2], vec![8]];
        assert_eq!(factorisations(8), eight);
        // Ordered factorisations of 2^10 are the compositions of 10.
        assert_eq!(factorisations(1024).len(), 512);
        assert!(factorisations(360).iter().all(|d| d.iter().product::<u32>() == 360));
        // Too many, so only those whose factors do not rise: for 2^20 the partitions of 20.
        let falling = factorisations(1 << 20);
        assert_eq!(falling.len(), 627);
        assert!(
            falling.iter().all(|d| d.is_sorted_by(|a, b| a >= b) && d.iter().product::<u32>() == 1 << 20)
        );
        assert_eq!(factorisations(2880).len(), 15_488);
        assert!(factorisations(4320).iter().all(|d| d.is_sorted_by(|a, b| a >= b)));
    }
}
