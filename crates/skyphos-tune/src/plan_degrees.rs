//! The layers of a plan: samples of all ranks' index sets, the unions that they indicate, and the degrees that suit them.
//!
//! Sets are stored in the order of a hash that all ranks share. So a few windows of its range are the same random sample of the
//! index space on all ranks, and the unions of samples show how much the sets overlap.

use crate::parameters::TuningParameters;
use skyphos_plan::{PlanPrediction, PlanWork, Profile, Union, factorisations};

/// The id in a sample where a rank has no more blocks.
pub const NO_BLOCK: u64 = u64::MAX;

const WINDOWS: u64 = TuningParameters::DEFAULT.sample_windows as u64;

/// The layout of a rank's sample: the first `blocks` blocks in each window of the hashed range, two words each (id and mask).
#[derive(Clone, Copy, Debug)]
pub struct SampleLayout {
    range: u64,
    /// Blocks of a rank in a window.
    pub blocks: usize,
}

impl SampleLayout {
    /// The layout for `ranks` ranks, whose hashes lie below `range`. All ranks get all samples, so with more ranks each one sends
    /// fewer blocks.
    pub fn new(range: u64, ranks: u32) -> SampleLayout {
        let TuningParameters { window_blocks_of_all, window_blocks, .. } = TuningParameters::DEFAULT;
        SampleLayout { range, blocks: (window_blocks_of_all / ranks as usize).clamp(1, window_blocks) }
    }

    /// Bounds of the windows' ids.
    pub fn windows(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let SampleLayout { range, .. } = *self;
        let start = move |window| if window == WINDOWS { range } else { range / WINDOWS * window };
        (0..WINDOWS).map(move |window| (start(window), start(window + 1)))
    }

    /// Words of a sample.
    pub fn words(&self) -> usize {
        2 * self.blocks * WINDOWS as usize
    }

    /// Whether all blocks of a sample lie in their windows.
    pub fn is_valid(&self, sample: &[u64]) -> bool {
        self.windows().zip(sample.chunks(2 * self.blocks)).all(|((lo, hi), words)| {
            words.iter().step_by(2).all(|id| *id == NO_BLOCK || (lo..hi).contains(id))
        })
    }

    /// Entries of the unions of m ranks' sets, for every m that layers may join: the average over groups of m neighbouring
    /// ranks. `mean`: entries of one rank.
    pub fn union(&self, mean: f64, samples: &[&[u64]]) -> Union {
        let ranks = samples.len();
        // A small sample is off by as much for one set as for a union, so only their ratio counts.
        let one = self.mean_entries(samples, 1);
        let scale = if one > 0.0 { mean / one } else { 0.0 };
        let mut points = vec![(1.0, mean)];
        for joined in (2..=ranks).filter(|m| ranks.is_multiple_of(*m)) {
            let found = self.mean_entries(samples, joined) * scale;
            let least = points[points.len() - 1].1;
            points.push((joined as f64, found.clamp(least, (mean * joined as f64).max(least))));
        }
        Union::Measured(points)
    }

    fn mean_entries(&self, samples: &[&[u64]], joined: usize) -> f64 {
        let groups = samples.chunks_exact(joined);
        let count = groups.len() as f64;
        groups.map(|group| self.entries(group)).sum::<f64>() / count
    }

    /// Estimated entries of the union of these ranks' sets. It counts only the part of each window whose blocks all of these ranks
    /// have sent.
    fn entries(&self, group: &[&[u64]]) -> f64 {
        let (mut found, mut covered) = (0u64, 0u64);
        for (window, (lo, hi)) in self.windows().enumerate() {
            let each = 2 * self.blocks;
            let of_window = || group.iter().map(|sample| &sample[window * each..][..each]);
            // A rank whose sample of the window is full may have more blocks after the last one.
            let ends = of_window().map(|words| match words[each - 2] {
                NO_BLOCK => hi,
                last => last + 1,
            });
            let end = ends.min().unwrap_or(hi);
            let mut blocks: Vec<(u64, u64)> =
                of_window().flat_map(|words| words.chunks_exact(2).map(|w| (w[0], w[1]))).collect();
            blocks.retain(|(id, _)| *id < end);
            blocks.sort_unstable();
            covered += end - lo;
            let same_block = blocks.chunk_by(|a, b| a.0 == b.0);
            let masks = same_block.map(|same| same.iter().fold(0, |all, (_, mask)| all | mask));
            found += masks.map(|mask: u64| u64::from(mask.count_ones())).sum::<u64>();
        }
        found as f64 * self.range as f64 / covered.max(1) as f64
    }
}

/// The degrees with the least predicted time of a reduction, and the next best.
pub fn best_degrees(work: &PlanWork<'_>, profile: &Profile) -> Vec<PlanPrediction> {
    let mut all = work.all(profile, &factorisations(work.ranks));
    all.truncate(1 + TuningParameters::DEFAULT.max_alternatives);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_another_window_are_invalid() {
        let layout = SampleLayout { range: 1 << 10, blocks: 2 };
        let mut words = [NO_BLOCK, 0].repeat(layout.words() / 2);
        assert!(layout.is_valid(&words));
        for (place, id, valid) in
            [(4, 128, true), (4, 127, false), (4, 256, false), (30, 1023, true), (30, 1024, false)]
        {
            let before = std::mem::replace(&mut words[place], id);
            assert_eq!(layout.is_valid(&words), valid, "{id} at {place}");
            words[place] = before;
        }
    }

    #[test]
    fn many_ranks_send_fewer_blocks_each() {
        for (ranks, blocks) in [(1, 8), (32, 8), (64, 4), (256, 1), (4096, 1)] {
            assert_eq!(SampleLayout::new(1 << 20, ranks).blocks, blocks);
        }
    }

    /// A rank's sample of blocks `ids`, each with the mask.
    fn sample(layout: &SampleLayout, ids: impl Fn(u64) -> bool, mask: u64) -> Vec<u64> {
        let window = |(lo, hi): (u64, u64)| -> Vec<u64> {
            let found = (lo..hi).filter(|id| ids(*id)).take(layout.blocks);
            let mut words: Vec<u64> = found.flat_map(|id| [id, mask]).collect();
            while words.len() < 2 * layout.blocks {
                words.extend([NO_BLOCK, 0]);
            }
            words
        };
        layout.windows().flat_map(window).collect()
    }

    #[test]
    fn estimated_unions_follow_the_overlap_of_sets() {
        let layout = SampleLayout::new(1 << 16, 4);
        type Ids = fn(u64, u64) -> bool;
        type Mask = fn(u64) -> u64;
        let table: [(&str, Ids, Mask, f64, [f64; 3]); 4] = [
            ("the same blocks", |_, id| id % 64 == 0, |_| 1, 1024.0, [1024.0, 1024.0, 1024.0]),
            (
                "the same blocks, different indices",
                |_, id| id % 64 == 0,
                |rank| 1 << rank,
                1024.0,
                [1024.0, 2048.0, 4096.0],
            ),
            ("different blocks", |rank, id| id % 64 == rank, |_| 1, 1024.0, [1024.0, 2048.0, 4096.0]),
            ("empty sets", |_, _| false, |_| 1, 0.0, [0.0, 0.0, 0.0]),
        ];
        for (name, ids, mask, mean, want) in table {
            let samples: Vec<Vec<u64>> =
                (0..4).map(|rank| sample(&layout, |id| ids(rank, id), mask(rank))).collect();
            let views: Vec<&[u64]> = samples.iter().map(|one| &one[..]).collect();
            assert!(views.iter().all(|one| layout.is_valid(one)));
            let union = layout.union(mean, &views);
            for (m, want) in [1.0, 2.0, 4.0].into_iter().zip(want) {
                let found = union.entries(m);
                assert!((found - want).abs() <= 0.15 * want, "{name}, {m} ranks: {found}, not {want}");
            }
        }
    }

    #[test]
    fn degrees_suit_the_data_and_the_network() {
        let n = 1 << 24;
        let best = |entries: f64, overlap: bool, profile: &Profile| {
            let union = |m: f64| if overlap { entries } else { (entries * m).min(n as f64) };
            let work = PlanWork {
                ranks: 16,
                n,
                row_bytes: 8,
                out: &union,
                want: &union,
                same: true,
                ranks_per_host: 1,
            };
            let all = best_degrees(&work, profile);
            assert!(all.is_sorted_by(|a, b| a.reduce_duration() <= b.reduce_duration()));
            assert_eq!(all.len(), 1 + TuningParameters::DEFAULT.max_alternatives);
            all[0].degrees.clone()
        };
        let network = Profile::network(118e6);
        let far = Profile { latency_s: 0.1, incast: 0.0, ..network };
        let costly = Profile { message_s: 1e-3, ..network };
        for (name, entries, overlap, profile, want) in [
            ("latency counts: one layer", 100.0, false, far, vec![16]),
            ("messages count: layers of two", 100.0, true, costly, vec![2, 2, 2, 2]),
            ("bytes of distinct entries count: one layer", 1e6, false, network, vec![16]),
        ] {
            assert_eq!(best(entries, overlap, &profile), want, "{name}");
        }
    }
}
