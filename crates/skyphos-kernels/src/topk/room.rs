//! The caller's vectors, and what of them to keep.

use super::magnitude::Magnitude;
use super::slots::{SLACK, Slots};

/// The caller's vectors: as many indices as values.
pub(super) struct Room<'a, T> {
    pub(super) indices: &'a mut Vec<u32>,
    pub(super) picked: &'a mut Vec<T>,
}

impl<'a, T: Magnitude> Room<'a, T> {
    /// Empties both.
    pub(super) fn new(indices: &'a mut Vec<u32>, picked: &'a mut Vec<T>) -> Room<'a, T> {
        let mut room = Room { indices, picked };
        room.clear();
        room
    }

    pub(super) fn clear(&mut self) {
        self.indices.clear();
        self.picked.clear();
    }

    /// Appends what `fill` writes, at most `most` indices and values, and returns how many it says.
    #[inline(always)]
    pub(super) fn append(&mut self, most: usize, fill: impl FnOnce(Slots<'_, T>) -> usize) -> usize {
        self.indices.reserve(most + SLACK);
        self.picked.reserve(most + SLACK);
        let (indices, picked) = (self.indices.spare_capacity_mut(), self.picked.spare_capacity_mut());
        let count = fill(Slots { indices, picked });
        assert!(count <= most);
        // SAFETY: a collecting loop has written as many of both.
        unsafe {
            self.indices.set_len(self.indices.len() + count);
            self.picked.set_len(self.picked.len() + count);
        }
        count
    }

    /// Of those from `start` on keeps the `k` largest, earlier ones first where magnitudes are equal.
    pub(super) fn keep_largest(&mut self, start: usize, k: usize) {
        let count = self.indices.len() - start;
        if count <= k {
            return;
        }
        if k == 0 {
            self.indices.truncate(start);
            return self.picked.truncate(start);
        }
        let mut keys: Vec<T::Key> = self.picked[start..].iter().map(|v| v.magnitude()).collect();
        let kth = *keys.select_nth_unstable_by(k - 1, |a, b| b.cmp(a)).1;
        self.keep_from(start, kth, k);
    }

    /// Of those from `start` on keeps the ones above the k-th magnitude, and of those equal to it as many
    /// as `k` leaves, the first ones.
    pub(super) fn keep_from(&mut self, start: usize, kth: T::Key, k: usize) {
        let above = self.picked[start..].iter().filter(|v| v.magnitude() > kth).count();
        let (mut to, mut equal) = (start, k - above);
        for from in start..self.indices.len() {
            let (index, v) = (self.indices[from], self.picked[from]);
            let key = v.magnitude();
            let taken = (key > kth) | ((key == kth) & (equal > 0));
            equal -= usize::from(taken & (key == kth));
            self.indices[to] = index;
            self.picked[to] = v;
            to += usize::from(taken);
        }
        self.indices.truncate(to);
        self.picked.truncate(to);
    }
}
