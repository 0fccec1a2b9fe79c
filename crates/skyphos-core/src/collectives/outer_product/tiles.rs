//! The product of a block, computed tile by tile. A tile is some rows of the block, times one group of pairs.
//!
//! A group has the pairs of some consecutive ranks, and is multiplied once they have arrived. So the product does not wait for
//! the last factors, and does not pass over the block once per rank. Groups depend only on the ranks' numbers of pairs.

use super::factors::Factors;
use super::{Block, ProductShape};
use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::slab::LargeBuffer;
use skyphos_kernels::product::{Destination, Factor, Rows, multiply};
use std::ops::Range;

/// The fewest pairs of a group. Measured: 256 multiply-adds per number take three times as long as reading and writing the number.
const GROUP_PAIRS: usize = 256;

/// Bytes of a tile of thin factors. A tile takes some 100 µs, after which the rank polls messages again.
const TILE_BYTES: usize = 2 << 20;

/// The fewest rows of a tile of thin factors.
const THIN_ROWS: usize = 16;

/// The fewest rows of a tile of thick factors, which copies its columns of b. Measured: tiles of 32 rows reach a quarter of the
/// best rate, tiles of 256 rows nine tenths.
const THICK_ROWS: usize = 256;

/// Factors are thick if a group has at least this many pairs.
const THICK_PAIRS: usize = 32;

/// Rows of a tile with `cols` columns and a group of `pairs` pairs.
pub(super) fn tile_rows(ep: &Endpoint, cols: usize, number_bytes: usize, pairs: usize) -> usize {
    let threads = ep.node().settings().threads;
    let by_bytes = threads * TILE_BYTES / (cols * number_bytes).max(1);
    let least = if pairs < THICK_PAIRS { THIN_ROWS } else { THICK_ROWS };
    by_bytes.max(threads * least)
}

/// Consecutive pairs that are multiplied in one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    pairs: Range<usize>,
    /// The number of ranks, from rank 0 on, whose factors it needs.
    ranks: usize,
}

/// Cuts all pairs into groups.
fn groups<T: Factor>(shape: &ProductShape) -> Vec<Group> {
    let (ranks, total) = (shape.pairs.len(), shape.all_pairs());
    if size_of::<T>() < size_of::<T::Sum>() {
        // A narrower type is rounded once, at the end, so all pairs are one group.
        return vec![Group { pairs: 0..total, ranks }];
    }
    let (mut all, mut first, mut end) = (Vec::new(), 0, 0);
    for (rank, more) in shape.pairs.iter().enumerate() {
        end += more;
        while end - first >= GROUP_PAIRS && total - first >= 2 * GROUP_PAIRS {
            // The pairs of one rank may make several groups.
            let next = if end - first >= 2 * GROUP_PAIRS { first + GROUP_PAIRS } else { end };
            all.push(Group { pairs: first..next, ranks: rank + 1 });
            first = next;
        }
    }
    if first < total || all.is_empty() {
        all.push(Group { pairs: first..total, ranks });
    }
    all
}

/// The memory of a block: a part of the memory of G, or memory for this block alone.
pub(super) struct Target<'a, T> {
    pub(super) numbers: &'a mut [T],
    /// Numbers between the beginnings of two rows.
    pub(super) stride: usize,
    /// The block's first number.
    pub(super) first: usize,
}

impl<'a, T> Target<'a, T> {
    /// A block within the whole of G, of `m` columns.
    pub(super) fn whole(numbers: &'a mut [T], m: usize, block: &Block) -> Target<'a, T> {
        Target { numbers, stride: m, first: block.rows.start * m + block.cols.start }
    }
}

/// The tiles of a block, computed in order: group by group, and by rows within a group.
pub(super) struct Tiles<'a, T: Factor> {
    pub(super) target: Target<'a, T>,
    rows: usize,
    cols: usize,
    /// The block's first row and column, counted from those of the factors' slices.
    offset: (usize, usize),
    groups: Vec<Group>,
    /// The next tile's group.
    group: usize,
    /// The next tile's first row.
    row: usize,
    tile_rows: usize,
    sums: Vec<T::Sum>,
}

impl<'a, T: Factor> Tiles<'a, T> {
    /// Begins the product of `block`. `needs` is the block of the factors' slices, of which `block` is a part.
    pub(super) fn new(
        ep: &Endpoint,
        shape: &ProductShape,
        block: &Block,
        needs: &Block,
        target: Target<'a, T>,
    ) -> Tiles<'a, T> {
        let (rows, cols) = (block.rows.len(), block.cols.len());
        let groups = groups::<T>(shape);
        let tile_rows = tile_rows(ep, cols, size_of::<T>(), groups[0].pairs.len());
        let group = if rows * cols == 0 { groups.len() } else { 0 };
        let offset = (block.rows.start - needs.rows.start, block.cols.start - needs.cols.start);
        Tiles { target, rows, cols, offset, groups, group, row: 0, tile_rows, sums: Vec::new() }
    }

    /// Rows of the block, from the first, that are complete.
    pub(super) fn done_rows(&self) -> usize {
        match self.groups.len() - self.group.min(self.groups.len()) {
            0 => self.rows,
            1 => self.row,
            _ => 0,
        }
    }

    /// Whether the block is complete.
    pub(super) fn done(&self) -> bool {
        self.group == self.groups.len()
    }

    /// Computes the next tile, if the factors of its ranks are among the first `ready` ranks'. Returns whether it did.
    pub(super) fn step(&mut self, ep: &Endpoint, factors: &Factors<T::Sum>, ready: usize) -> bool {
        let group = self.groups.get(self.group).filter(|group| group.ranks <= ready);
        let Some(Group { pairs, .. }) = group.cloned() else { return false };
        let rows = self.tile_rows.min(self.rows - self.row);
        let depth = pairs.len();
        let destination = if self.group == 0 { Destination::Overwrite } else { Destination::Add };
        let effort = effort::<T>(rows * self.cols, depth);
        ep.compute(effort, || {
            let slices = factors.slices(pairs, (self.offset.0 + self.row, self.offset.1));
            let start = self.target.first + self.row * self.target.stride;
            let out = (&mut self.target.numbers[start..], self.target.stride);
            product_into(ep, (rows, self.cols, depth), slices, out, destination, &mut self.sums);
        });
        self.row += rows;
        if self.row == self.rows {
            (self.group, self.row) = (self.group + 1, 0);
        }
        true
    }
}

/// The effort of a product of `numbers` numbers, each a sum over `pairs` pairs.
fn effort<T: Factor>(numbers: usize, pairs: usize) -> Effort {
    let (bytes, number_bytes) = (numbers * size_of::<T>(), size_of::<T::Sum>());
    Effort::Product { multiply_adds: numbers * pairs, bytes, number_bytes }
}

/// Computes a product on this rank's threads. A type narrower than its sums is computed in `sums` and rounded.
fn product_into<T: Factor>(
    ep: &Endpoint,
    (rows, cols, pairs): (usize, usize, usize),
    factors: (Rows<'_, T::Sum>, Rows<'_, T::Sum>),
    (out, stride): (&mut [T], usize),
    destination: Destination,
    sums: &mut Vec<T::Sum>,
) {
    let one = <T::Sum as skyphos_types::Element>::ONE;
    let run = |out: &mut [T::Sum], stride: usize| match ep.node().merge_pool() {
        Some(pool) => pool.install(|| {
            let threads = pool.current_num_threads();
            multiply((rows, cols, pairs), factors, (out, stride), (destination, one), threads);
        }),
        None => multiply((rows, cols, pairs), factors, (out, stride), (destination, one), 1),
    };
    if let Some(out) = T::as_sums(out) {
        return run(out, stride);
    }
    sums.resize(rows * cols, <T::Sum as skyphos_types::Element>::ZERO);
    run(sums, cols);
    for (row, sums) in sums.chunks_exact(cols).enumerate() {
        T::narrow(sums, &mut out[row * stride..][..cols]);
    }
}

/// All ranks' factors, in rank order.
pub struct Gathered {
    /// K rows of N numbers.
    pub a: LargeBuffer,
    /// K rows of M numbers.
    pub b: LargeBuffer,
}

/// The product of this rank's own pairs, for some rows of G, in the type of sums, so that nothing is rounded before the end.
pub(super) fn product_of<T: Factor>(
    ep: &Endpoint,
    (a, b): (&[T::Sum], &[T::Sum]),
    (n, m, pairs): (usize, usize, usize),
    rows: Range<usize>,
    out: &mut [T::Sum],
) {
    ep.compute(effort::<T::Sum>(rows.len() * m, pairs), || {
        let a = a.get(rows.start..).unwrap_or(&[]);
        let factors = (Rows { numbers: a, stride: n }, Rows { numbers: b, stride: m });
        let shape = (rows.len(), m, pairs);
        product_into::<T::Sum>(ep, shape, factors, (out, m.max(1)), Destination::Overwrite, &mut Vec::new());
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use skyphos_types::bf16;

    #[test]
    fn groups_depend_on_numbers_of_pairs() {
        let cut = |pairs: &[usize]| {
            let groups = groups::<f64>(&ProductShape { n: 1, m: 1, pairs: pairs.to_vec() });
            groups.into_iter().map(|group| (group.pairs.len(), group.ranks)).collect::<Vec<_>>()
        };
        assert_eq!(cut(&[0, 0]), [(0, 2)]);
        assert_eq!(cut(&[1; 8]), [(8, 8)]);
        assert_eq!(cut(&[256; 4]), [(256, 1), (256, 2), (256, 3), (256, 4)]);
        assert_eq!(cut(&[100; 6]), [(300, 3), (300, 6)]);
        // The remaining pairs of the first rank are too few for a group.
        assert_eq!(cut(&[300, 100]), [(400, 2)]);
        assert_eq!(cut(&[1000, 0, 1]), [(256, 1), (256, 1), (489, 3)]);
        let halves = groups::<bf16>(&ProductShape { n: 1, m: 1, pairs: vec![1000, 1000] });
        assert_eq!(halves, [Group { pairs: 0..2000, ranks: 2 }]);
        for pairs in [&[513, 7, 0, 255, 1][..], &[31; 100], &[4096]] {
            let all = groups::<f32>(&ProductShape { n: 1, m: 1, pairs: pairs.to_vec() });
            assert!(all.windows(2).all(|two| two[0].pairs.end == two[1].pairs.start), "{all:?}");
            assert_eq!(all[all.len() - 1].pairs.end, pairs.iter().sum::<usize>());
            let ends: Vec<usize> = (1..=pairs.len()).map(|ranks| pairs[..ranks].iter().sum()).collect();
            assert!(all.iter().all(|group| ends[group.ranks - 1] >= group.pairs.end), "{all:?}");
        }
    }
}
