//! The loops of every selection: keep the values that reach a magnitude, and their positions; find the
//! k-th largest of a few.
//!
//! Vectors of 8 or 16 values are compared at once and squeezed together, without a branch that depends on
//! the data; where there are no such instructions, 16 values are passed over at once if none is kept.

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::magnitude::{Magnitude, Number};
use super::slots::{LANES, Slots};

/// The largest k of [`Loops::kth_of_pairs`].
pub(super) const PAIRED: usize = 4;

/// The loops that every selection is made of, for one instruction set.
pub(super) trait Loops<T: Magnitude>: Copy {
    /// Writes indices (the first is `start`) and values of at least a magnitude, and returns how many.
    fn collect(self, values: &[T], start: u32, least: T::Key, to: Slots<'_, T>) -> usize;

    /// Upper 16 bits of the largest magnitudes of the values dealt to groups in turn; -1 for a group without.
    fn maxima<const VECTORS: usize>(self, values: &[T]) -> [[i16; LANES]; VECTORS];

    /// The k-th of the two largest magnitudes of each of [`LANES`] groups; below 0 if there are not so many. For k of at
    /// most [`PAIRED`].
    fn kth_of_pairs(self, values: &[T], k: usize) -> T::Key;

    /// The k-th largest of at least k numbers, none below -1; those of 2 bytes in an even number of rows.
    fn kth_of_few<K: Number>(self, keys: &[[K; LANES]], k: usize) -> K;
}

/// For any processor.
#[derive(Clone, Copy)]
pub(super) struct Plain;

impl<T: Magnitude> Loops<T> for Plain {
    #[inline(always)]
    fn collect(self, values: &[T], start: u32, least: T::Key, to: Slots<'_, T>) -> usize {
        let mut count = 0;
        for (chunk, start) in values.chunks(16).zip((start..).step_by(16)) {
            if !chunk.iter().fold(false, |some, v| some | (v.magnitude() >= least)) {
                continue;
            }
            for (v, index) in chunk.iter().zip(start..) {
                to.indices[count].write(index);
                to.picked[count].write(*v);
                count += usize::from(v.magnitude() >= least);
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
        let mut pairs = [[T::Key::of(-1); LANES]; 2];
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
    fn kth_of_few<K: Number>(self, keys: &[[K; LANES]], k: usize) -> K {
        // The least of those that fewer than k are above.
        let mut kth = K::MAX;
        for mine in keys {
            let mut above = [0i32; LANES];
            for key in keys.as_flattened() {
                above.iter_mut().zip(mine).for_each(|(n, me)| *n += i32::from(key > me));
            }
            let few = above.iter().zip(mine).filter(|(n, _)| **n < k as i32);
            kth = few.fold(kth, |kth, (_, me)| kth.min(*me));
        }
        kth
    }
}

/// For processors with AVX-512: there is one of these only where that was found.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    /// # Safety
    /// The processor must have what [`crate::simd::with_avx512`] asks for.
    #[inline(always)]
    pub(super) unsafe fn new() -> Avx512 {
        Avx512(())
    }
}

#[cfg(target_arch = "x86_64")]
impl<T: Magnitude> Loops<T> for Avx512 {
    #[inline(always)]
    fn collect(self, values: &[T], start: u32, least: T::Key, to: Slots<'_, T>) -> usize {
        // SAFETY: `self` is there, so the processor has the instructions.
        unsafe { avx512::collect(values, start, least, to) }
    }

    #[inline(always)]
    fn maxima<const VECTORS: usize>(self, values: &[T]) -> [[i16; LANES]; VECTORS] {
        // SAFETY: `self` is there, so the processor has the instructions.
        unsafe { avx512::maxima::<T, VECTORS>(values) }
    }

    #[inline(always)]
    fn kth_of_pairs(self, values: &[T], k: usize) -> T::Key {
        // SAFETY: `self` is there, so the processor has the instructions.
        unsafe { avx512::kth_of_pairs(values, k) }
    }

    #[inline(always)]
    fn kth_of_few<K: Number>(self, keys: &[[K; LANES]], k: usize) -> K {
        // SAFETY: `self` is there, so the processor has the instructions.
        unsafe { avx512::kth_of_few(keys, k) }
    }
}

/// Calls an `#[inline(always)]` kernel with the loops for a level that the processor has.
macro_rules! with_loops {
    ($level:expr, $loops:ident => $kernel:ident ( $($argument:expr),* )) => {
        match $level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the processor has the instructions of its level.
            $crate::simd::Level::Avx512 => unsafe {
                let $loops = $crate::topk::loops::Avx512::new();
                $crate::simd::with_avx512(#[inline(always)] || $kernel($($argument),*))
            },
            level => {
                let $loops = $crate::topk::loops::Plain;
                $crate::simd::dispatch!(level => $kernel($($argument),*))
            }
        }
    };
}
pub(super) use with_loops;
