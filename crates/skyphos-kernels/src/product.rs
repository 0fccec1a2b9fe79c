//! Products of factors: G = Σₖ aₖ bₖᵀ, where row k of a and of b are the k-th pair of vectors (*DSOP*, eq. 1).
//!
//! The product of K pairs is one product of matrices, aᵀ b, which passes over G once; K rank-one updates would pass over it K
//! times. The loops are those of the crate `gemm` (docs/decisions/0025). Cost: N M K multiply-adds, and a pass over N M
//! numbers.
//!
//! Numbers of 16 bits are widened to float32 before they are multiplied, and their sums rounded once.
//!
//! The order of additions depends on shapes and instruction set, never on threads or data.

use gemm::{Parallelism, gemm};
use skyphos_types::{Real, bf16, f16};

/// A number type of factors.
pub trait Factor: Real {
    /// The type of sums: the type itself, or float32 for 16 bits.
    type Sum: Multiply;

    /// Converts numbers to the type of sums.
    fn widen(from: &[Self], to: &mut [Self::Sum]);

    /// Rounds sums to nearest.
    fn narrow(from: &[Self::Sum], to: &mut [Self]);

    /// The numbers as sums without a copy; `None` for 16 bits.
    fn as_sums(numbers: &mut [Self]) -> Option<&mut [Self::Sum]>;
}

/// A number type of sums.
pub trait Multiply: Factor<Sum = Self> + 'static {
    /// The scale that subtracts a product.
    const MINUS_ONE: Self;
}

macro_rules! factor_wide {
    ($($t:ty),*) => {$(
        impl Factor for $t {
            type Sum = $t;
            fn widen(from: &[$t], to: &mut [$t]) {
                to.copy_from_slice(from);
            }
            fn narrow(from: &[$t], to: &mut [$t]) {
                to.copy_from_slice(from);
            }
            fn as_sums(numbers: &mut [$t]) -> Option<&mut [$t]> {
                Some(numbers)
            }
        }
        impl Multiply for $t {
            const MINUS_ONE: $t = -1.0;
        }
    )*};
}
factor_wide!(f32, f64);

macro_rules! factor_half {
    ($($t:ty),*) => {$(
        impl Factor for $t {
            type Sum = f32;
            fn widen(from: &[$t], to: &mut [f32]) {
                from.iter().zip(to).for_each(|(number, wide)| *wide = number.to_f32());
            }
            fn narrow(from: &[f32], to: &mut [$t]) {
                from.iter().zip(to).for_each(|(sum, number)| *number = Real::from_f32(*sum));
            }
            fn as_sums(_: &mut [$t]) -> Option<&mut [f32]> {
                None
            }
        }
    )*};
}
factor_half!(bf16, f16);

/// A matrix by rows, with a stride.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a, T> {
    /// The numbers, from the first number of the first row on.
    pub numbers: &'a [T],
    /// Numbers from a row's start to the next row's start.
    pub stride: usize,
}

/// Use of the numbers in the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// They are overwritten, NaN included.
    Overwrite,
    /// The product is added to them.
    Add,
}

/// Length of a slice that holds `count` rows of `width` numbers whose starts are `stride` apart.
fn span(count: usize, width: usize, stride: usize) -> usize {
    if count == 0 || width == 0 { 0 } else { (count - 1) * stride + width }
}

/// `out` (+)= `scale` aᵀ b, where a is `pairs` by `rows`, b is `pairs` by `cols`, and `out` is `rows` by `cols`.
///
/// # Panics
/// If one of the slices is too short.
pub fn multiply<S: Multiply>(
    (rows, cols, pairs): (usize, usize, usize),
    (a, b): (Rows<'_, S>, Rows<'_, S>),
    (out, stride): (&mut [S], usize),
    (destination, scale): (Destination, S),
    threads: usize,
) {
    assert!(cols <= stride && out.len() >= span(rows, cols, stride), "the output is too short");
    assert!(a.numbers.len() >= span(pairs, rows, a.stride), "a is too short");
    assert!(b.numbers.len() >= span(pairs, cols, b.stride), "b is too short");
    if rows == 0 || cols == 0 {
        return;
    }
    let parallel = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    let (out_scale, adds) = match destination {
        Destination::Overwrite => (S::ZERO, false),
        Destination::Add => (S::ONE, true),
    };
    let (stride, stride_a, stride_b) = (stride as isize, a.stride as isize, b.stride as isize);
    // SAFETY: the asserts above keep all rows and columns inside their slices, and `out` is borrowed mutably, so it overlaps none.
    unsafe {
        gemm(
            rows,
            cols,
            pairs,
            out.as_mut_ptr(),
            1,
            stride,
            adds,
            a.numbers.as_ptr(),
            stride_a,
            1,
            b.numbers.as_ptr(),
            1,
            stride_b,
            out_scale,
            scale,
            false,
            false,
            false,
            parallel,
        );
    }
}

/// [`multiply`] by its definition, pair by pair: the oracle of tests, and the method that *DSOP* measured.
pub fn multiply_pairs<S: Multiply>(
    (rows, cols, pairs): (usize, usize, usize),
    (a, b): (Rows<'_, S>, Rows<'_, S>),
    (out, stride): (&mut [S], usize),
    destination: Destination,
) {
    if destination == Destination::Overwrite {
        (0..rows).for_each(|row| out[row * stride..][..cols].fill(S::ZERO));
    }
    for pair in 0..pairs {
        let b = &b.numbers[pair * b.stride..][..cols];
        for row in 0..rows {
            let factor = a.numbers[pair * a.stride + row];
            out[row * stride..][..cols].iter_mut().zip(b).for_each(|(sum, b)| *sum = sum.add(factor.mul(*b)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whole numbers, so that every order of additions gives the same bits.
    fn drawn<S: Real>(count: usize, seed: u32) -> Vec<S> {
        let number = |k: u32| ((k.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) % 17) as f32 - 8.0;
        (0..count as u32).map(|k| S::from_f32(number(k))).collect()
    }

    fn check<S: Multiply>(
        (rows, cols, pairs): (usize, usize, usize),
        padding: usize,
        destination: Destination,
    ) {
        let (stride_a, stride_b) = (rows + padding, cols + 2 * padding);
        let (a, b) = (drawn::<S>(pairs * stride_a, 1), drawn::<S>(pairs * stride_b, 2));
        let factors = (Rows { numbers: &a, stride: stride_a }, Rows { numbers: &b, stride: stride_b });
        let mut got = drawn::<S>(rows * stride_b, 3);
        let mut want = got.clone();
        multiply_pairs((rows, cols, pairs), factors, (&mut want, stride_b), destination);
        for threads in [1, 3] {
            let mut out = got.clone();
            multiply((rows, cols, pairs), factors, (&mut out, stride_b), (destination, S::ONE), threads);
            assert_eq!(out, want, "{rows} {cols} {pairs} {destination:?} {threads}");
        }
        multiply((rows, cols, pairs), factors, (&mut got, stride_b), (Destination::Add, S::MINUS_ONE), 1);
        multiply((rows, cols, pairs), factors, (&mut got, stride_b), (Destination::Add, S::ONE), 1);
        assert_eq!(got, drawn::<S>(rows * stride_b, 3));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn products_match_those_pair_by_pair(rows in 0usize..70, cols in 0usize..70, pairs in 0usize..40, padding in 0usize..9, adds: bool) {
            let destination = if adds { Destination::Add } else { Destination::Overwrite };
            check::<f64>((rows, cols, pairs), padding, destination);
            check::<f32>((rows, cols, pairs), padding, destination);
        }
    }

    #[test]
    fn overwritten_numbers_do_not_count_even_if_nan() {
        let one = Rows { numbers: &[2.0f32, 3.0], stride: 2 };
        let mut out = [f32::NAN; 4];
        multiply((2, 2, 1), (one, one), (&mut out, 2), (Destination::Overwrite, 1.0), 1);
        assert_eq!(out, [4.0, 6.0, 6.0, 9.0]);
        let mut empty = [f32::NAN; 4];
        multiply((2, 2, 0), (one, one), (&mut empty, 2), (Destination::Overwrite, 1.0), 1);
        assert_eq!(empty, [0.0; 4]);
    }

    #[test]
    fn sixteen_bits_are_summed_in_float32() {
        let halves: Vec<bf16> = drawn(5, 1);
        let mut wide = [0f32; 5];
        bf16::widen(&halves, &mut wide);
        let mut back = [bf16::ZERO; 5];
        bf16::narrow(&wide, &mut back);
        assert_eq!(halves, back);
        assert!(bf16::as_sums(&mut back).is_none() && f64::as_sums(&mut [1.0]).is_some());
        assert_eq!(f16::ONE.to_f32(), 1.0);
    }
}
