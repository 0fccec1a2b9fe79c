//! The caller's lists of selected values and indices, which selection appends to and trims.

use super::magnitude::Magnitude;
use super::slots::{OVERRUN, Slots};

/// The selected values and their indices; both lists have the same length.
pub(super) struct Selected<'a, T> {
    pub(super) indices: &'a mut Vec<u32>,
    pub(super) picked: &'a mut Vec<T>,
}

impl<'a, T: Magnitude> Selected<'a, T> {
    /// The caller's lists, which are emptied.
    pub(super) fn new(indices: &'a mut Vec<u32>, picked: &'a mut Vec<T>) -> Selected<'a, T> {
        let mut selected = Selected { indices, picked };
        selected.clear();
        selected
    }

    pub(super) fn clear(&mut self) {
        self.indices.clear();
        self.picked.clear();
    }

    /// Appends the indices and values that `fill` writes, at most `max`, and returns their number.
    ///
    /// # Safety
    /// `fill` must write as many indices and values, from the first slot on, as it returns.
    #[inline(always)]
    pub(super) unsafe fn append(&mut self, max: usize, fill: impl FnOnce(Slots<'_, T>) -> usize) -> usize {
        self.indices.reserve(max + OVERRUN);
        self.picked.reserve(max + OVERRUN);
        let (indices, picked) = (self.indices.spare_capacity_mut(), self.picked.spare_capacity_mut());
        let count = fill(Slots { indices, picked });
        assert!(count <= max);
        // SAFETY: `count` indices and values were written, as the caller promises.
        unsafe {
            self.indices.set_len(self.indices.len() + count);
            self.picked.set_len(self.picked.len() + count);
        }
        count
    }

    /// Keeps the `k` largest of the values from `start` on, the earlier ones among equal magnitudes.
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

    /// Keeps, of the values from `start` on, those above the k-th magnitude and the first of those equal to it, `k` in all.
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
