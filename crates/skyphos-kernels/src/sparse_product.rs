//! Products of sparse factors, G = Σₖ aₖ bₖᵀ: row i of G is Σₖ aₖᵢ bₖ, over the pairs k with an entry at aₖᵢ (Gustavson 1978).
//!
//! Cost: one multiply-add for each product of two entries, and the ordering by column. A row with several pairs and many
//! products is summed in an array with a bitmap; a row with few products is sorted. Numbers are summed in the order of pairs.

use crate::product::Multiply;
use std::ops::Range;

/// A sparse vector of a pair.
#[derive(Clone, Copy, Debug)]
pub struct SparseRow<'a, S> {
    /// Ascending indices.
    pub indices: &'a [u64],
    /// One value per index.
    pub values: &'a [S],
}

/// Largest number of columns of a row that is summed in an array, so that the array stays in the L2 or L3 cache.
const MAX_ARRAY_COLUMNS: usize = 1 << 20;

/// Least number of products of a row that is summed in an array, since its bitmap must be searched.
const MIN_ARRAY_PRODUCTS: usize = 32;

/// Sums of one row by column.
struct Row<S> {
    sums: Vec<S>,
    /// Bitmap of the columns that have a sum.
    present: Vec<u64>,
}

impl<S: Multiply> Row<S> {
    fn add(&mut self, factor: S, b: SparseRow<'_, S>) {
        for (col, value) in b.indices.iter().zip(b.values) {
            let (col, product) = (*col as usize, factor.mul(*value));
            let (word, bit) = (&mut self.present[col / 64], 1u64 << (col % 64));
            self.sums[col] = if *word & bit == 0 { product } else { self.sums[col].add(product) };
            *word |= bit;
        }
    }

    fn drain(&mut self, base: u64, indices: &mut Vec<u64>, values: &mut Vec<S>) {
        for (word, bits) in self.present.iter_mut().enumerate() {
            while *bits != 0 {
                let col = word * 64 + bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                indices.push(base + col as u64);
                values.push(self.sums[col]);
            }
        }
    }
}

/// The entries of these rows of G, in order: indices i m + j, and values. G has `m` columns; indices of b must be below `m`.
pub fn sparse_product<S: Multiply>(
    pairs: &[(SparseRow<'_, S>, SparseRow<'_, S>)],
    rows: Range<u64>,
    m: u64,
) -> (Vec<u64>, Vec<S>) {
    // Entries of a in these rows, by row and then pair.
    let mut a_entries: Vec<(u64, u32, S)> = Vec::new();
    for (pair, (a, _)) in (0..).zip(pairs) {
        let from = a.indices.partition_point(|row| *row < rows.start);
        let to = a.indices.partition_point(|row| *row < rows.end);
        a_entries
            .extend(a.indices[from..to].iter().zip(&a.values[from..to]).map(|(row, v)| (*row, pair, *v)));
    }
    a_entries.sort_unstable_by_key(|(row, pair, _)| (*row, *pair));
    let (mut indices, mut values) = (Vec::new(), Vec::new());
    let fits_array = m as usize <= MAX_ARRAY_COLUMNS;
    let columns = if fits_array { m as usize } else { 0 };
    let mut row = Row { sums: vec![S::ZERO; columns], present: vec![0; columns.div_ceil(64)] };
    let mut products: Vec<(u64, S)> = Vec::new();
    for terms in a_entries.chunk_by(|one, next| one.0 == next.0) {
        let base = terms[0].0 * m;
        let count: usize = terms.iter().map(|(_, pair, _)| pairs[*pair as usize].1.indices.len()).sum();
        match terms {
            [(_, pair, factor)] => {
                let b = pairs[*pair as usize].1;
                indices.extend(b.indices.iter().map(|col| base + col));
                values.extend(b.values.iter().map(|value| factor.mul(*value)));
            }
            _ if fits_array && count >= MIN_ARRAY_PRODUCTS && count * 64 >= columns => {
                terms.iter().for_each(|(_, pair, factor)| row.add(*factor, pairs[*pair as usize].1));
                row.drain(base, &mut indices, &mut values);
            }
            _ => {
                products.clear();
                for (_, pair, factor) in terms {
                    let b = pairs[*pair as usize].1;
                    products.extend(
                        b.indices.iter().zip(b.values).map(|(col, value)| (*col, factor.mul(*value))),
                    );
                }
                // A stable sort keeps the order of pairs within a column.
                products.sort_by_key(|(col, _)| *col);
                for same in products.chunk_by(|one, next| one.0 == next.0) {
                    indices.push(base + same[0].0);
                    values.push(same[1..].iter().fold(same[0].1, |sum, (_, product)| sum.add(*product)));
                }
            }
        }
    }
    (indices, values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Vector = (Vec<u64>, Vec<f64>);

    fn vector(n: u64, count: usize) -> impl Strategy<Value = Vector> {
        prop::collection::btree_map(0..n.max(1), -4i32..5, 0..count)
            .prop_map(|all| all.into_iter().map(|(index, value)| (index, f64::from(value))).unzip())
    }

    proptest! {
        #[test]
        fn products_match_those_entry_by_entry((n, m, pairs) in (1u64..40, 1u64..900).prop_flat_map(|(n, m)| {
            (Just(n), Just(m), prop::collection::vec((vector(n, 20), vector(m, 200)), 0..8))
        }), cut in 0u64..40, wide: bool) {
            // Too many columns for an array.
            let m = if wide { m + (MAX_ARRAY_COLUMNS as u64) } else { m };
            let rows = cut.min(n)..n;
            let mut want: BTreeMap<u64, f64> = BTreeMap::new();
            for (a, b) in &pairs {
                for (row, x) in a.0.iter().zip(&a.1).filter(|(row, _)| rows.contains(row)) {
                    for (col, y) in b.0.iter().zip(&b.1) {
                        *want.entry(row * m + col).or_default() += x * y;
                    }
                }
            }
            let row = |(indices, values): &'_ Vector| (indices.clone(), values.clone());
            let owned: Vec<_> = pairs.iter().map(|(a, b)| (row(a), row(b))).collect();
            let views: Vec<_> = owned.iter().map(|(a, b)| (
                SparseRow { indices: &a.0, values: &a.1 },
                SparseRow { indices: &b.0, values: &b.1 },
            )).collect();
            let (indices, values) = sparse_product(&views, rows, m);
            prop_assert_eq!(indices, want.keys().copied().collect::<Vec<_>>());
            // A product may be -0.0 where a sum from zero is not.
            let plain: Vec<f64> = values.iter().map(|v| v + 0.0).collect();
            prop_assert_eq!(plain, want.values().map(|v| v + 0.0).collect::<Vec<_>>());
        }
    }
}
