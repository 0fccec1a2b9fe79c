//! Builder of an array that is written in parts, in any order, without being cleared first.

use crate::stream::{copy_marking_absent, try_with_capacity};
use bytemuck::Pod;
use skyphos_types::Element;
use std::collections::TryReserveError;
use std::mem::MaybeUninit;
use std::ops::Range;

/// An array under construction. [`ArrayBuilder::finish`] gives it once every number was written.
pub struct ArrayBuilder<T> {
    /// Its length is 0: the numbers are in its spare capacity.
    memory: Vec<T>,
    len: usize,
    written: Vec<Range<usize>>,
}

impl<T: Pod> ArrayBuilder<T> {
    /// A builder of an array of `len` numbers.
    pub fn new(len: usize) -> ArrayBuilder<T> {
        ArrayBuilder { memory: Vec::with_capacity(len), len, written: Vec::new() }
    }

    /// As [`ArrayBuilder::new`]; fails if the system lacks the memory.
    pub fn try_new(len: usize) -> Result<ArrayBuilder<T>, TryReserveError> {
        Ok(ArrayBuilder { memory: try_with_capacity(len)?, len, written: Vec::new() })
    }

    /// Writes numbers from position `at` on.
    ///
    /// # Panics
    /// If they end beyond the array.
    pub fn put(&mut self, at: usize, numbers: &[T]) {
        let range = at..at + numbers.len();
        let to = self.slots(&range).as_mut_ptr().cast::<T>();
        // SAFETY: there are as many slots as numbers, and the builder's memory does not overlap the slice.
        unsafe { to.copy_from_nonoverlapping(numbers.as_ptr(), numbers.len()) };
        // SAFETY: each slot of `range` has just been written.
        unsafe { self.mark_written(range) };
    }

    /// Writes numbers to a range. If they are fewer than its length, its end stays unwritten.
    ///
    /// # Panics
    /// If the range ends beyond the array.
    pub fn put_each(&mut self, range: Range<usize>, numbers: impl Iterator<Item = T>) {
        let mut end = range.start;
        for (slot, number) in self.slots(&range).iter_mut().zip(numbers) {
            slot.write(number);
            end += 1;
        }
        // SAFETY: `end` follows the last slot that was written.
        unsafe { self.mark_written(range.start..end) };
    }

    /// As [`ArrayBuilder::put`] for an array in which −0.0 marks absent rows (`stream/absent.rs`): writes each −0.0 as 0, and
    /// sets the bit of each row that begins among these numbers and is an entry.
    pub fn put_entries(&mut self, at: usize, numbers: &[T], width: usize, bits: &mut [u64])
    where
        T: Element,
    {
        let range = at..at + numbers.len();
        let to = self.slots(&range).as_mut_ptr().cast::<T>();
        // SAFETY: there are as many slots as numbers to read.
        unsafe { copy_marking_absent(numbers.as_ptr(), to, numbers.len(), bits, at, width) };
        // SAFETY: each slot of `range` has just been written.
        unsafe { self.mark_written(range) };
    }

    /// The memory of a range.
    ///
    /// # Panics
    /// If it ends beyond the array.
    pub(crate) fn slots(&mut self, range: &Range<usize>) -> &mut [MaybeUninit<T>] {
        &mut self.memory.spare_capacity_mut()[..self.len][range.clone()]
    }

    /// Records that a range has been written.
    ///
    /// # Safety
    /// Every number of the range must have been written.
    pub(crate) unsafe fn mark_written(&mut self, range: Range<usize>) {
        match self.written.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.written.push(range),
        }
    }

    /// The array, if every number of it was written.
    pub fn finish(mut self) -> Option<Vec<T>> {
        self.written.sort_unstable_by_key(|range| range.start);
        let mut reached = 0;
        for range in &self.written {
            if range.start > reached {
                return None;
            }
            reached = reached.max(range.end);
        }
        if reached < self.len {
            return None;
        }
        // SAFETY: the capacity is at least `len`, and the recorded ranges cover all numbers.
        unsafe { self.memory.set_len(self.len) };
        Some(self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finishes_once_every_number_is_written(mut cuts in prop::collection::vec(0usize..200, 0..12), left_out in 0usize..13,
                                     seed in 0u64..100) {
            cuts.extend([0, 200]);
            cuts.sort_unstable();
            let all: Vec<u32> = (0..200).collect();
            let mut ranges: Vec<Range<usize>> = cuts.windows(2).map(|w| w[0]..w[1]).collect();
            let missing = left_out < ranges.len() && !ranges.remove(left_out).is_empty();
            ranges.sort_by_key(|range| (range.start as u64 * 7919 + seed) % 101);
            let mut builder = ArrayBuilder::new(200);
            for range in &ranges {
                let numbers = &all[range.clone()];
                match range.start % 2 {
                    0 => builder.put(range.start, numbers),
                    _ => builder.put_each(range.clone(), numbers.iter().copied()),
                }
            }
            prop_assert_eq!(builder.finish(), (!missing).then_some(all));
        }
    }

    #[test]
    fn a_range_with_too_few_numbers_stays_unwritten() {
        let mut builder = ArrayBuilder::new(4);
        builder.put_each(0..4, 0..3u8);
        assert_eq!(builder.finish(), None);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_write_beyond_the_array_panics() {
        ArrayBuilder::new(4).put(2, &[1u8; 3]);
    }
}
