use super::*;
use proptest::prelude::*;
use skyphos_types::{bf16, f16};

/// Oracle of the encoder: value by value and bit by bit.
fn quantise_plain<T: Real>(values: &[T], params: &Quantize, draw: Draw) -> Vec<u8> {
    let mut bytes = Vec::new();
    let stream = Key::of_call(params.seed, draw);
    for (number, bucket) in values.chunks(params.bucket()).enumerate() {
        let f32s: Vec<f32> = bucket.iter().map(|v| v.to_f32()).collect();
        let scale = match params.scale {
            Scale::Max => f32s.iter().fold(0.0, |top: f32, v| top.max(v.abs())),
            Scale::L2 => {
                let mut sums = [0.0; ACCUMULATORS];
                for (k, v) in f32s.iter().enumerate() {
                    sums[k % ACCUMULATORS] += f64::from(*v).powi(2);
                }
                sums.iter().sum::<f64>().sqrt().min(f64::from(f32::MAX)) as f32
            }
        };
        bytes.extend(scale.to_le_bytes());
        let key = Key::of_bucket(stream, draw.first_bucket + number as u64);
        let to_levels = ToLevels::new(scale, params.levels());
        let start = bytes.len();
        bytes.resize(start + (bucket.len() * params.bits() as usize).div_ceil(8), 0);
        for (position, v) in f32s.iter().enumerate() {
            let exact = (*v * to_levels.prescale * to_levels.factor) as i64;
            let level = (exact + i64::from(key.random(position as u32) >> 8)).div_euclid(1 << FRACTION);
            assert!(level.unsigned_abs() <= u64::from(params.levels()));
            for bit in 0..params.bits() as usize {
                let at = position * params.bits() as usize + bit;
                bytes[start + at / 8] |= ((level >> bit & 1) as u8) << (at % 8);
            }
        }
    }
    bytes
}

/// Oracle of the decoder.
fn dequantise_plain<T: Real>(bytes: &[u8], values: usize, params: &Quantize) -> Vec<T> {
    let (bits, bucket) = (params.bits() as usize, params.bucket());
    let stride = SCALE_BYTES + (bucket * bits).div_ceil(8);
    (0..values)
        .map(|k| {
            let packed = &bytes[k / bucket * stride..];
            let scale = f32::from_le_bytes(packed[..SCALE_BYTES].try_into().unwrap());
            let at = k % bucket * bits;
            let field = i32::from(packed[SCALE_BYTES + at / 8] >> (at % 8)) & ((1 << bits) - 1);
            let level = if field >= 1 << (bits - 1) { field - (1 << bits) } else { field };
            T::from_f32(level as f32 * (1.0 / params.levels() as f32) * scale)
        })
        .collect()
}

const DRAW: Draw = Draw { call: 7, rank: 3, first_bucket: 11 };

fn check<T: Real>(values: &[T], params: &Quantize) {
    let want = quantise_plain(values, params, DRAW);
    assert_eq!(want.len(), quantised_bytes(values.len(), params));
    let plain: Vec<T> = dequantise_plain(&want, values.len(), params);
    let (mut sum, mut added) = (values.to_vec(), values.to_vec());
    sum.iter_mut().zip(&plain).for_each(|(s, v)| *s = s.add(*v));
    dequantise_and_add(&want, params, &mut added).unwrap();
    for isa in simd::all_detected() {
        let mut bytes = vec![0xaa; want.len()];
        encode_at(isa, values, params, DRAW, &mut bytes).unwrap();
        assert_eq!(bytes, want, "{isa:?}");
        let mut back = vec![T::ONE; values.len()];
        decode_at(isa, &bytes, params, &mut back, |_, v| v).unwrap();
        let raw = |v: &[T]| bytemuck::cast_slice::<T, u8>(v).to_vec();
        assert_eq!(raw(&back), raw(&plain), "{isa:?}");
        assert_eq!(raw(&added), raw(&sum));
    }
}

fn any_params() -> impl Strategy<Value = Quantize> {
    let bits = prop_oneof![Just(2u8), Just(4), Just(8)];
    let bucket = prop_oneof![1u32..300, Just(64), Just(1024)];
    let scale = prop_oneof![Just(Scale::L2), Just(Scale::Max)];
    (bits, bucket, scale, any::<u64>()).prop_map(|(b, n, s, seed)| Quantize::new(b, n, s, seed).unwrap())
}

/// Finite numbers of any magnitude, numbers of one magnitude, and zeros.
fn any_values() -> impl Strategy<Value = Vec<f32>> {
    let any = any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |v| v.is_finite());
    let small = (0u32..200).prop_map(f32::from_bits);
    let length = prop_oneof![0usize..80, 0usize..2500];
    let pattern = prop_oneof![
        prop::collection::vec(any, 80),
        prop::collection::vec(small, 80),
        prop::collection::vec(-1f32..1.0, 80),
        Just(vec![f32::MAX, -f32::MAX, f32::MAX, 1.0]),
        Just(vec![0.0, -0.0]),
    ];
    (pattern, length).prop_map(|(pattern, length)| pattern.iter().cycle().take(length).copied().collect())
}

proptest! {
    #[test]
    fn every_instruction_set_matches_the_oracle(values in any_values(), params in any_params()) {
        check(&values, &params);
        check(&values.iter().map(|v| f64::from(*v) * 0.999).collect::<Vec<_>>(), &params);
        // Numbers that are finite in these types; the largest scale of f16 makes infinite results.
        check(&values.iter().map(|v| bf16::from_f32(v * 0.5)).collect::<Vec<_>>(), &params);
        let fits = |v: &f32| f16::from_f32(v.clamp(-6e4, 6e4));
        check(&values.iter().map(fits).collect::<Vec<_>>(), &params);
    }

    #[test]
    fn any_bytes_are_numbers_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        count in 0usize..600,
        params in any_params(),
    ) {
        let mut out = vec![0f32; count];
        let fits = bytes.len() == quantised_bytes(count, &params);
        let decoded = dequantise(&bytes, &params, &mut out);
        prop_assert!(fits || decoded.is_err());
        // Any contents of the right length.
        let mut long: Vec<u8> = bytes.iter().cycle().take(quantised_bytes(count, &params)).copied().collect();
        long.resize(quantised_bytes(count, &params), 0x7f);
        let scales = long.chunks(SCALE_BYTES + params.code_bytes(params.bucket()));
        let sane = scales.map(|b| f32::from_le_bytes(b[..4].try_into().unwrap())).all(|s| s.is_finite() && s >= 0.0);
        for isa in simd::all_detected() {
            prop_assert_eq!(decode_at(isa, &long, &params, &mut out, |a, v| a + v).is_ok(), sane);
        }
    }
}

#[test]
fn parts_are_quantised_like_the_whole_vector() {
    let params = Quantize::new(4, 100, Scale::Max, 5).unwrap();
    let values: Vec<f32> = (0..1050).map(|k| (k as f32).sin()).collect();
    let mut whole = vec![0; quantised_bytes(1050, &params)];
    quantise(&values, &params, DRAW, &mut whole).unwrap();
    let (left, right) = values.split_at(300);
    let at = quantised_bytes(300, &params);
    let mut parts = vec![0; whole.len()];
    quantise(left, &params, DRAW, &mut parts[..at]).unwrap();
    let later = Draw { first_bucket: DRAW.first_bucket + 3, ..DRAW };
    quantise(right, &params, later, &mut parts[at..]).unwrap();
    assert_eq!(parts, whole);
}

#[test]
fn the_largest_comes_back_exactly_and_the_others_within_a_step() {
    for bits in [2u8, 4, 8] {
        for largest in [1.0f32, 3e38, 1e-30, 1e-38, 1e-44, f32::MAX] {
            let params = Quantize::new(bits, 50, Scale::Max, 1).unwrap();
            let values: Vec<f32> = (0..50).map(|k| (k as f32 / 49.0 * 2.0 - 1.0) * largest).collect();
            let mut bytes = vec![0; quantised_bytes(50, &params)];
            quantise(&values, &params, DRAW, &mut bytes).unwrap();
            let mut back = [0f32; 50];
            dequantise(&bytes, &params, &mut back).unwrap();
            let step = f64::from(largest) / f64::from(params.levels()) * 1.000_001 + 2e-45;
            for (v, b) in values.iter().zip(back) {
                assert!((f64::from(*v) - f64::from(b)).abs() <= step, "{bits} bits: {v:e} gave {b:e}");
            }
            assert_eq!(back[49], largest);
        }
    }
}

#[test]
fn the_error_names_the_value_that_is_not_finite() {
    for (bad, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        for scale in [Scale::L2, Scale::Max] {
            for position in [0usize, 70, 1023, 1024, 2999] {
                let params = Quantize::new(4, 1024, scale, 0).unwrap();
                let mut values = vec![0.5f32; 3000];
                values[position] = bad;
                let mut out = vec![0; quantised_bytes(3000, &params)];
                let error = quantise(&values, &params, DRAW, &mut out).unwrap_err().to_string();
                assert!(error.starts_with(&format!("values[{position}] = {shown} ")), "{error}");
            }
        }
    }
    let (params, mut out) = (Quantize::default(), [0; 5]);
    let error = quantise(&[1e300f64], &params, DRAW, &mut out).unwrap_err().to_string();
    assert!(error.starts_with("values[0] = 1e300 "), "{error}");
    assert!(quantise(&[1f32; 9], &params, DRAW, &mut out).unwrap_err().to_string().contains("9 bytes"));
    assert!(Quantize::new(3, 1024, Scale::L2, 0).is_err() && Quantize::new(4, 0, Scale::L2, 0).is_err());
}

/// Number of draws that the statistics below average.
const DRAWS: u64 = 4000;

/// The mean of each Q(v)_i and the mean of |Q(v) - v|², over `DRAWS` quantisations of v.
fn statistics(v: &[f32], quantiser: impl Fn(u64) -> Vec<f32>) -> (Vec<f64>, f64) {
    let (mut means, mut error) = (vec![0.0; v.len()], 0.0);
    for call in 0..DRAWS {
        for ((mean, q), v) in means.iter_mut().zip(quantiser(call)).zip(v) {
            *mean += f64::from(q) / DRAWS as f64;
            error += (f64::from(q) - f64::from(*v)).powi(2) / DRAWS as f64;
        }
    }
    (means, error)
}

/// Whether E Q(v) = v within five standard deviations of the mean. The standard deviation of one draw is at most (S/s)/2.
fn is_unbiased(v: &[f32], means: &[f64], scale: f64, levels: f64) -> bool {
    let bound = 5.0 * 0.5 * scale / levels / (DRAWS as f64).sqrt();
    v.iter().zip(means).all(|(v, mean)| (f64::from(*v) - mean).abs() <= bound)
}

/// Whether E|Q(v) - v|² ≤ min(d/s², √d/s)|v|², with 3 % for the average of a few thousand draws.
fn is_within_the_bound(v: &[f32], error: f64, levels: f64) -> bool {
    let (d, square) = (v.len() as f64, v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>());
    error <= 1.03 * (d / (levels * levels)).min(d.sqrt() / levels) * square
}

fn norm_of(v: &[f32]) -> f64 {
    v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn unbiased_and_within_the_variance_bound() {
    // Values of many magnitudes, of one magnitude, and a few large ones among small ones.
    let shapes: [fn(f32) -> f32; 3] =
        [|k| (k * 1.7).sin() * (k * 0.31).cos(), |k| k.sin().signum(), |k| (k * 1.7).sin().powi(15)];
    for shape in shapes {
        for (bits, d) in [(2u8, 256u32), (4, 256), (8, 256), (4, 16), (2, 9)] {
            for scale in [Scale::L2, Scale::Max] {
                let v: Vec<f32> = (0..d).map(|k| shape(k as f32 + 0.5)).collect();
                let params = Quantize::new(bits, d, scale, 99).unwrap();
                let levels = f64::from(params.levels());
                let (means, error) = statistics(&v, |call| {
                    let mut bytes = vec![0; quantised_bytes(v.len(), &params)];
                    quantise(&v, &params, Draw { call, rank: 2, first_bucket: 0 }, &mut bytes).unwrap();
                    let mut back = vec![0.0; v.len()];
                    dequantise(&bytes, &params, &mut back).unwrap();
                    back
                });
                let top = v.iter().fold(0.0, |top: f64, v| top.max(f64::from(v.abs())));
                let s = if scale == Scale::L2 { norm_of(&v) } else { top };
                assert!(is_unbiased(&v, &means, s, levels), "{bits} bits, bucket {d}, {scale:?}");
                assert!(is_within_the_bound(&v, error, levels), "{bits} bits, bucket {d}, {scale:?}");
            }
        }
    }
}

#[test]
fn the_statistics_detect_wrong_quantisers() {
    let v: Vec<f32> = (0..1024).map(|k| (k as f32 * 1.7).sin()).collect();
    let (s, norm) = (7.0, norm_of(&v));
    let key = |call| Key::of_bucket(call, 0);
    let uniform = |call, position: usize| f64::from(key(call).random(position as u32)) / 2f64.powi(32);
    // One level instead of seven: unbiased, but beyond the bound.
    let coarse = |call| {
        let level = |(k, v): (usize, &f32)| (f64::from(*v) / norm + uniform(call, k)).floor() * norm;
        v.iter().enumerate().map(|x| level(x) as f32).collect::<Vec<_>>()
    };
    let (means, error) = statistics(&v, coarse);
    assert!(is_unbiased(&v, &means, norm, 1.0) && !is_within_the_bound(&v, error, s));
    // The nearest level: within the bound, but biased.
    let nearest = |_| v.iter().map(|v| ((f64::from(*v) * s / norm).round() * norm / s) as f32).collect();
    let (means, error) = statistics(&v, nearest);
    assert!(!is_unbiased(&v, &means, norm, s) && is_within_the_bound(&v, error, s));
    // Two biased quantisers: one always rounds down, the other draws the same numbers in all calls.
    let down = |_| v.iter().map(|v| ((f64::from(*v) * s / norm).floor() * norm / s) as f32).collect();
    assert!(!is_unbiased(&v, &statistics(&v, down).0, norm, s));
    let stuck = |_| {
        let level = |(k, v): (usize, &f32)| (f64::from(*v) * s / norm + uniform(1, k)).floor() * norm / s;
        v.iter().enumerate().map(|x| level(x) as f32).collect::<Vec<_>>()
    };
    assert!(!is_unbiased(&v, &statistics(&v, stuck).0, norm, s));
}

#[test]
fn random_numbers_are_uniform_and_uncorrelated() {
    // The mean of u - 1/2, the mean of its square, and its correlations between positions, buckets, ranks, calls and seeds.
    let at = |seed, call, rank, bucket, position| {
        let draw = Draw { call, rank, first_bucket: 0 };
        let key = Key::of_bucket(Key::of_call(seed, draw), bucket);
        f64::from(key.random(position)) / 2f64.powi(32) - 0.5
    };
    let (mut mean, mut square, mut correlations) = (0.0, 0.0, [0.0; 6]);
    let count = 1 << 16;
    for k in 0..count {
        let (bucket, position) = (u64::from(k) / 256, k % 256);
        let u = at(1, 2, 3, bucket, position);
        mean += u;
        square += u * u;
        let others = [
            at(1, 2, 3, bucket, position + 1),
            at(1, 2, 3, bucket, position + 16),
            at(1, 2, 3, bucket + 1, position),
            at(1, 2, 4, bucket, position),
            at(1, 3, 3, bucket, position),
            at(2, 2, 3, bucket, position),
        ];
        correlations.iter_mut().zip(others).for_each(|(sum, other)| *sum += u * other);
    }
    // Five standard deviations: of u √(1/12), of u² √(1/180), of u·u' 1/12.
    let root = f64::from(count).sqrt();
    assert!((mean / root).abs() < 5.0 * (1f64 / 12.0).sqrt(), "{mean}");
    assert!(((square - f64::from(count) / 12.0) / root).abs() < 5.0 * (1f64 / 180.0).sqrt(), "{square}");
    assert!(correlations.iter().all(|sum| (sum / root).abs() < 5.0 / 12.0), "{correlations:?}");
}
