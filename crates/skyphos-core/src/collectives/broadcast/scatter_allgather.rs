//! Scatter and allgather (van de Geijn): the root sends each rank one range, and the ranges go around a ring. All steps overlap.
//! Who would pass a range on to the root does not, and the root sends it on all the same, for it has it.

use super::message::{Parts, Source};
use super::{DATA, Room};
use crate::clock::Effort;
use crate::endpoint::{Endpoint, Incoming, Outgoing};
use crate::slab::Payload;
use skyphos_kernels::split_ranges;
use skyphos_types::Result;
use std::ops::Range;

/// Rounds of the ring come after that of the scatter.
const AROUND: u32 = DATA + 1;

/// A range on its way around the ring: what of it this rank passes on.
struct Stretch {
    range: Range<usize>,
    incoming: Incoming,
    onward: Option<Outgoing>,
    came: usize,
}

/// Brings `total` bytes from who stands first in `order` to all; `memory`: the message's parts there, room for them elsewhere.
pub(super) async fn scatter_allgather<R: Room>(
    ep: &Endpoint,
    order: &[u32],
    place: usize,
    total: usize,
    mut memory: std::result::Result<&mut R, &Parts<&&[u8]>>,
) -> Result<()> {
    let size = order.len();
    let bounds = split_ranges(0, total as u64, size as u32);
    let range = |k: usize| bounds[k] as usize..bounds[k + 1] as usize;
    let (next, before) = (order[(place + 1) % size], order[(place + size - 1) % size]);
    let around = |k: usize| Outgoing::new(next, AROUND + k as u32, range(k).len() as u64);
    // Range k begins its way at place k, and ends it before it would come there again.
    let goes_on = |k: usize| (place + 1 != k && place + 1 < size).then(|| around(k));
    let mut scatter: Vec<(usize, Outgoing)> = match place {
        0 => (1..size).map(|k| (k, Outgoing::new(order[k], DATA, range(k).len() as u64))).collect(),
        _ => Vec::new(),
    };
    let mut stretches: Vec<Stretch> = match place {
        0 => Vec::new(),
        _ => (0..size)
            .map(|k| {
                let incoming = match k == place {
                    true => Incoming::new(order[0], DATA),
                    false => Incoming::new(before, AROUND + k as u32),
                };
                Stretch { range: range(k), incoming, onward: goes_on(k), came: 0 }
            })
            .collect(),
    };
    let mut own: Vec<(usize, Outgoing)> = match place {
        0 => (0..size).filter(|k| *k != 1).map(|k| (k, around(k))).collect(),
        _ => Vec::new(),
    };
    let cut = |parts: &Parts<&&[u8]>, at: usize, len: usize| -> Payload {
        let mut chunk = ep.chunk(len);
        ep.spend(Effort::Dense { bytes: 2 * len });
        if !ep.is_sized() {
            parts.copy_out(at, chunk.as_bytes_mut());
        }
        chunk.freeze()
    };
    loop {
        let mut moved = false;
        if let Err(parts) = memory {
            for (k, send) in scatter.iter_mut().chain(&mut own) {
                if let Some(part) = send.next_range(ep, 1) {
                    send.push_shared(ep, cut(parts, range(*k).start + part.start, part.len()));
                    moved = true;
                }
            }
        }
        for (k, stretch) in stretches.iter_mut().enumerate() {
            while stretch.onward.as_ref().is_none_or(|send| send.may_send(ep)) {
                let Some(chunk) = stretch.incoming.next(ep)? else { break };
                let at = stretch.range.start + stretch.came;
                if stretch.incoming.total() != stretch.range.len() as u64 {
                    let from = if k == place { order[0] } else { before };
                    let what =
                        format!("{} bytes of a range of {}", stretch.incoming.total(), stretch.range.len());
                    return Err(ep.corrupt(from, &what));
                }
                ep.spend(Effort::Dense { bytes: 2 * chunk.len() });
                if let (Ok(room), false) = (&mut memory, ep.is_sized()) {
                    room.put(at, chunk.as_bytes());
                }
                stretch.came += chunk.len();
                stretch.onward.iter_mut().for_each(|send| send.push_shared(ep, chunk.clone()));
                moved = true;
            }
        }
        let sent = scatter.iter().chain(&own).all(|(_, send)| send.done());
        let passed_on = |stretch: &Stretch| stretch.onward.as_ref().is_none_or(Outgoing::done);
        if sent && stretches.iter().all(|stretch| stretch.incoming.done() && passed_on(stretch)) {
            return Ok(());
        }
        if !moved {
            ep.progress().await?;
        }
    }
}
