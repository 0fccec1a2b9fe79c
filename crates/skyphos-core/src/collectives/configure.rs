//! Configuration of the nested butterfly (Kylix §III-A), alone or with the first reduction (§III-C).
//!
//! ```text
//! down, layer i = 1..l:  split the out- and in-set above into the neighbours' ranges; send each neighbour its shares
//!                        union the received shares (tree merge); store the map of every share into the union
//! at the bottom:         find every wanted index among the contributed ones (the third map)
//! up, layer i = l..1:    tell each neighbour which of the indices it wants no rank contributes, and how many such there are
//! ```
//!
//! `configure_reduce` sends the values of a share in the same message as its indices, and the results in the same message
//! as the bits. Cost of either: Σ 2 (d_i - 1) α, so the combined form saves the rounds of a reduction; bytes as
//! [`Encoding`](skyphos_kernels::Encoding) writes them.
//!
//! Layer by layer, every rank depends on every other. So no rank returns before all have entered, and all ranks learn of an
//! index that is missing on any of them.

use crate::butterfly::{check_degrees, layers};
use crate::clock::Effort;
use crate::collectives::allgather::allgather_numbers;
use crate::collectives::configure_layer::{Down, LayerGroup, Unmet, fold_shares, go_down, go_up};
use crate::collectives::reduce::{DOWN, UP, check_shapes, finish_mean};
use crate::collectives::rows::{RowSource, RowTarget, copy_repeats, stage_repeats};
use crate::collectives::sets::{SetSizes, Sets};
use crate::endpoint::Endpoint;
use crate::plan::{Buffers, Considered, Layer, Map, Plan, Stats};
use crate::slab::AlignedVec;
use skyphos_kernels::{
    BLOCK_BITS, BlockHash, IndexSet, Locator, MISSING, Permutation, Prepared, split_ranges,
};
use skyphos_types::{Element, Error, GroupRank, ReduceOp, Result, Round};

/// Round of the exchange of examples of missing indices.
const EXAMPLES: Round = Round(0x300);
/// Missing indices that each rank sends as examples.
const EXAMPLES_EACH: usize = 4;

/// Missing indices that an error message shows.
const EXAMPLES_SHOWN: usize = 8;

/// The treatment of a wanted index that no rank contributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// All ranks raise the same error.
    Error,
    /// Its result is the operation's identity.
    Identity,
}

/// Arguments of a configuration: this rank's sets, and the options that all ranks share.
pub struct Request {
    /// Size of the index space.
    pub n: u64,
    /// Numbers per index.
    pub width: usize,
    /// Degree of each layer.
    pub degrees: Vec<u32>,
    /// The treatment of missing indices.
    pub missing: Missing,
    /// The permutation of blocks; must be `BlockHash::new(n, ranks)`.
    pub hash: BlockHash,
    /// The indices that this rank contributes.
    pub contribute: Prepared,
    /// Length of the caller's `contribute` array, repeats included.
    pub contribute_len: usize,
    /// The indices that this rank wants.
    pub want: Prepared,
    /// Length of the caller's `want` array, repeats included.
    pub want_len: usize,
    /// See [`Plan::considered`].
    pub considered: Vec<Considered>,
    /// Number of the plan, the same on all ranks.
    pub id: u32,
    /// In a simulation without data: the sizes of the sets; `contribute` and `want` are empty.
    pub sizes: Option<SetSizes>,
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

/// The values that travel down with the indices, and their sums layer by layer.
struct Sums<'a, T> {
    op: &'a ReduceOp,
    width: usize,
    /// The caller's values, with repeats reduced, and their order.
    values: &'a [T],
    order: &'a Permutation,
    /// For `mean_present`: a one per value, to be summed to counts; otherwise `None`.
    ones: Option<Vec<u32>>,
    by_layer: Vec<Vec<T>>,
    counts: Vec<Vec<u32>>,
}

impl<T: Element> Sums<'_, T> {
    /// The rows, and the counts if they are needed, that the next layer sends.
    fn source(&self) -> (RowSource<'_, T>, Option<RowSource<'_, u32>>) {
        match self.by_layer.last() {
            None => {
                let ones = self.ones.as_deref();
                (
                    RowSource::Permuted(self.values, self.order),
                    ones.map(|ones| RowSource::Permuted(ones, self.order)),
                )
            }
            Some(sum) => {
                (RowSource::Plain(sum), self.counts.last().map(|counts| RowSource::Plain(counts.as_slice())))
            }
        }
    }

    /// Appends the sum of the values received in a layer and this rank's own.
    fn fold(&mut self, down: &Down) -> Result<()> {
        let (source, counts) = self.source();
        let sum = fold_shares(self.op, down, &source, self.width, |sections| sections.values.clone())?;
        let counts = counts
            .map(|source| fold_shares(&ReduceOp::Sum, down, &source, 1, |sections| sections.counts.clone()));
        let counts = counts.transpose()?;
        self.by_layer.push(sum);
        self.counts.extend(counts);
        Ok(())
    }

    /// The sums by layer, the last of them the finished result of the bottom range.
    fn finish(mut self, size: u32) -> Vec<Vec<T>> {
        let bottom = self.by_layer.last_mut().expect("a layer");
        let body = bottom.len() - self.width;
        finish_mean(self.op, &mut bottom[..body], self.width, size, self.counts.last().map(Vec::as_slice));
        self.by_layer
    }
}

async fn run<T: Element>(ep: &Endpoint, request: Request, reduction: Option<Values<'_, T>>) -> Result<Plan> {
    check_degrees(&request.degrees, ep.size())?;
    let start = ep.now();
    let Request { n, width, degrees, missing, hash, contribute, want, sizes, .. } = request;
    let mut staged = AlignedVec::default();
    let (mut sums, mut out) = (None, None);
    if let Some(Values { values, out: results, op }) = reduction {
        let values = match contribute.repeats.is_empty() {
            true => values,
            false => stage_repeats(op, &contribute, values, width, &mut staged)?,
        };
        let ones = matches!(op, ReduceOp::MeanPresent).then(|| vec![1u32; request.contribute_len]);
        let order = &contribute.order;
        sums = Some(Sums { op, width, values, order, ones, by_layer: Vec::new(), counts: Vec::new() });
        out = Some(results);
    }
    let mut sets = match sizes {
        Some(sizes) => Sets::Sized(sizes),
        None => Sets::Real { out: contribute.set.clone(), want: want.set.clone() },
    };
    let (mut built, mut lo, mut hi) = (Vec::new(), 0, hash.range());
    for (k, group) in layers(&degrees, ep.rank().0, ep.topology()).into_iter().enumerate() {
        let bounds = split_ranges(lo, hi, group.members.len() as u32);
        let members = group.members.into_iter().map(GroupRank).collect();
        let layer_group = LayerGroup { members, me: group.me, bounds: &bounds };
        let source = sums.as_ref().map(Sums::source);
        let down = go_down(ep, &layer_group, &sets, source.as_ref(), width, DOWN + k as u32).await?;
        if let Some(sums) = &mut sums {
            sums.fold(&down)?;
        }
        (lo, hi) = (bounds[group.me], bounds[group.me + 1]);
        sets = down.sets;
        built.push(down.layer);
    }
    let unmet = match_at_bottom(ep, &mut built, &sets);
    let sums = sums.map(|sums| sums.finish(ep.size()));
    // Without values, and with `Missing::Identity`, no rank needs an answer.
    if missing == Missing::Error || sums.is_some() {
        let unmet = if missing == Missing::Error { unmet } else { Unmet::none() };
        let sums = sums.unwrap_or_default();
        let unmet = go_up_all(ep, &mut built, unmet, sums, out.as_deref_mut(), &want, width).await?;
        if unmet.count > 0 {
            return Err(missing_error(ep, &want.set, hash, &unmet.bits).await?);
        }
        if let Some(out) = out {
            copy_repeats(&want.repeats, out, width);
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
        buffers: Buffers::default(),
        stats,
    })
}

/// At the bottom, composes the last layer's in-maps with the third map: from wanted to contributed indices. An index that no
/// rank contributes is mapped to the row after the last one.
fn match_at_bottom(ep: &Endpoint, built: &mut [Layer], sets: &Sets) -> Unmet {
    let last = built.last_mut().expect("at least one layer");
    let Sets::Real { out: out_set, want: in_set } = sets else { return Unmet::none() };
    if in_set == out_set {
        return Unmet::none(); // the third map is the identity
    }
    ep.spend(Effort::SetJoin { indices: in_set.len() });
    let third_map = Locator::new(out_set).positions(in_set.blocks());
    let after_last = last.out_len as u32;
    let count = third_map.iter().filter(|p| **p == MISSING).count() as u64;
    let bits = if count == 0 { Vec::new() } else { (0..=after_last).map(|p| p == after_last).collect() };
    for p in last.in_maps.iter_mut().flat_map(Map::positions_mut) {
        let q = third_map[*p as usize];
        *p = if q == MISSING { after_last } else { q };
    }
    Unmet { bits, count }
}

/// Goes up through all layers with the unmet indices and, if there are `sums`, with results, which end in `out`. Returns the
/// unmet indices of this rank.
async fn go_up_all<T: Element>(
    ep: &Endpoint,
    built: &mut [Layer],
    mut unmet: Unmet,
    mut sums: Vec<Vec<T>>,
    mut out: Option<&mut [T]>,
    want: &Prepared,
    width: usize,
) -> Result<Unmet> {
    let mut results = sums.pop().unwrap_or_default();
    for k in (0..built.len()).rev() {
        let last = k == 0;
        // The sum of the layer above is not needed any more: its memory takes the results.
        let mut next = sums.pop().unwrap_or_default();
        next.resize(if last || out.is_none() { 0 } else { built[k - 1].in_len * width }, T::ZERO);
        let mut target = match &mut out {
            Some(out) if last => Some(RowTarget::Scattered(out, &want.order)),
            Some(_) => Some(RowTarget::Plain(&mut next)),
            None => None,
        };
        let values = target.as_mut().map(|target| (results.as_slice(), target));
        unmet = go_up(ep, &mut built[k], unmet, values, width, UP + k as u32).await?;
        results = next;
    }
    Ok(unmet)
}

/// The error that all ranks raise for missing indices, once they have exchanged examples.
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
        examples.extend(numbers[1..1 + shown].iter().map(|i| (*i, ep.world_rank(GroupRank(rank as u32)).0)));
    }
    examples.sort_unstable();
    examples.truncate(EXAMPLES_SHOWN);
    Ok(Error::Unmet { requests, examples })
}
