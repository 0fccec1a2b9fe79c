//! Low precision in a reduction of streams: what is quantised, when, and with which random numbers.
//!
//! *Input*: what a rank sends of its own is quantised first (SparCML Algorithm 1), and counts so for itself too;
//! sums of several ranks travel as they are. *Result*: an owner quantises its reduced part before it shares it
//! (SparCML §6), and keeps what the others get. Segments say by themselves whether their values are quantised.
//!
//! Random numbers depend on seed, call, rank and bucket. A rank's input is numbered part by part of the index
//! space, its result apart from that, so that no two buckets share their numbers.

use crate::endpoint::Endpoint;
use crate::slab::{CHUNK_BYTES, Payload};
use crate::stream::segments::segments_of;
use skyphos_kernels::stream::{NotFinite, QuantisedValues, Segment, View};
use skyphos_kernels::{Draw, with_indices};
use skyphos_types::{Element, Error, Real, Result, with_real};

/// Number of a result's first bucket.
pub const RESULT_BUCKETS: u64 = 1 << 63;

/// Buckets of the input are numbered from its part's number times this.
pub const PART_BUCKETS: u64 = 1 << 32;

/// What of a reduction is quantised.
#[derive(Clone, Copy)]
pub struct Precision<'a> {
    /// How.
    pub codec: QuantisedValues,
    /// Whether reduced parts are, before they are shared.
    pub result: bool,
    /// This rank's input, if that is.
    pub input: Option<&'a QuantisedInput>,
}

/// A rank's input as it sends it: segments of each part of the index space.
pub struct QuantisedInput {
    bounds: Vec<u64>,
    parts: Vec<Vec<Payload>>,
}

impl QuantisedInput {
    /// Quantises the entries between any two of `bounds`. `sent` gets what the values became, in their order.
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
            let segments = quantised(ep, codec, view, 0, (range[0], range[1]), first_bucket)
                .map_err(|bad| refused("the value", &bad))?;
            if let Some(sent) = &mut sent {
                for segment in &segments {
                    let plain = open(ep, Some(codec), ep.rank(), segment.clone())?;
                    let row = codec.width() * size_of::<T>();
                    let segment = Segment::parse(plain.as_bytes(), row, 0, u64::MAX);
                    sent.extend_from_slice(segment.expect("just made").values());
                }
            }
            parts.push(segments);
        }
        Ok(QuantisedInput { bounds: bounds.to_vec(), parts })
    }

    /// The segments of a range that begins and ends at bounds; those of an empty range are one, without entries.
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

/// Segments with quantised values, of whole buckets where a segment holds one.
pub(super) fn quantised<T: Element>(
    ep: &Endpoint,
    codec: QuantisedValues,
    view: View<'_, T>,
    base: u64,
    (lo, hi): (u64, u64),
    first_bucket: u64,
) -> std::result::Result<Vec<Payload>, NotFinite> {
    let mut draw = Draw { call: ep.call_number(), rank: ep.rank(), first_bucket };
    let plain = segments_of(ep, view, codec.width(), base, lo, hi, codec.segment_bytes(CHUNK_BYTES));
    let quantise = |plain: Payload| {
        let mut slab = ep.chunk(codec.bytes(plain.as_bytes()));
        draw.first_bucket += codec.quantise(plain.as_bytes(), draw, slab.as_bytes_mut())?;
        Ok(slab.freeze())
    };
    plain.map(quantise).collect()
}

pub(super) fn refused(what: &str, bad: &NotFinite) -> Error {
    Error::bad_input(format!(
        "{what} at index {} is {}, which cannot be quantised: only numbers that are finite as float32 can",
        bad.index, bad.value
    ))
}

/// The segment as it is to be read: a copy with plain values if they are quantised.
pub fn open(ep: &Endpoint, codec: Option<QuantisedValues>, from: u32, segment: Payload) -> Result<Payload> {
    let Some(codec) = codec.filter(|_| QuantisedValues::marks(segment.as_bytes())) else {
        return Ok(segment);
    };
    let damaged = |what| ep.corrupt(from, what);
    let bytes = codec.plain_bytes(segment.as_bytes()).map_err(damaged)?;
    if bytes > CHUNK_BYTES {
        return Err(damaged("a segment of more quantised values than any rank sends"));
    }
    let mut plain = ep.chunk(bytes);
    codec.expand(segment.as_bytes(), plain.as_bytes_mut()).map_err(damaged)?;
    Ok(plain.freeze())
}

/// Refuses values that are not finite as float32, and tells where: at their source, before they are in a sum.
pub fn check_finite<T: Element>(view: View<'_, T>, width: usize) -> Result<()> {
    let (View::Sparse { values, .. } | View::Dense { values, .. }) = view;
    let bad = with_real!(T::DTYPE, R => not_finite::<R>(bytemuck::cast_slice(values)), else None);
    let Some((place, value)) = bad else { return Ok(()) };
    let row = place / width;
    let index = match view {
        View::Sparse { indices, .. } => with_indices!(indices, list => index_at(list, row)),
        View::Dense { .. } => row as u64,
    };
    Err(refused("the value", &NotFinite { index, value }))
}

fn index_at<I: skyphos_kernels::Index>(list: &[I], place: usize) -> u64 {
    list[place].number()
}

/// The first value that is not finite as a float32.
fn not_finite<R: Real>(values: &[R]) -> Option<(usize, String)> {
    // Some at a time without a branch in between, in vectors.
    const SOME: usize = 4096;
    let bad = |v: &R| !v.to_f32().is_finite();
    let part = values.chunks(SOME).position(|some| some.iter().fold(false, |any, v| any | bad(v)))?;
    let place = part * SOME + values[part * SOME..].iter().position(bad)?;
    Some((place, format!("{:?}", values[place])))
}
