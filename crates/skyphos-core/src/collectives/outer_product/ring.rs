//! Ring algorithm (*DSOP* §5.2) for G, the sum of all ranks' products: partial sums travel around a ring, and each rank adds its
//! own product to them.
//!
//! The product is computed panel by panel, just before its numbers are needed.

use super::tiles::{product_of, tile_rows};
use super::{BLOCKS, BlockAssignment, Pairs, ProductShape};
use crate::collectives::ring_pipeline::{RingNeighbours, RingStep, ring_pipeline};
use crate::endpoint::Endpoint;
use crate::slab::{LargeBuffer, Payload};
use skyphos_kernels::fold_all;
use skyphos_kernels::product::Factor;
use skyphos_types::{ReduceOp, Result};
use std::ops::Range;

/// This rank's own product, in panels of rows that are computed when they are needed.
struct Panels<'a, T: Factor> {
    ep: &'a Endpoint,
    factors: (&'a [T::Sum], &'a [T::Sum]),
    n: usize,
    m: usize,
    pairs: usize,
    /// Rows of a panel.
    rows: usize,
    computed: Vec<bool>,
    sums: &'a mut [T::Sum],
}

impl<T: Factor> Panels<'_, T> {
    /// Computes the panels that contain these elements of the product, if they are not computed yet.
    fn compute(&mut self, numbers: &Range<usize>) {
        if numbers.is_empty() {
            return;
        }
        for panel in numbers.start / self.m / self.rows..=(numbers.end - 1) / self.m / self.rows {
            if !std::mem::replace(&mut self.computed[panel], true) {
                let rows = panel * self.rows..((panel + 1) * self.rows).min(self.n);
                let sums = if self.ep.is_sized() { 0..0 } else { rows.start * self.m..rows.end * self.m };
                let sizes = (self.n, self.m, self.pairs);
                product_of::<T>(self.ep, self.factors, sizes, rows, &mut self.sums[sums]);
            }
        }
    }
}

/// Factors converted to the type of sums.
pub(super) fn widened<T: Factor>(ep: &Endpoint, numbers: &[T]) -> LargeBuffer {
    let mut wide = ep.node().pool().large(size_of::<T::Sum>() * numbers.len());
    T::widen(numbers, wide.as_slice_mut());
    wide
}

/// Sums all products into `out`, the whole of G.
pub async fn ring<T: Factor>(
    ep: &Endpoint,
    shape: &ProductShape,
    own: Pairs<'_, T>,
    out: &mut [T],
) -> Result<()> {
    let steps = 2 * (ep.size() as usize - 1);
    match T::as_sums(out) {
        Some(sums) => run::<T>(ep, shape, own, sums, steps).await.map(drop),
        None => {
            let numbers = if ep.is_sized() { 0 } else { shape.n * shape.m };
            let mut sums = ep.node().pool().large(numbers * size_of::<T::Sum>());
            run::<T>(ep, shape, own, sums.as_slice_mut(), steps).await?;
            T::narrow(sums.as_slice(), out);
            Ok(())
        }
    }
}

/// Sums this rank's rows into `out`. Takes additional memory for the rank's own product, of the size of G.
pub async fn ring_reduce_scatter<T: Factor>(
    ep: &Endpoint,
    shape: &ProductShape,
    own: Pairs<'_, T>,
    out: &mut [T],
) -> Result<()> {
    let numbers = if ep.is_sized() { 0 } else { shape.n * shape.m };
    let mut sums = ep.node().pool().large(numbers * size_of::<T::Sum>());
    let mine = run::<T>(ep, shape, own, sums.as_slice_mut(), ep.size() as usize - 1).await?;
    if !ep.is_sized() {
        T::narrow(&sums.as_slice()[mine], out);
    }
    Ok(())
}

impl<T: Factor> RingStep<T::Sum> for Panels<'_, T> {
    fn fill(&mut self, numbers: Range<usize>, chunk: &mut [T::Sum]) -> Result<()> {
        self.compute(&numbers);
        if !self.ep.is_sized() {
            chunk.copy_from_slice(&self.sums[numbers]);
        }
        Ok(())
    }

    /// The result replaces this rank's own product. That is safe, since a number of the product has been added to the partial
    /// sum before the number's result arrives.
    fn receive(&mut self, step: usize, chunk: Payload, numbers: Range<usize>) -> Result<Payload> {
        let (size, sized) = (self.ep.size() as usize, self.ep.is_sized());
        if step >= size - 1 {
            if !sized {
                self.sums[numbers].copy_from_slice(chunk.as_slice().expect("whole numbers"));
            }
            return Ok(chunk);
        }
        self.compute(&numbers);
        let mut sum = chunk.into_mut(|len| self.ep.chunk(len));
        if !sized {
            fold_all(&ReduceOp::Sum, sum.as_slice_mut::<T::Sum>(), &self.sums[numbers.clone()])?;
            if step == size - 2 {
                self.sums[numbers].copy_from_slice(sum.as_slice_mut());
            }
        }
        Ok(sum.freeze())
    }
}

/// Runs the ring: the first P - 1 steps reduce, the others distribute the sum. Returns the range of this rank's rows.
async fn run<T: Factor>(
    ep: &Endpoint,
    shape: &ProductShape,
    own: Pairs<'_, T>,
    sums: &mut [T::Sum],
    steps: usize,
) -> Result<Range<usize>> {
    let (size, n, m, topology) = (ep.size() as usize, shape.n, shape.m, ep.topology());
    let (a, b) = (widened(ep, own.a), widened(ep, own.b));
    let pairs = shape.pairs[ep.rank().index()];
    let rows = tile_rows(ep, m, size_of::<T::Sum>(), pairs);
    let computed = vec![false; n.div_ceil(rows)];
    let factors = (a.as_slice(), b.as_slice());
    let mut panels = Panels::<T> { ep, factors, n, m, pairs, rows, computed, sums };
    let blocks = BlockAssignment::rows(ep.size(), ep.rank().0, (n, m)).blocks;
    let numbers_of = |rank: u32| {
        let rows = &blocks[rank as usize].rows;
        rows.start * m..rows.end * m
    };
    let mine = numbers_of(ep.rank().0);
    if size == 1 {
        panels.compute(&mine);
        return Ok(mine);
    }
    let own_index = topology.index_of(ep.rank().0) as usize;
    let at = |steps: usize| topology.rank_at(((own_index + steps) % size) as u32);
    // A rank sends the previous rank's rows first, and reduces its own rows last. `3 * size` avoids an underflow.
    let sent_range = |step: usize| numbers_of(at(3 * size - step - 1));
    let neighbours = RingNeighbours { previous: at(size - 1), next: at(1) };
    ring_pipeline::<T::Sum>(ep, neighbours, steps, |step| BLOCKS + step as u32, sent_range, panels).await?;
    Ok(mine)
}
