//! Segments whose values are quantised (`skyphos-kernels`, `stream/quantised.rs`), and the scales and codes in them.

use crate::allocation::{Limits, within};
use arbitrary::{Result, Unstructured};
use skyphos_core::slab::{AlignedVec, CHUNK_BYTES};
use skyphos_kernels::stream::{HEAD_BYTES, QuantisedValues, Segment};
use skyphos_kernels::{Quantize, Scale, dequantise_and_add, quantised_bytes};
use skyphos_types::{DType, Real, with_real};

/// Nothing is allocated; the caller supplies all memory.
const LIMITS: Limits = Limits { one: 0, all: 0 };

/// The input has the settings of the quantisation, then a segment: a head, codes and indices.
pub fn run(data: &[u8]) {
    let _ = expand(&mut Unstructured::new(&data[..data.len().min(CHUNK_BYTES)]));
}

fn expand(u: &mut Unstructured<'_>) -> Result<()> {
    let scale = *u.choose(&[Scale::L2, Scale::Max])?;
    let bucket = if u.ratio(1, 2)? { u.int_in_range(1..=300)? } else { u.int_in_range(1..=1 << 24)? };
    let params = Quantize::new(*u.choose(&[2, 4, 8])?, bucket, scale, 0).expect("valid settings");
    let (width, dtype) =
        (u.int_in_range(1..=3)?, *u.choose(&[DType::F32, DType::F64, DType::BF16, DType::F16])?);
    let codec = QuantisedValues::new(params, dtype, width).expect("a floating-point type");
    let mut bytes = AlignedVec::default();
    if u.ratio(1, 8)? {
        bytes.extend(u.bytes(u.len())?);
    } else {
        let (form, count): (u8, u16) = (u.int_in_range(0..=4)?, u.arbitrary()?);
        let (first, span): (u32, u16) = u.arbitrary()?;
        let codes = quantised_bytes(usize::from(count) * width, &params);
        let index_bytes = u.int_in_range(0..=4096u32)?;
        bytes.extend(&[form | 0x80, 0, 0, 0]);
        bytes.extend(&u32::from(count).to_le_bytes());
        bytes.extend(&u64::from(first).to_le_bytes());
        bytes.extend(&(u64::from(first) + u64::from(span)).to_le_bytes());
        bytes.extend(&index_bytes.to_le_bytes());
        bytes.extend(&u32::from(count).to_le_bytes());
        let len = codes + index_bytes as usize;
        let rest = u.bytes(len.min(u.len()))?;
        bytes.extend(rest);
        bytes.resize(HEAD_BYTES + len);
        bytes.as_bytes_mut()[HEAD_BYTES + rest.len()..].fill(0);
    }
    with_real!(dtype, T => check_segment::<T>(&codec, &params, width, bytes.as_bytes()), else unreachable!());
    Ok(())
}

fn check_segment<T: Real>(codec: &QuantisedValues, params: &Quantize, width: usize, bytes: &[u8]) {
    let _ = QuantisedValues::is_quantised(bytes);
    // As in the receiver of a segment, which rejects one that expands to more than a frame.
    let Ok(len) = within(LIMITS, || codec.plain_bytes(bytes)) else { return };
    if len > CHUNK_BYTES {
        return;
    }
    let mut plain = AlignedVec::default();
    plain.resize(len);
    if within(LIMITS, || codec.expand(bytes, plain.as_bytes_mut())).is_err() {
        return;
    }
    assert!(!QuantisedValues::is_quantised(plain.as_bytes()) || bytes[0] & 0x7f != plain.as_bytes()[0]);
    let count = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes")) as usize;
    let codes = &bytes[HEAD_BYTES..][..quantised_bytes(count * width, params)];
    let mut sum = vec![T::ZERO; count * width];
    dequantise_and_add(codes, params, &mut sum).expect("as long as it says");
    let row = width * size_of::<T>();
    let Ok(segment) = Segment::parse(plain.as_bytes(), row, 0, u64::MAX) else { return };
    let values = segment.values::<T>();
    assert_eq!(values.len(), count * width);
    assert!(values.iter().zip(&sum).all(|(value, sum)| value.to_f32() == sum.to_f32()));
    // Each value is a multiple of a finite scale; conversion to a type with a smaller range may make it infinite, not NaN.
    assert!(values.iter().all(|value| !value.to_f32().is_nan()));
}
