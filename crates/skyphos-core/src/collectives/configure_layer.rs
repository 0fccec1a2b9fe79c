//! One layer of a configuration: the contents of its messages, going down and coming up.
//!
//! A message down has a share's index sets ([`ShareEncoding`](crate::collectives::sets::ShareEncoding)) and, with values, the
//! share's rows and counts, aligned. A message up has the number of *unmet* indices (wanted, and contributed by no rank) that
//! its sender knows of, a byte that is 1 if bits follow, one bit for every index of the share and, with values, their rows.

use crate::clock::Effort;
use crate::collectives::rows::{RowSource, RowTarget, fold_block_rows};
use crate::collectives::sets::{Joined, Sets, Share, decode};
use crate::endpoint::Endpoint;
use crate::plan::Layer;
use crate::slab::{Message, MessageMut};
use skyphos_kernels::{fold_rows, gather_rows};
use skyphos_types::{Element, Error, GroupRank, ReduceOp, Result, Round};

/// A layer's group and the bounds of its members' ranges.
pub(crate) struct LayerGroup<'a> {
    pub(crate) members: Vec<GroupRank>,
    pub(crate) me: usize,
    pub(crate) bounds: &'a [u64],
}

/// The byte ranges of values and counts in a message down, after its sets.
pub(crate) struct Sections {
    pub(crate) values: std::ops::Range<usize>,
    pub(crate) counts: std::ops::Range<usize>,
    end: usize,
}

impl Sections {
    fn new(set_bytes: usize, value_bytes: Option<usize>, count_bytes: Option<usize>) -> Sections {
        let Some(value_bytes) = value_bytes else {
            return Sections { values: 0..0, counts: 0..0, end: set_bytes };
        };
        let values = aligned(set_bytes)..aligned(set_bytes) + value_bytes;
        let Some(count_bytes) = count_bytes else {
            return Sections { end: values.end, values, counts: 0..0 };
        };
        let counts = aligned(values.end)..aligned(values.end) + count_bytes;
        Sections { end: counts.end, values, counts }
    }
}

/// A received message.
struct Received {
    message: Message,
    sections: Sections,
}

/// The result of a layer down: the layer, the sets below it, and the received messages by member.
pub(crate) struct Down {
    pub(crate) layer: Layer,
    pub(crate) sets: Sets,
    received: Vec<Option<Received>>,
}

/// Rounds up to a multiple of 64, an alignment for numbers of any type.
fn aligned(len: usize) -> usize {
    len.next_multiple_of(64)
}

/// Exchanges the shares of one layer, with rows and counts if there are any, and joins the sets.
pub(crate) async fn go_down<T: Element>(
    ep: &Endpoint,
    layer_group: &LayerGroup<'_>,
    sets: &Sets,
    values: Option<&(RowSource<'_, T>, Option<RowSource<'_, u32>>)>,
    width: usize,
    round: Round,
) -> Result<Down> {
    let degree = layer_group.members.len();
    let [out_split, in_split] = sets.splits(layer_group.bounds);
    let row_bytes = width * size_of::<T>();
    let mut messages: Vec<(GroupRank, MessageMut)> = Vec::new();
    let mut config_bytes = 0;
    for step in 1..degree {
        let j = (layer_group.me + step) % degree;
        let (start, rows) = (out_split[j], out_split[j + 1] - out_split[j]);
        let encoding = sets.encode(layer_group.bounds[j], layer_group.bounds[j + 1], degree);
        let set_bytes = encoding.bytes();
        let value_bytes = values.map(|_| rows * row_bytes);
        let count_bytes = values.and_then(|(_, ones)| ones.as_ref()).map(|_| rows * 4);
        let sections = Sections::new(set_bytes, value_bytes, count_bytes);
        config_bytes += set_bytes as u64;
        let mut message = ep.message(sections.end);
        ep.compute(Effort::SetCode { indices: rows }, || {
            let bytes = message.as_bytes_mut();
            encoding.write(&mut bytes[..set_bytes]);
            let Some((source, ones)) = values else { return };
            ep.spend(Effort::Gather { rows, row_bytes });
            bytes[set_bytes..sections.values.start].fill(0);
            source.copy_rows(
                start,
                rows,
                width,
                bytemuck::cast_slice_mut(&mut bytes[sections.values.clone()]),
            );
            if let Some(ones) = ones {
                bytes[sections.values.end..sections.counts.start].fill(0);
                ones.copy_rows(start, rows, 1, bytemuck::cast_slice_mut(&mut bytes[sections.counts.clone()]));
            }
        });
        messages.push((layer_group.members[j], message));
    }
    let others: Vec<GroupRank> = layer_group.members.iter().copied().filter(|m| *m != ep.rank()).collect();
    let mut arrivals = ep.exchange(round, messages, &others).await?.into_iter();

    let (lo, hi) = (layer_group.bounds[layer_group.me], layer_group.bounds[layer_group.me + 1]);
    let mut shares: Vec<Option<Share<'_>>> = Vec::with_capacity(degree);
    let mut received = Vec::with_capacity(degree);
    for j in 0..degree {
        if j == layer_group.me || ep.is_sized() {
            shares.push(None);
            received.push(None);
            continue;
        }
        let message = arrivals.next().expect("a message from every other member");
        let damaged = |message: &str| Error::Corrupt {
            rank: ep.world_rank(layer_group.members[j]).0,
            message: message.to_owned(),
        };
        let (same, bytes) = message.as_bytes().split_first().ok_or_else(|| damaged("an empty message"))?;
        let (share, used) = decode(*same, bytes, lo, hi).map_err(damaged)?;
        let rows = share.rows();
        let value_bytes = values.map(|_| rows * row_bytes);
        let count_bytes = values.and_then(|(_, ones)| ones.as_ref()).map(|_| rows * 4);
        let sections = Sections::new(1 + used, value_bytes, count_bytes);
        if sections.end != message.as_bytes().len() {
            return Err(damaged("a message longer or shorter than its indices and values"));
        }
        shares.push(Some(share));
        received.push(Some(Received { message, sections }));
    }
    let Joined { sets, out_maps, in_maps, out_len, in_len } = sets.join(ep, shares, lo, hi)?;
    let layer = Layer {
        members: layer_group.members.clone(),
        me: layer_group.me,
        out_split,
        in_split,
        out_maps,
        in_maps,
        out_len,
        in_len,
        config_bytes: [config_bytes, 0],
    };
    Ok(Down { layer, sets, received })
}

/// Folds the rows of all members' shares into the union's rows, in rank order. `section` picks values or counts.
pub(crate) fn fold_shares<V: Element>(
    op: &ReduceOp,
    down: &Down,
    own: &RowSource<'_, V>,
    width: usize,
    section: impl Fn(&Sections) -> std::ops::Range<usize>,
) -> Result<Vec<V>> {
    let layer = &down.layer;
    // One row more than the union: in the last layer it is the result of an index that no rank contributes.
    let mut sum = vec![op.identity::<V>()?; (layer.out_len + 1) * width];
    let rows: Vec<Option<&[V]>> = down
        .received
        .iter()
        .map(|r| r.as_ref().map(|r| bytemuck::cast_slice(&r.message.as_bytes()[section(&r.sections)])))
        .collect();
    // Block by block, from all members in turn, so that the block stays in the cache.
    let mut folded = vec![0; layer.out_maps.len()];
    let block_rows = fold_block_rows::<V>(width);
    for (block, sum) in sum.chunks_mut(block_rows * width).enumerate() {
        let first = block * block_rows;
        for (j, map) in layer.out_maps.iter().enumerate() {
            let (start, map) = (folded[j], map.positions());
            let end = start + map[start..].partition_point(|p| (*p as usize) < first + block_rows);
            folded[j] = end;
            let (map, first) = (&map[start..end], first as u32);
            match rows[j] {
                None => own.fold(op, sum, first, map, layer.out_split[j] + start, width)?,
                Some(rows) => fold_rows(op, sum, first, map, &rows[start * width..end * width], width)?,
            }
        }
    }
    Ok(sum)
}

/// Wanted indices that no rank contributes, as they are reported up.
pub(crate) struct Unmet {
    /// One bit for each position that the in-maps of a layer lead to; empty if none is unmet.
    pub(crate) bits: Vec<bool>,
    /// Number of unmet indices in all bottom ranges that this rank knows of.
    pub(crate) count: u64,
}

impl Unmet {
    pub(crate) fn none() -> Unmet {
        Unmet { bits: Vec::new(), count: 0 }
    }
}

/// Bytes before the bits of a message up: 8 for the number of unmet indices, 1 that says whether bits follow.
const ANSWER_HEAD_BYTES: usize = 9;

/// Goes up one layer: sends each member the unmet bits of its share, the number of unmet indices known so far, and the
/// values. Returns the unmet indices of the set above.
pub(crate) async fn go_up<T: Element>(
    ep: &Endpoint,
    layer: &mut Layer,
    unmet: Unmet,
    mut values: Option<(&[T], &mut RowTarget<'_, T>)>,
    width: usize,
    round: Round,
) -> Result<Unmet> {
    let Unmet { bits: unmet, count: total } = unmet;
    let (is_unmet, row_bytes) = (|p: u32| unmet[p as usize], width * size_of::<T>());
    let mut messages: Vec<(GroupRank, MessageMut)> = Vec::new();
    for step in 1..layer.members.len() {
        let j = (layer.me + step) % layer.members.len();
        let (map, rows) = (layer.in_maps[j].positions(), layer.in_maps[j].len());
        let has_unmet = !unmet.is_empty() && map.iter().any(|p| is_unmet(*p));
        let set_bytes = ANSWER_HEAD_BYTES + if has_unmet { rows.div_ceil(8) } else { 0 };
        let value_bytes = values.as_ref().map(|_| rows * width * size_of::<T>());
        let sections = Sections::new(set_bytes, value_bytes, None);
        let mut message = ep.message(sections.end);
        layer.config_bytes[1] += set_bytes as u64;
        let effort = Effort::Gather { rows: if values.is_some() { rows } else { 0 }, row_bytes };
        ep.compute(effort, || {
            let bytes = message.as_bytes_mut();
            bytes[..8].copy_from_slice(&total.to_le_bytes());
            bytes[8] = u8::from(has_unmet);
            if has_unmet {
                let bits = &mut bytes[ANSWER_HEAD_BYTES..set_bytes];
                bits.fill(0);
                map.iter()
                    .enumerate()
                    .filter(|(_, p)| is_unmet(**p))
                    .for_each(|(k, _)| bits[k / 8] |= 1 << (k % 8));
            }
            if let Some((source, _)) = &values {
                bytes[set_bytes..sections.values.start].fill(0);
                gather_rows(source, map, width, bytemuck::cast_slice_mut(&mut bytes[sections.values]));
            }
        });
        messages.push((layer.members[j], message));
    }
    let others: Vec<GroupRank> = layer.members.iter().copied().filter(|m| *m != ep.rank()).collect();
    let answers = ep.exchange(round, messages, &others).await?;

    let above = *layer.in_split.last().expect("split has an end");
    let mut all_unmet = Vec::new();
    let mut sum = total;
    if ep.is_sized() {
        return Ok(Unmet { bits: all_unmet, count: total });
    }
    let own = layer.in_maps[layer.me].positions();
    if !unmet.is_empty() && own.iter().any(|p| is_unmet(*p)) {
        all_unmet.resize(above, false);
        let start = layer.in_split[layer.me];
        own.iter().enumerate().filter(|(_, p)| is_unmet(**p)).for_each(|(k, _)| all_unmet[start + k] = true);
    }
    if let Some((source, target)) = &mut values {
        target.put_gathered(layer.in_split[layer.me], source, own, width);
    }
    for (k, answer) in answers.iter().enumerate() {
        let j = if k < layer.me { k } else { k + 1 };
        let damaged = || Error::Corrupt {
            rank: ep.world_rank(layer.members[j]).0,
            message: "an answer that does not fit the indices requested".to_owned(),
        };
        let (start, rows) = (layer.in_split[j], layer.in_split[j + 1] - layer.in_split[j]);
        let body = answer.as_bytes();
        let head: [u8; ANSWER_HEAD_BYTES] =
            body.get(..ANSWER_HEAD_BYTES).and_then(|h| h.try_into().ok()).ok_or_else(damaged)?;
        sum = sum.saturating_add(u64::from_le_bytes(head[..8].try_into().expect("8 bytes")));
        let bit_bytes = if head[8] == 1 { rows.div_ceil(8) } else { 0 };
        let bits = body.get(ANSWER_HEAD_BYTES..ANSWER_HEAD_BYTES + bit_bytes).ok_or_else(damaged)?;
        if head[8] == 1 {
            all_unmet.resize(above, false);
            (0..rows).filter(|r| bits[r / 8] >> (r % 8) & 1 == 1).for_each(|r| all_unmet[start + r] = true);
        }
        if let Some((_, target)) = &mut values {
            let bytes = body.get(aligned(ANSWER_HEAD_BYTES + bit_bytes)..);
            let bytes = bytes.filter(|b| b.len() == rows * width * size_of::<T>()).ok_or_else(damaged)?;
            target.put(start, bytemuck::cast_slice(bytes), width);
        }
    }
    Ok(Unmet { bits: all_unmet, count: sum })
}
