//! Streams between ranks: cutting a vector into segments, and moving them.

use crate::clock::Effort;
use crate::endpoint::{Endpoint, Incoming, Outgoing};
use crate::slab::Payload;
use skyphos_kernels::stream::{Encoder, Places, View, entries, set_bits_between};
use skyphos_kernels::{Index, with_indices};
use skyphos_types::{Element, Result};

/// Bytes of a segment, about: small enough that a fold starts early, large enough that a frame's head of
/// 96 bytes does not count.
pub const SEGMENT_BYTES: usize = 32 * 1024;

/// The segments of the entries of `lo..hi`; frames share them, whoever they go to. The first row of a
/// dense vector belongs to index `base`.
pub fn encode<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    width: usize,
    base: u64,
    lo: u64,
    hi: u64,
) -> Vec<Payload> {
    encode_sized(ep, view, width, base, lo, hi, SEGMENT_BYTES)
}

/// The same in segments of about `segment_bytes`.
pub(super) fn encode_sized<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    width: usize,
    base: u64,
    lo: u64,
    hi: u64,
    segment_bytes: usize,
) -> Vec<Payload> {
    let (from, to) = ((lo - base) as usize, (hi - base) as usize);
    match view {
        View::Sparse { indices, values } => {
            with_indices!(indices, list => encode_listed(ep, list, values, width, (lo, hi), segment_bytes))
        }
        View::Dense { values, present: None } => {
            let rows = &values[from * width..to * width];
            segments(ep, width, Encoder::new(Places::<u64>::From(lo), rows, width, hi, segment_bytes))
        }
        View::Dense { values, present: Some(bits) } => {
            let places = set_bits_between(bits, from, to);
            let rows: Vec<T> = places.iter().flat_map(|p| &values[p * width..][..width]).copied().collect();
            let indices: Vec<u64> = places.iter().map(|p| base + *p as u64).collect();
            segments(ep, width, Encoder::new(Places::Listed(&indices), &rows, width, hi, segment_bytes))
        }
    }
}

fn encode_listed<T: Element, I: Index>(
    ep: &Endpoint,
    list: &[I],
    values: &[T],
    width: usize,
    (lo, hi): (u64, u64),
    segment_bytes: usize,
) -> Vec<Payload> {
    let (start, end) = (list.partition_point(|i| i.number() < lo), list.partition_point(|i| i.number() < hi));
    let rows = &values[start * width..end * width];
    segments(ep, width, Encoder::new(Places::Listed(&list[start..end]), rows, width, hi, segment_bytes))
}

fn segments<T: Element, I: Index>(
    ep: &Endpoint,
    width: usize,
    mut encoder: Encoder<'_, T, I>,
) -> Vec<Payload> {
    let (mut all, row_bytes) = (Vec::new(), width * size_of::<T>());
    while let Some(next) = encoder.plan() {
        let mut slab = ep.chunk(next.bytes());
        encoder.write(&next, slab.as_bytes_mut());
        ep.spend(Effort::Encode { entries: entries(slab.as_bytes_mut()), row_bytes });
        all.push(slab.freeze());
    }
    all
}

/// Sends the segments of some streams and receives others, all at once. `came(k, segment)` gets each
/// segment of the k-th source in the order in which it sent them.
pub async fn exchange(
    ep: &Endpoint,
    round: u32,
    sends: &[(u32, &[Payload])],
    sources: &[u32],
    mut came: impl FnMut(usize, Payload) -> Result<()>,
) -> Result<()> {
    let total = |segments: &[Payload]| segments.iter().map(|s| s.len() as u64).sum();
    let mut outs: Vec<(Outgoing, std::slice::Iter<'_, Payload>)> =
        sends.iter().map(|(to, list)| (Outgoing::new(*to, round, total(list)), list.iter())).collect();
    let mut ins: Vec<Incoming> = sources.iter().map(|from| Incoming::new(*from, round)).collect();
    loop {
        let mut moved = false;
        // One segment to each in turn, so that all get theirs at the same rate.
        for (out, left) in &mut outs {
            if out.may_send(ep)
                && let Some(segment) = left.next()
            {
                out.push_shared(ep, segment.clone());
                moved = true;
            }
        }
        for (k, incoming) in ins.iter_mut().enumerate() {
            while let Some(segment) = incoming.next(ep)? {
                came(k, segment)?;
                moved = true;
            }
        }
        if outs.iter().all(|(out, _)| out.done()) && ins.iter().all(Incoming::done) {
            return Ok(());
        }
        if !moved {
            ep.progress().await?;
        }
    }
}
