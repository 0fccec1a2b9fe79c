//! The nested butterfly's configuration (Kylix §III-A), alone or with the reduction (§III-C).
//!
//! ```text
//! down, layer i = 1..l:  split the out- and in-set above into the neighbours' ranges, send the parts
//!                        union what comes (tree merge); remember the map of every part
//! at the bottom:         find every index that is asked for among those put out (the third map)
//! up, layer i = l..1:    a bit for every index asked that nobody puts out, and how many in all
//! ```
//!
//! `configure_reduce` sends the values of a share in the same message as its indices, and the results
//! with the bits. Cost: Σ 2 (d_i - 1) α for either, which is what the combined form saves over the
//! two; bytes as [`Encoding`] makes them.
//!
//! Every rank hears, layer by layer, from every other, so no rank returns before all have entered,
//! and an index that is missing anywhere is known everywhere.

use crate::butterfly::{check_degrees, layers};
use crate::collectives::allgather::allgather_bytes;
use crate::collectives::reduce::{
    DOWN, Source, Target, UP, check_width, copy_repeats, finish_mean, stage_repeats,
};
use crate::endpoint::Endpoint;
use crate::plan::{Layer, Memory, Plan, Stats};
use crate::slab::{AlignedVec, Message, MessageMut};
use skyphos_kernels::{
    BLOCK_BITS, Block, BlockHash, Encoding, IndexSet, MISSING, Prepared, decode, fold_rows, gather_rows,
    positions, split_ranges, union,
};
use skyphos_types::{Element, Error, ReduceOp, Result};
use std::borrow::Cow;
use std::sync::Arc;

/// Round of the exchange of examples when indices are missing.
const EXAMPLES: u32 = 0x300;
/// Examples that each rank gives.
const EXAMPLES_EACH: usize = 4;

/// Examples that an error shows.
const EXAMPLES_SHOWN: usize = 8;

/// What an index that is asked for and nobody puts out leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// All ranks raise the same error.
    Error,
    /// It is answered with the operation's identity.
    Identity,
}

/// What to configure: this rank's sets and what all ranks agree on.
pub struct Request {
    /// Size of the index space.
    pub n: u64,
    /// Numbers an index.
    pub width: usize,
    /// Degree of each layer.
    pub degrees: Vec<u32>,
    /// See [`Missing`].
    pub missing: Missing,
    /// The permutation of blocks; must be `BlockHash::new(n, ranks)`.
    pub hash: BlockHash,
    /// What this rank puts out.
    pub contribute: Prepared,
    /// Length of the array it came from.
    pub contribute_len: usize,
    /// What this rank asks for.
    pub want: Prepared,
    /// Length of the array it came from.
    pub want_len: usize,
    /// Number for the plan, the same on all ranks.
    pub id: u32,
}

/// Values to reduce while configuring.
struct Values<'a, T> {
    values: &'a [T],
    out: &'a mut [T],
    op: &'a ReduceOp,
}

/// Configures; collective.
pub async fn configure(ep: &Endpoint, request: Request) -> Result<Plan> {
    run::<u8>(ep, request, None).await
}

/// Configures and reduces `values` into `out` in one pass down and up; collective.
pub async fn configure_reduce<T: Element>(
    ep: &Endpoint,
    request: Request,
    values: &[T],
    out: &mut [T],
    op: &ReduceOp,
) -> Result<Plan> {
    op.check(T::DTYPE)?;
    check_width::<T>(request.width)?;
    for (what, len, rows) in
        [("values hold", values.len(), request.contribute_len), ("out holds", out.len(), request.want_len)]
    {
        if len != rows * request.width {
            return Err(Error::bad_input(format!(
                "{what} {len} numbers for {rows} rows of {}",
                request.width
            )));
        }
    }
    run(ep, request, Some(Values { values, out, op })).await
}

async fn run<T: Element>(ep: &Endpoint, request: Request, mut with: Option<Values<'_, T>>) -> Result<Plan> {
    check_degrees(&request.degrees, ep.size())?;
    let start = ep.now();
    let Request { n, width, degrees, missing, hash, contribute, want, .. } = request;
    let mut staged = AlignedVec::default();
    let mut sums: Vec<Vec<T>> = Vec::new();
    let mut counts: Vec<Vec<u32>> = Vec::new();
    let counted = with.as_ref().is_some_and(|w| matches!(w.op, ReduceOp::MeanPresent));
    let ones = vec![1u32; if counted { request.contribute_len } else { 0 }];
    let (mut built, mut lo, mut hi) = (Vec::new(), 0, hash.range());
    let (mut out_set, mut in_set) = (contribute.set.clone(), want.set.clone());
    for (k, group) in layers(&degrees, ep.rank()).into_iter().enumerate() {
        let bounds = split_ranges(lo, hi, group.members.len() as u32);
        let cut = Cut { members: group.members, me: group.me, bounds: &bounds };
        // Values ride along: the share of each member, in the order of its indices.
        let mut carried: Option<(Source<'_, T>, Option<Source<'_, u32>>)> = None;
        if let Some(w) = &with {
            carried = Some(match (sums.last(), counts.last()) {
                (None, _) => {
                    let values = match contribute.repeats.is_empty() {
                        true => w.values,
                        false => stage_repeats(w.op, &contribute, w.values, width, &mut staged)?,
                    };
                    let order = &contribute.order;
                    (Source::Permuted(values, order), counted.then_some(Source::Permuted(&ones, order)))
                }
                (Some(sum), counts) => {
                    (Source::Plain(sum), counts.filter(|_| counted).map(|c| Source::Plain(c.as_slice())))
                }
            });
        }
        let down = go_down(ep, &cut, &out_set, &in_set, carried.as_ref(), width, DOWN + k as u32).await?;
        if let (Some(w), Some((source, ones))) = (&with, &carried) {
            let sum = fold_shares(w.op, &down, source, width, |s| s.values.clone())?;
            let count = match ones {
                Some(source) => fold_shares(&ReduceOp::Sum, &down, source, 1, |s| s.counts.clone())?,
                None => Vec::new(),
            };
            sums.push(sum);
            counts.push(count);
        }
        (lo, hi) = (bounds[group.me], bounds[group.me + 1]);
        (out_set, in_set) = (down.out_set, down.in_set);
        built.push(down.layer);
    }
    let unmet = meet(&mut built, &out_set, &in_set);
    if let Some(w) = &with {
        let bottom = sums.last_mut().expect("a layer");
        let body = bottom.len() - width;
        finish_mean(w.op, &mut bottom[..body], width, ep.size(), counts.last().map(Vec::as_slice));
    }
    if missing == Missing::Error || with.is_some() {
        let mut results = sums.pop().unwrap_or_default();
        // Under "identity" nobody needs to know.
        let mut unmet = if missing == Missing::Error { unmet } else { Unmet { bits: Vec::new(), count: 0 } };
        for k in (0..built.len()).rev() {
            let last = k == 0;
            let mut next =
                vec![T::ZERO; if last || with.is_none() { 0 } else { built[k - 1].in_len * width }];
            let mut target = match &mut with {
                Some(w) if last => Some(Target::Scattered(&mut *w.out, &want.order)),
                Some(_) => Some(Target::Plain(&mut next)),
                None => None,
            };
            let values = target.as_mut().map(|t| (results.as_slice(), t));
            unmet = go_up(ep, &mut built[k], unmet, values, width, UP + k as u32).await?;
            results = next;
        }
        if unmet.count > 0 {
            return Err(missing_error(ep, &want.set, hash, &unmet.bits).await?);
        }
        if let Some(w) = &mut with {
            copy_repeats(&want.repeats, w.out, width);
        }
    }
    let stats = Stats { total_s: (ep.now() - start).as_secs_f64(), ..Stats::default() };
    Ok(Plan {
        id: request.id,
        n,
        width,
        degrees,
        hash,
        contribute,
        want,
        contribute_len: request.contribute_len,
        want_len: request.want_len,
        layers: built,
        present: None,
        memory: Memory::default(),
        stats,
    })
}

/// A layer's group and the bounds of its members' ranges.
struct Cut<'a> {
    members: Vec<u32>,
    me: usize,
    bounds: &'a [u64],
}

/// Where things lie in a message: a byte that says whether both sets are the same, the sets, then
/// values and counts, each aligned.
struct Sections {
    values: std::ops::Range<usize>,
    counts: std::ops::Range<usize>,
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

/// A message that came.
struct Share {
    message: Message,
    sections: Sections,
}

/// What a layer leaves: the layer, the sets below it, and the messages by member.
struct Down {
    layer: Layer,
    out_set: IndexSet,
    in_set: IndexSet,
    shares: Vec<Option<Share>>,
}

/// Rounds up to where numbers of any type are aligned.
fn aligned(len: usize) -> usize {
    len.next_multiple_of(64)
}

async fn go_down<T: Element>(
    ep: &Endpoint,
    cut: &Cut<'_>,
    out_set: &IndexSet,
    in_set: &IndexSet,
    values: Option<&(Source<'_, T>, Option<Source<'_, u32>>)>,
    width: usize,
    round: u32,
) -> Result<Down> {
    let degree = cut.members.len();
    let parts_of = |set: &IndexSet| -> Vec<std::ops::Range<usize>> {
        (0..degree).map(|j| set.blocks_between(cut.bounds[j], cut.bounds[j + 1])).collect()
    };
    let (out_parts, in_parts) = (parts_of(out_set), parts_of(in_set));
    let split_of = |set: &IndexSet, parts: &[std::ops::Range<usize>]| -> Vec<usize> {
        parts.iter().map(|p| set.base(p.start)).chain([set.len()]).collect()
    };
    let (out_split, in_split) = (split_of(out_set, &out_parts), split_of(in_set, &in_parts));
    let mut messages: Vec<(u32, MessageMut)> = Vec::new();
    let mut config_bytes = 0;
    for step in 1..degree {
        let j = (cut.me + step) % degree;
        let (lo, hi) = (cut.bounds[j], cut.bounds[j + 1]);
        let outs = &out_set.blocks()[out_parts[j].clone()];
        let ins = &in_set.blocks()[in_parts[j].clone()];
        let (start, rows) = (out_split[j], out_split[j + 1] - out_split[j]);
        let out_code = Encoding::new(outs, lo, hi);
        let in_code = (ins != outs).then(|| Encoding::new(ins, lo, hi));
        let in_bytes = in_code.as_ref().map_or(0, Encoding::bytes);
        let set_bytes = 1 + out_code.bytes() + in_bytes;
        let value_bytes = values.map(|_| rows * width * size_of::<T>());
        let count_bytes = values.and_then(|(_, ones)| ones.as_ref()).map(|_| rows * 4);
        let sections = Sections::new(set_bytes, value_bytes, count_bytes);
        config_bytes += set_bytes as u64;
        let mut message = ep.message(sections.end);
        let bytes = message.as_bytes_mut();
        bytes[0] = u8::from(in_code.is_none());
        out_code.write(&mut bytes[1..1 + out_code.bytes()]);
        if let Some(code) = in_code {
            code.write(&mut bytes[set_bytes - in_bytes..set_bytes]);
        }
        if let Some((source, ones)) = values {
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
        }
        messages.push((cut.members[j], message));
    }
    let others: Vec<u32> = cut.members.iter().copied().filter(|m| *m != ep.rank()).collect();
    let mut came = ep.exchange(round, messages, &others).await?.into_iter();

    let (lo, hi) = (cut.bounds[cut.me], cut.bounds[cut.me + 1]);
    let mut outs: Vec<Cow<'_, [Block]>> = Vec::with_capacity(degree);
    // `None`: the in-part of that member is its out-part.
    let mut ins: Vec<Option<Cow<'_, [Block]>>> = Vec::with_capacity(degree);
    let mut shares = Vec::with_capacity(degree);
    for j in 0..degree {
        if j == cut.me {
            let (own_out, own_in) =
                (&out_set.blocks()[out_parts[j].clone()], &in_set.blocks()[in_parts[j].clone()]);
            outs.push(Cow::Borrowed(own_out));
            ins.push((own_in != own_out).then_some(Cow::Borrowed(own_in)));
            shares.push(None);
            continue;
        }
        let message = came.next().expect("a message from every other member");
        let damaged = |message: &str| Error::Corrupt {
            rank: ep.world_rank(cut.members[j]),
            message: message.to_owned(),
        };
        let (same, sets) = message.as_bytes().split_first().ok_or_else(|| damaged("an empty message"))?;
        let (out_blocks, used) = decode(sets, lo, hi).map_err(damaged)?;
        let (in_blocks, used_too) = match same {
            1 => (None, 0),
            _ => {
                let (blocks, used) = decode(&sets[used..], lo, hi).map_err(damaged)?;
                (Some(Cow::Owned(blocks)), used)
            }
        };
        let rows: usize = out_blocks.iter().map(|b| b.mask.count_ones() as usize).sum();
        let value_bytes = values.map(|_| rows * width * size_of::<T>());
        let count_bytes = values.and_then(|(_, ones)| ones.as_ref()).map(|_| rows * 4);
        let sections = Sections::new(1 + used + used_too, value_bytes, count_bytes);
        if sections.end != message.as_bytes().len() {
            return Err(damaged("a message longer or shorter than its indices and values"));
        }
        outs.push(Cow::Owned(out_blocks));
        ins.push(in_blocks);
        shares.push(Some(Share { message, sections }));
    }
    let views = |k: usize| outs[k].as_ref();
    let (out_set, out_maps) = join(&(0..degree).map(views).collect::<Vec<_>>())?;
    let (in_set, in_maps) = if ins.iter().all(Option::is_none) {
        (out_set.clone(), out_maps.clone())
    } else {
        let views = |k: usize| ins[k].as_ref().unwrap_or(&outs[k]).as_ref();
        join(&(0..degree).map(views).collect::<Vec<_>>())?
    };
    let layer = Layer {
        members: cut.members.clone(),
        me: cut.me,
        out_split,
        in_split,
        out_maps,
        in_maps,
        out_len: out_set.len(),
        in_len: in_set.len(),
        config_bytes: [config_bytes, 0],
    };
    Ok(Down { layer, out_set, in_set, shares })
}

/// The union of the parts, and the map of each part into it.
fn join(parts: &[&[Block]]) -> Result<(IndexSet, Vec<Arc<Vec<u32>>>)> {
    let blocks = union(parts);
    let count: u64 = blocks.iter().map(|b| u64::from(b.mask.count_ones())).sum();
    if count >= u64::from(MISSING) {
        return Err(Error::bad_input(format!(
            "{count} indices meet on one rank; it takes at most 2^32 - 2: use more ranks"
        )));
    }
    let set = IndexSet::new(blocks);
    let maps = parts.iter().map(|part| Arc::new(positions(part, &set))).collect();
    Ok((set, maps))
}

/// Folds the values of all members' shares, in rank order.
fn fold_shares<V: Element>(
    op: &ReduceOp,
    down: &Down,
    own: &Source<'_, V>,
    width: usize,
    part: impl Fn(&Sections) -> std::ops::Range<usize>,
) -> Result<Vec<V>> {
    let layer = &down.layer;
    // One row more than the union: in the last layer it becomes the answer to what nobody puts out.
    let mut sum = vec![op.identity::<V>()?; (layer.out_len + 1) * width];
    for (j, map) in layer.out_maps.iter().enumerate() {
        match &down.shares[j] {
            None => own.fold(op, &mut sum, 0, map, layer.out_split[j], width)?,
            Some(share) => {
                let bytes = &share.message.as_bytes()[part(&share.sections)];
                fold_rows(op, &mut sum, 0, map, bytemuck::cast_slice(bytes), width)?;
            }
        }
    }
    Ok(sum)
}

/// What nobody puts out, as it travels up.
struct Unmet {
    /// For each position that the in-maps of a layer lead to; empty when there is none.
    bits: Vec<bool>,
    /// Unmet indices of all bottom ranges heard of so far.
    count: u64,
}

/// At the bottom: where each index that is asked for lies among those put out. Composes that map with
/// the last layer's in-maps; an index that nobody puts out leads to the row after the last.
fn meet(built: &mut [Layer], out_set: &IndexSet, in_set: &IndexSet) -> Unmet {
    let last = built.last_mut().expect("at least one layer");
    if in_set == out_set {
        return Unmet { bits: Vec::new(), count: 0 }; // the third map is the identity
    }
    let final_map = positions(in_set.blocks(), out_set);
    let nobody = last.out_len as u32;
    let count = final_map.iter().filter(|p| **p == MISSING).count() as u64;
    let bits = if count == 0 { Vec::new() } else { (0..=nobody).map(|p| p == nobody).collect() };
    for p in last.in_maps.iter_mut().flat_map(Arc::make_mut) {
        let q = final_map[*p as usize];
        *p = if q == MISSING { nobody } else { q };
    }
    Unmet { bits, count }
}

/// Bytes before the bits of an answer: the number of unmet indices, and whether bits follow.
const ANSWER_HEAD: usize = 9;

/// Up one layer: to each member the unmet bits of its share, the number of unmet indices known so
/// far, and the values. Returns the same for the set above.
async fn go_up<T: Element>(
    ep: &Endpoint,
    layer: &mut Layer,
    unmet: Unmet,
    mut values: Option<(&[T], &mut Target<'_, T>)>,
    width: usize,
    round: u32,
) -> Result<Unmet> {
    let Unmet { bits: unmet, count: total } = unmet;
    let is_unmet = |p: u32| unmet[p as usize];
    let mut messages: Vec<(u32, MessageMut)> = Vec::new();
    for step in 1..layer.members.len() {
        let j = (layer.me + step) % layer.members.len();
        let map = &layer.in_maps[j];
        let some = !unmet.is_empty() && map.iter().any(|p| is_unmet(*p));
        let set_bytes = ANSWER_HEAD + if some { map.len().div_ceil(8) } else { 0 };
        let value_bytes = values.as_ref().map(|_| map.len() * width * size_of::<T>());
        let sections = Sections::new(set_bytes, value_bytes, None);
        let mut message = ep.message(sections.end);
        let bytes = message.as_bytes_mut();
        bytes[..8].copy_from_slice(&total.to_le_bytes());
        bytes[8] = u8::from(some);
        if some {
            let bits = &mut bytes[ANSWER_HEAD..set_bytes];
            bits.fill(0);
            map.iter()
                .enumerate()
                .filter(|(_, p)| is_unmet(**p))
                .for_each(|(k, _)| bits[k / 8] |= 1 << (k % 8));
        }
        layer.config_bytes[1] += set_bytes as u64;
        if let Some((source, _)) = &values {
            bytes[set_bytes..sections.values.start].fill(0);
            gather_rows(source, map, width, bytemuck::cast_slice_mut(&mut bytes[sections.values]));
        }
        messages.push((layer.members[j], message));
    }
    let others: Vec<u32> = layer.members.iter().copied().filter(|m| *m != ep.rank()).collect();
    let came = ep.exchange(round, messages, &others).await?;

    let above = *layer.in_split.last().expect("split has an end");
    let mut all_unmet = Vec::new();
    let mut sum = total;
    let own = &layer.in_maps[layer.me];
    if !unmet.is_empty() && own.iter().any(|p| is_unmet(*p)) {
        all_unmet.resize(above, false);
        let start = layer.in_split[layer.me];
        own.iter().enumerate().filter(|(_, p)| is_unmet(**p)).for_each(|(k, _)| all_unmet[start + k] = true);
    }
    if let Some((source, target)) = &mut values {
        target.put_gathered(layer.in_split[layer.me], source, own, width);
    }
    for (k, bytes) in came.iter().enumerate() {
        let j = if k < layer.me { k } else { k + 1 };
        let damaged = || Error::Corrupt {
            rank: ep.world_rank(layer.members[j]),
            message: "an answer that does not fit what was asked".to_owned(),
        };
        let (start, rows) = (layer.in_split[j], layer.in_split[j + 1] - layer.in_split[j]);
        let body = bytes.as_bytes();
        let head: [u8; ANSWER_HEAD] =
            body.get(..ANSWER_HEAD).and_then(|h| h.try_into().ok()).ok_or_else(damaged)?;
        sum += u64::from_le_bytes(head[..8].try_into().expect("8 bytes"));
        let bit_bytes = if head[8] == 1 { rows.div_ceil(8) } else { 0 };
        let bits = body.get(ANSWER_HEAD..ANSWER_HEAD + bit_bytes).ok_or_else(damaged)?;
        if head[8] == 1 {
            all_unmet.resize(above, false);
            (0..rows).filter(|r| bits[r / 8] >> (r % 8) & 1 == 1).for_each(|r| all_unmet[start + r] = true);
        }
        if let Some((_, target)) = &mut values {
            let at = aligned(ANSWER_HEAD + bit_bytes);
            let part =
                body.get(at..).filter(|p| p.len() == rows * width * size_of::<T>()).ok_or_else(damaged)?;
            target.put(start, bytemuck::cast_slice(part), width);
        }
    }
    Ok(Unmet { bits: all_unmet, count: sum })
}

/// All ranks know that indices are missing: they exchange examples and raise the same error.
async fn missing_error(ep: &Endpoint, want: &IndexSet, hash: BlockHash, unmet: &[bool]) -> Result<Error> {
    let mut mine: Vec<u64> = unmet
        .iter()
        .enumerate()
        .filter(|(_, missing)| **missing)
        .map(|(position, _)| want.element(position))
        .map(|(id, bit)| hash.inverse(id) << BLOCK_BITS | u64::from(bit))
        .collect();
    let count = mine.len() as u64;
    mine.sort_unstable();
    mine.resize(EXAMPLES_EACH, u64::MAX);
    let block: Vec<u8> = [count].iter().chain(&mine).flat_map(|v| v.to_le_bytes()).collect();
    let blocks = allgather_bytes(ep, EXAMPLES, &block).await?;
    let (mut requests, mut examples) = (0, Vec::new());
    for (rank, block) in blocks.iter().enumerate() {
        let numbers: Vec<u64> =
            block.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes"))).collect();
        requests += numbers[0];
        let shown = (numbers[0] as usize).min(EXAMPLES_EACH);
        examples.extend(numbers[1..1 + shown].iter().map(|i| (*i, ep.world_rank(rank as u32))));
    }
    examples.sort_unstable();
    examples.truncate(EXAMPLES_SHOWN);
    Ok(Error::Unmet { requests, examples })
}
