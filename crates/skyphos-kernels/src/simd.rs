//! Instruction sets, detected when the program runs.
//!
//! A kernel is written once as an `#[inline(always)]` function. [`dispatch!`] compiles it for AVX-512, for AVX2 and for any
//! processor, and calls the best of the three that the processor has.
//!
//! An [`Avx512`] or [`Avx2`] is proof that its instructions were detected: nothing else makes one. Code that has the proof
//! runs them by its methods, without a further check.

#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicU8, Ordering};

/// Proof that the processor has AVX-512 (F, VL, DQ, BW), AVX2, BMI1, BMI2 and POPCNT.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx512(());

/// Proof that the processor has AVX2 and POPCNT.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx2(());

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstructionSet {
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    Baseline,
}

/// The result of [`detect`]; 0 before its first call.
#[cfg(target_arch = "x86_64")]
static DETECTED: AtomicU8 = AtomicU8::new(0);

/// The best instruction set of this processor.
#[inline(always)]
pub(crate) fn detected() -> InstructionSet {
    #[cfg(target_arch = "x86_64")]
    match DETECTED.load(Ordering::Relaxed) {
        1 => InstructionSet::Baseline,
        2 => InstructionSet::Avx2(Avx2(())),
        3 => InstructionSet::Avx512(Avx512(())),
        _ => detect(),
    }
    #[cfg(not(target_arch = "x86_64"))]
    InstructionSet::Baseline
}

#[cfg(target_arch = "x86_64")]
#[cold]
fn detect() -> InstructionSet {
    macro_rules! has {
        ($($feature:tt)*) => { true $(&& is_x86_feature_detected!($feature))* };
    }
    let (number, best) = if has!("avx512f" "avx512vl" "avx512dq" "avx512bw" "avx2" "bmi1" "bmi2" "popcnt") {
        (3, InstructionSet::Avx512(Avx512(())))
    } else if has!("avx2" "popcnt") {
        (2, InstructionSet::Avx2(Avx2(())))
    } else {
        (1, InstructionSet::Baseline)
    };
    DETECTED.store(number, Ordering::Relaxed);
    best
}

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    /// Runs `f` compiled for AVX-512. Functions that `f` calls are compiled for it only if they are inlined.
    #[inline(always)]
    pub(crate) fn run<R>(self, f: impl FnOnce() -> R) -> R {
        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi1,bmi2,popcnt")]
        fn with_avx512<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        // SAFETY: `self` proves that the processor has the instructions.
        unsafe { with_avx512(f) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// Runs `f` compiled for AVX2. Functions that `f` calls are compiled for it only if they are inlined.
    #[inline(always)]
    pub(crate) fn run<R>(self, f: impl FnOnce() -> R) -> R {
        #[target_feature(enable = "avx2,popcnt")]
        fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        // SAFETY: `self` proves that the processor has the instructions.
        unsafe { with_avx2(f) }
    }
}

/// Calls an `#[inline(always)]` kernel, compiled for the best detected instruction set or for a given one.
macro_rules! dispatch {
    ($kernel:ident $(::<$($generic:tt),*>)? ( $($argument:expr),* $(,)? )) => {
        $crate::simd::dispatch!($crate::simd::detected() => $kernel $(::<$($generic),*>)? ($($argument),*))
    };
    ($isa:expr => $kernel:ident $(::<$($generic:tt),*>)? ( $($argument:expr),* $(,)? )) => {
        match $isa {
            #[cfg(target_arch = "x86_64")]
            $crate::simd::InstructionSet::Avx512(avx512) => {
                avx512.run(#[inline(always)] || $kernel $(::<$($generic),*>)? ($($argument),*))
            }
            #[cfg(target_arch = "x86_64")]
            $crate::simd::InstructionSet::Avx2(avx2) => {
                avx2.run(#[inline(always)] || $kernel $(::<$($generic),*>)? ($($argument),*))
            }
            $crate::simd::InstructionSet::Baseline => $kernel $(::<$($generic),*>)? ($($argument),*),
        }
    };
}
pub(crate) use dispatch;

/// All instruction sets that this processor has, for tests.
#[cfg(test)]
pub(crate) fn all_detected() -> Vec<InstructionSet> {
    match detected() {
        #[cfg(target_arch = "x86_64")]
        best @ InstructionSet::Avx512(_) => {
            vec![best, InstructionSet::Avx2(Avx2(())), InstructionSet::Baseline]
        }
        #[cfg(target_arch = "x86_64")]
        best @ InstructionSet::Avx2(_) => vec![best, InstructionSet::Baseline],
        InstructionSet::Baseline => vec![InstructionSet::Baseline],
    }
}
