//! An array that is written piece by piece, in any order, without being cleared first.

use crate::stream::{read_off, with_room};
use bytemuck::Pod;
use skyphos_types::Element;
use std::collections::TryReserveError;
use std::mem::MaybeUninit;
use std::ops::Range;

/// See the module's text.
pub struct Pieces<T> {
    /// Empty: its numbers are in the spare room.
    room: Vec<T>,
    len: usize,
    written: Vec<Range<usize>>,
}

impl<T: Pod> Pieces<T> {
    /// Room for `len` numbers.
    pub fn new(len: usize) -> Pieces<T> {
        Pieces { room: Vec::with_capacity(len), len, written: Vec::new() }
    }

    /// The same, if the system has as much.
    pub fn try_new(len: usize) -> Result<Pieces<T>, TryReserveError> {
        Ok(Pieces { room: with_room(len)?, len, written: Vec::new() })
    }

    /// Writes numbers from position `at` on. Panics where that is outside.
    pub fn put(&mut self, at: usize, numbers: &[T]) {
        let place = at..at + numbers.len();
        let to = self.slots(&place).as_mut_ptr().cast::<T>();
        // SAFETY: there are as many slots as numbers, which are elsewhere.
        unsafe { to.copy_from_nonoverlapping(numbers.as_ptr(), numbers.len()) };
        // SAFETY: all of it has been.
        unsafe { self.note(place) };
    }

    /// Writes numbers to a place, from where it begins, as far as they go. Panics where that is outside.
    pub fn put_each(&mut self, place: Range<usize>, numbers: impl Iterator<Item = T>) {
        let mut end = place.start;
        for (slot, number) in self.slots(&place).iter_mut().zip(numbers) {
            slot.write(number);
            end += 1;
        }
        // SAFETY: so many have been.
        unsafe { self.note(place.start..end) };
    }

    /// The same of an array that tells entries by the sign of zero: absent numbers as 0, and a bit for each row that
    /// begins here and is an entry.
    pub fn put_entries(&mut self, at: usize, numbers: &[T], width: usize, bits: &mut [u64])
    where
        T: Element,
    {
        let place = at..at + numbers.len();
        let to = self.slots(&place).as_mut_ptr().cast::<T>();
        // SAFETY: there are as many slots as numbers.
        unsafe { read_off(numbers.as_ptr(), to, numbers.len(), bits, at, width) };
        // SAFETY: all of it has been.
        unsafe { self.note(place) };
    }

    /// The room of a place. Panics where that is outside.
    pub(crate) fn slots(&mut self, place: &Range<usize>) -> &mut [MaybeUninit<T>] {
        &mut self.room.spare_capacity_mut()[..self.len][place.clone()]
    }

    /// Notes that a place has been written.
    ///
    /// # Safety
    /// It has been, all of it.
    pub(crate) unsafe fn note(&mut self, place: Range<usize>) {
        match self.written.last_mut() {
            Some(last) if last.end == place.start => last.end = place.end,
            _ => self.written.push(place),
        }
    }

    /// The array, if every number of it was written.
    pub fn finish(mut self) -> Option<Vec<T>> {
        self.written.sort_unstable_by_key(|place| place.start);
        let mut reached = 0;
        for place in &self.written {
            if place.start > reached {
                return None;
            }
            reached = reached.max(place.end);
        }
        if reached < self.len {
            return None;
        }
        // SAFETY: there is room for so many, and each has been written.
        unsafe { self.room.set_len(self.len) };
        Some(self.room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whole_once_all_is_written(mut cuts in prop::collection::vec(0usize..200, 0..12), left_out in 0usize..13,
                                     seed in 0u64..100) {
            cuts.extend([0, 200]);
            cuts.sort_unstable();
            let all: Vec<u32> = (0..200).collect();
            let mut places: Vec<Range<usize>> = cuts.windows(2).map(|w| w[0]..w[1]).collect();
            let missing = left_out < places.len() && !places.remove(left_out).is_empty();
            places.sort_by_key(|place| (place.start as u64 * 7919 + seed) % 101);
            let mut pieces = Pieces::new(200);
            for place in &places {
                let numbers = &all[place.clone()];
                match place.start % 2 {
                    0 => pieces.put(place.start, numbers),
                    _ => pieces.put_each(place.clone(), numbers.iter().copied()),
                }
            }
            prop_assert_eq!(pieces.finish(), (!missing).then_some(all));
        }
    }

    #[test]
    fn fewer_than_their_place() {
        let mut pieces = Pieces::new(4);
        pieces.put_each(0..4, 0..3u8);
        assert_eq!(pieces.finish(), None);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn outside() {
        Pieces::new(4).put(2, &[1u8; 3]);
    }
}
