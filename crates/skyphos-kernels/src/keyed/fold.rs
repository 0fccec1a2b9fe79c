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
                Some(there) => *there = op(*there, *value),
                None => acc.push(*value),
            }
        }
        return;
    }
    for (number, row) in numbers.iter().zip(rows.chunks_exact(width)) {
        match acc.get_mut(*number as usize * width..(*number as usize + 1) * width) {
            Some(there) => there.iter_mut().zip(row).for_each(|(a, b)| *a = op(*a, *b)),
            None => acc.extend_from_slice(row),
        }
    }
}

/// [`fold_by_number`] for a custom operation, which works on whole arrays: neighbouring rows of a key are folded in pairs, in
/// rounds, until one is left; that is folded into the key's row.
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
    let mut of: Vec<u32> = order.iter().map(|at| numbers[*at as usize]).collect();
    while of.windows(2).any(|two| two[0] == two[1]) {
        let (mut left, mut right, mut pairs, mut singles) = (vec![], vec![], vec![], vec![]);
        let (mut next, mut at) = (Vec::new(), 0);
        while at < of.len() {
            let first = &folded[at * width..][..width];
            if of.get(at + 1) == Some(&of[at]) {
                pairs.push(next.len());
                left.extend_from_slice(first);
                right.extend_from_slice(&folded[(at + 1) * width..][..width]);
                next.push(of[at]);
                at += 2;
            } else {
                singles.push((next.len(), at));
                next.push(of[at]);
                at += 1;
            }
        }
        custom.combine(T::DTYPE, bytemuck::cast_slice_mut(&mut left), bytemuck::cast_slice(&right))?;
        let mut fewer = vec![T::ZERO; next.len() * width];
        for (to, at) in singles {
            fewer[to * width..][..width].copy_from_slice(&folded[at * width..][..width]);
        }
        for (to, row) in pairs.into_iter().zip(left.chunks_exact(width)) {
            fewer[to * width..][..width].copy_from_slice(row);
        }
        (of, folded) = (next, fewer);
    }
    // New keys have the highest numbers.
    let known = of.partition_point(|number| (*number as usize) < acc.len() / width);
    let mut there: Vec<T> = Vec::with_capacity(known * width);
    for number in &of[..known] {
        there.extend_from_slice(&acc[*number as usize * width..][..width]);
    }
    let (of_known, of_new) = folded.split_at(known * width);
    custom.combine(T::DTYPE, bytemuck::cast_slice_mut(&mut there), bytemuck::cast_slice(of_known))?;
    for (number, row) in of[..known].iter().zip(there.chunks_exact(width)) {
        acc[*number as usize * width..][..width].copy_from_slice(row);
    }
    acc.extend_from_slice(of_new);
    Ok(())
}
