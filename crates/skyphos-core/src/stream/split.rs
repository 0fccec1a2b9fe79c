//! Which rank owns which indices while a vector is reduced in parts.

use crate::collectives::allgather::allgather_bytes;
use crate::endpoint::Endpoint;
use skyphos_kernels::split_ranges;
use skyphos_kernels::stream::View;
use skyphos_kernels::{Index, with_indices};
use skyphos_types::{Element, Result};

/// How the index space is cut into one range a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// Ranges of equal length: nothing to agree on, right for indices spread evenly.
    Even,
    /// Equal ranges of hashed indices: balanced without a sample, whatever the data; input and result are put in
    /// another order once each.
    Hash,
    /// Ranges of about as much work, from a sample of each rank's indices: right for all, for
    /// ⌈log2 P⌉ small messages more.
    #[default]
    Quantiles,
}

/// Indices that each rank gives as a sample.
const SAMPLES: usize = 64;

/// Rounds from here on are the sample's.
const SAMPLE_ROUND: u32 = 0x400;

/// What a sample of all ranks' indices tells; the same on all ranks.
pub struct Survey {
    n: u64,
    /// Entries of each rank.
    entries: Vec<u64>,
    /// Sampled indices in order, with the entries of the rank that each is of.
    samples: Vec<(u64, u64)>,
}

impl Survey {
    fn new(n: u64, entries: Vec<u64>, mut samples: Vec<(u64, u64)>) -> Survey {
        samples.sort_unstable();
        Survey { n, entries, samples }
    }

    /// Entries of a rank, on average.
    pub fn mean_entries(&self) -> f64 {
        self.entries.iter().map(|e| *e as f64).sum::<f64>() / self.entries.len() as f64
    }

    /// Entries that the union of so many ranks' vectors should have, were indices drawn evenly and apart between the
    /// sampled ones: n (1 - (1 - d)^m) in each stretch of density d (SparCML, appendix B).
    pub fn union(&self, ranks: u32) -> f64 {
        self.stretches(ranks).map(|stretch| stretch.union).sum()
    }

    /// Stretches of the index space with a sample of each rank, on average.
    fn stretches(&self, ranks: u32) -> impl Iterator<Item = Stretch<'_>> {
        let (group, samples) = (self.entries.len(), &self.samples);
        samples.chunks(group).enumerate().map(move |(k, window)| {
            let start = if k == 0 { 0 } else { window[0].0 };
            let end = samples.get((k + 1) * group).map_or(self.n, |(index, _)| *index);
            // Each sample stands for a share of its rank's entries.
            let entries = window.iter().map(|(_, of)| *of as f64).sum::<f64>() / SAMPLES as f64;
            let span = (end - start).max(1) as f64;
            let density = (entries / group as f64 / span).min(1.0);
            Stretch { window, entries, union: span * (1.0 - (1.0 - density).powi(ranks as i32)) }
        })
    }

    /// The bounds of `parts` ranges, one a rank, that take about as long: an owner receives the entries of its range
    /// and sends what they become to all.
    pub fn bounds(self, parts: u32) -> Vec<u64> {
        let mut weighed = Vec::with_capacity(self.samples.len());
        for Stretch { window, entries, union } in self.stretches(self.entries.len() as u32) {
            let weight = (entries + f64::from(parts - 1) * union) / window.len() as f64;
            // With digits behind the point.
            weighed.extend(window.iter().map(|(index, _)| (*index, (weight * 16.0) as u64 + 1)));
        }
        cut_by_weight(weighed, self.n, parts)
    }

    /// The bounds of `parts` ranges with about equally many entries.
    fn even_bounds(self, parts: u32) -> Vec<u64> {
        cut_by_weight(self.samples, self.n, parts)
    }
}

/// See [`Survey::stretches`]: the samples in it, about how many entries of all ranks, and of their union.
struct Stretch<'a> {
    window: &'a [(u64, u64)],
    entries: f64,
    union: f64,
}

/// Asks all ranks for a sample of their indices. Cost: ⌈log2 P⌉ α.
pub async fn survey<T: Element>(ep: &Endpoint, view: View<'_, T>, width: usize, n: u64) -> Result<Survey> {
    survey_of(ep, SAMPLE_ROUND, view, width, n, SAMPLES).await
}

/// Bounds of one range a rank with about equally many entries, by `samples` indices a rank.
pub async fn cut<T: Element>(
    ep: &Endpoint,
    round: u32,
    view: View<'_, T>,
    n: u64,
    samples: usize,
) -> Result<Vec<u64>> {
    Ok(survey_of(ep, round, view, 1, n, samples).await?.even_bounds(ep.size()))
}

async fn survey_of<T: Element>(
    ep: &Endpoint,
    round: u32,
    view: View<'_, T>,
    width: usize,
    n: u64,
    samples: usize,
) -> Result<Survey> {
    let mut mine = Vec::with_capacity(samples);
    let entries = view.nnz(width) as u64;
    match view {
        View::Sparse { indices, .. } => with_indices!(indices, list => {
            if !list.is_empty() {
                mine.extend((0..samples).map(|k| list[(2 * k + 1) * list.len() / (2 * samples)].number()));
            }
        }),
        // Dense vectors are cut evenly, and outweigh sparse ones.
        View::Dense { .. } => mine.extend((0..samples as u64).map(|k| sample_of(n, 2 * k + 1, samples))),
    }
    mine.resize(samples, 0);
    let block: Vec<u8> = [entries].iter().chain(&mine).flat_map(|v| v.to_le_bytes()).collect();
    let all = allgather_bytes(ep, round, &block).await?;
    let (mut weighed, mut counts) = (Vec::with_capacity(samples * all.len()), Vec::new());
    for block in &all {
        let numbers: Vec<u64> =
            block.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes"))).collect();
        if numbers[0] > 0 {
            weighed.extend(numbers[1..].iter().map(|index| (*index, numbers[0])));
        }
        counts.push(numbers[0]);
    }
    Ok(Survey::new(n, counts, weighed))
}

/// The bounds of `parts` ranges of the space `0..n`, the same on all ranks.
pub async fn bounds<T: Element>(
    ep: &Endpoint,
    split: Split,
    view: View<'_, T>,
    width: usize,
    n: u64,
    parts: u32,
) -> Result<Vec<u64>> {
    if split != Split::Quantiles || parts == 1 {
        return Ok(split_ranges(0, n, parts));
    }
    Ok(survey(ep, view, width, n).await?.bounds(parts))
}

fn sample_of(n: u64, odd: u64, samples: usize) -> u64 {
    (u128::from(n) * u128::from(odd) / (2 * samples) as u128) as u64
}

/// Cuts where the weights of the samples below, which are in order, reach equal shares.
fn cut_by_weight(samples: Vec<(u64, u64)>, n: u64, parts: u32) -> Vec<u64> {
    let total: u128 = samples.iter().map(|(_, weight)| u128::from(*weight)).sum();
    if total == 0 {
        return split_ranges(0, n, parts);
    }
    let (mut bounds, mut sum, mut at) = (vec![0], 0u128, 0);
    for part in 1..parts {
        let due = total * u128::from(part) / u128::from(parts);
        while at < samples.len() && sum + u128::from(samples[at].1) / 2 < due {
            sum += u128::from(samples[at].1);
            at += 1;
        }
        let cut = samples.get(at).map_or(n, |(index, _)| *index);
        bounds.push(cut.clamp(bounds[bounds.len() - 1], n));
    }
    bounds.push(n);
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unions_of_even_data_and_of_the_same_run() {
        let n = 1 << 20;
        let sampled = |index: &dyn Fn(u64, u64) -> u64| {
            let samples =
                (0..4).flat_map(|r| (0..64).map(move |k| (r, k))).map(|(r, k)| (index(r, k), 10_000));
            Survey::new(n, vec![10_000; 4], samples.collect())
        };
        let even = sampled(&|r, k| k * n / 64 + n / 128 + r * 17);
        let want = |m: i32| n as f64 * (1.0 - (1.0 - 10_000.0 / n as f64).powi(m));
        for m in [1, 2, 4] {
            assert!((even.union(m) / want(m as i32) - 1.0).abs() < 0.05, "{m}: {}", even.union(m));
        }
        // All ranks have the first 10,000 indices. What the last sample stands for may lie anywhere after it.
        let run = sampled(&|_, k| k * 10_000 / 64 + 78);
        assert!((run.union(4) / 10_000.0 - 1.0).abs() < 0.1, "{}", run.union(4));
    }

    #[test]
    fn equal_weights_on_each_side() {
        let even: Vec<(u64, u64)> = (0..1000).map(|k| (k, 3)).collect();
        assert_eq!(cut_by_weight(even, 1000, 4), [0, 250, 500, 750, 1000]);
        // Half of all weight below 10.
        let skewed = (0..10).map(|k| (k, 100)).chain((10..1000).step_by(99).map(|k| (k, 100)));
        let bounds = cut_by_weight(skewed.collect(), 1000, 2);
        assert!((8..=12).contains(&bounds[1]), "{bounds:?}");
        assert_eq!(cut_by_weight(vec![], 100, 2), [0, 50, 100]);
        // One index has all the weight: it falls to the middle part.
        assert_eq!(cut_by_weight(vec![(5, 9)], 100, 3), [0, 5, 100, 100]);
    }
}
