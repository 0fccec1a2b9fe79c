//! Quantisation in a reduction of streams.
//!
//! *Input*: a rank quantises its own values before it sends them (SparCML Algorithm 1), and uses the quantised values itself;
//! sums of several ranks are sent in full precision. *Result*: an owner quantises its reduced range before it sends it to all
//! (SparCML §6), and uses the quantised values itself. A segment's head says whether its values are quantised.
//!
//! Random numbers depend on seed, call, rank and bucket number. No two buckets of a rank share a number: those of its input are
//! numbered range by range, and those of its result from [`RESULT_BUCKETS`] on.

use crate::endpoint::Endpoint;
use crate::slab::{CHUNK_BYTES, Payload};
use crate::stream::segments::segments_of;
use skyphos_kernels::stream::{NotFinite, QuantisedValues, Segment, View};
use skyphos_kernels::{Draw, with_indices};
use skyphos_types::{Element, Error, GroupRank, Real, Result, with_real};

/// Number of a result's first bucket.
pub const RESULT_BUCKETS: u64 = 1 << 63;

/// Distance between the numbers of the first buckets of two ranges of the input.
pub const PART_BUCKETS: u64 = 1 << 32;

/// The quantisation of a reduction.
#[derive(Clone, Copy)]
pub struct Precision<'a> {
    /// The codec of values.
    pub codec: QuantisedValues,
    /// Whether results are quantised.
    pub result: bool,
    /// This rank's quantised input, if inputs are quantised.
    pub input: Option<&'a QuantisedInput>,
}

/// A rank's quantised input: the segments of each range of the index space.
pub struct QuantisedInput {
    bounds: Vec<u64>,
    parts: Vec<Vec<Payload>>,
}

impl QuantisedInput {
    /// Quantises the entries range by range, between consecutive `bounds`. Appends the quantised values, in order, to `sent`.
    pub fn new<T: Element>(
        ep: &Endpoint,
        view: View<'_, T>,
        codec: QuantisedValues,
        bounds: &[u64],
        mut sent: Option<&mut Vec<T>>,
    ) -> Result<QuantisedInput> {
        let mut parts = Vec::with_capacity(bounds.len() - 1);
        for (range, number) in bounds.windows(2).zip(0u64..) {
            let first_bucket = number * PART_BUCKETS;
            let segments = quantise(ep, codec, view, 0, (range[0], range[1]), first_bucket)
                .map_err(|bad| not_quantisable("the value", &bad))?;
            if let Some(sent) = &mut sent {
                for segment in &segments {
                    let segment = plain(ep, Some(codec), ep.rank().0, segment.clone())?;
                    let row = codec.width() * size_of::<T>();
                    let segment = Segment::parse(segment.as_bytes(), row, 0, u64::MAX);
                    sent.extend_from_slice(segment.expect("encoded above").values());
                }
            }
            parts.push(segments);
        }
        Ok(QuantisedInput { bounds: bounds.to_vec(), parts })
    }

    /// The segments of a range that begins and ends at bounds. An empty range has one segment, without entries.
    pub(super) fn between(&self, lo: u64, hi: u64) -> Vec<Payload> {
        let parts = self.bounds.windows(2).zip(&self.parts);
        let inside = parts.filter(|(b, _)| lo <= b[0] && b[1] <= hi && (b[0] < b[1] || lo == hi));
        inside
            .take(if lo == hi { 1 } else { usize::MAX })
            .flat_map(|(_, segments)| segments)
            .cloned()
            .collect()
    }
}

/// Encodes entries into segments of quantised values. A segment has whole buckets, if a bucket fits a segment.
pub(super) fn quantise<T: Element>(
    ep: &Endpoint,
    codec: QuantisedValues,
    view: View<'_, T>,
    base: u64,
    (lo, hi): (u64, u64),
    first_bucket: u64,
) -> std::result::Result<Vec<Payload>, NotFinite> {
    let mut draw = Draw { call: ep.call_number().0, rank: ep.rank().0, first_bucket };
    let segments = segments_of(ep, view, codec.width(), base, lo, hi, codec.segment_bytes(CHUNK_BYTES));
    let quantise = |segment: Payload| {
        let mut slab = ep.chunk(codec.bytes(segment.as_bytes()));
        draw.first_bucket += codec.quantise(segment.as_bytes(), draw, slab.as_bytes_mut())?;
        Ok(slab.freeze())
    };
    segments.map(quantise).collect()
}

/// The error for a value that cannot be quantised.
pub(super) fn not_quantisable(what: &str, bad: &NotFinite) -> Error {
    Error::bad_input(format!(
        "{what} at index {} is {}, which cannot be quantised: values must be finite as float32",
        bad.index, bad.value
    ))
}

/// The segment with plain values: the segment itself, or an expanded copy if its values are quantised.
pub(super) fn plain(
    ep: &Endpoint,
    codec: Option<QuantisedValues>,
    from: u32,
    segment: Payload,
) -> Result<Payload> {
    let Some(codec) = codec.filter(|_| QuantisedValues::is_quantised(segment.as_bytes())) else {
        return Ok(segment);
    };
    let damaged = |what| ep.corrupt(GroupRank(from), what);
    let bytes = codec.plain_bytes(segment.as_bytes()).map_err(damaged)?;
    if bytes > CHUNK_BYTES {
        return Err(damaged("a segment with more quantised values than fit a chunk"));
    }
    let mut expanded = ep.chunk(bytes);
    codec.expand(segment.as_bytes(), expanded.as_bytes_mut()).map_err(damaged)?;
    Ok(expanded.freeze())
}

/// Refuses values that are not finite as float32. The error names the index, on the rank that has the value.
pub fn check_finite<T: Element>(view: View<'_, T>, width: usize) -> Result<()> {
    let (View::Sparse { values, .. } | View::Dense { values, .. }) = view;
    let bad = with_real!(T::DTYPE, R => not_finite::<R>(bytemuck::cast_slice(values)), else None);
    let Some((position, value)) = bad else { return Ok(()) };
    let row = position / width;
    let index = match view {
        View::Sparse { indices, .. } => with_indices!(indices, list => index_at(list, row)),
        View::Dense { .. } => row as u64,
    };
    Err(not_quantisable("the value", &NotFinite { index, value }))
}

fn index_at<I: skyphos_kernels::Index>(list: &[I], row: usize) -> u64 {
    list[row].number()
}

/// The position and the text of the first value that is not finite as a float32.
fn not_finite<R: Real>(values: &[R]) -> Option<(usize, String)> {
    // Number of values tested at once, without a branch between them, so that the compiler vectorises the test.
    const BLOCK: usize = 4096;
    let bad = |v: &R| !v.to_f32().is_finite();
    let block = values.chunks(BLOCK).position(|block| block.iter().fold(false, |any, v| any | bad(v)))?;
    let position = block * BLOCK + values[block * BLOCK..].iter().position(bad)?;
    Some((position, format!("{:?}", values[position])))
}
