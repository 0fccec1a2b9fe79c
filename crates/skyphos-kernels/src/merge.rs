//! Merge of two sorted sparse vectors: the union of their indices, with values combined where both have one.
//!
//! ```text
//! while both have 16 entries left:
//!     one side's 16 end before the other's begin:   copy them
//!     both have the same 16 indices:           combine them as vectors
//!     else: for each of a's 16, count the smaller ones of b's 16 (binary search, all at once); the counts
//!           give the positions of a's entries among the merged ones, as a bitmap; the other positions are those of
//!           b's; expand the entries of each side to the positions in its bitmap
//! ```
//!
//! No branch depends on which side has the next entry, since the processor could not predict it for random sets.
//! Cost: O(entries), about 30 entries a step. Both lists must ascend strictly; this is not checked.

use crate::fold::with_op;
use crate::simd;
use skyphos_types::{Element, ReduceOp, Result};

/// Entries of a side that are merged together.
const LANES: usize = 16;

/// Entries of ascending index.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a, T> {
    /// Indices, strictly ascending.
    pub indices: &'a [u32],
    /// One value an index.
    pub values: &'a [T],
}

/// Replaces `indices` and `values` by the merged entries: `a ⊕ b` where both have the index, else the entry combined with the
/// identity. Operands are in the order a, b.
///
/// # Errors
/// A custom operation is refused.
pub fn merge<T: Element>(
    op: &ReduceOp,
    a: Entries<'_, T>,
    b: Entries<'_, T>,
    indices: &mut Vec<u32>,
    values: &mut Vec<T>,
) -> Result<()> {
    merge_at(simd::detected(), op, a, b, indices, values)
}

fn merge_at<T: Element>(
    isa: simd::InstructionSet,
    op: &ReduceOp,
    a: Entries<'_, T>,
    b: Entries<'_, T>,
    indices: &mut Vec<u32>,
    values: &mut Vec<T>,
) -> Result<()> {
    assert!(a.indices.len() == a.values.len() && b.indices.len() == b.values.len());
    debug_assert!([a.indices, b.indices].iter().all(|i| i.windows(2).all(|w| w[0] < w[1])));
    let identity = op.identity::<T>()?;
    indices.clear();
    values.clear();
    let capacity = a.indices.len() + b.indices.len() + OVERRUN;
    indices.reserve(capacity);
    values.reserve(capacity);
    let out = Out { indices: indices.as_mut_ptr(), values: values.as_mut_ptr(), count: 0 };
    let count = with_op!(op, T, f => {
        // SAFETY: the capacity suffices for all entries, and `avx512` proves that the processor has the instructions.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                simd::InstructionSet::Avx512(avx512) => avx512::merge_with(avx512, a, b, out, identity, f),
                _ => merge_with(a, b, out, identity, f, step_plain),
            }
        }
    }, _ => return Err(skyphos_types::Error::bad_input("custom operations cannot be merged entry by entry")));
    // SAFETY: `merge_with` has written `count` indices and values.
    unsafe {
        indices.set_len(count);
        values.set_len(count);
    }
    Ok(())
}

/// Entries that may be written beyond the last one.
const OVERRUN: usize = 2 * LANES;

/// Destination of merged entries, with capacity for those of both sides and [`OVERRUN`].
#[derive(Clone, Copy)]
struct Out<T> {
    indices: *mut u32,
    values: *mut T,
    count: usize,
}

/// The entries of both sides that are not merged yet.
#[derive(Clone, Copy)]
struct Sides<'a, T> {
    a: Entries<'a, T>,
    b: Entries<'a, T>,
}

impl<'a, T> Entries<'a, T> {
    /// The first `N` entries, if there are as many.
    #[inline(always)]
    fn first<const N: usize>(&self) -> Option<(&'a [u32; N], &'a [T; N])> {
        Some((self.indices.first_chunk()?, self.values.first_chunk()?))
    }

    /// All entries but the first `count`.
    #[inline(always)]
    fn skip(&self, count: usize) -> Entries<'a, T> {
        Entries { indices: &self.indices[count..], values: &self.values[count..] }
    }
}

/// Merges all entries and returns their number. `step(sides, out, identity, op)` merges entries from the front of two sides that
/// have 32 left each, and returns the number taken from each.
///
/// # Safety
/// `out` must have capacity for the entries of both sides and [`OVERRUN`].
#[inline(always)]
unsafe fn merge_with<'a, T: Element, F: Fn(T, T) -> T + Copy>(
    mut a: Entries<'a, T>,
    mut b: Entries<'a, T>,
    mut out: Out<T>,
    identity: T,
    op: F,
    step: impl Fn(Sides<'a, T>, &mut Out<T>, T, F) -> (usize, usize),
) -> usize {
    while let (Some((i, x)), Some((j, y))) = (a.first::<{ 2 * LANES }>(), b.first::<{ 2 * LANES }>()) {
        let (taken_a, taken_b) = if i[LANES - 1] < j[0] {
            // SAFETY: no more entries are written than are taken, and `out` has capacity for all.
            unsafe { out.put_lanes(i, |k| op(x[k], identity)) };
            (LANES, 0)
        } else if j[LANES - 1] < i[0] {
            // SAFETY: as above.
            unsafe { out.put_lanes(j, |k| op(identity, y[k])) };
            (0, LANES)
        } else if i[..LANES] == j[..LANES] {
            // SAFETY: as above.
            unsafe { out.put_lanes(i, |k| op(x[k], y[k])) };
            (LANES, LANES)
        } else {
            step(Sides { a, b }, &mut out, identity, op)
        };
        (a, b) = (a.skip(taken_a), b.skip(taken_b));
    }
    while !a.indices.is_empty() && !b.indices.is_empty() {
        let (taken_a, taken_b) = step_plain(Sides { a, b }, &mut out, identity, op);
        (a, b) = (a.skip(taken_a), b.skip(taken_b));
    }
    // SAFETY: as above.
    unsafe {
        out.put(a.indices, a.values.iter().map(|x| op(*x, identity)));
        out.put(b.indices, b.values.iter().map(|y| op(identity, *y)));
    }
    out.count
}

impl<T: Element> Out<T> {
    /// Writes the first 16 indices and their values. All are computed before any is written, so that the compiler need not assume
    /// that outputs overlap inputs.
    ///
    /// # Safety
    /// There must be capacity for 16 more entries.
    #[inline(always)]
    unsafe fn put_lanes(&mut self, indices: &[u32; 2 * LANES], value: impl Fn(usize) -> T) {
        let values: [T; LANES] = std::array::from_fn(value);
        let indices: [u32; LANES] = *indices.first_chunk().expect("32 indices");
        // SAFETY: as the caller promises.
        unsafe {
            self.indices.add(self.count).cast::<[u32; LANES]>().write(indices);
            self.values.add(self.count).cast::<[T; LANES]>().write(values);
        }
        self.count += LANES;
    }

    /// Writes all of these entries.
    ///
    /// # Safety
    /// There must be capacity for them.
    #[inline(always)]
    unsafe fn put(&mut self, indices: &[u32], values: impl Iterator<Item = T>) {
        // SAFETY: the capacity is as the caller promises; the output does not overlap the inputs.
        unsafe {
            std::ptr::copy_nonoverlapping(indices.as_ptr(), self.indices.add(self.count), indices.len());
            for (k, value) in values.enumerate() {
                self.values.add(self.count + k).write(value);
            }
        }
        self.count += indices.len();
    }
}

/// Merges in up to 16 steps, each of which takes the smaller of the next two entries, or both if they are equal.
#[inline(always)]
fn step_plain<T: Element>(
    Sides { a, b }: Sides<'_, T>,
    out: &mut Out<T>,
    identity: T,
    op: impl Fn(T, T) -> T + Copy,
) -> (usize, usize) {
    let (mut i, mut j) = (0, 0);
    for _ in 0..LANES.min(a.indices.len()).min(b.indices.len()) {
        let (p, q) = (a.indices[i], b.indices[j]);
        let x = if p <= q { a.values[i] } else { identity };
        let y = if q <= p { b.values[j] } else { identity };
        // SAFETY: no more entries are written than are taken.
        unsafe {
            out.indices.add(out.count).write(p.min(q));
            out.values.add(out.count).write(op(x, y));
        }
        out.count += 1;
        i += usize::from(p <= q);
        j += usize::from(q <= p);
    }
    (i, j)
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{Entries, LANES, OVERRUN, Out, Sides, merge_with as merge_by};
    use crate::simd::Avx512;
    use skyphos_types::Element;
    use std::arch::x86_64::*;

    /// # Safety
    /// As for [`merge_by`]; the processor must have the instructions that an [`Avx512`] proves.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
    pub(super) unsafe fn merge_with<T: Element>(
        avx512: Avx512,
        a: Entries<'_, T>,
        b: Entries<'_, T>,
        out: Out<T>,
        identity: T,
        op: impl Fn(T, T) -> T + Copy,
    ) -> usize {
        // SAFETY: as the caller promises.
        unsafe {
            merge_by(
                a,
                b,
                out,
                identity,
                op,
                #[inline(always)]
                |sides, out, identity, op| step(avx512, sides, out, identity, op),
            )
        }
    }

    /// Merges the next 16 entries of each side, except those above the other side's sixteenth.
    ///
    /// # Safety
    /// Both sides must have 32 entries, and `out` must have capacity as for [`merge_by`]; the processor as above.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
    unsafe fn step<T: Element>(
        avx512: Avx512,
        Sides { a, b }: Sides<'_, T>,
        out: &mut Out<T>,
        identity: T,
        op: impl Fn(T, T) -> T + Copy,
    ) -> (usize, usize) {
        // SAFETY: there are 32 entries of each.
        let (i, j) = unsafe {
            (_mm512_loadu_epi32(a.indices.as_ptr().cast()), _mm512_loadu_epi32(b.indices.as_ptr().cast()))
        };
        let take_a = _mm512_cmple_epu32_mask(i, _mm512_set1_epi32(b.indices[LANES - 1] as i32));
        let take_b = _mm512_cmple_epu32_mask(j, _mm512_set1_epi32(a.indices[LANES - 1] as i32));
        let (taken_a, taken_b) = (take_a.count_ones(), take_b.count_ones());

        // For each of a's entries, the number of b's first 15 that are smaller, bit by bit from the highest. An entry of a
        // that is taken is not above b's sixteenth, so no later entry of b is smaller.
        let mut below = _mm512_setzero_si512();
        for power in [8, 4, 2, 1] {
            let probe = _mm512_permutexvar_epi32(_mm512_add_epi32(below, _mm512_set1_epi32(power - 1)), j);
            let smaller = _mm512_cmplt_epu32_mask(probe, i);
            below = _mm512_mask_add_epi32(below, smaller, below, _mm512_set1_epi32(power));
        }
        let equal = _mm512_mask_cmpeq_epi32_mask(take_a, _mm512_permutexvar_epi32(below, j), i);

        // Positions among all taken entries. Equal indices of a and b have two neighbouring positions, and the second is dropped.
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let position = _mm512_add_epi32(lanes, below);
        let bits = _mm512_maskz_sllv_epi32(take_a, _mm512_set1_epi32(1), position);
        let of_a = _mm512_reduce_or_epi32(bits) as u32;
        let all = _bzhi_u32(u32::MAX, taken_a + taken_b);
        let first_equal = _pdep_u32(u32::from(equal), of_a);
        let keep = all & !(first_equal << 1);
        let in_a = _pext_u32(of_a, keep);
        let in_b = _pext_u32(!of_a & keep | first_equal, keep);

        let count = out.count;
        out.count += keep.count_ones() as usize;
        let (mut x, mut y) = ([identity; OVERRUN], [identity; OVERRUN]);
        let blank = [identity; LANES];
        // SAFETY: each side has at most 16 bits, as many as it has taken, so no vector reads beyond its 32 entries. `OVERRUN`
        // positions are written, which `out` has beyond its last entry.
        unsafe {
            avx512.expand(in_a, a.values.as_ptr(), &blank, &mut x);
            avx512.expand(in_b, b.values.as_ptr(), &blank, &mut y);
            let (mut p, mut q) = (a.indices.as_ptr(), b.indices.as_ptr());
            for part in 0..2 {
                let (in_a, in_b) = ((in_a >> (16 * part)) as u16, (in_b >> (16 * part)) as u16);
                let merged = _mm512_maskz_expand_epi32(in_a, _mm512_loadu_epi32(p.cast()));
                let merged = _mm512_mask_expand_epi32(merged, in_b, _mm512_loadu_epi32(q.cast()));
                _mm512_storeu_epi32(out.indices.add(count + 16 * part).cast(), merged);
                (p, q) = (p.add(in_a.count_ones() as usize), q.add(in_b.count_ones() as usize));
            }
            let to = out.values.add(count);
            for k in 0..OVERRUN {
                to.add(k).write(op(x[k], y[k]));
            }
        }
        (taken_a as usize, taken_b as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use skyphos_types::bf16;
    use std::collections::BTreeMap;

    fn check<T: Element>(op: &ReduceOp, sets: &[Vec<u32>; 2], make: impl Fn(usize) -> T) {
        let combine = |x: T, y: T| match op {
            ReduceOp::Max => x.greatest(y),
            ReduceOp::Prod => x.mul(y),
            _ => x.add(y),
        };
        let identity = op.identity::<T>().unwrap();
        let sides = [0, 1].map(|s| (0..sets[s].len()).map(|k| make(k * 2 + s)).collect::<Vec<T>>());
        let mut want: BTreeMap<u32, [T; 2]> = BTreeMap::new();
        for s in 0..2 {
            for (i, v) in sets[s].iter().zip(&sides[s]) {
                want.entry(*i).or_insert([identity; 2])[s] = *v;
            }
        }
        let sums: Vec<T> = want.values().map(|[x, y]| combine(*x, *y)).collect();
        let entries = |s: usize| Entries { indices: &sets[s][..], values: &sides[s][..] };
        for isa in simd::all_detected() {
            let (mut indices, mut values) = (vec![3], vec![T::ONE]);
            merge_at(isa, op, entries(0), entries(1), &mut indices, &mut values).unwrap();
            assert!(indices.iter().eq(want.keys()), "{isa:?}");
            assert_eq!(
                bytemuck::cast_slice::<T, u8>(&values),
                bytemuck::cast_slice::<T, u8>(&sums),
                "{isa:?}"
            );
        }
    }

    fn set() -> impl Strategy<Value = Vec<u32>> {
        let step = prop_oneof![8 => Just(1u32), 4 => 1u32..4, 2 => 1u32..300, 1 => 1u32..1 << 21];
        let step = (step, prop_oneof![4 => Just(1usize), 1 => 1usize..80]);
        (prop::collection::vec(step, 0..200), any::<bool>()).prop_map(|(steps, high)| {
            let steps = steps
                .iter()
                .flat_map(|(step, times)| std::iter::once(*step).chain(std::iter::repeat_n(1, times - 1)));
            let mut at = if high { u32::MAX - (1 << 30) } else { 0 };
            steps
                .map_while(|s| {
                    at = at.checked_add(s)?;
                    Some(at - 1)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn merges_as_the_oracle(a in set(), b in set(), shared in set()) {
            let both = |x: &[u32]| {
                let mut all = [x, &shared].concat();
                all.sort_unstable();
                all.dedup();
                all
            };
            for sets in [[both(&a), both(&b)], [a, b]] {
                check(&ReduceOp::Sum, &sets, |k| (k as f32).sin());
                check(&ReduceOp::Sum, &sets, |k| k as f64 * 0.1);
                check(&ReduceOp::Max, &sets, |k| (k * 37) as u8);
                check(&ReduceOp::Prod, &sets, |k| bf16::from_f32((k as f32).cos()));
                check(&ReduceOp::Sum, &sets, |k| (k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            }
        }
    }
}
