//! Cutting of the index space into ranges of equal weight, by weighted sample indices.

use skyphos_kernels::split_ranges;

/// The bounds of `parts` ranges of `0..n`. `samples` are pairs of index and weight, ascending by index. A cut is where the
/// weight of the samples before it reaches a multiple of the total over `parts`.
pub(super) fn cut_by_weight(samples: Vec<(u64, u64)>, n: u64, parts: u32) -> Vec<u64> {
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
    fn cuts_leave_equal_weight_on_each_side() {
        let even: Vec<(u64, u64)> = (0..1000).map(|k| (k, 3)).collect();
        assert_eq!(cut_by_weight(even, 1000, 4), [0, 250, 500, 750, 1000]);
        // Half of all weight below 10.
        let skewed = (0..10).map(|k| (k, 100)).chain((10..1000).step_by(99).map(|k| (k, 100)));
        let bounds = cut_by_weight(skewed.collect(), 1000, 2);
        assert!((8..=12).contains(&bounds[1]), "{bounds:?}");
        assert_eq!(cut_by_weight(vec![], 100, 2), [0, 50, 100]);
        // One index has all the weight: it is in the middle range.
        assert_eq!(cut_by_weight(vec![(5, 9)], 100, 3), [0, 5, 100, 100]);
    }
}
