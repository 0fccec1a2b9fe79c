//! Allreduce by the nested butterfly; with one layer of degree P it is SparCML's split allgather (§5.3.2).
//!
//! ```text
//! down, layer i = 1..l:  cut the range held into the d_i neighbours' parts, send each its own,
//!                        reduce what comes in rank order
//! up, layer i = l..1:    send the neighbours all segments held, keep theirs beside them
//! ```
//!
//! A last layer of pairs is one exchange: both reduce all that they hold, and nothing goes up there.
//!
//! Going up nothing is decoded or reduced, only passed on; the last layer's segments are decoded as they come.
//! Cost: Σ 2 (d_i - 1) α; bytes down as inputs shrink by overlap, up (P - 1)/P of the result.
//!
//! SSAR keeps every part sparse, DSAR makes every part dense; otherwise a part has the form that suits it.

use crate::butterfly::{Neighbours, layers, part_of, rank_of_part};
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use crate::stream::{Assembler, Part, Stream, Terms, exchange_and_fold, exchange_and_place};
use skyphos_kernels::stream::{Form, Shape, View};
use skyphos_types::{Element, ReduceOp, Result};
use std::ops::Range;

/// Rounds going down and up (plus the layer).
const DOWN: u32 = 0x100;
const UP: u32 = 0x200;
/// Round in which ranges go to their ranks.
const HAND_OVER: u32 = 0x300;

/// The form of the parts that are passed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Whichever is smaller.
    Auto,
    /// Sparse, however many entries there are (SSAR).
    Sparse,
    /// Dense (DSAR).
    Dense,
}

impl Parts {
    /// How parts are stored, and with SSAR and DSAR the result.
    pub fn terms(self, terms: Terms<'_>) -> Terms<'_> {
        let shape = match self {
            Parts::Auto => terms.shape,
            Parts::Sparse => Shape { dense_above: f64::INFINITY, ..terms.shape },
            // Every row travels, so nothing tells which were absent, unless that is not the same as zero.
            Parts::Dense => {
                use ReduceOp::{Mean, MeanPresent, Or, Sum};
                let with_present = !matches!(terms.op, Sum | Or | Mean | MeanPresent);
                Shape { dense_above: -1.0, with_present, ..terms.shape }
            }
        };
        Terms { shape, ..terms }
    }
}

/// The range of indices that this rank holds after the layers so far, as leaves of the tree of ranges.
#[derive(Clone, Copy)]
struct Leaves {
    start: usize,
    count: usize,
}

impl Leaves {
    /// Those of one of `degree` neighbours.
    fn of(self, degree: usize, member: usize) -> Leaves {
        let count = self.count / degree;
        Leaves { start: self.start + member * count, count }
    }

    fn range(self, bounds: &[u64]) -> (u64, u64) {
        (bounds[self.start], bounds[self.start + self.count])
    }
}

/// The reduction of this rank's own range, and the bounds of all ranks' ranges in the order of their indices.
pub struct Reduced<T> {
    /// The range and its entries.
    pub part: Part<T>,
    /// Bounds of the ranges.
    pub bounds: Vec<u64>,
}

/// Down, through these groups: every rank ends with the reduction of its own range. With more than one layer
/// `mean_present` cannot be had: how many ranks had an entry is lost on the way.
pub async fn reduce_scatter<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    terms: Terms<'_>,
    groups: &[Neighbours],
    bounds: Vec<u64>,
) -> Result<Reduced<T>> {
    let mut part = reduce_layers(ep, view, terms, groups, &bounds).await?;
    part.finish(terms.op, ep.size(), terms.shape.width)?;
    Ok(Reduced { part, bounds })
}

/// The same, but for what is done to a sum in the end.
async fn reduce_layers<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    terms: Terms<'_>,
    groups: &[Neighbours],
    bounds: &[u64],
) -> Result<Part<T>> {
    let width = terms.shape.width;
    let mut held = Leaves { start: 0, count: bounds.len() - 1 };
    let mut part: Option<Part<T>> = None;
    for (k, group) in groups.iter().enumerate() {
        let degree = group.members.len();
        let density = match &part {
            None => view.nnz(width) as f64 / terms.n.max(1) as f64,
            Some(part) => density_of(part, width),
        };
        // Each its own, and this rank the last: that share goes no further.
        let shares = (1..=degree).map(|step| (group.me + step) % degree).map(|j| {
            let (lo, hi) = held.of(degree, j).range(bounds);
            let segments = match &part {
                None => terms.encode_input(ep, view, lo, hi),
                Some(part) => part.encode(ep, width, lo, hi),
            };
            Stream::new(segments, [group.members[j]])
        });
        let (streams, round) = (shares.collect(), DOWN + k as u32);
        held = held.of(degree, group.me);
        let range = held.range(bounds);
        let reduced = exchange_and_fold(ep, terms, round, streams, &group.members, range, density).await?;
        part = Some(reduced);
    }
    Ok(part.expect("at least one layer"))
}

/// Entries of a part per position.
fn density_of<T: Element>(part: &Part<T>, width: usize) -> f64 {
    part.view().nnz(width) as f64 / (part.hi - part.lo).max(1) as f64
}

/// The last layer where it is a pair, of whom both want all in the end: they exchange what they hold, and both reduce it. A round
/// less than to cut it, reduce a half each and exchange those, and no more bytes, for what is reduced is no smaller.
async fn reduce_pair<T: Element>(
    ep: &Endpoint,
    part: Part<T>,
    terms: Terms<'_>,
    pair: &Neighbours,
    round: u32,
) -> Result<Part<T>> {
    let (width, range) = (terms.shape.width, (part.lo, part.hi));
    let density = density_of(&part, width);
    let own = Stream::new(part.encode(ep, width, part.lo, part.hi), pair.members.iter().copied());
    exchange_and_fold(ep, terms, round, vec![own], &pair.members, range, density).await
}

/// The reduction of this rank's own range, the one of its number, through layers that go by the topology: what hosts hold in
/// common crosses the network once. Layers leave a rank with the range of its place in them, which then goes to the rank
/// whose it is.
pub async fn reduce_scatter_by_topology<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    terms: Terms<'_>,
    degrees: &[u32],
    bounds: Vec<u64>,
) -> Result<Part<T>> {
    let me = ep.rank();
    let groups = layers(degrees, me, ep.topology());
    let (to, from) = (part_of(&groups), rank_of_part(degrees, me, ep.topology()));
    let Reduced { part, bounds } = reduce_scatter(ep, view, terms, &groups, bounds).await?;
    if to == me {
        return Ok(part); // and no other rank has this one's
    }
    let held = Stream::new(part.encode(ep, terms.shape.width, part.lo, part.hi), [to]);
    let mine = &bounds[me as usize..=me as usize + 1];
    let mut assembler = Assembler::new(mine, terms.shape, terms.op.identity::<T>()?);
    exchange_and_place(ep, HAND_OVER, vec![held], &[(from, 0..1)], &mut assembler, false).await?;
    Ok(Part { lo: mine[0], hi: mine[1], form: assembler.finish(), counts: Vec::new() })
}

/// Up: everyone's range to everyone, quantised if the terms say so: this rank keeps what the others get.
pub async fn allgather_parts<T: Element>(
    ep: &Endpoint,
    reduced: &Reduced<T>,
    terms: Terms<'_>,
    groups: &[Neighbours],
) -> Result<Form<T>> {
    let Reduced { part, bounds } = reduced;
    let mut assembler =
        Assembler::new(bounds, terms.shape, terms.op.identity::<T>()?).quantised(terms.codec());
    // Leaves held before each layer, from the top.
    let mut leaves = vec![Leaves { start: 0, count: bounds.len() - 1 }];
    for group in groups {
        leaves.push(leaves[leaves.len() - 1].of(group.members.len(), group.me));
    }
    let mut held = part.encode_result(ep, &terms)?;
    let mut passed: Vec<Payload> = Vec::new();
    for (k, group) in groups.iter().enumerate().rev() {
        let (degree, above) = (group.members.len(), leaves[k]);
        // What this rank has reduced it takes as it sends it; on higher layers it has all that it sends.
        let (lowest, pass_on) = (k + 1 == groups.len(), k > 0);
        let with_own = |j: &usize| lowest || *j != group.me;
        let takers = (1..=degree).map(|step| (group.me + step) % degree).filter(with_own);
        let streams = vec![Stream::new(held, takers.map(|j| group.members[j]))];
        let theirs = |j: usize| {
            let Leaves { start, count } = above.of(degree, j);
            (group.members[j], start..start + count)
        };
        let sources: Vec<(u32, Range<usize>)> = (0..degree).filter(with_own).map(theirs).collect();
        let mut came =
            exchange_and_place(ep, UP + k as u32, streams, &sources, &mut assembler, pass_on).await?;
        if !pass_on {
            break;
        }
        if !lowest {
            came.insert(group.me, passed);
        }
        // In the order of leaves, which is the order of members.
        passed = came.concat();
        held = passed.as_slice().into();
        if k == 1 {
            passed = Vec::new(); // nobody passes these on: they are let go of as they are sent
        }
    }
    Ok(assembler.finish())
}

/// Whether pairs of the last layer both reduce all that they hold; the planner's model has the same. Not where parts are
/// quantised: each has one owner.
fn ends_in_pairs(degrees: &[u32], parts: Parts, quantised: bool) -> bool {
    degrees.len() > 1 && degrees.last() == Some(&2) && parts == Parts::Auto && !quantised
}

/// The reduction of all ranks' vectors; `bounds` are those of the ranks' ranges.
pub async fn butterfly<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    terms: Terms<'_>,
    degrees: &[u32],
    bounds: Vec<u64>,
    parts: Parts,
) -> Result<Form<T>> {
    let down = parts.terms(terms);
    let groups = layers(degrees, ep.rank(), ep.topology());
    let up = if parts == Parts::Auto { terms } else { down };
    if ends_in_pairs(degrees, parts, terms.precision.is_some()) {
        let (pair, groups) = groups.split_last().expect("several layers");
        let bounds: Vec<u64> = bounds.into_iter().step_by(2).collect();
        let held = reduce_layers(ep, view, down, groups, &bounds).await?;
        let mut part = reduce_pair(ep, held, down, pair, DOWN + groups.len() as u32).await?;
        part.finish(terms.op, ep.size(), terms.shape.width)?;
        return allgather_parts(ep, &Reduced { part, bounds }, up, groups).await;
    }
    let reduced = reduce_scatter(ep, view, down, &groups, bounds).await?;
    allgather_parts(ep, &reduced, up, &groups).await
}
