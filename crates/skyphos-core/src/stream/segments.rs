//! Cutting of a vector into the segments of a stream. Segments are cut one by one on demand, so only those in flight take
//! memory.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use skyphos_kernels::stream::{Encoder, EntryIndices, View, count_between, entries, first_set_bits};
use skyphos_kernels::{Index, with_indices};
use skyphos_types::Element;

/// Approximate bytes of a segment: small enough that a fold starts early, large enough that the 96 bytes of headers per frame
/// add only 0.3 %.
pub const SEGMENT_BYTES: usize = 32 * 1024;

/// The segments of a stream, in order.
pub enum Segments<'a> {
    /// Segments that exist.
    Ready(std::vec::IntoIter<Payload>),
    /// A function that cuts the next segment on demand; `None` after the last one.
    Cut(Option<Box<Cut<'a>>>),
}

/// Cuts the next segment, to be sent to a number of ranks. Returns the segment, and whether it is the last.
type Cut<'a> = dyn FnMut(usize) -> (Payload, bool) + Send + 'a;

impl Segments<'_> {
    /// Bytes of the remaining segments, if they exist.
    pub(super) fn bytes(&self) -> Option<u64> {
        match self {
            Segments::Ready(list) => Some(list.as_slice().iter().map(|s| s.len() as u64).sum()),
            Segments::Cut(_) => None,
        }
    }

    /// The next segment, which `ranks` ranks get, possibly including this one.
    pub(super) fn next_for(&mut self, ranks: usize) -> Option<Payload> {
        match self {
            Segments::Ready(list) => list.next(),
            Segments::Cut(cut) => {
                let (segment, last) = cut.as_mut()?(ranks);
                if last {
                    *cut = None;
                }
                Some(segment)
            }
        }
    }

    /// Whether there are no more segments.
    pub fn ended(&self) -> bool {
        match self {
            Segments::Ready(list) => list.as_slice().is_empty(),
            Segments::Cut(cut) => cut.is_none(),
        }
    }
}

impl From<Vec<Payload>> for Segments<'_> {
    fn from(list: Vec<Payload>) -> Self {
        Segments::Ready(list.into_iter())
    }
}

impl From<&[Payload]> for Segments<'_> {
    fn from(list: &[Payload]) -> Self {
        list.to_vec().into()
    }
}

impl Iterator for Segments<'_> {
    type Item = Payload;
    fn next(&mut self) -> Option<Payload> {
        self.next_for(1)
    }
}

/// The segments of the entries in `lo..hi`. Frames to several ranks share the memory of a segment. The first row of a dense
/// vector has index `base`.
pub fn encode<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    width: usize,
    base: u64,
    lo: u64,
    hi: u64,
) -> Vec<Payload> {
    segments_of(ep, view, width, base, lo, hi, SEGMENT_BYTES).collect()
}

/// [`encode`] on demand, into segments of about `segment_bytes` bytes.
pub(super) fn segments_of<'a, T: Element>(
    ep: &'a Endpoint,
    view: View<'a, T>,
    width: usize,
    base: u64,
    lo: u64,
    hi: u64,
    segment_bytes: usize,
) -> Segments<'a> {
    let (from, to) = ((lo - base) as usize, (hi - base) as usize);
    match view {
        View::Sparse { indices, values } => with_indices!(indices, list => {
            let (start, end) =
                (list.partition_point(|i| i.number() < lo), list.partition_point(|i| i.number() < hi));
            let (places, rows) = (EntryIndices::Listed(&list[start..end]), &values[start * width..end * width]);
            cut(ep, width, Encoder::new(places, rows, width, hi, segment_bytes))
        }),
        View::Dense { values, present: None } => {
            let rows = &values[from * width..to * width];
            cut(ep, width, Encoder::new(EntryIndices::<u64>::From(lo), rows, width, hi, segment_bytes))
        }
        View::Dense { values, present: Some(bits) } => {
            let (total, max_entries) =
                (count_between(bits, from, to), Encoder::<T, u64>::max_entries(width, segment_bytes));
            let (mut at, mut done) = (from, 0);
            let (mut set, mut indices, mut rows) = (Vec::new(), Vec::new(), Vec::new());
            Segments::Cut(Some(Box::new(move |ranks| {
                at = first_set_bits(bits, at, to, max_entries, &mut set);
                done += set.len();
                indices.clear();
                indices.extend(set.iter().map(|row| base + *row as u64));
                rows.clear();
                rows.extend(set.iter().flat_map(|row| &values[row * width..][..width]).copied());
                let listed = EntryIndices::Listed(&indices);
                let encoder = Encoder::new(listed, &rows, width, hi, segment_bytes);
                let last = done == total;
                (next_of(ep, width, &mut encoder.part(total, last), ranks), last)
            })))
        }
    }
}

fn cut<'a, T: Element, I: Index>(
    ep: &'a Endpoint,
    width: usize,
    mut encoder: Encoder<'a, T, I>,
) -> Segments<'a> {
    Segments::Cut(Some(Box::new(move |ranks| (next_of(ep, width, &mut encoder, ranks), encoder.finished()))))
}

/// Cuts and encodes the next segment.
fn next_of<T: Element, I: Index>(
    ep: &Endpoint,
    width: usize,
    encoder: &mut Encoder<'_, T, I>,
    ranks: usize,
) -> Payload {
    let next = encoder.plan().expect("not called after the last segment");
    let mut slab = ep.chunk_for(ranks, next.bytes());
    encoder.write(&next, slab.as_bytes_mut());
    let row_bytes = width * size_of::<T>();
    ep.spend(Effort::Encode { entries: entries(slab.as_bytes_mut()), row_bytes });
    slab.freeze()
}
