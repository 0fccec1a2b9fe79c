//! Which degrees suit a plan: by the planner, from what all ranks say of their sets and of machine and network.
//!
//! Sets are held in the order of a hash that all ranks share, so what lies in a few windows of its range is the same sample
//! of the index space on all of them, and the unions of samples say how much sets overlap. It is there for nothing once
//! the sets are prepared.

use crate::choose::OTHERS;
use crate::observe::{Observed, PROFILE_WORDS, agreed_profile};
use skyphos_core::Endpoint;
use skyphos_core::collectives::allgather::allgather_numbers;
use skyphos_core::plan::Considered;
use skyphos_kernels::{Block, BlockHash, IndexSet, Prepared};
use skyphos_plan::degrees::DEFAULT_ALPHA;
use skyphos_plan::{PlanWork, Profile, Sizes, Stage, Union, choose_degrees, factorisations};
use skyphos_types::Result;

/// Round of the exchange; those of the agreement on n are before it.
const ROUND: u32 = 0x40;

/// Windows of the hashed range of which each rank tells its blocks.
const WINDOWS: u64 = 8;

/// What no block has for an id.
const NONE: u64 = u64::MAX;

/// Numbers that each rank says of itself before its samples: how much it puts out and wants, whether that is the same, and
/// what of its profile may differ.
const SAID: usize = 3 + PROFILE_WORDS;

/// What to choose for, beside the sets.
pub(crate) struct Asked {
    pub(crate) n: u64,
    pub(crate) hash: BlockHash,
    /// Bytes of an index's values.
    pub(crate) row_bytes: usize,
    /// The least message that is worth sending, for the papers' rule; `None`: the planner.
    pub(crate) min_packet_bytes: Option<f64>,
    /// Indices of all ranks' sets together; `None`: they are asked.
    pub(crate) expected_nnz: Option<u64>,
}

/// Degrees for these sets, and then the next best; the same on all ranks. Cost: ⌈log2 P⌉ α.
pub(crate) async fn agree(
    ep: &Endpoint,
    asked: &Asked,
    (contribute, want): (&Prepared, &Prepared),
    seen: Observed,
) -> Result<Vec<Considered>> {
    let start = seen.start(ep.size(), ep.node().on_one_host());
    if let Some(entries) =
        asked.expected_nnz.filter(|_| asked.min_packet_bytes.is_none() && seen.starts_alike())
    {
        let curve = Union::drawn_evenly(asked.n, entries as f64, ep.size());
        return Ok(best(ep, asked, &start, (&curve, &curve), true));
    }
    let same = contribute.set == want.set;
    let counts = [contribute.set.len() as u64, want.set.len() as u64, u64::from(same)];
    let mut mine: Vec<u64> = counts.to_vec();
    mine.extend(seen.profile_words(start).iter().map(|word| word.to_bits()));
    let each = if asked.min_packet_bytes.is_some() { 0 } else { blocks_of_window(ep.size()) };
    for set in [&contribute.set, &want.set] {
        mine.extend(sample(set, asked.hash.range(), each));
    }
    let all = allgather_numbers(ep, ROUND, &mine).await?;
    let mean = |k: usize| all.iter().map(|a| a[k] as f64).sum::<f64>() / all.len() as f64;
    let (ranks, n) = (ep.size(), asked.n);
    if let Some(least) = asked.min_packet_bytes {
        let (contribute, want, row_bytes) = (mean(0), mean(1), asked.row_bytes as f64);
        let sizes = Sizes { ranks, n, contribute, want, row_bytes, alpha: DEFAULT_ALPHA };
        let degrees = choose_degrees(&sizes, least);
        return Ok(vec![Considered { degrees, configure: Vec::new(), reduce: Vec::new() }]);
    }
    let profile =
        agreed_profile(start, |k| all.iter().map(|a| f64::from_bits(a[counts.len() + k])).collect());
    let same = all.iter().all(|a| a[2] == 1);
    let length = 2 * each * WINDOWS as usize;
    let range = asked.hash.range();
    if let Some(rank) = all.iter().position(|a| !a[SAID..].chunks(length).all(|s| is_sample(s, range, each)))
    {
        return Err(ep.corrupt(rank as u32, "a sample of blocks that there are not"));
    }
    let union = |side: usize| {
        let samples: Vec<&[u64]> = all.iter().map(|a| &a[SAID + side * length..][..length]).collect();
        measured(mean(side), &samples, range, each)
    };
    let out = union(0);
    let wanted = if same { out.clone() } else { union(1) };
    Ok(best(ep, asked, &profile, (&out, &wanted), same))
}

/// The degrees with the least predicted time of a reduction, and the next best; `same`: all want what they put out.
fn best(
    ep: &Endpoint,
    asked: &Asked,
    profile: &Profile,
    (out, want): (&Union, &Union),
    same: bool,
) -> Vec<Considered> {
    let work = PlanWork {
        ranks: ep.size(),
        n: asked.n,
        row_bytes: asked.row_bytes,
        out: &|m| out.entries(m),
        want: &|m| want.entries(m),
        same,
        ranks_per_host: ep.topology().ranks_per_host(),
    };
    let numbers = |stages: &[Stage]| stages.iter().map(Stage::numbers).collect();
    let all = work.all(profile, &factorisations(ep.size())).into_iter().take(1 + OTHERS);
    all.map(|p| Considered {
        configure: numbers(&p.configure),
        reduce: numbers(&p.reduce),
        degrees: p.degrees,
    })
    .collect()
}

/// Blocks that each rank tells of each window: all ranks hear all of them.
fn blocks_of_window(ranks: u32) -> usize {
    (256 / ranks as usize).clamp(1, 8)
}

/// The ids of a window.
fn bounds_of(window: u64, range: u64) -> (u64, u64) {
    let lo = range / WINDOWS * window;
    (lo, if window + 1 == WINDOWS { range } else { lo + range / WINDOWS })
}

/// The first blocks of each window, ids and masks; [`NONE`] where it has no more.
fn sample(set: &IndexSet, range: u64, each: usize) -> impl Iterator<Item = u64> + '_ {
    (0..if each == 0 { 0 } else { WINDOWS }).flat_map(move |window| {
        let (lo, hi) = bounds_of(window, range);
        let blocks = &set.blocks()[set.blocks_between(lo, hi)];
        let words = |k: usize| blocks.get(k).map_or([NONE, 0], |Block { id, mask }| [*id, *mask]);
        (0..each).flat_map(words).collect::<Vec<_>>()
    })
}

/// Whether blocks lie in the windows that they are said to be of.
fn is_sample(words: &[u64], range: u64, each: usize) -> bool {
    (0..WINDOWS).zip(words.chunks(2 * each)).all(|(window, words)| {
        let (lo, hi) = bounds_of(window, range);
        words.iter().step_by(2).all(|id| *id == NONE || (lo..hi).contains(id))
    })
}

/// What unions of m ranks' sets hold, for every m that layers may join: as the samples of ranks beside each other say, on
/// average.
fn measured(mean: f64, samples: &[&[u64]], range: u64, each: usize) -> Union {
    let ranks = samples.len();
    // Where few blocks were told, what one set seems to hold is off as much as what a union does.
    let one = estimate_mean(samples, 1, range, each);
    let scale = if one > 0.0 { mean / one } else { 0.0 };
    let mut points = vec![(1.0, mean)];
    for joined in (2..=ranks).filter(|m| ranks.is_multiple_of(*m)) {
        let found = estimate_mean(samples, joined, range, each) * scale;
        let least = points[points.len() - 1].1;
        points.push((joined as f64, found.clamp(least, (mean * joined as f64).max(least))));
    }
    Union::Measured(points)
}

fn estimate_mean(samples: &[&[u64]], joined: usize, range: u64, each: usize) -> f64 {
    let groups = samples.chunks_exact(joined);
    let count = groups.len() as f64;
    groups.map(|group| estimate(group, range, each)).sum::<f64>() / count
}

/// Indices of the union of these ranks' sets, by the parts of windows of which all of them told all blocks.
fn estimate(group: &[&[u64]], range: u64, each: usize) -> f64 {
    let (mut found, mut covered) = (0u64, 0u64);
    for window in 0..WINDOWS {
        let (lo, hi) = bounds_of(window, range);
        let told: Vec<&[u64]> =
            group.iter().map(|sample| &sample[window as usize * each * 2..][..each * 2]).collect();
        // Whoever told as many as it may perhaps has more beyond the last.
        let ends = told.iter().map(|words| match words[2 * each - 2] {
            NONE => hi,
            last => last + 1,
        });
        let end = ends.min().unwrap_or(hi);
        let mut blocks: Vec<(u64, u64)> =
            told.iter().flat_map(|words| words.chunks_exact(2).map(|w| (w[0], w[1]))).collect();
        blocks.retain(|(id, _)| *id < end);
        blocks.sort_unstable();
        covered += end - lo;
        let mut k = 0;
        while k < blocks.len() {
            let (id, mut mask) = blocks[k];
            while k < blocks.len() && blocks[k].0 == id {
                mask |= blocks[k].1;
                k += 1;
            }
            found += u64::from(mask.count_ones());
        }
    }
    found as f64 * range as f64 / covered.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use skyphos_kernels::Indices;

    fn curve(n: u64, sets: &[Vec<u64>]) -> Union {
        let hash = BlockHash::new(n, sets.len() as u32);
        let each = blocks_of_window(sets.len() as u32);
        let samples: Vec<Vec<u64>> = sets
            .iter()
            .map(|set| {
                let prepared = Indices::U64(set).prepare(n, hash, "test").unwrap();
                sample(&prepared.set, hash.range(), each).collect()
            })
            .collect();
        assert!(samples.iter().all(|sample| is_sample(sample, hash.range(), each)));
        let views: Vec<&[u64]> = samples.iter().map(|s| &s[..]).collect();
        let mean = sets.iter().map(Vec::len).sum::<usize>() as f64 / sets.len() as f64;
        measured(mean, &views, hash.range(), each)
    }

    #[test]
    fn blocks_of_another_window_are_no_sample() {
        let (range, each) = (1 << 10, 2);
        let mut words = [NONE, 0].repeat(WINDOWS as usize * each);
        assert!(is_sample(&words, range, each));
        for (place, id, is) in
            [(4, 128, true), (4, 127, false), (4, 256, false), (30, 1023, true), (30, 1024, false)]
        {
            let before = std::mem::replace(&mut words[place], id);
            assert_eq!(is_sample(&words, range, each), is, "{id} at {place}");
            words[place] = before;
        }
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
                assert!((got / all.len() as f64 - 1.0).abs() < 0.3, "{step}: {got} for {}", all.len());
            }
        }
        let same: Vec<Vec<u64>> = (0..8).map(|_| spread(0, 100)).collect();
        assert!((curve(n, &same).entries(8.0) / same[0].len() as f64 - 1.0).abs() < 1e-9);
        let none: Vec<Vec<u64>> = (0..4).map(|_| vec![]).collect();
        assert_eq!(curve(n, &none).entries(4.0), 0.0);
    }
}
