//! The slices of all ranks' factors that a block needs, as they come.

use super::{Block, Pairs, Terms};
use crate::endpoint::Endpoint;
use crate::slab::Large;
use skyphos_kernels::product::{Factor, Rows};
use std::ops::Range;

/// Slices of rows of a, one after the other, then of b: as they travel, and as they are read from a rank's factors.
pub(super) fn copy_slices<T: Copy>(
    own: Pairs<'_, T>,
    (n, m): (usize, usize),
    block: &Block,
    pairs: usize,
    place: Range<usize>,
    to: &mut [T],
) {
    let in_a = pairs * block.rows.len();
    let mut rest = to;
    for (list, wide, cut, part) in [
        (own.a, n, &block.rows, place.start.min(in_a)..place.end.min(in_a)),
        (own.b, m, &block.cols, place.start.max(in_a) - in_a..place.end.max(in_a) - in_a),
    ] {
        let mut at = part.start;
        while at < part.end {
            let (row, first) = (at / cut.len(), at % cut.len());
            let count = (cut.len() - first).min(part.end - at);
            let (here, after) = std::mem::take(&mut rest).split_at_mut(count);
            here.copy_from_slice(&list[row * wide + cut.start + first..][..count]);
            rest = after;
            at += count;
        }
    }
}

/// See the module's text. Rows of a and b stand in the order of ranks.
pub(super) struct Factors<S> {
    /// Numbers of a row of a and of b.
    rows: usize,
    cols: usize,
    starts: Vec<usize>,
    a: Large,
    b: Large,
    /// Numbers that came of each rank's.
    came: Vec<usize>,
    _sums: std::marker::PhantomData<S>,
}

impl<S> Factors<S> {
    /// Room for what `block` needs.
    pub(super) fn new(ep: &Endpoint, terms: &Terms, block: &Block) -> Factors<S> {
        let starts = terms.starts();
        let pairs = if ep.is_sized() { 0 } else { terms.all_pairs() };
        let (rows, cols) = (block.rows.len(), block.cols.len());
        let room = |wide: usize| ep.node().pool().large(pairs * wide * size_of::<S>());
        let came = vec![0; terms.pairs.len()];
        Factors { rows, cols, a: room(rows), b: room(cols), starts, came, _sums: std::marker::PhantomData }
    }

    /// Numbers that a rank sends.
    pub(super) fn due(&self, rank: u32) -> usize {
        let rank = rank as usize;
        (self.starts[rank + 1] - self.starts[rank]) * (self.rows + self.cols)
    }

    /// Numbers that came of a rank's.
    pub(super) fn came(&self, rank: u32) -> usize {
        self.came[rank as usize]
    }

    /// Takes the next `count` numbers of a rank; `numbers` is empty where there is no data. They must fit what is due.
    pub(super) fn put<T: Factor<Sum = S>>(&mut self, rank: u32, numbers: &[T], count: usize)
    where
        S: bytemuck::Pod,
    {
        let at = self.came[rank as usize];
        self.came[rank as usize] += count;
        if numbers.is_empty() {
            return;
        }
        let (start, end) = (self.starts[rank as usize], self.starts[rank as usize + 1]);
        let in_a = (end - start) * self.rows;
        let split = in_a.clamp(at, at + count) - at;
        let (of_a, of_b) = numbers.split_at(split);
        let to_a = &mut self.a.as_slice_mut::<S>()[start * self.rows + at.min(in_a)..];
        T::widen(of_a, &mut to_a[..of_a.len()]);
        let to_b = &mut self.b.as_slice_mut::<S>()[start * self.cols + at.max(in_a) - in_a..];
        T::widen(of_b, &mut to_b[..of_b.len()]);
    }

    /// Ranks, from the first, whose numbers are all there.
    pub(super) fn ready(&self) -> usize {
        (0..).zip(&self.came).take_while(|(rank, came)| self.due(*rank) == **came).count()
    }

    /// These pairs, for rows and columns of G from some on.
    pub(super) fn of(
        &self,
        pairs: Range<usize>,
        (first_row, first_col): (usize, usize),
    ) -> (Rows<'_, S>, Rows<'_, S>)
    where
        S: bytemuck::Pod,
    {
        let a = &self.a.as_slice::<S>()[pairs.start * self.rows..pairs.end * self.rows];
        let b = &self.b.as_slice::<S>()[pairs.start * self.cols..pairs.end * self.cols];
        let (a, b) = (a.get(first_row..).unwrap_or(&[]), b.get(first_col..).unwrap_or(&[]));
        (Rows { numbers: a, stride: self.rows }, Rows { numbers: b, stride: self.cols })
    }

    /// Both, by now all of them.
    pub(super) fn into_both(self) -> (Large, Large) {
        (self.a, self.b)
    }
}
