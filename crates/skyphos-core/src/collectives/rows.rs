//! Where a layer's rows come from and go to, and the caller's repeated indices.

use crate::slab::AlignedVec;
use skyphos_kernels::{Permutation, fold_rows, gather_rows};
use skyphos_types::{Element, ReduceOp, Result};

/// What a layer sends from: the caller's array through a permutation, or a sum of the layer above.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a, T> {
    Permuted(&'a [T], &'a Permutation),
    Plain(&'a [T]),
    /// Nothing: a simulation without data.
    Counted,
}

impl<T: Element> Source<'_, T> {
    /// Rows `start..start + rows` into `to`.
    pub(crate) fn copy_rows(&self, start: usize, rows: usize, width: usize, to: &mut [T]) {
        match self {
            Source::Permuted(values, order) => order.gather(start, rows, width, values, to),
            Source::Plain(values) => to.copy_from_slice(&values[start * width..(start + rows) * width]),
            Source::Counted => {}
        }
    }

    /// Folds rows `start..` of the source at `map`.
    pub(crate) fn fold(
        &self,
        op: &ReduceOp,
        acc: &mut [T],
        first: u32,
        map: &[u32],
        start: usize,
        width: usize,
    ) -> Result<()> {
        match self {
            Source::Permuted(values, order) => order.fold(op, acc, first, map, values, start, width),
            Source::Plain(values) => {
                fold_rows(op, acc, first, map, &values[start * width..(start + map.len()) * width], width)
            }
            Source::Counted => Ok(()),
        }
    }
}

/// Bytes of a sum that are folded at once, from all sources in turn: stays in the L2 cache.
const FOLD_BYTES: usize = 64 * 1024;

/// The same as rows.
pub(crate) fn fold_block_rows<T>(width: usize) -> usize {
    (FOLD_BYTES / (width * size_of::<T>())).max(1)
}

/// Adds up repeats: for each distinct index, in hash order, the reduction of its values.
pub(crate) fn stage_repeats<'a, T: Element>(
    op: &ReduceOp,
    plan_side: &skyphos_kernels::Prepared,
    values: &[T],
    width: usize,
    staged: &'a mut AlignedVec,
) -> Result<&'a [T]> {
    staged.resize(size_of_val(values));
    let all = staged.as_slice_mut::<T>();
    // First in the user's places, so that a repeat finds its first by place.
    all.copy_from_slice(values);
    for (first, repeat) in &plan_side.repeats {
        let (map, row) = ([*first], &values[*repeat as usize * width..][..width]);
        fold_rows(op, all, 0, &map, row, width)?;
    }
    Ok(staged.as_slice::<T>())
}

/// Answers repeated indices of `want` from their first.
pub(crate) fn copy_repeats<T: Element>(repeats: &[(u32, u32)], out: &mut [T], width: usize) {
    for (first, repeat) in repeats {
        let from = *first as usize * width;
        out.copy_within(from..from + width, *repeat as usize * width);
    }
}

/// Where results of a layer go: the in-set above, or the caller's array through a permutation.
pub(crate) enum Target<'a, T> {
    Scattered(&'a mut [T], &'a Permutation),
    Plain(&'a mut [T]),
    /// Nowhere: a simulation without data.
    Counted,
}

impl<T: Element> Target<'_, T> {
    /// Values of the rows from position `start`.
    pub(crate) fn put(&mut self, start: usize, values: &[T], width: usize) {
        match self {
            Target::Scattered(out, order) => order.scatter(start, values, width, out),
            Target::Plain(out) => out[start * width..][..values.len()].copy_from_slice(values),
            Target::Counted => {}
        }
    }

    /// `source` at `map`, into the rows from position `start`.
    pub(crate) fn put_gathered(&mut self, start: usize, source: &[T], map: &[u32], width: usize) {
        match self {
            Target::Scattered(out, order) => order.scatter_gathered(start, source, map, width, out),
            Target::Plain(out) => {
                gather_rows(source, map, width, &mut out[start * width..(start + map.len()) * width]);
            }
            Target::Counted => {}
        }
    }
}
