//! A set of numbers, as ascending ranges: which bytes of a buffer have arrived.

use std::ops::Range;

/// A set of offsets, as ascending ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Range<usize>>);

impl Ranges {
    /// Adds a range.
    pub(crate) fn add(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // The range, and all that overlap or touch it, become one.
        let first = self.0.partition_point(|old| old.end < range.start);
        let after = self.0.partition_point(|old| old.start <= range.end);
        let joined = self.0[first..after]
            .iter()
            .fold(range, |all, old| all.start.min(old.start)..all.end.max(old.end));
        self.0.splice(first..after, [joined]);
    }

    /// Whether a range is a subset.
    pub(crate) fn covers(&self, range: &Range<usize>) -> bool {
        let at = self.0.partition_point(|held| held.end < range.end);
        range.is_empty() || self.0.get(at).is_some_and(|held| held.start <= range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_of_ranges_covers_exactly_the_bytes_added(
            all in prop::collection::vec((0usize..40, 0usize..12), 0..20),
            query in (0usize..40, 0usize..12),
        ) {
            let (mut ranges, mut added) = (Ranges::default(), [false; 60]);
            for (start, len) in all {
                ranges.add(start..start + len);
                added[start..start + len].fill(true);
            }
            let query = query.0..query.0 + query.1;
            prop_assert_eq!(ranges.covers(&query), added[query.clone()].iter().all(|added| *added));
            prop_assert!(ranges.0.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
