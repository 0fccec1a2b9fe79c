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
use crate::clock::Effort;
use crate::collectives::allgather::allgather_numbers;
use crate::collectives::configure_layer::{Cut, Unmet, fold_shares, go_down, go_up};
use crate::collectives::reduce::{DOWN, UP, check_shapes, finish_mean};
use crate::collectives::rows::{Source, Target, copy_repeats, stage_repeats};
use crate::collectives::sets::{Counted, Sets};
use crate::endpoint::Endpoint;
use crate::plan::{Considered, Layer, Map, Memory, Plan, Stats};
use crate::slab::AlignedVec;
use skyphos_kernels::{BLOCK_BITS, BlockHash, IndexSet, Locator, MISSING, Prepared, split_ranges};
use skyphos_types::{Element, Error, ReduceOp, Result};

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
    /// See [`Plan::considered`].
    pub considered: Vec<Considered>,
    /// Number for the plan, the same on all ranks.
    pub id: u32,
    /// In a simulation without data: how many indices there are instead of the sets, which are empty.
    pub counted: Option<Counted>,
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
    check_shapes((request.contribute_len, request.want_len), request.width, values, out, op)?;
    run(ep, request, Some(Values { values, out, op })).await
}

async fn run<T: Element>(ep: &Endpoint, request: Request, mut with: Option<Values<'_, T>>) -> Result<Plan> {
    check_degrees(&request.degrees, ep.size())?;
    let start = ep.now();
    let Request { n, width, degrees, missing, hash, contribute, want, counted: counted_sets, .. } = request;
    let mut staged = AlignedVec::default();
    let mut sums: Vec<Vec<T>> = Vec::new();
    let mut counts: Vec<Vec<u32>> = Vec::new();
    let counted = with.as_ref().is_some_and(|w| matches!(w.op, ReduceOp::MeanPresent));
    let ones = vec![1u32; if counted { request.contribute_len } else { 0 }];
    let (mut built, mut lo, mut hi) = (Vec::new(), 0, hash.range());
    let mut sets = match counted_sets {
        Some(counted) => Sets::Counted(counted),
        None => Sets::Real { out: contribute.set.clone(), want: want.set.clone() },
    };
    for (k, group) in layers(&degrees, ep.rank(), ep.topology()).into_iter().enumerate() {
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
        let down = go_down(ep, &cut, &sets, carried.as_ref(), width, DOWN + k as u32).await?;
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
        sets = down.sets;
        built.push(down.layer);
    }
    let unmet = meet(ep, &mut built, &sets);
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
            // The sums of the layers above are not needed any more: their memory holds the results.
            let mut next = sums.pop().unwrap_or_default();
            next.resize(if last || with.is_none() { 0 } else { built[k - 1].in_len * width }, T::ZERO);
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
        considered: request.considered,
        layers: built,
        present: None,
        memory: Memory::default(),
        stats,
    })
}

/// At the bottom: where each index that is asked for lies among those put out. Composes that map with
/// the last layer's in-maps; an index that nobody puts out leads to the row after the last.
fn meet(ep: &Endpoint, built: &mut [Layer], sets: &Sets) -> Unmet {
    let last = built.last_mut().expect("at least one layer");
    let met = Unmet { bits: Vec::new(), count: 0 };
    let Sets::Real { out: out_set, want: in_set } = sets else { return met };
    if in_set == out_set {
        return met; // the third map is the identity
    }
    ep.spend(Effort::SetJoin { indices: in_set.len() });
    let final_map = Locator::new(out_set).positions(in_set.blocks());
    let nobody = last.out_len as u32;
    let count = final_map.iter().filter(|p| **p == MISSING).count() as u64;
    let bits = if count == 0 { Vec::new() } else { (0..=nobody).map(|p| p == nobody).collect() };
    for p in last.in_maps.iter_mut().flat_map(Map::places_mut) {
        let q = final_map[*p as usize];
        *p = if q == MISSING { nobody } else { q };
    }
    Unmet { bits, count }
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
    mine.insert(0, count);
    let (mut requests, mut examples) = (0u64, Vec::new());
    for (rank, numbers) in allgather_numbers(ep, EXAMPLES, &mine).await?.iter().enumerate() {
        requests = requests.saturating_add(numbers[0]);
        let shown = numbers[0].min(EXAMPLES_EACH as u64) as usize;
        examples.extend(numbers[1..1 + shown].iter().map(|i| (*i, ep.world_rank(rank as u32))));
    }
    examples.sort_unstable();
    examples.truncate(EXAMPLES_SHOWN);
    Ok(Error::Unmet { requests, examples })
}
