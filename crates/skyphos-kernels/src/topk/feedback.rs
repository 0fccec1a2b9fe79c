//! Error feedback: values that were not sent are added to the next gradient (SparCML Algorithm 1).
//!
//! ```text
//! acc = residual + gradient;   send Q(TopK(acc));   residual = acc - TopK(acc)
//! ```
//!
//! [`take_topk_of_sum`] and [`take_layers`] do this without Q. [`put_back`] adds TopK(acc) - Q(TopK(acc)) to the residual, so that
//! quantisation errors are sent later too. All values sent plus the residual then equal the sum of all gradients, up to
//! rounding. Cost: one pass over gradient and residual, which stay in the cache while values are added and chosen, and O(k).

use super::selected::Selected;
use super::{Magnitude, Select, check, fill_and_take};
use crate::prefetch::prefetch_to_second_level;
use crate::quantise::{Draw, Quantize, dequantise, quantise, quantised_bytes};
use crate::simd;
use skyphos_types::{Error, Real, Result};
use std::ops::Range;

/// Adds the gradient to the residual, then moves the chosen values out of the residual.
///
/// # Errors
/// As [`super::take_topk`], or a gradient of another length; the residual is then unchanged.
pub fn take_topk_of_sum<T: Magnitude>(
    residual: &mut [T],
    gradient: &[T],
    select: Select<T>,
    indices: &mut Vec<u32>,
    picked: &mut Vec<T>,
) -> Result<()> {
    let layers = [Layer { range: 0..residual.len(), select }];
    take_layers_if(residual, Incoming::new(gradient), &layers, |_| true, indices, picked)
}

/// A gradient to be added to a residual.
pub struct Incoming<'a, T> {
    /// The gradient.
    pub gradient: &'a [T],
    /// Factor of the gradient; `None` means 1.
    pub scale: Option<T>,
    /// Momentum correction (Lin et al. 2018, §3.2): u and m of u = m u + gradient. The new u is added in place of the gradient, and
    /// is cleared where values are sent.
    pub velocity: Option<(&'a mut [T], T)>,
}

impl<'a, T> Incoming<'a, T> {
    /// The gradient with factor 1 and without momentum.
    pub fn new(gradient: &'a [T]) -> Incoming<'a, T> {
        Incoming { gradient, scale: None, velocity: None }
    }
}

impl<T: Real> Incoming<'_, T> {
    /// Adds the gradient to a part of the residual that begins at `at`.
    ///
    /// Prefetches are issued between additions, a few at a time, so that the last ones are still in progress while values are chosen
    /// from the part and nothing is read from memory. Issued all at once they would stall the processor.
    #[inline(always)]
    fn add_to(&mut self, part: &mut [T], at: usize) {
        for (values, at) in part.chunks_mut(PREFETCH_INTERVAL).zip((at..).step_by(PREFETCH_INTERVAL)) {
            let range = at..at + values.len();
            let gradient = &self.gradient[range.clone()];
            prefetch_ahead(values, PREFETCH_INTERVAL);
            prefetch_ahead(gradient, PREFETCH_INTERVAL);
            // Separate loops, so that each is vectorised.
            match (self.scale, &mut self.velocity) {
                (None, None) => values.iter_mut().zip(gradient).for_each(|(r, g)| *r = r.add(*g)),
                (Some(scale), None) => {
                    values.iter_mut().zip(gradient).for_each(|(r, g)| *r = r.add(g.mul(scale)))
                }
                (scale, Some((velocity, momentum))) => {
                    let velocity = &mut velocity[range];
                    prefetch_ahead(velocity, PREFETCH_INTERVAL);
                    for ((r, g), u) in values.iter_mut().zip(gradient).zip(velocity) {
                        *u = u.mul(*momentum).add(scale.map_or(*g, |scale| g.mul(scale)));
                        *r = r.add(*u);
                    }
                }
            }
        }
    }
}

/// Values that are added between prefetches.
const PREFETCH_INTERVAL: usize = 64;

/// Distance from the values that are added to those that are prefetched, in bytes.
const PREFETCH_BYTES: usize = 4096;

/// Prefetches the cache lines of `count` values that begin [`PREFETCH_BYTES`] after the start of these.
#[inline(always)]
fn prefetch_ahead<T>(values: &[T], count: usize) {
    const LINE_BYTES: usize = 64;
    for bytes in (0..count * size_of::<T>()).step_by(LINE_BYTES) {
        prefetch_to_second_level(values.as_ptr().cast::<u8>().wrapping_add(bytes + PREFETCH_BYTES));
    }
}

/// A part of a vector from which values are chosen separately.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer<T> {
    /// Positions of the layer.
    pub range: Range<usize>,
    /// Rule of selection.
    pub select: Select<T>,
}

/// As [`take_topk_of_sum`], layer by layer. Layers must ascend without overlap; values between them are neither read nor chosen. A
/// layer whose gradient is zero everywhere is skipped: its residual stays.
///
/// # Errors
/// As [`take_topk_of_sum`], a velocity of another length, or layers that overlap or end beyond the vector; nothing is then changed.
pub fn take_layers<T: Magnitude>(
    residual: &mut [T],
    incoming: Incoming<'_, T>,
    layers: &[Layer<T>],
    indices: &mut Vec<u32>,
    picked: &mut Vec<T>,
) -> Result<()> {
    let is_nonzero = |gradient: &[T]| gradient.iter().any(|g| *g != T::ZERO);
    take_layers_if(residual, incoming, layers, is_nonzero, indices, picked)
}

/// [`take_layers`] for the layers whose gradient `is_sent` accepts.
fn take_layers_if<T: Magnitude>(
    residual: &mut [T],
    mut incoming: Incoming<'_, T>,
    layers: &[Layer<T>],
    is_sent: impl Fn(&[T]) -> bool,
    indices: &mut Vec<u32>,
    picked: &mut Vec<T>,
) -> Result<()> {
    let count = residual.len();
    let velocity = incoming.velocity.as_ref().map_or(count, |(u, _)| u.len());
    for (name, len) in [("gradient", incoming.gradient.len()), ("velocity", velocity)] {
        if len != count {
            let message = format!("a {name} of {len} values does not fit a residual of {count}");
            return Err(Error::bad_input(message));
        }
    }
    let mut end = 0;
    for Layer { range, select } in layers {
        check(count, *select)?;
        if range.start < end || range.end < range.start || range.end > count {
            let message = format!("layer {range:?} overlaps, or ends beyond the vector of {count} values");
            return Err(Error::bad_input(message));
        }
        end = range.end;
    }
    let (isa, mut selected) = (simd::detected(), Selected::new(indices, picked));
    for Layer { range, select } in layers {
        if !is_sent(&incoming.gradient[range.clone()]) {
            continue;
        }
        let (layer, start) = (&mut residual[range.clone()], range.start);
        fill_and_take(
            isa,
            layer,
            start as u32,
            *select,
            &mut selected,
            #[inline(always)]
            |part, at| incoming.add_to(part, start + at),
        );
    }
    if let Some((velocity, _)) = &mut incoming.velocity {
        selected.indices.iter().for_each(|index| velocity[*index as usize] = T::ZERO);
    }
    Ok(())
}

/// Replaces values by their quantised ones.
///
/// # Errors
/// A value that is not finite as float32; the values are then unchanged.
pub fn quantise_in_place<T: Real>(values: &mut [T], params: &Quantize, draw: Draw) -> Result<()> {
    let mut codes = vec![0; quantised_bytes(values.len(), params)];
    quantise(values, params, draw, &mut codes)?;
    dequantise(&codes, params, values).map_err(Error::bad_input)
}

/// Adds the rounding errors `picked` - `sent` to the residual at `indices`.
///
/// # Errors
/// Lists of different lengths, or an index outside the residual; some errors may then have been added.
pub fn put_back<T: Real>(residual: &mut [T], indices: &[u32], picked: &[T], sent: &[T]) -> Result<()> {
    if indices.len() != picked.len() || indices.len() != sent.len() {
        return Err(Error::bad_input("putting values back takes as many indices as values"));
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
    use crate::topk::take_topk;
    use proptest::prelude::*;

    proptest! {
        /// Gradients are multiples of 1/8, so that sums are exact.
        #[test]
        fn sent_values_and_residual_add_up_to_the_input(
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
                    // A bucket of one value is quantised to that value, up to rounding.
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

    proptest! {
        /// Compares with a selection from each layer alone, after velocity and factor were applied by their formulas.
        #[test]
        fn layers_are_independent(
            lens in prop::collection::vec((0usize..3000, 0usize..40), 1..5), k in 1usize..20, seed in any::<u32>(),
            bucket in prop::sample::select(vec![16usize, 64, 512, 5000]), momentum in prop::option::of(-0.9f32..0.9),
            scale in prop::option::of(-2f32..2.0), whole in any::<bool>(), empty in 0usize..5,
        ) {
            let select = if whole { Select::Whole { k } } else { Select::Buckets { k: k.min(bucket), bucket } };
            let (mut layers, mut count) = (vec![], 0);
            for (len, gap) in lens {
                layers.push(Layer { range: count + gap..count + gap + len, select });
                count += gap + len;
            }
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 24) as f32 - 0.5
            };
            let mut drawn = || (0..count).map(|_| next()).collect::<Vec<f32>>();
            let (mut residual, mut velocity, mut gradient) = (drawn(), drawn(), drawn());
            if let Some(layer) = layers.get(empty) {
                gradient[layer.range.clone()].fill(0.0);
            }
            let (mut acc, mut u) = (residual.clone(), velocity.clone());
            let (mut indices, mut picked) = (vec![], vec![]);
            let (mut want_indices, mut want_picked) = (vec![], vec![]);
            for Layer { range, select } in &layers {
                if gradient[range.clone()].iter().all(|g| *g == 0.0) {
                    continue;
                }
                for i in range.clone() {
                    let g = scale.map_or(gradient[i], |scale| gradient[i] * scale);
                    u[i] = momentum.map_or(u[i], |m| u[i] * m + g);
                    acc[i] += momentum.map_or(g, |_| u[i]);
                }
                take_topk(&mut acc[range.clone()], *select, &mut indices, &mut picked).unwrap();
                want_indices.extend(indices.iter().map(|i| i + range.start as u32));
                want_picked.append(&mut picked);
            }
            if momentum.is_some() {
                want_indices.iter().for_each(|i| u[*i as usize] = 0.0);
            }
            let incoming =
                Incoming { gradient: &gradient, scale, velocity: momentum.map(|m| (&mut velocity[..], m)) };
            take_layers(&mut residual, incoming, &layers, &mut indices, &mut picked).unwrap();
            prop_assert_eq!((indices, picked), (want_indices, want_picked));
            prop_assert_eq!((residual, velocity), (acc, u));
        }
    }

    #[test]
    fn the_residual_is_sent_without_a_gradient_too() {
        let (mut residual, mut indices, mut picked) = ([1f32, -3.0], vec![], vec![]);
        take_topk_of_sum(&mut residual, &[0.0; 2], Select::Whole { k: 1 }, &mut indices, &mut picked)
            .unwrap();
        assert_eq!((residual, &indices[..], &picked[..]), ([1.0, 0.0], &[1][..], &[-3.0][..]));
        // A layer whose gradient is zero is skipped.
        let layers = [Layer { range: 0..2, select: Select::Whole { k: 1 } }];
        let incoming = Incoming::new(&[0.0; 2]);
        take_layers(&mut residual, incoming, &layers, &mut indices, &mut picked).unwrap();
        assert_eq!((residual, indices.len()), ([1.0, 0.0], 0));
    }

    #[test]
    fn refused_input_changes_nothing() {
        let mut residual = vec![1f32, 2.0];
        let (mut indices, mut picked) = (vec![], vec![]);
        let error =
            take_topk_of_sum(&mut residual, &[1.0], Select::Whole { k: 1 }, &mut indices, &mut picked)
                .unwrap_err();
        assert!(error.to_string().contains("residual of 2"), "{error}");
        let bad = Select::Buckets { k: 1, bucket: 0 };
        assert!(take_topk_of_sum(&mut residual, &[1.0, 1.0], bad, &mut indices, &mut picked).is_err());
        for ranges in [[0..1, 0..2], [0..1, 1..3]] {
            let layers = ranges.map(|range| Layer { range, select: Select::Whole { k: 1 } });
            let incoming = Incoming::new(&[1.0, 1.0]);
            assert!(take_layers(&mut residual, incoming, &layers, &mut indices, &mut picked).is_err());
        }
        let mut short = [0.0];
        let incoming = Incoming { velocity: Some((&mut short, 0.5)), ..Incoming::new(&[1.0, 1.0]) };
        assert!(take_layers(&mut residual, incoming, &[], &mut indices, &mut picked).is_err());
        assert!(put_back(&mut residual, &[2], &[1.0], &[0.5]).is_err());
        let mut values = [1.0, f32::NAN];
        let draw = Draw { call: 0, rank: 0, first_bucket: 0 };
        assert!(quantise_in_place(&mut values, &Quantize::default(), draw).is_err());
        assert_eq!((residual, values[0]), (vec![1.0, 2.0], 1.0));
    }
}
