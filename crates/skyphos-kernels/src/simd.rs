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
            && is_x86_feature_detected!("bmi2")
        {
            return Level::Avx512;
        }
        if is_x86_feature_detected!("avx2") {
            return Level::Avx2;
        }
    }
    Level::Baseline
}

/// Runs `f` where the compiler may use AVX-512.
///
/// # Safety
/// The processor must have avx512f, avx512vl, bmi1, bmi2 and popcnt.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx2,bmi1,bmi2,popcnt")]
pub(crate) unsafe fn with_avx512<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Runs `f` where the compiler may use AVX2.
///
/// # Safety
/// The processor must have avx2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Calls an `#[inline(always)]` kernel, compiled for the processor at hand.
macro_rules! dispatch {
    ($kernel:ident ( $($argument:expr),* $(,)? )) => {
        match $crate::simd::level() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `level` has seen that the processor has these instructions.
            $crate::simd::Level::Avx512 => unsafe {
                $crate::simd::with_avx512(#[inline(always)] || $kernel($($argument),*))
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            $crate::simd::Level::Avx2 => unsafe {
                $crate::simd::with_avx2(#[inline(always)] || $kernel($($argument),*))
            },
            $crate::simd::Level::Baseline => $kernel($($argument),*),
        }
    };
}
pub(crate) use dispatch;
