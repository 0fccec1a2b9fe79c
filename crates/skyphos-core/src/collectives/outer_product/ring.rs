//! The sum around a ring of dense blocks: each rank adds its own product to what comes, panel by panel as it is needed.

use super::tiles::{product_of, tile_rows};
use super::{BLOCKS, BlockAssignment, Pairs, Terms};
use crate::collectives::around::{Circle, Passing, around};
use crate::endpoint::Endpoint;
use crate::slab::{Large, Payload};
use skyphos_kernels::fold_all;
use skyphos_kernels::product::Factor;
use skyphos_types::{ReduceOp, Result};
use std::ops::Range;

/// This rank's product, made where and when it is needed.
struct Panels<'a, T: Factor> {
    ep: &'a Endpoint,
    factors: (&'a [T::Sum], &'a [T::Sum]),
    n: usize,
    m: usize,
    pairs: usize,
    rows: usize,
    made: Vec<bool>,
    sums: &'a mut [T::Sum],
}

impl<T: Factor> Panels<'_, T> {
    /// Sees to it that these numbers of the product are there.
    fn need(&mut self, place: &Range<usize>) {
        if place.is_empty() {
            return;
        }
        for panel in place.start / self.m / self.rows..=(place.end - 1) / self.m / self.rows {
            if !std::mem::replace(&mut self.made[panel], true) {
                let rows = panel * self.rows..((panel + 1) * self.rows).min(self.n);
                let place = if self.ep.is_sized() { 0..0 } else { rows.start * self.m..rows.end * self.m };
                product_of::<T>(
                    self.ep,
                    self.factors,
                    (self.n, self.m, self.pairs),
                    rows,
                    &mut self.sums[place],
                );
            }
        }
    }
}

/// Factors as sums are.
pub(super) fn widened<T: Factor>(ep: &Endpoint, numbers: &[T]) -> Large {
    let mut wide = ep.node().pool().large(size_of::<T::Sum>() * numbers.len());
    T::widen(numbers, wide.as_slice_mut());
    wide
}

/// Sums into `out`, the whole of G.
pub async fn ring<T: Factor>(ep: &Endpoint, terms: &Terms, own: Pairs<'_, T>, out: &mut [T]) -> Result<()> {
    let steps = 2 * (ep.size() as usize - 1);
    match T::as_sums(out) {
        Some(sums) => pass::<T>(ep, terms, own, sums, steps).await.map(drop),
        None => {
            let numbers = if ep.is_sized() { 0 } else { terms.n * terms.m };
            let mut sums = ep.node().pool().large(numbers * size_of::<T::Sum>());
            pass::<T>(ep, terms, own, sums.as_slice_mut(), steps).await?;
            T::narrow(sums.as_slice(), out);
            Ok(())
        }
    }
}

/// Sums this rank's rows into `out`. Needs memory for its own product beside.
pub async fn ring_reduce_scatter<T: Factor>(
    ep: &Endpoint,
    terms: &Terms,
    own: Pairs<'_, T>,
    out: &mut [T],
) -> Result<()> {
    let numbers = if ep.is_sized() { 0 } else { terms.n * terms.m };
    let mut sums = ep.node().pool().large(numbers * size_of::<T::Sum>());
    let mine = pass::<T>(ep, terms, own, sums.as_slice_mut(), ep.size() as usize - 1).await?;
    if !ep.is_sized() {
        T::narrow(&sums.as_slice()[mine], out);
    }
    Ok(())
}

impl<T: Factor> Passing<T::Sum> for Panels<'_, T> {
    fn own(&mut self, place: Range<usize>, chunk: &mut [T::Sum]) -> Result<()> {
        self.need(&place);
        if !self.ep.is_sized() {
            chunk.copy_from_slice(&self.sums[place]);
        }
        Ok(())
    }

    /// A number is kept only once this rank's own was added to it, so that panels are made before.
    fn take(&mut self, step: usize, chunk: Payload, place: Range<usize>) -> Result<Payload> {
        let (size, sized) = (self.ep.size() as usize, self.ep.is_sized());
        if step >= size - 1 {
            if !sized {
                self.sums[place].copy_from_slice(chunk.as_slice().expect("whole numbers"));
            }
            return Ok(chunk);
        }
        self.need(&place);
        let mut sum = chunk.into_mut(|len| self.ep.chunk(len));
        if !sized {
            fold_all(&ReduceOp::Sum, sum.as_slice_mut::<T::Sum>(), &self.sums[place.clone()])?;
            if step == size - 2 {
                self.sums[place].copy_from_slice(sum.as_slice_mut());
            }
        }
        Ok(sum.freeze())
    }
}

/// The ring, of which the first P - 1 steps reduce and the others spread the sum; where this rank's rows are.
async fn pass<T: Factor>(
    ep: &Endpoint,
    terms: &Terms,
    own: Pairs<'_, T>,
    sums: &mut [T::Sum],
    steps: usize,
) -> Result<Range<usize>> {
    let (size, n, m, topology) = (ep.size() as usize, terms.n, terms.m, ep.topology());
    let (a, b) = (widened(ep, own.a), widened(ep, own.b));
    let pairs = terms.pairs[ep.rank() as usize];
    let rows = tile_rows(ep, m, size_of::<T::Sum>(), pairs);
    let made = vec![false; n.div_ceil(rows)];
    let factors = (a.as_slice(), b.as_slice());
    let mut panels = Panels::<T> { ep, factors, n, m, pairs, rows, made, sums };
    let blocks = BlockAssignment::rows(ep.size(), ep.rank(), (n, m)).blocks;
    let numbers_of = |rank: u32| {
        let rows = &blocks[rank as usize].rows;
        rows.start * m..rows.end * m
    };
    let mine = numbers_of(ep.rank());
    if size == 1 {
        panels.need(&mine);
        return Ok(mine);
    }
    let place = topology.place_of(ep.rank()) as usize;
    let at = |steps: usize| topology.rank_at(((place + steps) % size) as u32);
    // A rank sends first the rows of the one before it, and reduces its own last.
    let stretch = |step: usize| numbers_of(at(3 * size - step - 1));
    let circle = Circle { before: at(size - 1), next: at(1) };
    around::<T::Sum>(ep, circle, steps, |step| BLOCKS + step as u32, stretch, panels).await?;
    Ok(mine)
}
