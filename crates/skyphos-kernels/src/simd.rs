//! One loop, compiled for several instruction sets, chosen when it runs.
//!
//! A kernel is written once as an `#[inline(always)]` function; [`dispatch!`] calls it inside a function
//! for which the compiler may use AVX-512 or AVX2, if the processor has them.

/// Instruction sets that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Baseline,
}

/// The best this processor has. The standard library remembers the answer.
#[inline(always)]
pub(crate) fn level() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("bmi2")
        {
            return Level::Avx512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
            return Level::Avx2;
        }
    }
    Level::Baseline
}

/// Runs `f` where the compiler may use AVX-512.
///
/// # Safety
/// The processor must have avx512f, avx512vl, avx512dq, avx512bw, bmi1, bmi2 and popcnt.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
pub(crate) unsafe fn with_avx512<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Runs `f` where the compiler may use AVX2.
///
/// # Safety
/// The processor must have avx2 and popcnt.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt")]
pub(crate) unsafe fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Asks for a cache line; the pointer need not be valid.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    prefetch_to::<true, T>(at);
}

/// The same, no nearer than the cache of the second level. Many more lines can be on their way there than to the first, of which
/// some processors have two dozen: too few for what a pass over memory needs.
#[inline(always)]
pub(crate) fn prefetch_nearby<T>(at: *const T) {
    prefetch_to::<false, T>(at);
}

#[inline(always)]
fn prefetch_to<const FIRST: bool, T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: asking for a line has no effect that a program could see.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match FIRST {
            true => _mm_prefetch::<_MM_HINT_T0>(at.cast()),
            false => _mm_prefetch::<_MM_HINT_T1>(at.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Copies a few numbers. A call of `memcpy` costs more than most runs of a permutation take to copy.
#[inline(always)]
pub(crate) fn copy<T: bytemuck::Pod>(from: &[T], to: &mut [T]) {
    to.copy_from_slice(from);
}

/// [`copy`] by masked vectors, without a branch for lengths up to one.
///
/// # Safety
/// The processor must have avx512f and bmi2, and both must be of the same length.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx2,bmi1,bmi2,popcnt")]
pub(crate) unsafe fn copy_masked<T: bytemuck::Pod>(from: &[T], to: &mut [T]) {
    use std::arch::x86_64::*;
    const LANES: usize = 16;
    debug_assert_eq!(from.len(), to.len());
    let bytes = size_of_val(from);
    if !size_of::<T>().is_multiple_of(4) || bytes > 512 {
        return to.copy_from_slice(from);
    }
    let (from, to) = (from.as_ptr().cast::<i32>(), to.as_mut_ptr().cast::<i32>());
    let (mut at, words) = (0, bytes / 4);
    // SAFETY: no more than `words` words are touched.
    unsafe {
        while words - at > LANES {
            _mm512_storeu_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast()));
            at += LANES;
        }
        let mask = _bzhi_u32(u32::MAX, (words - at) as u32) as u16;
        _mm512_mask_storeu_epi32(to.add(at), mask, _mm512_maskz_loadu_epi32(mask, from.add(at)));
    }
}

/// Runs a loop that copies short runs, with the [`copy`] for the processor at hand.
macro_rules! copy_all {
    (|$copy:ident| $body:expr) => {
        match $crate::simd::level() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `level` has seen that the processor has these instructions; slices of both sides
            // are cut with the same length.
            $crate::simd::Level::Avx512 => unsafe {
                $crate::simd::with_avx512(
                    #[inline(always)]
                    || {
                        let $copy = $crate::simd::copy_masked;
                        $body
                    },
                )
            },
            _ => {
                let $copy = $crate::simd::copy;
                $body
            }
        }
    };
}
pub(crate) use copy_all;

/// Calls an `#[inline(always)]` kernel, compiled for the processor at hand, or for a level it has.
macro_rules! dispatch {
    ($kernel:ident $(::<$($generic:tt),*>)? ( $($argument:expr),* $(,)? )) => {
        $crate::simd::dispatch!($crate::simd::level() => $kernel $(::<$($generic),*>)? ($($argument),*))
    };
    ($level:expr => $kernel:ident $(::<$($generic:tt),*>)? ( $($argument:expr),* $(,)? )) => {
        match $level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `level` has seen that the processor has these instructions.
            $crate::simd::Level::Avx512 => unsafe {
                $crate::simd::with_avx512(#[inline(always)] || $kernel $(::<$($generic),*>)? ($($argument),*))
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            $crate::simd::Level::Avx2 => unsafe {
                $crate::simd::with_avx2(#[inline(always)] || $kernel $(::<$($generic),*>)? ($($argument),*))
            },
            $crate::simd::Level::Baseline => $kernel $(::<$($generic),*>)? ($($argument),*),
        }
    };
}
pub(crate) use dispatch;

/// All levels that this processor has, for tests.
#[cfg(test)]
pub(crate) fn levels() -> Vec<Level> {
    match level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => vec![Level::Avx512, Level::Avx2, Level::Baseline],
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => vec![Level::Avx2, Level::Baseline],
        Level::Baseline => vec![Level::Baseline],
    }
}
