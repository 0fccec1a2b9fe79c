//! Rows at the positions of a map: gathered into messages, folded into sums, scattered into results.
//!
//! A *row* is `width` numbers that belong to one index. Maps hold row positions. Where a map ascends
//! without a gap for a stretch (index sets that agree), the stretch is folded as one vector.
//!
//! Cost: one read of map and source, one read and write of the target, each once.

use crate::prefetch::prefetch;
use crate::simd;
use bytemuck::Pod;
use skyphos_types::{Element, ReduceOp, Result};

/// Rows whose positions are tested together for being consecutive; a fold of that many rows takes one or two vectors.
const STRETCH: usize = 32;

/// Runs `$body` with `$f` as the function of a built-in operation on two numbers of type `$T`, or `$custom_body` with a custom
/// operation as `$custom`.
macro_rules! with_op {
    ($op:expr, $T:ty, $f:ident => $body:expr, $custom:pat => $custom_body:expr) => {
        match $op {
            ReduceOp::Sum | ReduceOp::Mean | ReduceOp::MeanPresent => {
                let $f = <$T as Element>::add;
                $body
            }
            ReduceOp::Prod => {
                let $f = <$T as Element>::mul;
                $body
            }
            ReduceOp::Min => {
                let $f = <$T as Element>::least;
                $body
            }
            ReduceOp::Max => {
                let $f = <$T as Element>::greatest;
                $body
            }
            ReduceOp::Or => {
                let $f = <$T as Element>::or;
                $body
            }
            ReduceOp::And => {
                let $f = <$T as Element>::and;
                $body
            }
            ReduceOp::Custom($custom) => $custom_body,
        }
    };
}
pub(crate) use with_op;

/// `to[k] = from[map[k]]`, row by row. Positions must be inside `from`.
pub fn gather_rows<T: Pod>(from: &[T], map: &[u32], width: usize, to: &mut [T]) {
    debug_assert_eq!(map.len() * width, to.len());
    if width == 1 {
        simd::dispatch!(gather_numbers(from, map, to));
    } else {
        for (t, p) in to.chunks_exact_mut(width).zip(map) {
            t.copy_from_slice(&from[*p as usize * width..][..width]);
        }
    }
}

#[inline(always)]
fn gather_numbers<T: Pod>(from: &[T], map: &[u32], to: &mut [T]) {
    let mut maps = map.chunks_exact(STRETCH);
    let mut tos = to.chunks_exact_mut(STRETCH);
    for (m, t) in (&mut maps).zip(&mut tos) {
        if is_run(m) {
            t.copy_from_slice(&from[m[0] as usize..][..STRETCH]);
        } else {
            t.iter_mut().zip(m).for_each(|(t, p)| *t = from[*p as usize]);
        }
    }
    for (t, p) in tos.into_remainder().iter_mut().zip(maps.remainder()) {
        *t = from[*p as usize];
    }
}

/// Whether each position is one more than the one before. The ends rule out most maps at once, but prove nothing for a map
/// that does not ascend.
#[inline(always)]
fn is_run(map: &[u32]) -> bool {
    let (first, last) = (map[0], map[map.len() - 1]);
    last.wrapping_sub(first) as usize == map.len() - 1
        && map.iter().zip(first..).fold(true, |all, (p, q)| all & (*p == q))
}

/// `to[map[k]] = from[k]`, row by row. Positions must be inside `to`.
pub fn scatter_rows<T: Pod>(from: &[T], map: &[u32], width: usize, to: &mut [T]) {
    debug_assert_eq!(map.len() * width, from.len());
    if width == 1 {
        for (f, p) in from.iter().zip(map) {
            to[*p as usize] = *f;
        }
    } else {
        for (f, p) in from.chunks_exact(width).zip(map) {
            to[*p as usize * width..][..width].copy_from_slice(f);
        }
    }
}

/// `acc[map[k] - first] ⊕= from[k]`, row by row, k ascending. `map` ascends strictly.
pub fn fold_rows<T: Element>(
    op: &ReduceOp,
    acc: &mut [T],
    first: u32,
    map: &[u32],
    from: &[T],
    width: usize,
) -> Result<()> {
    debug_assert_eq!(map.len() * width, from.len());
    debug_assert!(map.windows(2).all(|w| w[0] < w[1]));
    with_op!(op, T, f => simd::dispatch!(fold_with(f, acc, first, map, from, width)), custom => {
        // A custom operation works on whole arrays: gather, combine, scatter.
        let local: Vec<u32> = map.iter().map(|p| p - first).collect();
        let mut rows = vec![T::ZERO; from.len()];
        gather_rows(acc, &local, width, &mut rows);
        custom.combine(T::DTYPE, bytemuck::cast_slice_mut(&mut rows), bytemuck::cast_slice(from))?;
        scatter_rows(&rows, &local, width, acc);
    });
    Ok(())
}

/// Distance of prefetches ahead of the fold. Where positions are far apart, the processor sees too few of them at once to hide
/// the memory's latency.
const PREFETCH_DISTANCE: usize = 4 * STRETCH;

/// Prefetches the rows at these ascending positions.
#[inline(always)]
fn prefetch_all<T>(acc: &[T], first: u32, map: &[u32]) {
    let prefetch_at = |p: u32| prefetch(acc.as_ptr().wrapping_add((p - first) as usize));
    if map[STRETCH - 1] - map[0] == STRETCH as u32 - 1 {
        map.iter().step_by(8).for_each(|p| prefetch_at(*p));
    } else {
        map.iter().for_each(|p| prefetch_at(*p));
    }
}

/// `acc[k] ⊕= from[k]`.
pub fn fold_all<T: Element>(op: &ReduceOp, acc: &mut [T], from: &[T]) -> Result<()> {
    debug_assert_eq!(acc.len(), from.len());
    #[inline(always)]
    fn fold<T: Element>(op: impl Fn(T, T) -> T + Copy, acc: &mut [T], from: &[T]) {
        acc.iter_mut().zip(from).for_each(|(a, v)| *a = op(*a, *v));
    }
    with_op!(op, T, f => simd::dispatch!(fold(f, acc, from)), custom => {
        custom.combine(T::DTYPE, bytemuck::cast_slice_mut(acc), bytemuck::cast_slice(from))?;
    });
    Ok(())
}

#[inline(always)]
fn fold_with<T: Element>(
    op: impl Fn(T, T) -> T + Copy,
    acc: &mut [T],
    first: u32,
    map: &[u32],
    from: &[T],
    width: usize,
) {
    if width > 1 {
        for (f, p) in from.chunks_exact(width).zip(map) {
            let row = &mut acc[(*p - first) as usize * width..][..width];
            row.iter_mut().zip(f).for_each(|(a, v)| *a = op(*a, *v));
        }
        return;
    }
    let mut maps = map.chunks_exact(STRETCH);
    let mut froms = from.chunks_exact(STRETCH);
    for (k, (m, f)) in (&mut maps).zip(&mut froms).enumerate() {
        if let Some(ahead) = map[k * STRETCH..].get(PREFETCH_DISTANCE..PREFETCH_DISTANCE + STRETCH) {
            prefetch_all(acc, first, ahead);
        }
        // The map ascends, so its ends prove whether it is a run.
        if m[STRETCH - 1] - m[0] == STRETCH as u32 - 1 {
            let run = &mut acc[(m[0] - first) as usize..][..STRETCH];
            run.iter_mut().zip(f).for_each(|(a, v)| *a = op(*a, *v));
        } else {
            for (p, v) in m.iter().zip(f) {
                let a = &mut acc[(*p - first) as usize];
                *a = op(*a, *v);
            }
        }
    }
    for (p, v) in maps.remainder().iter().zip(froms.remainder()) {
        let a = &mut acc[(*p - first) as usize];
        *a = op(*a, *v);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use skyphos_types::{bf16, f16};

    /// Oracle: row by row.
    fn fold_plain<T: Element>(
        op: &ReduceOp,
        acc: &mut [T],
        first: u32,
        map: &[u32],
        from: &[T],
        width: usize,
    ) {
        for (k, p) in map.iter().enumerate() {
            for w in 0..width {
                let (a, v) = (&mut acc[(*p - first) as usize * width + w], from[k * width + w]);
                *a = match op {
                    ReduceOp::Prod => a.mul(v),
                    ReduceOp::Min => a.least(v),
                    ReduceOp::Max => a.greatest(v),
                    ReduceOp::Or => a.or(v),
                    ReduceOp::And => a.and(v),
                    _ => a.add(v),
                };
            }
        }
    }

    fn check<T: Element>(
        op: &ReduceOp,
        present: &[bool],
        width: usize,
        first: u32,
        make: impl Fn(usize) -> T,
    ) {
        let map: Vec<u32> =
            (0..present.len() as u32).filter(|p| present[*p as usize]).map(|p| p + first).collect();
        let from: Vec<T> = (0..map.len() * width).map(&make).collect();
        let start: Vec<T> = (0..present.len() * width).map(|k| make(k + 3)).collect();
        let (mut got, mut want) = (start.clone(), start);
        fold_rows(op, &mut got, first, &map, &from, width).unwrap();
        fold_plain(op, &mut want, first, &map, &from, width);
        assert_eq!(bytemuck::cast_slice::<T, u8>(&got), bytemuck::cast_slice::<T, u8>(&want));
    }

    proptest! {
        #[test]
        fn folds_match_the_oracle(
            present in prop::collection::vec(prop::bool::weighted(0.9), 0..2500),
            width in prop_oneof![Just(1usize), Just(3), Just(16)],
            first in 0u32..1000,
            op in 0usize..6,
        ) {
            let op = &ReduceOp::NAMED[op];
            check::<u64>(op, &present, width, first, |k| (k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            check::<u8>(op, &present, width, first, |k| (k * 37) as u8);
            if op.check(skyphos_types::DType::F64).is_ok() {
                check::<f64>(op, &present, width, first, |k| (k as f64).sin());
                check::<f32>(op, &present, width, first, |k| (k as f32).cos());
                check::<bf16>(op, &present, width, first, |k| bf16::from_f32((k as f32).cos()));
                check::<f16>(op, &present, width, first, |k| f16::from_f32((k as f32).cos()));
            }
        }
    }

    #[test]
    fn gather_undoes_scatter() {
        let from: Vec<f64> = (0..12).map(f64::from).collect();
        let map = [3, 0, 2, 1];
        let (mut scattered, mut back) = (vec![0.0; 12], vec![0.0; 12]);
        scatter_rows(&from, &map, 3, &mut scattered);
        gather_rows(&scattered, &map, 3, &mut back);
        assert_eq!(back, from);
        assert_eq!(scattered[..3], from[3..6]);
    }
}
