use super::*;
use proptest::prelude::*;
use skyphos_types::{bf16, f16};

/// Oracle: sort by magnitude, then by index.
fn plain<T: Magnitude>(values: &[T], select: Select<T>) -> Vec<u32> {
    let top = |start: usize, bucket: &[T], k: usize| {
        let mut order: Vec<usize> = (0..bucket.len()).collect();
        order.sort_by_key(|i| (std::cmp::Reverse(bucket[*i].magnitude()), *i));
        order.truncate(k);
        order.sort_unstable();
        order.into_iter().map(move |i| (i + start) as u32)
    };
    match select {
        Select::Whole { k } => top(0, values, k).collect(),
        Select::Buckets { k, bucket } => {
            values.chunks(bucket).enumerate().flat_map(|(n, part)| top(n * bucket, part, k)).collect()
        }
        Select::AtLeast(t) => (0..values.len() as u32)
            .filter(|i| t.least(T::ZERO) == t || values[*i as usize].magnitude() >= t.magnitude())
            .collect(),
    }
}

fn raw<T: Magnitude>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

fn check<T: Magnitude>(values: &[T], select: Select<T>) {
    let want = plain(values, select);
    let chosen: Vec<T> = want.iter().map(|i| values[*i as usize]).collect();
    let (mut indices, mut picked) = (vec![77], vec![T::ONE; 2]);
    for isa in simd::all_detected() {
        topk_at(isa, values, select, &mut Selected::new(&mut indices, &mut picked));
        assert_eq!(indices, want, "{isa:?} {select:?}");
        assert_eq!(raw(&picked), raw(&chosen), "{isa:?} {select:?}");

        let mut acc = values.to_vec();
        take_at(isa, &mut acc, select, &mut Selected::new(&mut indices, &mut picked));
        assert_eq!((&indices, raw(&picked)), (&want, raw(&chosen)), "{isa:?} {select:?}");
        for i in &indices {
            assert_eq!(acc[*i as usize], T::ZERO);
            acc[*i as usize] = values[*i as usize];
        }
        assert_eq!(raw(&acc), raw(values));
    }
}

/// Checks the selection for every type.
fn check_types(values: &[f32], select: Select<f32>) {
    fn convert<T: Magnitude>(select: Select<f32>) -> Select<T> {
        match select {
            Select::Whole { k } => Select::Whole { k },
            Select::Buckets { k, bucket } => Select::Buckets { k, bucket },
            Select::AtLeast(t) => Select::AtLeast(T::from_f32(t)),
        }
    }
    check(values, select);
    // Doubles whose differences are too small for f32.
    let doubles = |(k, v): (usize, &f32)| f64::from(*v) * (1.0 + k as f64 * 1e-12);
    check(&values.iter().enumerate().map(doubles).collect::<Vec<_>>(), convert(select));
    check(&values.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>(), convert(select));
    check(&values.iter().map(|v| f16::from_f32(*v)).collect::<Vec<_>>(), convert(select));
}

/// Ordinary numbers, any bits (including NaN and infinities), few distinct numbers, mostly zeros.
fn any_values(max: usize) -> impl Strategy<Value = Vec<f32>> {
    let special = prop::sample::select(vec![
        0.0f32,
        -0.0,
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MIN_POSITIVE,
        1e-45,
        -1e-45,
        1.0,
        -1.0,
        f32::MAX,
        f32::from_bits(0x7fff_ffff),
        f32::from_bits(0x7f80_0001),
    ]);
    let rare = (0u8..100, -9f32..9.0).prop_map(|(p, v)| if p < 5 { v } else { 0.0 });
    prop_oneof![
        prop::collection::vec(-10f32..10.0, 0..max),
        prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..max),
        prop::collection::vec(special, 0..max),
        prop::collection::vec((-3i8..=3).prop_map(f32::from), 0..max),
        prop::collection::vec(rare, 0..max),
        (any::<f32>(), 0..max).prop_map(|(v, count)| vec![v; count]),
    ]
}

proptest! {
    #[test]
    fn selection_from_a_whole_vector_matches_the_oracle(values in any_values(1500), k in prop_oneof![0usize..40, 0usize..2000]) {
        check_types(&values, Select::Whole { k });
    }

    #[test]
    fn selection_from_buckets_matches_the_oracle(
        values in any_values(1500),
        k in prop_oneof![0usize..6, 0usize..40, 0usize..700],
        bucket in prop_oneof![1usize..100, Just(512), Just(64), 500usize..2000],
    ) {
        check_types(&values, Select::Buckets { k, bucket });
    }

    #[test]
    fn selection_by_threshold_matches_the_oracle(
        values in any_values(1500),
        t in prop_oneof![-1f32..10.0, Just(0.0), Just(f32::INFINITY), Just(1e-45), Just(3.0)],
    ) {
        check_types(&values, Select::AtLeast(t));
    }
}

#[test]
fn selection_by_a_sampled_threshold_matches_the_oracle() {
    let count = MAX_UNSAMPLED + 4321;
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let ordinary: Vec<f32> = (0..count).map(|_| next().powi(3)).collect();
    let one_in = |keep: usize| -> Vec<f32> {
        ordinary.iter().enumerate().map(|(i, v)| if i % keep == 0 { *v } else { 0.0 }).collect()
    };
    let (tenth, thousandth) = (one_in(10), one_in(1000));
    let steps: Vec<f32> = ordinary.iter().map(|v| (v * 40.0).round()).collect();
    // The large values are adjacent, where few samples are, so the first threshold may be too high or too low.
    let clustered: Vec<f32> =
        (0..count).map(|i| if i < 300 { 9.0 + ordinary[i] } else { ordinary[i] }).collect();
    let same = vec![-2.5f32; count];
    let rising: Vec<f32> = (0..count).map(|i| i as f32).collect();
    let nan: Vec<f32> = ordinary.iter().map(|v| if *v > 0.12 { f32::NAN } else { *v }).collect();
    // Only the sampled values are large, so the first two thresholds are far too high.
    let mut misleading = ordinary.clone();
    (0..SAMPLE).for_each(|i| misleading[sample_position(i, count)] += 5.0);
    for values in [&ordinary, &tenth, &thousandth, &steps, &clustered, &same, &rising, &nan, &misleading] {
        for k in [0, 1, 60, 299, 700, count / 10, count / 2, count - 1, count, count + 5] {
            check(values, Select::Whole { k });
        }
    }
    check(&ordinary.iter().map(|v| f64::from(*v)).collect::<Vec<_>>(), Select::Whole { k: 1000 });
    check(&ordinary.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>(), Select::Whole { k: 1000 });
}

#[test]
fn nan_is_the_largest_and_signs_do_not_count() {
    let values = [1.0f32, f32::NAN, -3.0, f32::NEG_INFINITY, 0.0];
    let (mut indices, mut picked) = (vec![], vec![]);
    topk(&values, Select::Whole { k: 3 }, &mut indices, &mut picked).unwrap();
    assert_eq!(indices, [1, 2, 3]);
    topk(&values, Select::Buckets { k: 1, bucket: 2 }, &mut indices, &mut picked).unwrap();
    assert_eq!(indices, [1, 3, 4]);
    topk(&values, Select::AtLeast(f32::INFINITY), &mut indices, &mut picked).unwrap();
    assert_eq!((indices, picked[1]), (vec![1, 3], f32::NEG_INFINITY));
}

#[test]
fn thresholds_below_the_range_of_f32_count() {
    let values = [0.0f64, 1e-60, -1e-50, 2e-50, -1.0];
    let (mut indices, mut picked) = (vec![], vec![]);
    for (threshold, want) in [
        (1e-50, vec![2, 3, 4]),
        (5e-324, vec![1, 2, 3, 4]),
        (0.0, vec![0, 1, 2, 3, 4]),
        (-0.0, vec![0, 1, 2, 3, 4]),
        (-1e-50, vec![0, 1, 2, 3, 4]),
    ] {
        topk(&values, Select::AtLeast(threshold), &mut indices, &mut picked).unwrap();
        assert_eq!(indices, want, "at least {threshold:e}");
        check(&values, Select::AtLeast(threshold));
    }
}

#[test]
fn refused_input_changes_nothing() {
    let (mut indices, mut picked) = (vec![], vec![]);
    let mut acc = [1.0f32; 3];
    for select in [Select::AtLeast(f32::NAN), Select::Buckets { k: 1, bucket: 0 }] {
        assert!(topk(&acc, select, &mut indices, &mut picked).is_err());
        assert!(take_topk(&mut acc, select, &mut indices, &mut picked).is_err());
        assert_eq!(acc, [1.0; 3]);
    }
}

#[test]
fn the_residual_has_all_values_that_were_not_taken() {
    // SparCML, algorithm 1: acc = ε + gradient; send TopK(acc); ε = acc - TopK(acc).
    let mut residual = vec![0f64; 1000];
    let mut sent = vec![0f64; 1000];
    let (mut indices, mut picked) = (vec![], vec![]);
    for round in 0..40 {
        residual.iter_mut().enumerate().for_each(|(i, r)| *r += f64::from((i * 7 + round) as u32 % 64));
        take_topk(&mut residual, Select::Buckets { k: 9, bucket: 100 }, &mut indices, &mut picked).unwrap();
        assert_eq!(indices.len(), 90);
        indices.iter().zip(&picked).for_each(|(i, v)| sent[*i as usize] += v);
    }
    for i in 0..1000 {
        let whole: u32 = (0..40).map(|round| (i * 7 + round) as u32 % 64).sum();
        assert_eq!(sent[i] + residual[i], f64::from(whole));
    }
}
