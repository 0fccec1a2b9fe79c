//! Survey of all ranks' vectors before a reduction: entries, sampled indices, sketches and further numbers of each rank.
//!
//! All ranks get the same survey. It gives the expected sizes of unions, and ranges of equal work. Cost: an allgather of a few
//! hundred numbers, ⌈log2 P⌉ α.

use crate::collectives::allgather::allgather_numbers;
use crate::collectives::weights::cut_by_weight;
use crate::endpoint::Endpoint;
use skyphos_kernels::stream::View;
use skyphos_kernels::{Index, estimated_union, sketch, with_indices};
use skyphos_types::{Element, GroupRank, Result, Round};

/// Number of sampled indices, and of hashes in the sketch, that each of `ranks` ranks sends. The total over all ranks determines
/// the accuracy, so with more ranks each one sends fewer.
fn samples_per_rank(ranks: u32) -> usize {
    (4096 / ranks.max(1) as usize).clamp(16, 64)
}

/// Stands for a missing hash of a sketch.
const NO_HASH: u64 = u64::MAX;

/// Sketches give one estimate of a union, the assumption of independently drawn indices another. The sketches' estimate is used
/// if the two differ by more than this many of its standard errors.
const UNION_DEVIATION: f64 = 3.0;

/// First round of the sample's exchange.
const SAMPLE_ROUND: Round = Round(0x400);

/// The result of sampling all ranks' indices; the same on all ranks.
pub struct Survey {
    n: u64,
    /// Number of samples, and of hashes in a sketch, per rank.
    samples_per_rank: usize,
    /// Entries of each rank.
    entries: Vec<u64>,
    /// Sampled indices, ascending, each with the number of entries of its rank.
    samples: Vec<(u64, u64)>,
    /// A sketch of each rank's indices; empty where there is none.
    sketches: Vec<Vec<u64>>,
    /// Additional numbers of each rank.
    numbers: Vec<Vec<f64>>,
}

impl Survey {
    /// Average entries per rank.
    pub fn mean_entries(&self) -> f64 {
        self.entries.iter().map(|e| *e as f64).sum::<f64>() / self.entries.len() as f64
    }

    /// The further number at `index` of each rank, in rank order.
    pub fn numbers(&self, index: usize) -> Vec<f64> {
        self.numbers.iter().filter_map(|numbers| numbers.get(index).copied()).collect()
    }

    /// Expected entries of the union of `ranks` ranks' vectors.
    ///
    /// If ranks draw indices evenly and independently between the sampled ones, the union has n (1 - (1 - d)^m) entries in each
    /// stretch of density d (SparCML, appendix B). Sketches show whether ranks have the same indices instead ([`UNION_DEVIATION`]).
    pub fn union(&self, ranks: u32) -> f64 {
        let independent: f64 = self.stretches(ranks).map(|stretch| stretch.union).sum();
        if self.sketches.iter().zip(&self.entries).any(|(sketch, entries)| sketch.is_empty() && *entries > 0)
        {
            return independent;
        }
        let groups = self.sketches.chunks_exact(ranks.max(1) as usize);
        let count = groups.len().max(1) as f64;
        let sketched: f64 = groups
            .map(|group| estimated_union(group.iter().map(|s| &s[..]), self.samples_per_rank))
            .sum::<f64>()
            / count;
        match (sketched - independent).abs()
            > UNION_DEVIATION / (self.samples_per_rank as f64 * count).sqrt() * independent
        {
            true => sketched,
            false => independent,
        }
    }

    /// Cuts the index space into stretches, each with one sample per rank on average.
    fn stretches(&self, ranks: u32) -> impl Iterator<Item = Stretch<'_>> {
        let (group, samples) = (self.entries.len(), &self.samples);
        samples.chunks(group).enumerate().map(move |(k, window)| {
            let start = if k == 0 { 0 } else { window[0].0 };
            let end = samples.get((k + 1) * group).map_or(self.n, |(index, _)| *index);
            // Each sample represents an equal share of its rank's entries.
            let represented: f64 = window.iter().map(|(_, rank_entries)| *rank_entries as f64).sum();
            let entries = represented / self.samples_per_rank as f64;
            let span = (end - start).max(1) as f64;
            let density = (entries / group as f64 / span).min(1.0);
            Stretch { window, entries, union: span * (1.0 - (1.0 - density).powi(ranks as i32)) }
        })
    }

    /// The bounds of `parts` ranges of about equal work. An owner receives all ranks' entries of its range, and sends their
    /// union to all other ranks.
    pub fn bounds(self, parts: u32) -> Vec<u64> {
        let mut weighed = Vec::with_capacity(self.samples.len());
        for Stretch { window, entries, union } in self.stretches(self.entries.len() as u32) {
            let weight = (entries + f64::from(parts - 1) * union) / window.len() as f64;
            // In sixteenths, as weights are integers.
            weighed.extend(window.iter().map(|(index, _)| (*index, (weight * 16.0) as u64 + 1)));
        }
        cut_by_weight(weighed, self.n, parts)
    }

    /// The bounds of `parts` ranges with about equally many entries.
    fn even_bounds(self, parts: u32) -> Vec<u64> {
        cut_by_weight(self.samples, self.n, parts)
    }
}

/// A stretch of the index space.
struct Stretch<'a> {
    /// Its samples.
    window: &'a [(u64, u64)],
    /// Estimated entries of all ranks.
    entries: f64,
    /// Estimated entries of the union.
    union: f64,
}

/// Surveys all ranks' vectors. `numbers`: further numbers of this rank, equally many on all ranks.
pub async fn survey<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    width: usize,
    n: u64,
    numbers: &[f64],
) -> Result<Survey> {
    let each = samples_per_rank(ep.size());
    let mut hashes = match view {
        View::Sparse { indices, .. } => sketch(indices, each),
        View::Dense { .. } => Vec::new(),
    };
    hashes.resize(each, NO_HASH);
    survey_of(ep, SAMPLE_ROUND, (view, width, n), each, hashes, numbers).await
}

/// A survey without sketches.
pub(super) async fn sample<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    width: usize,
    n: u64,
) -> Result<Survey> {
    survey_of(ep, SAMPLE_ROUND, (view, width, n), samples_per_rank(ep.size()), Vec::new(), &[]).await
}

/// The bounds of one range per rank with about equally many entries, by `samples` sampled indices per rank.
pub async fn equal_entry_bounds<T: Element>(
    ep: &Endpoint,
    round: Round,
    view: View<'_, T>,
    n: u64,
    samples: usize,
) -> Result<Vec<u64>> {
    Ok(survey_of(ep, round, (view, 1, n), samples, Vec::new(), &[]).await?.even_bounds(ep.size()))
}

/// Surveys with given samples and hashes. A rank's block on the wire: entries, samples, further numbers, hashes.
async fn survey_of<T: Element>(
    ep: &Endpoint,
    round: Round,
    (view, width, n): (View<'_, T>, usize, u64),
    samples: usize,
    hashes: Vec<u64>,
    numbers: &[f64],
) -> Result<Survey> {
    let mut mine = Vec::with_capacity(1 + samples + numbers.len() + hashes.len());
    mine.push(view.nnz(width) as u64);
    match view {
        View::Sparse { indices, .. } => with_indices!(indices, list => {
            if !list.is_empty() {
                mine.extend((0..samples).map(|k| list[(2 * k + 1) * list.len() / (2 * samples)].number()));
            }
        }),
        // The samples of a dense vector are evenly spaced.
        View::Dense { .. } => mine.extend((0..samples as u64).map(|k| even_sample(n, 2 * k + 1, samples))),
    }
    mine.resize(1 + samples, 0);
    mine.extend(numbers.iter().map(|number| number.to_bits()));
    mine.extend(hashes);
    let all = allgather_numbers(ep, round, &mine).await?;
    let mut survey = Survey {
        n,
        samples_per_rank: samples,
        entries: Vec::new(),
        samples: Vec::new(),
        sketches: Vec::new(),
        numbers: Vec::new(),
    };
    for (rank, block) in all.iter().enumerate() {
        let ((count, rest), extra) = match block.split_first() {
            Some(split) if block.len() >= 1 + samples + numbers.len() => (split, 1 + samples),
            _ => return Err(ep.corrupt(GroupRank(rank as u32), "a sample that is too short")),
        };
        if *count > n || (*count > 0 && rest[..samples].iter().any(|index| *index >= n)) {
            return Err(ep.corrupt(GroupRank(rank as u32), "a sample of indices outside the index space"));
        }
        if *count > 0 {
            survey.samples.extend(rest[..samples].iter().map(|index| (*index, *count)));
        }
        survey.entries.push(*count);
        survey
            .numbers
            .push(block[extra..extra + numbers.len()].iter().map(|bits| f64::from_bits(*bits)).collect());
        let hashes = block[extra + numbers.len()..].iter().copied();
        survey.sketches.push(hashes.filter(|hash| *hash != NO_HASH).collect());
    }
    survey.samples.sort_unstable();
    Ok(survey)
}

/// The index at `odd` / (2 `samples`) of the index space.
fn even_sample(n: u64, odd: u64, samples: usize) -> u64 {
    (u128::from(n) * u128::from(odd) / (2 * samples) as u128) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use skyphos_kernels::Indices;

    fn sampled(n: u64, count: u64, index: &dyn Fn(u64, u64) -> u64, all: &dyn Fn(u64) -> Vec<u64>) -> Survey {
        let mut samples: Vec<_> =
            (0..4).flat_map(|r| (0..64).map(move |k| (r, k))).map(|(r, k)| (index(r, k), count)).collect();
        samples.sort_unstable();
        let sketches = (0..4).map(|r| sketch(Indices::U64(&all(r)), 64)).collect();
        Survey {
            n,
            samples_per_rank: 64,
            entries: vec![count; 4],
            samples,
            sketches,
            numbers: vec![vec![]; 4],
        }
    }

    #[test]
    fn unions_of_spread_and_of_common_indices_are_estimated() {
        let (n, count) = (1 << 20, 10_000);
        let spread =
            |r: u64| (0..count).map(|i| (i * 104 + (i * 7919 + r * 31) % 104) % n).collect::<Vec<_>>();
        let even = sampled(n, count, &|r, k| k * n / 64 + n / 128 + r * 17, &spread);
        let want = |m: i32| n as f64 * (1.0 - (1.0 - 10_000.0 / n as f64).powi(m));
        for m in [1, 2, 4] {
            assert!((even.union(m) / want(m as i32) - 1.0).abs() < 0.05, "{m}: {}", even.union(m));
        }
        // All ranks have the first 10,000 indices. The entries that the last sample represents may be anywhere after it.
        let run = sampled(n, count, &|_, k| k * 10_000 / 64 + 78, &|_| (0..count).collect());
        assert!((run.union(4) / 10_000.0 - 1.0).abs() < 0.1, "{}", run.union(4));
        // The same spread indices on all ranks: only sketches show it.
        let same = sampled(n, count, &|_, k| k * n / 64 + n / 128, &|_| spread(0));
        assert!((same.union(4) / 10_000.0 - 1.0).abs() < 0.4, "{}", same.union(4));
    }

    #[test]
    fn many_ranks_send_fewer_samples_each() {
        assert_eq!([1, 8, 64, 128, 4096].map(samples_per_rank), [64, 64, 64, 32, 16]);
        // 512 ranks that all have the same 1,000 of 2^30 indices; then 512 ranks with 1,000 different ones each.
        let (n, ranks, each) = (1 << 30, 512u64, samples_per_rank(512));
        for (step, want) in [(0, 1000.0), (1 << 20, 512_000.0)] {
            let list = |r: u64| (0..1000u64).map(|i| i * 1001 + r * step).collect::<Vec<u64>>();
            let sketches = (0..ranks).map(|r| sketch(Indices::U64(&list(r)), each)).collect();
            let mut samples: Vec<_> = (0..ranks)
                .flat_map(|r| (0..each).map(move |k| (r, k)))
                .map(|(r, k)| (list(r)[(2 * k + 1) * 1000 / (2 * each)], 1000))
                .collect();
            samples.sort_unstable();
            let (entries, numbers) = (vec![1000; 512], vec![vec![]; 512]);
            let survey = Survey { n, samples_per_rank: each, entries, samples, sketches, numbers };
            let got = survey.union(512);
            assert!((got / want - 1.0).abs() < 0.6, "{got}, expected {want}");
        }
    }

    #[test]
    fn numbers_are_listed_by_rank() {
        let mut survey = sampled(100, 1, &|_, _| 0, &|_| vec![0]);
        survey.numbers = vec![vec![1.0], vec![9.0], vec![2.0]];
        assert_eq!((survey.numbers(0), survey.numbers(1)), (vec![1.0, 9.0, 2.0], vec![]));
    }
}
