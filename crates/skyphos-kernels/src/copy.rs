//! Copies of short runs.

/// Copies a few numbers by `memcpy`. The call costs more than copying most runs of a permutation, which its AVX-512 twin avoids.
#[inline(always)]
pub(crate) fn copy<T: bytemuck::Pod>(from: &[T], to: &mut [T]) {
    to.copy_from_slice(from);
}

/// Runs a loop that copies short runs, with [`copy`] or its AVX-512 twin. Both slices of a copy must be of the same length.
macro_rules! copy_all {
    (|$copy:ident| $body:expr) => {
        match $crate::simd::detected() {
            #[cfg(target_arch = "x86_64")]
            $crate::simd::InstructionSet::Avx512(avx512) => avx512.run(
                #[inline(always)]
                || {
                    // SAFETY: the loop cuts both slices with the same length.
                    let $copy = |from: &[_], to: &mut [_]| unsafe { avx512.copy(from, to) };
                    $body
                },
            ),
            _ => {
                let $copy = $crate::copy::copy;
                $body
            }
        }
    };
}
pub(crate) use copy_all;
