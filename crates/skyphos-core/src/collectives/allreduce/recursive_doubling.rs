//! Allreduce by recursive doubling (SparCML §5.3.1), its rounds overlapped.
//!
//! ```text
//! ranks p ≥ 2^k send theirs to p - 2^k, for 2^k the largest power of two that is at most P
//! for i = 0..k:  exchange all with rank XOR 2^i, and reduce both, the lower rank's first
//! ranks p - 2^k send the result to p
//! ```
//!
//! Streams ascend by index, so a round need not wait for the one before: what round i has reduced goes into round
//! i + 1 segment by segment, while the rest is still on its way. A rank talks to one other in a round, so no link
//! carries the traffic of many at once. Where inputs hardly overlap no schedule moves fewer bytes.
//!
//! Cost: ⌈log2 P⌉ α (2 more if P is no power of two) and a segment's time a round; bytes grow by what does not
//! overlap, and pass once. Any P. Both partners add in the same order, so all ranks get the same bits.

use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::slab::Payload;
use crate::stream::{
    Assembler, Part, SEGMENT_BYTES, Stream, Terms, encode, exchange_and_fold, exchange_and_place,
    fold_failed, fold_segment, send,
};
use skyphos_kernels::stream::{Collector, Fold, Form, IndexList, Shape, View};
use skyphos_types::{Element, Result};
use std::collections::VecDeque;

/// Round of the extra ranks' inputs, and of their results; the others are numbered from 0.
const IN: u32 = 0x100;
const OUT: u32 = 0x101;

/// Segments of this rank's own stream that are cut before they can go.
const AHEAD: usize = 4;

/// One round on this rank.
struct Stage<T> {
    partner: u32,
    /// The ranks whose streams are reduced, in that order: this one and the partner.
    sources: [u32; 2],
    fold: Fold<T, Payload>,
    collector: Collector<T>,
    /// Where this rank's stream goes, unless the partner only gives.
    out: Option<Outgoing>,
    outbox: VecDeque<Payload>,
    /// All of this rank's stream is in the outbox, or sent; and up to where it goes there.
    fed: bool,
    fed_to: u64,
    incoming: Incoming,
}

impl<T: Element> Stage<T> {
    fn new(
        ep: &Endpoint,
        terms: Terms<'_>,
        round: u32,
        partner: u32,
        density: f64,
        last: bool,
    ) -> Result<Stage<T>> {
        let (me, n) = (ep.rank(), terms.n);
        let identity = terms.op.identity::<T>()?;
        // What goes into the next round is taken out bit by bit.
        let (shape, expected) = match last {
            true => (terms.shape, (2.0 * density * n as f64).min(n as f64) as usize),
            false => (Shape { dense_above: f64::INFINITY, ..terms.shape }, 0),
        };
        Ok(Stage {
            partner,
            sources: [me.min(partner), me.max(partner)],
            fold: Fold::new(terms.op, 2, shape.width, 0, n, density)?,
            collector: Collector::new(0, n, shape, identity, expected),
            out: (round != IN).then(|| Outgoing::open(partner, round)),
            outbox: VecDeque::new(),
            fed: false,
            fed_to: 0,
            incoming: Incoming::new(partner, round),
        })
    }

    /// Takes a segment of one of the two.
    fn push(&mut self, ep: &Endpoint, terms: Terms<'_>, from: u32, segment: Payload) -> Result<()> {
        let number = usize::from(from != self.sources[0]);
        fold_segment(ep, terms, &self.sources, &mut self.fold, number, segment)
    }

    /// Takes segments of this rank's own stream, which the partner gets too.
    fn feed(
        &mut self,
        ep: &Endpoint,
        terms: Terms<'_>,
        segments: impl IntoIterator<Item = Payload>,
        end: bool,
    ) -> Result<()> {
        self.fed = end;
        for segment in segments {
            if self.out.is_some() {
                self.outbox.push_back(segment.clone());
            }
            self.push(ep, terms, ep.rank(), segment)?;
        }
        Ok(())
    }

    /// Whether it takes more of this rank's own stream: what can soon go out, or what the reduction waits for.
    fn takes_more(&self, ep: &Endpoint) -> bool {
        let own = usize::from(ep.rank() != self.sources[0]);
        let wants = match self.out {
            Some(_) => self.outbox.len() < AHEAD,
            None => self.fold.waits_for(own) || self.fold.has_all(own),
        };
        wants && !self.fed
    }

    /// Sends, receives and reduces what can be; whether anything moved.
    fn step(&mut self, ep: &Endpoint, terms: Terms<'_>) -> Result<bool> {
        let mut moved = false;
        if let Some(out) = &mut self.out {
            while !self.outbox.is_empty() && out.may_send(ep) {
                out.push_shared(ep, self.outbox.pop_front().expect("not empty"));
                moved = true;
            }
        }
        while !self.has_all() {
            let Some(segment) = self.incoming.next(ep)? else { break };
            self.push(ep, terms, self.partner, segment)?;
            moved = true;
        }
        let advanced = self.fold.advance(terms.op, &mut self.collector);
        Ok(advanced.map_err(|error| fold_failed(ep, &self.sources, error))? || moved)
    }

    /// Whether all of the partner's stream has come.
    fn has_all(&self) -> bool {
        self.incoming.begun() && self.fold.has_all(usize::from(self.partner != self.sources[0]))
    }

    fn done(&self) -> bool {
        self.fed && self.outbox.is_empty() && self.has_all() && self.fold.done()
    }
}

/// The reduction of all ranks' vectors.
pub async fn recursive_doubling<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    terms: Terms<'_>,
) -> Result<Form<T>> {
    let (me, size, width, n) = (ep.rank(), ep.size(), terms.shape.width, terms.n);
    let core = 1 << size.ilog2();
    let density = view.nnz(width) as f64 / n.max(1) as f64;
    let mut own = terms.encode_input(ep, view, 0, n);
    if me >= core {
        send(ep, IN, Stream::new(own, [me - core])).await?;
        let mut result = Assembler::new(&[0, n], terms.shape, terms.op.identity::<T>()?);
        exchange_and_place(ep, OUT, vec![], &[(me - core, 0..1)], &mut result, false).await?;
        return Ok(result.finish());
    }
    let extra = (me + core < size).then_some((IN, me + core));
    let steps = (0..core.ilog2()).map(|i| (i, me ^ 1 << i));
    let rounds: Vec<(u32, u32)> = extra.into_iter().chain(steps).collect();
    let mut stages: Vec<Stage<T>> = Vec::with_capacity(rounds.len());
    for (k, (round, partner)) in rounds.iter().enumerate() {
        let expected = (density * (1u64 << k) as f64).min(1.0);
        stages.push(Stage::new(ep, terms, *round, *partner, expected, k + 1 == rounds.len())?);
    }
    if stages.is_empty() {
        let streams = vec![Stream::new(own, [me])];
        let mut alone = exchange_and_fold(ep, terms, 0, streams, &[me], (0, n), density).await?;
        alone.finish(terms.op, size, width)?;
        return Ok(alone.form);
    }
    while !stages.iter().all(Stage::done) {
        let mut moved = false;
        while stages[0].takes_more(ep) {
            stages[0].feed(ep, terms, own.next(), own.ended())?;
            moved = true;
        }
        for k in 0..stages.len() {
            moved |= stages[k].step(ep, terms)?;
            if let [stage, next, ..] = &mut stages[k..] {
                moved |= pass_on(ep, terms, stage, next)?;
            }
        }
        if !moved {
            ep.progress().await?;
        }
    }
    let form = stages.pop().expect("at least one round").collector.finish();
    let mut part = Part { lo: 0, hi: n, form, counts: Vec::new() };
    part.finish(terms.op, size, width)?;
    if me + core < size {
        let held = Stream::new(part.encode(ep, width, 0, n), [me + core]);
        send(ep, OUT, held).await?;
    }
    Ok(part.form)
}

/// Hands what a round has reduced to the next one, once it fills segments or is the end. They are cut by entries, not by what
/// happens to be here: all replicas of a rank send the same.
fn pass_on<T: Element>(
    ep: &Endpoint,
    terms: Terms<'_>,
    stage: &mut Stage<T>,
    next: &mut Stage<T>,
) -> Result<bool> {
    let (width, end) = (terms.shape.width, stage.fold.done() && stage.has_all() && stage.fed);
    let each = (SEGMENT_BYTES / (width * size_of::<T>() + 2)).max(1);
    let whole = stage.collector.len() / each * each;
    if next.fed || !end && whole == 0 {
        return Ok(false);
    }
    let form = stage.collector.take(if end { usize::MAX } else { whole });
    let Form::Sparse { indices, values } = form else { unreachable!("asked for sparse") };
    let view = View::Sparse { indices: indices.view(), values: &values };
    let at = |k: usize| match &indices {
        IndexList::Narrow(list) => u64::from(list[k]),
        IndexList::Wide(list) => list[k],
    };
    let mut segments = Vec::new();
    for last in (each..=whole).step_by(each).map(|count| at(count - 1)) {
        segments.extend(encode(ep, view, width, 0, next.fed_to, last + 1));
        next.fed_to = last + 1;
    }
    if end && (next.fed_to < terms.n || terms.n == 0) {
        segments.extend(encode(ep, view, width, 0, next.fed_to, terms.n));
    }
    next.feed(ep, terms, segments, end)?;
    Ok(true)
}
