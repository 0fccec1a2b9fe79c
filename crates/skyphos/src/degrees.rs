//! Choice of a plan's degrees from samples of all ranks' index sets ([`skyphos_tune::plan_degrees`]). Sets must be prepared,
//! because samples are taken in hash order.

use crate::tuning::start_profile;
use skyphos_core::Endpoint;
use skyphos_core::collectives::allgather::allgather_numbers;
use skyphos_core::plan::Considered;
use skyphos_kernels::{Block, BlockHash, IndexSet, Prepared};
use skyphos_plan::degrees::DEFAULT_ALPHA;
use skyphos_plan::{PlanWork, Profile, Sizes, Stage, Union, choose_degrees};
use skyphos_tune::plan_degrees::{NO_BLOCK, SampleLayout, best_degrees};
use skyphos_tune::{Observations, PROFILE_WORDS, agreed_profile};
use skyphos_types::{GroupRank, Result, Round};

/// Round of the exchange, after the rounds of the agreement on n.
const ROUND: Round = Round(0x40);

/// Words that begin a rank's message: its numbers of contributed and of wanted indices, and whether these are the same set.
const COUNTS: usize = 3;

/// Words before a rank's samples: the counts, and its profile.
const HEADER_WORDS: usize = COUNTS + PROFILE_WORDS;

/// The inputs of a choice, other than the sets.
pub(crate) struct DegreesInput {
    pub(crate) n: u64,
    pub(crate) hash: BlockHash,
    /// Bytes of an index's values.
    pub(crate) row_bytes: usize,
    /// The smallest message worth sending, for Kylix's rule (§IV); `None`: the planner chooses.
    pub(crate) min_packet_bytes: Option<f64>,
    /// Indices in the union of all ranks' sets; `None`: ranks exchange samples.
    pub(crate) expected_nnz: Option<u64>,
}

/// Degrees for these sets, and then the next best; the same on all ranks. Cost: ⌈log2 P⌉ α.
pub(crate) async fn agree_degrees(
    ep: &Endpoint,
    input: &DegreesInput,
    (contribute, want): (&Prepared, &Prepared),
    observed: Observations,
) -> Result<Vec<Considered>> {
    let start = start_profile(&observed, ep);
    let hint = input.expected_nnz.filter(|_| input.min_packet_bytes.is_none() && observed.has_common_start());
    if let Some(entries) = hint {
        let union = Union::drawn_evenly(input.n, entries as f64, ep.size());
        return Ok(best(ep, input, &start, (&union, &union), true));
    }
    let same = contribute.set == want.set;
    let counts: [u64; COUNTS] = [contribute.set.len() as u64, want.set.len() as u64, u64::from(same)];
    let mut mine: Vec<u64> = counts.to_vec();
    mine.extend(observed.profile_words(start).iter().map(|word| word.to_bits()));
    let layout = SampleLayout::new(input.hash.range(), ep.size());
    if input.min_packet_bytes.is_none() {
        for set in [&contribute.set, &want.set] {
            mine.extend(sample(set, &layout));
        }
    }
    let all = allgather_numbers(ep, ROUND, &mine).await?;
    let mean = |k: usize| all.iter().map(|a| a[k] as f64).sum::<f64>() / all.len() as f64;
    let (ranks, n) = (ep.size(), input.n);
    if let Some(min_packet_bytes) = input.min_packet_bytes {
        let (contribute, want, row_bytes) = (mean(0), mean(1), input.row_bytes as f64);
        let sizes = Sizes { ranks, n, contribute, want, row_bytes, alpha: DEFAULT_ALPHA };
        let degrees = choose_degrees(&sizes, min_packet_bytes);
        return Ok(vec![Considered { degrees, configure: Vec::new(), reduce: Vec::new() }]);
    }
    let profile = agreed_profile(start, |k| all.iter().map(|a| f64::from_bits(a[COUNTS + k])).collect());
    let same = all.iter().all(|a| a[2] == 1);
    let length = layout.words();
    let is_damaged = |a: &Vec<u64>| !a[HEADER_WORDS..].chunks(length).all(|sample| layout.is_valid(sample));
    if let Some(rank) = all.iter().position(is_damaged) {
        return Err(ep.corrupt(GroupRank(rank as u32), "a sample with blocks outside its windows"));
    }
    let union = |side: usize| {
        let samples: Vec<&[u64]> = all.iter().map(|a| &a[HEADER_WORDS + side * length..][..length]).collect();
        layout.union(mean(side), &samples)
    };
    let out = union(0);
    let wanted = if same { out.clone() } else { union(1) };
    Ok(best(ep, input, &profile, (&out, &wanted), same))
}

/// The degrees with the least predicted time of a reduction, and the next best; `same`: in-sets equal out-sets on all ranks.
fn best(
    ep: &Endpoint,
    input: &DegreesInput,
    profile: &Profile,
    (out, want): (&Union, &Union),
    same: bool,
) -> Vec<Considered> {
    let work = PlanWork {
        ranks: ep.size(),
        n: input.n,
        row_bytes: input.row_bytes,
        out: &|m| out.entries(m),
        want: &|m| want.entries(m),
        same,
        ranks_per_host: ep.topology().ranks_per_host(),
    };
    let numbers = |stages: &[Stage]| stages.iter().map(Stage::numbers).collect();
    let all = best_degrees(&work, profile).into_iter();
    all.map(|p| Considered {
        configure: numbers(&p.configure),
        reduce: numbers(&p.reduce),
        degrees: p.degrees,
    })
    .collect()
}

/// The first blocks of each window, ids and masks.
fn sample(set: &IndexSet, layout: &SampleLayout) -> Vec<u64> {
    let mut words = Vec::with_capacity(layout.words());
    for (lo, hi) in layout.windows() {
        let blocks = &set.blocks()[set.blocks_between(lo, hi)];
        let block = |k: usize| blocks.get(k).map_or([NO_BLOCK, 0], |Block { id, mask }| [*id, *mask]);
        words.extend((0..layout.blocks).flat_map(block));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use skyphos_kernels::Indices;

    fn curve(n: u64, sets: &[Vec<u64>]) -> Union {
        let hash = BlockHash::new(n, sets.len() as u32);
        let layout = SampleLayout::new(hash.range(), sets.len() as u32);
        let samples: Vec<Vec<u64>> = sets
            .iter()
            .map(|set| {
                let prepared = Indices::U64(set).prepare(n, hash, "test").unwrap();
                sample(&prepared.set, &layout)
            })
            .collect();
        assert!(samples.iter().all(|sample| layout.is_valid(sample)));
        let views: Vec<&[u64]> = samples.iter().map(|s| &s[..]).collect();
        let mean = sets.iter().map(Vec::len).sum::<usize>() as f64 / sets.len() as f64;
        layout.union(mean, &views)
    }

    #[test]
    fn unions_of_samples_are_those_of_the_sets() {
        let n = 1 << 20;
        let spread =
            |rank: u64, step: u64| (0..n / step).map(|i| i * step + (i * 7919 + rank * 31) % step).collect();
        for step in [2, 16, 300] {
            let sets: Vec<Vec<u64>> = (0..8).map(|rank| spread(rank, step)).collect();
            for joined in [1, 2, 4, 8] {
                let mut all = sets[..joined].concat();
                all.sort_unstable();
                all.dedup();
                let got = curve(n, &sets).entries(joined as f64);
                assert!((got / all.len() as f64 - 1.0).abs() < 0.3, "{step}: {got}, not {}", all.len());
            }
        }
        let same: Vec<Vec<u64>> = (0..8).map(|_| spread(0, 100)).collect();
        assert!((curve(n, &same).entries(8.0) / same[0].len() as f64 - 1.0).abs() < 1e-9);
        let none: Vec<Vec<u64>> = (0..4).map(|_| vec![]).collect();
        assert_eq!(curve(n, &none).entries(4.0), 0.0);
    }
}
