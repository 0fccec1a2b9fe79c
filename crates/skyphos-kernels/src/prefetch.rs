//! Prefetches of cache lines.

/// Asks for the cache line of an address, which need not be valid.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    prefetch_to::<true, T>(address);
}

/// As [`prefetch`], into the second-level cache only. That level allows many more outstanding requests than the
/// first, where some processors have only two dozen, too few for a pass over memory.
#[inline(always)]
pub(crate) fn prefetch_to_second_level<T>(address: *const T) {
    prefetch_to::<false, T>(address);
}

#[inline(always)]
fn prefetch_to<const FIRST: bool, T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that a program could see, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match FIRST {
            true => _mm_prefetch::<_MM_HINT_T0>(address.cast()),
            false => _mm_prefetch::<_MM_HINT_T1>(address.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
