//! Times of the kernels of plans on this machine: the numbers of [`RowKernels`], measured on the kernels that configurations and
//! reductions run, with evenly drawn indices.

use crate::kernel_timing::{ENTRIES, drawn, median_s};
use skyphos_kernels::{BlockHash, Encoding, Locator, decode, fold_rows, gather_rows, prepare, union};
use skyphos_plan::RowKernels;
use skyphos_types::{ReduceOp, Result};
use std::hint::black_box;

/// Rows of an array: more than a cache holds, and 20 times as many as the indices, as in the middle of a butterfly.
const ROWS: u64 = ENTRIES as u64 * 20;

/// Numbers per row of a wide array.
const WIDE: usize = 16;

/// Number of sets that are joined.
const SETS: u64 = 4;

/// Measures all kernels, for about 0.05 processor seconds.
pub(crate) fn measure() -> Result<RowKernels> {
    let (gather_one_s, fold_one_s) = rows_s(1)?;
    let (gather_wide_s, fold_wide_s) = rows_s(WIDE)?;
    let more = 4.0 * (WIDE - 1) as f64;
    let byte_s = ((gather_wide_s - gather_one_s + fold_wide_s - fold_one_s) / 2.0 / more).max(0.0);
    let (set_code_s, set_join_s) = sets_s()?;
    Ok(RowKernels {
        gather_s: (gather_one_s - 4.0 * byte_s).max(0.0),
        fold_s: (fold_one_s - 4.0 * byte_s).max(0.0),
        byte_s,
        set_code_s,
        set_join_s,
    })
}

/// Seconds to gather a row of `width` numbers, and to add such a row.
fn rows_s(width: usize) -> Result<(f64, f64)> {
    let map = drawn(ROWS, 5);
    let mut all = vec![1f32; ROWS as usize * width];
    let mut rows = vec![1f32; ENTRIES * width];
    let gather_s = median_s(|| gather_rows(black_box(&all), &map, width, black_box(&mut rows)));
    let mut failed = Ok(());
    let fold_s = median_s(|| {
        failed = fold_rows(&ReduceOp::Sum, black_box(&mut all), 0, &map, black_box(&rows), width);
    });
    failed.map(|()| (gather_s / ENTRIES as f64, fold_s / ENTRIES as f64))
}

/// Seconds to encode or decode an index of a set, and to join an index with other sets and find its position in the union.
fn sets_s() -> Result<(f64, f64)> {
    let hash = BlockHash::new(ROWS, 1);
    let set_of = |seed| prepare(&drawn(ROWS, seed), ROWS, hash, "a measurement").map(|prepared| prepared.set);
    let sets = (0..SETS).map(set_of).collect::<Result<Vec<_>>>()?;
    let range = hash.range();
    let mut bytes = vec![0; Encoding::new(sets[0].blocks(), 0, range).bytes()];
    let write_s =
        median_s(|| Encoding::new(black_box(sets[0].blocks()), 0, range).write(black_box(&mut bytes)));
    let read_s = median_s(|| drop(black_box(decode(black_box(&bytes), 0, range))));
    let blocks: Vec<_> = sets.iter().map(|set| set.blocks()).collect();
    let join_s = median_s(|| {
        let whole = skyphos_kernels::IndexSet::new(union(black_box(&blocks)));
        let locator = Locator::new(&whole);
        blocks.iter().for_each(|part| drop(black_box(locator.positions(part))));
    });
    let entries = ENTRIES as f64;
    Ok(((write_s + read_s) / 2.0 / entries, join_s / (SETS as f64 * entries)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_kernel_takes_some_time() {
        let found = super::measure().unwrap();
        let all = [found.gather_s, found.fold_s, found.byte_s, found.set_code_s, found.set_join_s];
        assert!(all.iter().all(|s| s.is_finite() && (0.0..1e-6).contains(s)), "{found:?}");
        assert!(found.set_code_s > 0.0 && found.set_join_s > 0.0, "{found:?}");
    }
}
