//! The loops of every selection: collect the values that reach a magnitude, and their positions; find the
//! k-th largest of a few numbers.
//!
//! With AVX-512, vectors of 8 or 16 values are compared and compressed without a branch that depends on
//! the data. Without it, 16 values are skipped together if none of them is kept.

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::magnitude::{Key, Magnitude};
use super::slots::{LANES, Slots};
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx512;

/// The largest k that [`Loops::kth_of_pairs`] takes.
pub(super) const MAX_PAIRED: usize = 4;

/// The loops of every selection, for one instruction set.
///
/// # Safety
/// `collect` must write as many indices and values, from the first slot on, as it returns.
pub(super) unsafe trait Loops<T: Magnitude>: Copy {
    /// Writes the values whose magnitude is at least `threshold`, and their indices; returns how many. `start`: index of `values[0]`.
    fn collect(self, values: &[T], start: u32, threshold: T::Key, to: Slots<'_, T>) -> usize;

    /// Distributes the values over groups, round robin; returns the upper 16 bits of each group's largest magnitude, or -1 for an empty group.
    fn maxima<const VECTORS: usize>(self, values: &[T]) -> [[i16; LANES]; VECTORS];

    /// The k-th largest of the two largest magnitudes of each of [`LANES`] groups, for k up to [`MAX_PAIRED`]; below 0 if there are
    /// fewer than k.
    fn kth_of_pairs(self, values: &[T], k: usize) -> T::Key;

    /// The k-th largest of `keys`. There are at least k keys, none below -1. If a key has 2 bytes, the number of rows is even.
    fn kth_of_few<K: Key>(self, keys: &[[K; LANES]], k: usize) -> K;
}

/// The loops for any processor.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

// SAFETY: `count` rises by one only after an index and a value were written to that slot.
unsafe impl<T: Magnitude> Loops<T> for Scalar {
    #[inline(always)]
    fn collect(self, values: &[T], start: u32, threshold: T::Key, to: Slots<'_, T>) -> usize {
        let mut count = 0;
        for (chunk, start) in values.chunks(16).zip((start..).step_by(16)) {
            if !chunk.iter().fold(false, |any, v| any | (v.magnitude() >= threshold)) {
                continue;
            }
            for (v, index) in chunk.iter().zip(start..) {
                to.indices[count].write(index);
                to.picked[count].write(*v);
                count += usize::from(v.magnitude() >= threshold);
            }
        }
        count
    }

    #[inline(always)]
    fn maxima<const VECTORS: usize>(self, values: &[T]) -> [[i16; LANES]; VECTORS] {
        let mut maxima = [[-1; LANES]; VECTORS];
        for round in values.chunks(VECTORS * LANES) {
            for (max, v) in maxima.as_flattened_mut().iter_mut().zip(round) {
                *max = v.upper().max(*max);
            }
        }
        maxima
    }

    #[inline(always)]
    fn kth_of_pairs(self, values: &[T], k: usize) -> T::Key {
        let mut pairs = [[T::Key::from_i64(-1); LANES]; 2];
        let [firsts, seconds] = &mut pairs;
        for round in values.chunks(LANES) {
            for ((first, second), v) in firsts.iter_mut().zip(&mut *seconds).zip(round) {
                let magnitude = v.magnitude();
                *second = magnitude.min(*first).max(*second);
                *first = magnitude.max(*first);
            }
        }
        Loops::<T>::kth_of_few(self, &pairs, k)
    }

    #[inline(always)]
    fn kth_of_few<K: Key>(self, keys: &[[K; LANES]], k: usize) -> K {
        // The smallest of the keys that fewer than k keys exceed.
        let mut kth = K::MAX;
        for own in keys {
            let mut larger = [0i32; LANES];
            for key in keys.as_flattened() {
                larger.iter_mut().zip(own).for_each(|(n, own_key)| *n += i32::from(key > own_key));
            }
            let candidates = larger.iter().zip(own).filter(|(n, _)| **n < k as i32);
            kth = candidates.fold(kth, |kth, (_, own_key)| kth.min(*own_key));
        }
        kth
    }
}

// SAFETY: `avx512::collect` stores a vector of indices and one of values before it counts the values kept.
#[cfg(target_arch = "x86_64")]
unsafe impl<T: Magnitude> Loops<T> for Avx512 {
    #[inline(always)]
    fn collect(self, values: &[T], start: u32, threshold: T::Key, to: Slots<'_, T>) -> usize {
        // SAFETY: `self` proves that the processor has the instructions.
        unsafe { avx512::collect(values, start, threshold, to) }
    }

    #[inline(always)]
    fn maxima<const VECTORS: usize>(self, values: &[T]) -> [[i16; LANES]; VECTORS] {
        // SAFETY: `self` proves that the processor has the instructions.
        unsafe { avx512::maxima::<T, VECTORS>(values) }
    }

    #[inline(always)]
    fn kth_of_pairs(self, values: &[T], k: usize) -> T::Key {
        // SAFETY: `self` proves that the processor has the instructions.
        unsafe { avx512::kth_of_pairs(values, k) }
    }

    #[inline(always)]
    fn kth_of_few<K: Key>(self, keys: &[[K; LANES]], k: usize) -> K {
        // SAFETY: `self` proves that the processor has the instructions.
        unsafe { avx512::kth_of_few(keys, k) }
    }
}

/// Calls an `#[inline(always)]` kernel with the loops for a detected instruction set.
macro_rules! with_loops {
    ($isa:expr, $loops:ident => $kernel:ident ( $($argument:expr),* )) => {
        match $isa {
            #[cfg(target_arch = "x86_64")]
            $crate::simd::InstructionSet::Avx512($loops) => {
                $loops.run(#[inline(always)] || $kernel($($argument),*))
            }
            isa => {
                let $loops = $crate::topk::loops::Scalar;
                $crate::simd::dispatch!(isa => $kernel($($argument),*))
            }
        }
    };
}
pub(super) use with_loops;
