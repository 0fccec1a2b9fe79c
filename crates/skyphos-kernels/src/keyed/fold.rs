//! Folds of rows into an array that has one row per key number.

use skyphos_types::{CustomOp, Element, Result};

/// Folds each row into the row of its number; the first row of a new number is appended.
#[inline(always)]
pub(super) fn fold_by_number<T: Element>(
    op: impl Fn(T, T) -> T + Copy,
    acc: &mut Vec<T>,
    numbers: &[u32],
    rows: &[T],
    width: usize,
) {
    if width == 1 {
        for (number, value) in numbers.iter().zip(rows) {
            match acc.get_mut(*number as usize) {
                Some(sum) => *sum = op(*sum, *value),
                None => acc.push(*value),
            }
        }
        return;
    }
    for (number, row) in numbers.iter().zip(rows.chunks_exact(width)) {
        match acc.get_mut(*number as usize * width..(*number as usize + 1) * width) {
            Some(acc_row) => acc_row.iter_mut().zip(row).for_each(|(a, b)| *a = op(*a, *b)),
            None => acc.extend_from_slice(row),
        }
    }
}

/// [`fold_by_number`] for a custom operation, which works on whole arrays: neighbouring rows of a key are folded in pairs,
/// round by round, until each key has one. That row is folded into the key's row in `acc`.
pub(super) fn fold_custom<T: Element>(
    custom: &dyn CustomOp,
    acc: &mut Vec<T>,
    numbers: Vec<u32>,
    rows: &[T],
    width: usize,
) -> Result<()> {
    let mut order: Vec<u32> = (0..numbers.len() as u32).collect();
    order.sort_by_key(|at| numbers[*at as usize]);
    let row = |at: u32| &rows[at as usize * width..][..width];
    let mut folded: Vec<T> = order.iter().flat_map(|at| row(*at).iter().copied()).collect();
    let mut number_of: Vec<u32> = order.iter().map(|at| numbers[*at as usize]).collect();
    while number_of.windows(2).any(|two| two[0] == two[1]) {
        let (mut left, mut right, mut pairs, mut singles) = (vec![], vec![], vec![], vec![]);
        let (mut next, mut at) = (Vec::new(), 0);
        while at < number_of.len() {
            let first = &folded[at * width..][..width];
            if number_of.get(at + 1) == Some(&number_of[at]) {
                pairs.push(next.len());
                left.extend_from_slice(first);
                right.extend_from_slice(&folded[(at + 1) * width..][..width]);
                next.push(number_of[at]);
                at += 2;
            } else {
                singles.push((next.len(), at));
                next.push(number_of[at]);
                at += 1;
            }
        }
        custom.combine(T::DTYPE, bytemuck::cast_slice_mut(&mut left), bytemuck::cast_slice(&right))?;
        let mut halved = vec![T::ZERO; next.len() * width];
        for (to, at) in singles {
            halved[to * width..][..width].copy_from_slice(&folded[at * width..][..width]);
        }
        for (to, row) in pairs.into_iter().zip(left.chunks_exact(width)) {
            halved[to * width..][..width].copy_from_slice(row);
        }
        (number_of, folded) = (next, halved);
    }
    // New keys have the highest numbers.
    let known = number_of.partition_point(|number| (*number as usize) < acc.len() / width);
    let mut sums: Vec<T> = Vec::with_capacity(known * width);
    for number in &number_of[..known] {
        sums.extend_from_slice(&acc[*number as usize * width..][..width]);
    }
    let (known_rows, new_rows) = folded.split_at(known * width);
    custom.combine(T::DTYPE, bytemuck::cast_slice_mut(&mut sums), bytemuck::cast_slice(known_rows))?;
    for (number, row) in number_of[..known].iter().zip(sums.chunks_exact(width)) {
        acc[*number as usize * width..][..width].copy_from_slice(row);
    }
    acc.extend_from_slice(new_rows);
    Ok(())
}
