//! Allreduce by the nested butterfly; with one layer of degree P it is SparCML's split allgather (§5.3.2).
//!
//! ```text
//! down, layer i = 1..l:  cut this rank's range into d_i ranges, one per neighbour; send each neighbour its range
//!                        reduce the received ranges in rank order
//! up, layer i = l..1:    send all segments of finished ranges to the neighbours, and store theirs
//! ```
//!
//! If the last layer has degree 2, both ranks of a pair reduce their whole range, in one exchange instead of two.
//!
//! Going up, segments are forwarded as they are, without being decoded. Each rank decodes each segment once, as it arrives.
//! Cost: Σ 2 (d_i - 1) α; down, bytes that shrink from layer to layer by overlap; up, (P - 1)/P of the result.
//!
//! SSAR keeps every reduced range sparse, DSAR makes every range dense; otherwise a range has the smaller form.

use crate::butterfly::{Neighbours, layers, part_of, rank_of_part};
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::{
    Assembler, ReducedRange, ReductionParams, Stream, exchange_and_fold, exchange_and_place,
};
use skyphos_kernels::stream::{Form, Shape, View};
use skyphos_types::{Element, ReduceOp, Result, Round};
use std::ops::Range;

/// Rounds of the first layer, going down and up; layer k (from 0) adds k.
const DOWN: Round = Round(0x100);
const UP: Round = Round(0x200);
/// Round in which reduced ranges go to their owners.
const HAND_OVER: Round = Round(0x300);

/// The form of the reduced ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeForm {
    /// The smaller form.
    Auto,
    /// Sparse, for any number of entries (SSAR).
    Sparse,
    /// Dense (DSAR).
    Dense,
}

impl RangeForm {
    /// The parameters of a reduction whose ranges have this form. With SSAR and DSAR the result has the same shape as the ranges.
    pub fn params(self, params: ReductionParams<'_>) -> ReductionParams<'_> {
        let shape = match self {
            RangeForm::Auto => params.shape,
            RangeForm::Sparse => Shape { dense_above: f64::INFINITY, ..params.shape },
            // Every row is sent. If the operation's identity is not zero, a bitmap marks the rows that are entries.
            RangeForm::Dense => {
                use ReduceOp::{Mean, MeanPresent, Or, Sum};
                let with_present = !matches!(params.op, Sum | Or | Mean | MeanPresent);
                Shape { dense_above: -1.0, with_present, ..params.shape }
            }
        };
        ReductionParams { shape, ..params }
    }
}

/// The range of indices of this rank after some layers, in leaves: the ranges of single ranks.
#[derive(Clone, Copy)]
struct Leaves {
    start: usize,
    count: usize,
}

impl Leaves {
    /// The leaves of one of `degree` neighbours.
    fn of_member(self, degree: usize, member: usize) -> Leaves {
        let count = self.count / degree;
        Leaves { start: self.start + member * count, count }
    }

    fn range(self, bounds: &[u64]) -> (u64, u64) {
        (bounds[self.start], bounds[self.start + self.count])
    }
}

/// The result of a reduce-scatter.
pub struct Reduced<T> {
    /// The reduction of this rank's range.
    pub part: ReducedRange<T>,
    /// The bounds of all ranks' ranges, ascending.
    pub bounds: Vec<u64>,
}

/// Goes down the layers: every rank ends with the reduction of its own range. `mean_present` needs a single layer, because
/// the number of ranks with an entry is not sent to further layers.
pub async fn reduce_scatter<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    params: ReductionParams<'_>,
    groups: &[Neighbours],
    bounds: Vec<u64>,
) -> Result<Reduced<T>> {
    let mut part = reduce_layers(ep, view, params, groups, &bounds).await?;
    part.finish(params.op, ep.size(), params.shape.width)?;
    Ok(Reduced { part, bounds })
}

/// [`reduce_scatter`] without the division of a mean.
async fn reduce_layers<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    params: ReductionParams<'_>,
    groups: &[Neighbours],
    bounds: &[u64],
) -> Result<ReducedRange<T>> {
    let width = params.shape.width;
    let mut leaves = Leaves { start: 0, count: bounds.len() - 1 };
    let mut part: Option<ReducedRange<T>> = None;
    for (k, group) in groups.iter().enumerate() {
        let degree = group.members.len();
        let density = match &part {
            None => view.nnz(width) as f64 / params.n.max(1) as f64,
            Some(part) => density_of(part, width),
        };
        // One stream per neighbour. This rank's own share comes last, since no link waits for it.
        let shares = (1..=degree).map(|step| (group.me + step) % degree).map(|j| {
            let (lo, hi) = leaves.of_member(degree, j).range(bounds);
            let segments = match &part {
                None => params.encode_input(ep, view, lo, hi),
                Some(part) => part.encode(ep, width, lo, hi),
            };
            Stream::new(segments, [group.members[j]])
        });
        let (streams, round) = (shares.collect(), DOWN + k as u32);
        leaves = leaves.of_member(degree, group.me);
        let range = leaves.range(bounds);
        let reduced = exchange_and_fold(ep, params, round, streams, &group.members, range, density).await?;
        part = Some(reduced);
    }
    Ok(part.expect("at least one layer"))
}

/// Entries per position.
fn density_of<T: Element>(part: &ReducedRange<T>, width: usize) -> f64 {
    part.view().nnz(width) as f64 / (part.hi - part.lo).max(1) as f64
}

/// A last layer of pairs: the two ranks exchange their whole range, and both reduce it. This takes one round less than
/// exchanging halves, reducing them and exchanging the results, and no more bytes, since a result is not smaller than a half.
async fn reduce_pair<T: Element>(
    ep: &Endpoint,
    part: ReducedRange<T>,
    params: ReductionParams<'_>,
    pair: &Neighbours,
    round: Round,
) -> Result<ReducedRange<T>> {
    let (width, range) = (params.shape.width, (part.lo, part.hi));
    let density = density_of(&part, width);
    let own = Stream::new(part.encode(ep, width, part.lo, part.hi), pair.members.iter().copied());
    exchange_and_fold(ep, params, round, vec![own], &pair.members, range, density).await
}

/// A reduce-scatter through layers in the topology's order, so that entries that a host's ranks have in common cross the
/// network once. After the layers a rank has the range numbered by its position in that order, and sends it to the rank of
/// that number.
pub async fn reduce_scatter_by_topology<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    params: ReductionParams<'_>,
    degrees: &[u32],
    bounds: Vec<u64>,
) -> Result<ReducedRange<T>> {
    let me = ep.rank().0;
    let groups = layers(degrees, me, ep.topology());
    let (to, from) = (part_of(&groups), rank_of_part(degrees, me, ep.topology()));
    let Reduced { part, bounds } = reduce_scatter(ep, view, params, &groups, bounds).await?;
    if to == me {
        return Ok(part); // no other rank has this rank's range either
    }
    let own = Stream::new(part.encode(ep, params.shape.width, part.lo, part.hi), [to]);
    let mine = &bounds[me as usize..=me as usize + 1];
    let mut assembler = Assembler::new(mine, params.shape, params.op.identity::<T>()?);
    exchange_and_place(ep, HAND_OVER, vec![own], &[(from, 0..1)], &mut assembler, false).await?;
    Ok(ReducedRange { lo: mine[0], hi: mine[1], form: assembler.finish(), counts: Vec::new() })
}

/// Goes up the layers: every rank gets all ranks' ranges. If results are quantised, the owner uses the quantised values, too.
pub async fn allgather_parts<T: Element>(
    ep: &Endpoint,
    reduced: &Reduced<T>,
    params: ReductionParams<'_>,
    groups: &[Neighbours],
) -> Result<Form<T>> {
    let Reduced { part, bounds } = reduced;
    let mut assembler =
        Assembler::new(bounds, params.shape, params.op.identity::<T>()?).quantised(params.codec());
    // This rank's leaves above each layer, from the top.
    let mut leaves = vec![Leaves { start: 0, count: bounds.len() - 1 }];
    for group in groups {
        leaves.push(leaves[leaves.len() - 1].of_member(group.members.len(), group.me));
    }
    let mut outgoing = part.encode_result(ep, &params)?;
    let mut segments: Vec<Payload> = Vec::new();
    for (k, group) in groups.iter().enumerate().rev() {
        let (degree, above) = (group.members.len(), leaves[k]);
        // In the lowest layer a rank decodes its own range while it sends it; above, it has decoded all that it sends.
        let (lowest, forward) = (k + 1 == groups.len(), k > 0);
        let with_own = |j: &usize| lowest || *j != group.me;
        let receivers = (1..=degree).map(|step| (group.me + step) % degree).filter(with_own);
        let streams = vec![Stream::new(outgoing, receivers.map(|j| group.members[j]))];
        let source = |j: usize| {
            let Leaves { start, count } = above.of_member(degree, j);
            (group.members[j], start..start + count)
        };
        let sources: Vec<(u32, Range<usize>)> = (0..degree).filter(with_own).map(source).collect();
        let mut received =
            exchange_and_place(ep, UP + k as u32, streams, &sources, &mut assembler, forward).await?;
        if !forward {
            break;
        }
        if !lowest {
            received.insert(group.me, segments);
        }
        // In the order of leaves, which is the order of members.
        segments = received.concat();
        outgoing = segments.as_slice().into();
        if k == 1 {
            segments = Vec::new(); // the last layer forwards nothing, so segments are freed as they are sent
        }
    }
    Ok(assembler.finish())
}

/// Whether both ranks of each pair in a last layer of pairs reduce their whole range. The planner's model has the same rule.
/// Quantised ranges are excluded, since each needs one owner.
fn ends_in_pairs(degrees: &[u32], range_form: RangeForm, quantised: bool) -> bool {
    degrees.len() > 1 && degrees.last() == Some(&2) && range_form == RangeForm::Auto && !quantised
}

/// The reduction of all ranks' vectors. `bounds` are the bounds of the ranks' ranges.
pub async fn butterfly<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    params: ReductionParams<'_>,
    degrees: &[u32],
    bounds: Vec<u64>,
    range_form: RangeForm,
) -> Result<Form<T>> {
    let down = range_form.params(params);
    let groups = layers(degrees, ep.rank().0, ep.topology());
    let up = if range_form == RangeForm::Auto { params } else { down };
    if ends_in_pairs(degrees, range_form, params.precision.is_some()) {
        let (pair, groups) = groups.split_last().expect("several layers");
        let bounds: Vec<u64> = bounds.into_iter().step_by(2).collect();
        let sum = reduce_layers(ep, view, down, groups, &bounds).await?;
        let mut part = reduce_pair(ep, sum, down, pair, DOWN + groups.len() as u32).await?;
        part.finish(params.op, ep.size(), params.shape.width)?;
        return allgather_parts(ep, &Reduced { part, bounds }, up, groups).await;
    }
    let reduced = reduce_scatter(ep, view, down, &groups, bounds).await?;
    allgather_parts(ep, &reduced, up, &groups).await
}
