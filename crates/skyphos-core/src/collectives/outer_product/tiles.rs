//! The product of a block, a tile at a time: some rows, and the pairs of some ranks.
//!
//! Pairs are multiplied in groups, as they come in the order of ranks, so that a product need not wait for the last factors, yet
//! does not pass over the block for each of them. Which pairs are together depends on their numbers alone.

use super::factors::Factors;
use super::{Block, Terms};
use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::slab::Large;
use skyphos_kernels::product::{Before, Factor, Rows, multiply};
use std::ops::Range;

/// Pairs that are worth a pass over the block: that many multiply-adds take three times as long as the pass (measured).
const WORTH_A_PASS: usize = 256;

/// Bytes of a tile of thin factors: what is made before messages are looked at again, some hundred microseconds.
const TILE_BYTES: usize = 2 << 20;

/// The least rows of a tile, and those of thick factors: there a tile copies its columns of b, which fewer rows are not worth
/// (measured: 32 rows at a quarter of the rate, 256 at nine tenths).
const LEAST_ROWS: usize = 16;
const ROWS_OF_THICK: usize = 256;

/// Pairs from which factors are thick.
const THICK: usize = 32;

/// Rows of a tile of so many columns and pairs.
pub(super) fn tile_rows(ep: &Endpoint, cols: usize, number_bytes: usize, pairs: usize) -> usize {
    let threads = ep.node().settings().threads;
    let by_bytes = threads * TILE_BYTES / (cols * number_bytes).max(1);
    let least = if pairs < THICK { LEAST_ROWS } else { ROWS_OF_THICK };
    by_bytes.max(threads * least)
}

/// Pairs that are multiplied together, and how many ranks' must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Together {
    pairs: Range<usize>,
    ranks: usize,
}

fn groups<T: Factor>(terms: &Terms) -> Vec<Together> {
    let (ranks, total) = (terms.pairs.len(), terms.all_pairs());
    if size_of::<T>() < size_of::<T::Sum>() {
        // A sum that is rounded must have all.
        return vec![Together { pairs: 0..total, ranks }];
    }
    let (mut all, mut first, mut end) = (Vec::new(), 0, 0);
    for (rank, more) in terms.pairs.iter().enumerate() {
        end += more;
        while end - first >= WORTH_A_PASS && total - first >= 2 * WORTH_A_PASS {
            // Of one rank's many some at a time.
            let next = if end - first >= 2 * WORTH_A_PASS { first + WORTH_A_PASS } else { end };
            all.push(Together { pairs: first..next, ranks: rank + 1 });
            first = next;
        }
    }
    if first < total || all.is_empty() {
        all.push(Together { pairs: first..total, ranks });
    }
    all
}

/// Where a block goes: numbers of whole rows of G, or of the block alone.
pub(super) struct Target<'a, T> {
    pub(super) numbers: &'a mut [T],
    pub(super) stride: usize,
    /// Where the block begins.
    pub(super) first: usize,
}

impl<'a, T> Target<'a, T> {
    /// In the whole of G, of `m` columns.
    pub(super) fn whole(numbers: &'a mut [T], m: usize, block: &Block) -> Target<'a, T> {
        Target { numbers, stride: m, first: block.rows.start * m + block.cols.start }
    }
}

/// See the module's text.
pub(super) struct Tiles<'a, T: Factor> {
    pub(super) target: Target<'a, T>,
    rows: usize,
    cols: usize,
    /// Where the block begins among the factors' numbers.
    among: (usize, usize),
    groups: Vec<Together>,
    /// The group and the row from which the next tile is.
    group: usize,
    row: usize,
    tile_rows: usize,
    sums: Vec<T::Sum>,
}

impl<'a, T: Factor> Tiles<'a, T> {
    /// The block's product, of factors of `needs`, which has it.
    pub(super) fn new(
        ep: &Endpoint,
        terms: &Terms,
        block: &Block,
        needs: &Block,
        target: Target<'a, T>,
    ) -> Tiles<'a, T> {
        let (rows, cols) = (block.rows.len(), block.cols.len());
        let groups = groups::<T>(terms);
        let tile_rows = tile_rows(ep, cols, size_of::<T>(), groups[0].pairs.len());
        let group = if rows * cols == 0 { groups.len() } else { 0 };
        let among = (block.rows.start - needs.rows.start, block.cols.start - needs.cols.start);
        Tiles { target, rows, cols, among, groups, group, row: 0, tile_rows, sums: Vec::new() }
    }

    /// Rows of the block that are done.
    pub(super) fn done_rows(&self) -> usize {
        match self.groups.len() - self.group.min(self.groups.len()) {
            0 => self.rows,
            1 => self.row,
            _ => 0,
        }
    }

    /// Whether all are.
    pub(super) fn done(&self) -> bool {
        self.group == self.groups.len()
    }

    /// Makes the next tile, if its factors are there: those of so many ranks are. Whether it did.
    pub(super) fn step(&mut self, ep: &Endpoint, factors: &Factors<T::Sum>, ready: usize) -> bool {
        let together = self.groups.get(self.group).filter(|one| one.ranks <= ready);
        let Some(Together { pairs, .. }) = together.cloned() else { return false };
        let rows = self.tile_rows.min(self.rows - self.row);
        let deep = pairs.len();
        let before = if self.group == 0 { Before::Nothing } else { Before::Sum };
        let effort = effort::<T>(rows * self.cols, deep);
        ep.compute(effort, || {
            let of = factors.of(pairs, (self.among.0 + self.row, self.among.1));
            let start = self.target.first + self.row * self.target.stride;
            let place = (&mut self.target.numbers[start..], self.target.stride);
            product_into(ep, (rows, self.cols, deep), of, place, before, &mut self.sums);
        });
        self.row += rows;
        if self.row == self.rows {
            (self.group, self.row) = (self.group + 1, 0);
        }
        true
    }
}

/// What a product of so many numbers takes.
fn effort<T: Factor>(numbers: usize, pairs: usize) -> Effort {
    let (bytes, number_bytes) = (numbers * size_of::<T>(), size_of::<T::Sum>());
    Effort::Product { multiply_adds: numbers * pairs, bytes, number_bytes }
}

/// A product into numbers of whatever type, on this rank's threads.
fn product_into<T: Factor>(
    ep: &Endpoint,
    (rows, cols, pairs): (usize, usize, usize),
    of: (Rows<'_, T::Sum>, Rows<'_, T::Sum>),
    (out, stride): (&mut [T], usize),
    before: Before,
    sums: &mut Vec<T::Sum>,
) {
    let one = <T::Sum as skyphos_types::Element>::ONE;
    let run = |out: &mut [T::Sum], stride: usize| match ep.node().merge_pool() {
        Some(pool) => pool.install(|| {
            multiply((rows, cols, pairs), of, (out, stride), (before, one), pool.current_num_threads());
        }),
        None => multiply((rows, cols, pairs), of, (out, stride), (before, one), 1),
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

/// Rows of all ranks' factors, side by side.
pub struct Gathered {
    /// K rows of N numbers.
    pub a: Large,
    /// K rows of M.
    pub b: Large,
}

/// The product of one rank's own pairs, for rows of G; what sums are made of, so that nothing is rounded before the end.
pub(super) fn product_of<T: Factor>(
    ep: &Endpoint,
    (a, b): (&[T::Sum], &[T::Sum]),
    (n, m, pairs): (usize, usize, usize),
    rows: Range<usize>,
    out: &mut [T::Sum],
) {
    ep.compute(effort::<T::Sum>(rows.len() * m, pairs), || {
        let a = a.get(rows.start..).unwrap_or(&[]);
        let of = (Rows { numbers: a, stride: n }, Rows { numbers: b, stride: m });
        let shape = (rows.len(), m, pairs);
        product_into::<T::Sum>(ep, shape, of, (out, m.max(1)), Before::Nothing, &mut Vec::new());
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use skyphos_types::bf16;

    #[test]
    fn pairs_are_together_by_their_numbers() {
        let cut = |pairs: &[usize]| {
            let groups = groups::<f64>(&Terms { n: 1, m: 1, pairs: pairs.to_vec() });
            groups.into_iter().map(|one| (one.pairs.len(), one.ranks)).collect::<Vec<_>>()
        };
        assert_eq!(cut(&[0, 0]), [(0, 2)]);
        assert_eq!(cut(&[1; 8]), [(8, 8)]);
        assert_eq!(cut(&[256; 4]), [(256, 1), (256, 2), (256, 3), (256, 4)]);
        assert_eq!(cut(&[100; 6]), [(300, 3), (300, 6)]);
        // The rest of one is too little for a pass.
        assert_eq!(cut(&[300, 100]), [(400, 2)]);
        assert_eq!(cut(&[1000, 0, 1]), [(256, 1), (256, 1), (489, 3)]);
        let halves = groups::<bf16>(&Terms { n: 1, m: 1, pairs: vec![1000, 1000] });
        assert_eq!(halves, [Together { pairs: 0..2000, ranks: 2 }]);
        for pairs in [&[513, 7, 0, 255, 1][..], &[31; 100], &[4096]] {
            let all = groups::<f32>(&Terms { n: 1, m: 1, pairs: pairs.to_vec() });
            assert!(all.windows(2).all(|two| two[0].pairs.end == two[1].pairs.start), "{all:?}");
            assert_eq!(all[all.len() - 1].pairs.end, pairs.iter().sum::<usize>());
            let ends: Vec<usize> = (1..=pairs.len()).map(|ranks| pairs[..ranks].iter().sum()).collect();
            assert!(all.iter().all(|one| ends[one.ranks - 1] >= one.pairs.end), "{all:?}");
        }
    }
}
