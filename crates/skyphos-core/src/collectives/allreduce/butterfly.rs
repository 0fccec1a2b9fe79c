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
use crate::stream::{Assembler, Part, Terms, exchange, exchange_and_fold};
use skyphos_kernels::stream::{Form, Shape, View};
use skyphos_types::{Element, ReduceOp, Result};

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
        let shares: Vec<Vec<Payload>> = (0..degree)
            .map(|j| {
                let (lo, hi) = held.of(degree, j).range(bounds);
                match &part {
                    None => terms.encode_input(ep, view, lo, hi),
                    Some(part) => part.encode(ep, width, lo, hi),
                }
            })
            .collect();
        let sends: Vec<(u32, &[Payload])> = (1..degree)
            .map(|step| (group.me + step) % degree)
            .map(|j| (group.members[j], shares[j].as_slice()))
            .collect();
        held = held.of(degree, group.me);
        let (own, range) = (&shares[group.me], held.range(bounds));
        let round = DOWN + k as u32;
        part = Some(exchange_and_fold(ep, terms, round, &sends, &group.members, own, range, density).await?);
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
    part: &Part<T>,
    terms: Terms<'_>,
    pair: &Neighbours,
    round: u32,
) -> Result<Part<T>> {
    let (width, range) = (terms.shape.width, (part.lo, part.hi));
    let density = density_of(part, width);
    let own = part.encode(ep, width, part.lo, part.hi);
    let sends = [(pair.members[1 - pair.me], own.as_slice())];
    exchange_and_fold(ep, terms, round, &sends, &pair.members, &own, range, density).await
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
    let held = part.encode(ep, terms.shape.width, part.lo, part.hi);
    let mine = &bounds[me as usize..=me as usize + 1];
    let mut assembler = Assembler::new(mine, terms.shape, terms.op.identity::<T>()?);
    let sends = [(to, held.as_slice())];
    exchange(ep, HAND_OVER, &sends, &[from], |_, segment| assembler.take(ep, from, 0, segment).map(drop))
        .await?;
    assembler.check_complete(ep, from, 0)?;
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
    let mut held = terms.encode_result(ep, part)?;
    let own = leaves[groups.len()].start;
    assembler.take_all(ep, ep.rank(), own, &held)?;
    for (k, group) in groups.iter().enumerate().rev() {
        let (degree, above) = (group.members.len(), leaves[k]);
        let sends: Vec<(u32, &[Payload])> =
            (1..degree).map(|step| (group.members[(group.me + step) % degree], held.as_slice())).collect();
        let others: Vec<usize> = (0..degree).filter(|j| *j != group.me).collect();
        let sources: Vec<u32> = others.iter().map(|j| group.members[*j]).collect();
        // The leaf that each neighbour's next segment belongs to.
        let mut next: Vec<Leaves> = others.iter().map(|j| above.of(degree, *j)).collect();
        let mut theirs: Vec<Vec<Payload>> = others.iter().map(|_| Vec::new()).collect();
        let pass_on = k > 0;
        exchange(ep, UP + k as u32, &sends, &sources, |j, segment| {
            let leaf = &mut next[j];
            if leaf.count == 0 {
                return Err(ep.corrupt(sources[j], "more segments than its ranges have"));
            }
            if pass_on {
                theirs[j].push(segment.clone());
            }
            if assembler.take(ep, sources[j], leaf.start, segment)? {
                *leaf = Leaves { start: leaf.start + 1, count: leaf.count - 1 };
            }
            Ok(())
        })
        .await?;
        if let Some(j) = next.iter().position(|leaf| leaf.count > 0) {
            return Err(ep.corrupt(sources[j], "its stream ended before its ranges did"));
        }
        if pass_on {
            // In the order of leaves, which is the order of members.
            theirs.insert(group.me, std::mem::take(&mut held));
            held = theirs.concat();
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
        let mut part = reduce_pair(ep, &held, down, pair, DOWN + groups.len() as u32).await?;
        part.finish(terms.op, ep.size(), terms.shape.width)?;
        return allgather_parts(ep, &Reduced { part, bounds }, up, groups).await;
    }
    let reduced = reduce_scatter(ep, view, down, &groups, bounds).await?;
    allgather_parts(ep, &reduced, up, &groups).await
}
