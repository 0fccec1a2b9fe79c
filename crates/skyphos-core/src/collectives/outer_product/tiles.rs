//! The product of a block, a tile at a time: some rows, and the pairs of some ranks.
//!
//! Pairs are multiplied in groups of ranks that follow each other, so that a product need not wait for the last factors, yet
//! does not pass over the block for each of them. Which ranks are together depends on their pairs alone.

use super::factors::Factors;
use super::{Block, Terms};
use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::slab::Large;
use skyphos_kernels::product::{Before, Factor, Rows, multiply};
use std::ops::Range;

/// Pairs that are worth a pass over the block: that many multiply-adds take three times as long as the pass (measured).
const WORTH_A_PASS: usize = 256;

/// Bytes of a tile: what is made before messages are looked at again, some hundred microseconds.
const TILE_BYTES: usize = 2 << 20;

/// The least rows of a tile.
const LEAST_ROWS: usize = 16;

/// Groups of ranks whose pairs are multiplied together.
fn groups<T: Factor>(terms: &Terms) -> Vec<Range<usize>> {
    let ranks = terms.pairs.len();
    if size_of::<T>() < size_of::<T::Sum>() {
        // A sum that is rounded must have all.
        return std::iter::once(0..ranks).collect();
    }
    let (mut all, mut first, mut pairs, mut left) = (Vec::new(), 0, 0, terms.all_pairs());
    for (rank, more) in terms.pairs.iter().enumerate() {
        (pairs, left) = (pairs + more, left - more);
        if pairs >= WORTH_A_PASS && left >= WORTH_A_PASS {
            all.push(first..rank + 1);
            (first, pairs) = (rank + 1, 0);
        }
    }
    all.push(first..ranks);
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
    pairs: Vec<usize>,
    groups: Vec<Range<usize>>,
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
        let threads = ep.node().settings().threads;
        let tile_rows = (threads * TILE_BYTES / (cols * size_of::<T>()).max(1)).max(threads * LEAST_ROWS);
        let groups = groups::<T>(terms);
        let group = if rows * cols == 0 { groups.len() } else { 0 };
        let pairs = terms.pairs.clone();
        let among = (block.rows.start - needs.rows.start, block.cols.start - needs.cols.start);
        Tiles { target, rows, cols, among, pairs, groups, group, row: 0, tile_rows, sums: Vec::new() }
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
        let Some(ranks) = self.groups.get(self.group).filter(|ranks| ranks.end <= ready).cloned() else {
            return false;
        };
        let rows = self.tile_rows.min(self.rows - self.row);
        let pairs = self.pairs[ranks.clone()].iter().sum();
        let before = if self.group == 0 { Before::Nothing } else { Before::Sum };
        let effort = effort::<T>(rows * self.cols, pairs);
        ep.compute(effort, || {
            let of = factors.of(ranks, (self.among.0 + self.row, self.among.1));
            let start = self.target.first + self.row * self.target.stride;
            let place = (&mut self.target.numbers[start..], self.target.stride);
            product_into(ep, (rows, self.cols, pairs), of, place, before, &mut self.sums);
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
