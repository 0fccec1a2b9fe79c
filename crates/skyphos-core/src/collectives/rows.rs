//! Sources and targets of a layer's rows, and the caller's repeated indices.

use crate::slab::AlignedVec;
use skyphos_kernels::{Permutation, fold_rows, gather_rows};
use skyphos_types::{Element, ReduceOp, Result};

/// The source of the rows that a layer sends: the caller's array, or the sum of the layer above.
#[derive(Clone, Copy)]
pub(crate) enum RowSource<'a, T> {
    /// The caller's array, and the permutation into hash order.
    Permuted(&'a [T], &'a Permutation),
    /// Rows in hash order.
    Plain(&'a [T]),
    /// No rows, in a simulation without data.
    Sized,
}

impl<T: Element> RowSource<'_, T> {
    /// Copies rows `start..start + rows` to `to`.
    pub(crate) fn copy_rows(&self, start: usize, rows: usize, width: usize, to: &mut [T]) {
        match self {
            RowSource::Permuted(values, order) => order.gather(start, rows, width, values, to),
            RowSource::Plain(values) => to.copy_from_slice(&values[start * width..(start + rows) * width]),
            RowSource::Sized => {}
        }
    }

    /// Folds rows from `start` on into `acc`. `map` has each row's position in the whole sum; `acc` begins at position `first`.
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
            RowSource::Permuted(values, order) => order.fold(op, acc, first, map, values, start, width),
            RowSource::Plain(values) => {
                fold_rows(op, acc, first, map, &values[start * width..(start + map.len()) * width], width)
            }
            RowSource::Sized => Ok(()),
        }
    }
}

/// Bytes of a block of the sum, into which all sources are folded in turn. A block stays in the L2 cache.
const FOLD_BYTES: usize = 64 * 1024;

/// Rows of a block of the sum, at least one.
pub(crate) fn fold_block_rows<T>(width: usize) -> usize {
    (FOLD_BYTES / (width * size_of::<T>())).max(1)
}

/// Reduces the rows of each repeated index into the row of its first occurrence, in a copy of `values`.
pub(crate) fn stage_repeats<'a, T: Element>(
    op: &ReduceOp,
    plan_side: &skyphos_kernels::Prepared,
    values: &[T],
    width: usize,
    staged: &'a mut AlignedVec,
) -> Result<&'a [T]> {
    staged.resize(size_of_val(values));
    let all = staged.as_slice_mut::<T>();
    all.copy_from_slice(values);
    for (first, repeat) in &plan_side.repeats {
        let (map, row) = ([*first], &values[*repeat as usize * width..][..width]);
        fold_rows(op, all, 0, &map, row, width)?;
    }
    Ok(staged.as_slice::<T>())
}

/// Copies the result of each index of `want` to its repeats. `repeats` are pairs: first occurrence, repeat.
pub(crate) fn copy_repeats<T: Element>(repeats: &[(u32, u32)], out: &mut [T], width: usize) {
    for (first, repeat) in repeats {
        let from = *first as usize * width;
        out.copy_within(from..from + width, *repeat as usize * width);
    }
}

/// The target of a layer's results: the in-set above, or the caller's array.
pub(crate) enum RowTarget<'a, T> {
    /// The caller's array, and the permutation into hash order.
    Scattered(&'a mut [T], &'a Permutation),
    /// Rows in hash order.
    Plain(&'a mut [T]),
    /// No rows, in a simulation without data.
    Sized,
}

impl<T: Element> RowTarget<'_, T> {
    /// Stores values in the rows from position `start` on.
    pub(crate) fn put(&mut self, start: usize, values: &[T], width: usize) {
        match self {
            RowTarget::Scattered(out, order) => order.scatter(start, values, width, out),
            RowTarget::Plain(out) => out[start * width..][..values.len()].copy_from_slice(values),
            RowTarget::Sized => {}
        }
    }

    /// Gathers the rows of `source` at `map` into the rows from position `start` on.
    pub(crate) fn put_gathered(&mut self, start: usize, source: &[T], map: &[u32], width: usize) {
        match self {
            RowTarget::Scattered(out, order) => order.scatter_gathered(start, source, map, width, out),
            RowTarget::Plain(out) => {
                gather_rows(source, map, width, &mut out[start * width..(start + map.len()) * width]);
            }
            RowTarget::Sized => {}
        }
    }
}
