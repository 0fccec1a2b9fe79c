//! Error feedback: what was not sent is added to the next gradient (SparCML Algorithm 1).
//!
//! ```text
//! acc = residual + gradient;   send Q(TopK(acc));   residual = acc - TopK(acc)
//! ```
//!
//! [`take_topk_of_sum`] is that without Q. [`put_back`] adds TopK(acc) - Q(TopK(acc)) to the residual, so that
//! what quantisation lost is sent later too. Then the sum of all that was sent and the residual is the sum of
//! all gradients, but for rounding. Cost: one pass over the gradient, and O(k).

use super::{Magnitude, Select, check, take_topk};
use crate::quantise::{Draw, Quantize, dequantise, quantise, quantised_bytes};
use skyphos_types::{Error, Real, Result};

/// Adds the gradient to the residual, and moves the chosen values of the sum out of it.
///
/// # Errors
/// As [`take_topk`], or a gradient of another length; the residual is then as it was.
pub fn take_topk_of_sum<T: Magnitude>(
    residual: &mut [T],
    gradient: &[T],
    select: Select<T>,
    indices: &mut Vec<u32>,
    picked: &mut Vec<T>,
) -> Result<()> {
    if residual.len() != gradient.len() {
        return Err(Error::bad_input(format!(
            "a gradient of {} values does not fit a residual of {}",
            gradient.len(),
            residual.len()
        )));
    }
    check(gradient.len(), select)?;
    residual.iter_mut().zip(gradient).for_each(|(r, g)| *r = r.add(*g));
    take_topk(residual, select, indices, picked)
}

/// Replaces values by what their quantised form stands for.
///
/// # Errors
/// A value that is not finite as float32; the values are then as they were.
pub fn quantise_in_place<T: Real>(values: &mut [T], params: &Quantize, draw: Draw) -> Result<()> {
    let mut codes = vec![0; quantised_bytes(values.len(), params)];
    quantise(values, params, draw, &mut codes)?;
    dequantise(&codes, params, values).map_err(Error::bad_input)
}

/// Adds `picked` - `sent`, as each was rounded, to the residual at `indices`.
///
/// # Errors
/// Lists of different lengths, an index outside the residual; some may then have been added.
pub fn put_back<T: Real>(residual: &mut [T], indices: &[u32], picked: &[T], sent: &[T]) -> Result<()> {
    if indices.len() != picked.len() || indices.len() != sent.len() {
        return Err(Error::bad_input("as many indices as values are put back"));
    }
    for ((index, exact), sent) in indices.iter().zip(picked).zip(sent) {
        let slot = residual.get_mut(*index as usize);
        let slot = slot.ok_or_else(|| Error::bad_input(format!("index {index} is outside the residual")))?;
        *slot = slot.add(exact.sub(*sent));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantise::Scale;
    use proptest::prelude::*;

    proptest! {
        /// Multiples of a power of two: nothing is rounded, so nothing may be lost.
        #[test]
        fn what_is_sent_and_what_stays_is_all_there_was(
            steps in prop::collection::vec(prop::collection::vec(-500i32..500, 40), 1..8), k in 1usize..50,
            bucket in prop::option::of(1usize..50), bits in prop::option::of(prop::sample::select(vec![2u8, 4, 8])),
        ) {
            let (mut residual, mut sent, mut all) = (vec![0f64; 40], vec![0f64; 40], vec![0f64; 40]);
            let (mut indices, mut picked) = (Vec::new(), Vec::new());
            for (step, gradient) in steps.iter().enumerate() {
                let gradient: Vec<f64> = gradient.iter().map(|g| f64::from(*g) / 8.0).collect();
                all.iter_mut().zip(&gradient).for_each(|(a, g)| *a += g);
                let select = bucket.map_or(Select::Whole { k }, |bucket| Select::Buckets { k, bucket });
                take_topk_of_sum(&mut residual, &gradient, select, &mut indices, &mut picked).unwrap();
                let mut coarse = picked.clone();
                if let Some(bits) = bits {
                    // Scales of other numbers than powers of two would round.
                    let params = Quantize::new(bits, 1, Scale::Max, 4).unwrap();
                    let draw = Draw { call: step as u64, rank: 0, first_bucket: 0 };
                    quantise_in_place(&mut coarse, &params, draw).unwrap();
                    put_back(&mut residual, &indices, &picked, &coarse).unwrap();
                }
                indices.iter().zip(&coarse).for_each(|(i, v)| sent[*i as usize] += v);
                let got = sent.iter().zip(&residual).map(|(s, r)| s + r);
                for (got, want) in got.zip(&all) {
                    prop_assert!((got - want).abs() < 1e-3);
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let mut residual = vec![1f32, 2.0];
        let (mut indices, mut picked) = (vec![], vec![]);
        let error =
            take_topk_of_sum(&mut residual, &[1.0], Select::Whole { k: 1 }, &mut indices, &mut picked)
                .unwrap_err();
        assert!(error.to_string().contains("residual of 2"), "{error}");
        let bad = Select::Buckets { k: 1, bucket: 0 };
        assert!(take_topk_of_sum(&mut residual, &[1.0, 1.0], bad, &mut indices, &mut picked).is_err());
        assert!(put_back(&mut residual, &[2], &[1.0], &[0.5]).is_err());
        let mut values = [1.0, f32::NAN];
        let draw = Draw { call: 0, rank: 0, first_bucket: 0 };
        assert!(quantise_in_place(&mut values, &Quantize::default(), draw).is_err());
        assert_eq!((residual, values[0]), (vec![1.0, 2.0], 1.0));
    }
}
