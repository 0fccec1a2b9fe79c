//! Conversion of segments to quantised values on the wire, and back.
//!
//! Head and indices (`segment.rs`) stay exact; the values become buckets of codes (`quantise.rs`), and a bit is set in the
//! head. A bucket ends with its segment, so each segment can be decoded by itself; [`QuantisedValues::segment_bytes`] makes
//! segments of whole buckets where one fits. Segments are expanded before they are folded or assembled, so no other code
//! depends on this form.
//!
//! The decoder checks everything it reads. Cost: one pass over the values either way, and a copy of the indices.

use super::reader::{Offsets, Reader, STEP};
use super::segment::{HEAD_BYTES, Head, Segment};
use crate::quantise::{Draw, Quantize, dequantise, quantise, quantised_bytes};
use skyphos_types::{DType, Error, Real, Result, with_real};

/// Flag of quantised values in the form of a segment.
const QUANTISED: u8 = 0x80;

/// Quantisation of a stream's values, the same at sender and receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantisedValues {
    params: Quantize,
    dtype: DType,
    width: usize,
}

/// A value that cannot be quantised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFinite {
    /// Index of its row.
    pub index: u64,
    /// The value as text.
    pub value: String,
}

impl QuantisedValues {
    /// Quantisation of rows of `width` values.
    ///
    /// # Errors
    /// Integers are refused.
    pub fn new(params: Quantize, dtype: DType, width: usize) -> Result<QuantisedValues> {
        match dtype.is_float() {
            true => Ok(QuantisedValues { params, dtype, width }),
            false => Err(Error::bad_input(format!(
                "quantize= works on floating-point values, these are {dtype}: leave it out, or use .astype(\"float32\")"
            ))),
        }
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    fn row_bytes(&self) -> usize {
        self.width * self.dtype.size()
    }

    /// The segment size for an [`Encoder`](super::Encoder) such that a segment takes at most `max_bytes`, both plain and quantised
    /// (tiny buckets make values larger), and consists of whole buckets if one fits.
    pub fn segment_bytes(&self, max_bytes: usize) -> usize {
        let bucket = self.params.bucket();
        let codes = quantised_bytes(bucket * self.width, &self.params).div_ceil(bucket);
        // At worst an index takes 8 bytes, and the last bucket is partial.
        let entry = self.row_bytes().max(codes) + 8;
        let fits = (max_bytes.saturating_sub(HEAD_BYTES + 8) / entry).clamp(1, 1 << 15);
        let whole = bucket / gcd(bucket, self.width);
        let entries = if whole <= fits { fits / whole * whole } else { fits };
        HEAD_BYTES + entries * (self.row_bytes() + 4)
    }

    /// Whether a segment's values are quantised.
    pub fn is_quantised(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|form| form & QUANTISED != 0)
    }

    fn parse_plain<'a>(&self, plain: &'a [u8]) -> Segment<'a> {
        Segment::parse(plain, self.row_bytes(), 0, u64::MAX).expect("a segment that this rank encoded")
    }

    /// Bytes of a plain segment after quantisation.
    pub fn bytes(&self, plain: &[u8]) -> usize {
        let head = self.parse_plain(plain).head;
        HEAD_BYTES + self.code_bytes(head.count) + head.index_bytes as usize
    }

    fn code_bytes(&self, entries: u32) -> usize {
        quantised_bytes(entries as usize * self.width, &self.params)
    }

    /// Quantises a plain segment into `out`, of length [`QuantisedValues::bytes`]. Returns the number of buckets, which are numbered
    /// from `draw`'s first on.
    pub fn quantise(&self, plain: &[u8], draw: Draw, out: &mut [u8]) -> std::result::Result<u64, NotFinite> {
        let segment = self.parse_plain(plain);
        let head = Head { form: segment.head.form | QUANTISED, ..segment.head };
        let (codes, indices) = out[HEAD_BYTES..].split_at_mut(self.code_bytes(head.count));
        let values = head.count as usize * self.width;
        with_real!(self.dtype, T => {
            if quantise::<T>(segment.values(), &self.params, draw, codes).is_err() {
                return Err(self.not_finite::<T>(&segment));
            }
        }, else unreachable!("`new` refuses integers"));
        indices.copy_from_slice(segment.indices);
        head.write(out);
        Ok(values.div_ceil(self.params.bucket()) as u64)
    }

    /// The first value that is not finite as a float32.
    fn not_finite<T: Real>(&self, segment: &Segment<'_>) -> NotFinite {
        let values = segment.values::<T>();
        let position = values.iter().position(|v| !v.to_f32().is_finite()).unwrap_or(0);
        let (mut reader, mut offsets, mut seen) = (Reader::default(), [0; STEP], 0);
        let entry = position / self.width;
        while let Ok(Some(step)) = reader.step(segment, &mut offsets) {
            let (count, offset) = match step {
                Offsets::Listed(count) => (count, offsets[(entry - seen).min(count - 1)]),
                Offsets::Run(first, count) => (count, first + (entry - seen) as u64),
            };
            if entry < seen + count {
                let value = format!("{:?}", values[position]);
                return NotFinite { index: segment.head.first + offset, value };
            }
            seen += count;
        }
        unreachable!("a value has an index")
    }

    /// Bytes of a quantised segment after expansion, if it is complete.
    pub fn plain_bytes(&self, bytes: &[u8]) -> std::result::Result<usize, &'static str> {
        let head = Head::read(bytes).ok_or("a segment shorter than its head")?;
        // A value takes at least 2 bits, which bounds the count.
        if head.count as usize > bytes.len() * 4 {
            return Err("a segment with more entries than its bytes can hold");
        }
        let indices = head.index_bytes as usize;
        match Some(bytes.len()) == (HEAD_BYTES + self.code_bytes(head.count)).checked_add(indices) {
            true => Ok(HEAD_BYTES + head.count as usize * self.row_bytes() + indices),
            false => Err("a segment of quantised values longer or shorter than it says"),
        }
    }

    /// Expands a quantised segment into `out`, of length [`QuantisedValues::plain_bytes`].
    pub fn expand(&self, bytes: &[u8], out: &mut [u8]) -> std::result::Result<(), &'static str> {
        let head = Head::read(bytes).ok_or("a segment shorter than its head")?;
        Head { form: head.form & !QUANTISED, ..head }.write(out);
        let (codes, indices) = bytes[HEAD_BYTES..].split_at(self.code_bytes(head.count));
        let (values, index_bytes) = out[HEAD_BYTES..].split_at_mut(head.count as usize * self.row_bytes());
        index_bytes.copy_from_slice(indices);
        with_real!(self.dtype, T => {
            dequantise::<T>(codes, &self.params, bytemuck::cast_slice_mut(values))
        }, else Err("quantised integers"))
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantise::Scale;
    use crate::stream::{Encoder, EntryIndices, testing};
    use proptest::prelude::*;

    /// Bytes aligned like those of a buffer pool.
    struct Aligned(Vec<u64>, usize);

    impl Aligned {
        fn new(len: usize) -> Aligned {
            Aligned(vec![0; len.div_ceil(8)], len)
        }
        fn bytes(&mut self) -> &mut [u8] {
            &mut bytemuck::cast_slice_mut(&mut self.0)[..self.1]
        }
    }

    fn segments(indices: &[u64], values: &[f32], width: usize, bytes: usize) -> Vec<Aligned> {
        let hi = indices.last().map_or(9, |i| i + 1);
        let mut encoder = Encoder::new(EntryIndices::Listed(indices), values, width, hi, bytes);
        let mut all = Vec::new();
        while let Some(next) = encoder.plan() {
            let mut out = Aligned::new(next.bytes());
            encoder.write(&next, out.bytes());
            all.push(out);
        }
        all
    }

    fn ascending() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(prop_oneof![4 => 1u64..3, 1 => 1u64..5000], 0..900)
            .prop_map(|steps| testing::ascending(8, &steps))
    }

    proptest! {
        #[test]
        fn values_match_the_oracle_and_the_rest_is_unchanged(
            indices in ascending(), width in 1usize..4, bits in prop::sample::select(vec![2u8, 4, 8]),
            bucket in 1u32..300, max_bytes in 100usize..4000,
        ) {
            let params = Quantize::new(bits, bucket, Scale::Max, 5).unwrap();
            let codec = QuantisedValues::new(params, DType::F32, width).unwrap();
            let values: Vec<f32> = (0..indices.len() * width).map(|k| (k as f32 * 0.7).sin()).collect();
            let (mut rest, mut buckets) = (&values[..], 0);
            for mut plain in segments(&indices, &values, width, codec.segment_bytes(max_bytes)) {
                let plain = plain.bytes();
                prop_assert!(plain.len() <= max_bytes.max(HEAD_BYTES + width * 4 + 8));
                prop_assert!(codec.bytes(plain) <= max_bytes.max(HEAD_BYTES + width * 5 + 8));
                let draw = Draw { call: 3, rank: 2, first_bucket: buckets };
                let mut small = Aligned::new(codec.bytes(plain));
                let drawn = codec.quantise(plain, draw, small.bytes()).unwrap();
                prop_assert!(QuantisedValues::is_quantised(small.bytes()) && !QuantisedValues::is_quantised(plain));
                let mut back = Aligned::new(codec.plain_bytes(small.bytes()).unwrap());
                codec.expand(small.bytes(), back.bytes()).unwrap();
                prop_assert_eq!(back.bytes().len(), plain.len());

                let count = Segment::parse(plain, width * 4, 0, u64::MAX).unwrap().head.count as usize * width;
                let (exact, more) = rest.split_at(count);
                let mut codes = vec![0; quantised_bytes(count, &params)];
                quantise(exact, &params, draw, &mut codes).unwrap();
                let mut want = vec![0f32; count];
                dequantise(&codes, &params, &mut want).unwrap();
                plain[HEAD_BYTES..HEAD_BYTES + count * 4].copy_from_slice(bytemuck::cast_slice(&want));
                prop_assert_eq!(&*back.bytes(), &*plain);
                prop_assert_eq!(drawn, count.div_ceil(bucket as usize) as u64);
                // If a bucket fits a segment, buckets continue from segment to segment as in one long vector.
                if !more.is_empty() && max_bytes >= HEAD_BYTES + 8 + (bucket as usize * width) * (5 * width + 8) {
                    prop_assert_eq!(count % bucket as usize, 0);
                }
                (rest, buckets) = (more, buckets + drawn);
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn damage_is_an_error_or_other_numbers(
            indices in ascending(), at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>(),
        ) {
            let params = Quantize::new(4, 64, Scale::L2, 5).unwrap();
            let codec = QuantisedValues::new(params, DType::F32, 1).unwrap();
            let values = vec![1.5f32; indices.len()];
            for mut plain in segments(&indices, &values, 1, 4000) {
                let mut small = Aligned::new(codec.bytes(plain.bytes()));
                let draw = Draw { call: 0, rank: 0, first_bucket: 0 };
                codec.quantise(plain.bytes(), draw, small.bytes()).unwrap();
                let cut = cut.index(small.1);
                prop_assert!(codec.plain_bytes(&small.bytes()[..cut]).is_err());
                let at = at.index(small.1);
                small.bytes()[at] = byte;
                if let Ok(len) = codec.plain_bytes(small.bytes()) {
                    let mut back = Aligned::new(len);
                    let _ = codec.expand(small.bytes(), back.bytes());
                }
            }
        }
    }

    #[test]
    fn the_error_has_the_index_of_the_value_that_is_not_finite() {
        let codec = QuantisedValues::new(Quantize::default(), DType::F32, 2).unwrap();
        let indices: Vec<u64> = (0..1000).map(|k| k * 3).collect();
        let mut values = vec![1f32; 2000];
        values[2 * 700 + 1] = f32::NEG_INFINITY;
        let mut plain = segments(&indices, &values, 2, 1 << 17).remove(0);
        let mut out = vec![0; codec.bytes(plain.bytes())];
        let draw = Draw { call: 0, rank: 0, first_bucket: 0 };
        let error = codec.quantise(plain.bytes(), draw, &mut out).unwrap_err();
        assert_eq!((error.index, error.value.as_str()), (2100, "-inf"));
        let error = QuantisedValues::new(Quantize::default(), DType::I32, 1).unwrap_err();
        assert!(error.to_string().contains("int32"), "{error}");
    }
}
