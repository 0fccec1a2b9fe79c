//! The slices of all ranks' factors that a block needs, filled as they arrive.

use super::{Block, Pairs, ProductShape};
use crate::endpoint::Endpoint;
use crate::slab::LargeBuffer;
use skyphos_kernels::product::{Factor, Rows};
use std::ops::Range;

/// Copies a range of the numbers that a rank sends for `block`. It sends the slices of its rows of a, one after the other,
/// then those of its rows of b; `numbers` is a range of this sequence.
pub(super) fn copy_slices<T: Copy>(
    own: Pairs<'_, T>,
    (n, m): (usize, usize),
    block: &Block,
    pairs: usize,
    numbers: Range<usize>,
    to: &mut [T],
) {
    let in_a = pairs * block.rows.len();
    let mut rest = to;
    for (factor, row_len, slice, part) in [
        (own.a, n, &block.rows, numbers.start.min(in_a)..numbers.end.min(in_a)),
        (own.b, m, &block.cols, numbers.start.max(in_a) - in_a..numbers.end.max(in_a) - in_a),
    ] {
        let mut at = part.start;
        while at < part.end {
            let (row, first) = (at / slice.len(), at % slice.len());
            let count = (slice.len() - first).min(part.end - at);
            let (here, after) = std::mem::take(&mut rest).split_at_mut(count);
            here.copy_from_slice(&factor[row * row_len + slice.start + first..][..count]);
            rest = after;
            at += count;
        }
    }
}

/// Slices of all ranks' rows of a and of b, in rank order, converted to the type of sums.
pub(super) struct Factors<S> {
    /// Length of a slice of a row of a, which is the number of the block's rows.
    rows: usize,
    /// Length of a slice of a row of b, which is the number of the block's columns.
    cols: usize,
    /// The index of each rank's first pair among all pairs; the last item is the number of pairs.
    starts: Vec<usize>,
    a: LargeBuffer,
    b: LargeBuffer,
    /// Numbers received from each rank.
    received: Vec<usize>,
    _sums: std::marker::PhantomData<S>,
}

impl<S> Factors<S> {
    /// Allocates memory for the slices that `block` needs.
    pub(super) fn new(ep: &Endpoint, shape: &ProductShape, block: &Block) -> Factors<S> {
        let starts = shape.starts();
        let pairs = if ep.is_sized() { 0 } else { shape.all_pairs() };
        let (rows, cols) = (block.rows.len(), block.cols.len());
        let slices = |len: usize| ep.node().pool().large(pairs * len * size_of::<S>());
        let received = vec![0; shape.pairs.len()];
        let (a, b) = (slices(rows), slices(cols));
        Factors { rows, cols, a, b, starts, received, _sums: std::marker::PhantomData }
    }

    /// Numbers that a rank sends in all.
    pub(super) fn due(&self, rank: u32) -> usize {
        let rank = rank as usize;
        (self.starts[rank + 1] - self.starts[rank]) * (self.rows + self.cols)
    }

    /// Numbers received from a rank so far.
    pub(super) fn received(&self, rank: u32) -> usize {
        self.received[rank as usize]
    }

    /// Stores the next `count` numbers of a rank, at most as many as are due. `numbers` is empty in a simulation without data.
    pub(super) fn put<T: Factor<Sum = S>>(&mut self, rank: u32, numbers: &[T], count: usize)
    where
        S: bytemuck::Pod,
    {
        let at = self.received[rank as usize];
        self.received[rank as usize] += count;
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

    /// The number of ranks, from rank 0 on, whose numbers have all been received.
    pub(super) fn ready(&self) -> usize {
        (0..).zip(&self.received).take_while(|(rank, received)| self.due(*rank) == **received).count()
    }

    /// The slices of some pairs, for the rows and columns of the block from `first_row` and `first_col` on.
    pub(super) fn slices(
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

    /// All rows of a and of b.
    pub(super) fn into_buffers(self) -> (LargeBuffer, LargeBuffer) {
        (self.a, self.b)
    }
}
