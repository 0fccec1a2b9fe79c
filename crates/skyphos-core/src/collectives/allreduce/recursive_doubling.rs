//! Allreduce by recursive doubling (SparCML §5.3.1), with overlapped rounds.
//!
//! ```text
//! 2^k = the largest power of two that is at most P
//! ranks p ≥ 2^k send their vectors to p - 2^k
//! for i = 0..k:  exchange the partial sum with rank XOR 2^i; reduce both, the lower rank's first
//! ranks p - 2^k send the result to p
//! ```
//!
//! Streams ascend by index, so a round does not wait for the previous one: round i passes its sum to round i + 1 segment by
//! segment, while the rest is still arriving. A rank has one partner per round, so no link carries the traffic of several
//! ranks at once. Where inputs hardly overlap no schedule moves fewer bytes.
//!
//! Cost: ⌈log2 P⌉ α (2 α more if P is not a power of two) and the time of a segment per round; bytes grow from round to round
//! by the entries that do not overlap. Works for any P. Both partners add in the same order, so all ranks get the same bits.

use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::slab::Payload;
use crate::stream::{
    Assembler, ReducedRange, ReductionParams, SEGMENT_BYTES, Stream, encode, exchange_and_fold,
    exchange_and_place, fold_failed, fold_segment, send,
};
use skyphos_kernels::stream::{Collector, Fold, Form, IndexList, Shape, View};
use skyphos_types::{Element, GroupRank, Result, Round};
use std::collections::VecDeque;

/// Rounds of the inputs and the results of ranks from 2^k on; the exchanges have rounds from 0 on.
const EXTRA_INPUT: Round = Round(0x100);
const EXTRA_RESULT: Round = Round(0x101);

/// Segments that a round queues for its partner before the network takes them.
const OUTBOX_SEGMENTS: usize = 4;

/// One round on this rank: the exchange with a partner, and the sum of both streams.
struct DoublingRound<T> {
    partner: u32,
    /// This rank and the partner, in the order in which their streams are added.
    sources: [u32; 2],
    fold: Fold<T, Payload>,
    collector: Collector<T>,
    /// This rank's stream to the partner; `None` if the partner, a rank from 2^k on, only sends.
    out: Option<Outgoing>,
    outbox: VecDeque<Payload>,
    /// This rank's stream has been fed to the end.
    fed: bool,
    /// Indices below this one have been fed.
    fed_to: u64,
    incoming: Incoming,
}

impl<T: Element> DoublingRound<T> {
    fn new(
        ep: &Endpoint,
        params: ReductionParams<'_>,
        round: Round,
        partner: u32,
        density: f64,
        last: bool,
    ) -> Result<DoublingRound<T>> {
        let (me, n) = (ep.rank().0, params.n);
        let identity = params.op.identity::<T>()?;
        // A sum that goes into a next round is sparse, since it is taken out in pieces.
        let (shape, expected) = match last {
            true => (params.shape, (2.0 * density * n as f64).min(n as f64) as usize),
            false => (Shape { dense_above: f64::INFINITY, ..params.shape }, 0),
        };
        Ok(DoublingRound {
            partner,
            sources: [me.min(partner), me.max(partner)],
            fold: Fold::new(params.op, 2, shape.width, 0, n, density)?,
            collector: Collector::new(0, n, shape, identity, expected),
            out: (round != EXTRA_INPUT).then(|| Outgoing::open(GroupRank(partner), round)),
            outbox: VecDeque::new(),
            fed: false,
            fed_to: 0,
            incoming: Incoming::new(GroupRank(partner), round),
        })
    }

    /// Takes a segment of this rank or the partner.
    fn push(
        &mut self,
        ep: &Endpoint,
        params: ReductionParams<'_>,
        from: u32,
        segment: Payload,
    ) -> Result<()> {
        let number = usize::from(from != self.sources[0]);
        fold_segment(ep, params, &self.sources, &mut self.fold, number, segment)
    }

    /// Takes segments of this rank's own stream, and queues them for the partner. `end` says that they are the last.
    fn feed(
        &mut self,
        ep: &Endpoint,
        params: ReductionParams<'_>,
        segments: impl IntoIterator<Item = Payload>,
        end: bool,
    ) -> Result<()> {
        self.fed = end;
        for segment in segments {
            if self.out.is_some() {
                self.outbox.push_back(segment.clone());
            }
            self.push(ep, params, ep.rank().0, segment)?;
        }
        Ok(())
    }

    /// Whether to feed more of this rank's own stream: the outbox is short or, if the partner only sends, the sum waits for it.
    fn takes_more(&self, ep: &Endpoint) -> bool {
        let own = usize::from(ep.rank().0 != self.sources[0]);
        let wants = match self.out {
            Some(_) => self.outbox.len() < OUTBOX_SEGMENTS,
            None => self.fold.waits_for(own) || self.fold.is_complete(own),
        };
        wants && !self.fed
    }

    /// Sends, receives and reduces as far as possible now. Returns whether anything moved.
    fn step(&mut self, ep: &Endpoint, params: ReductionParams<'_>) -> Result<bool> {
        let mut moved = false;
        if let Some(out) = &mut self.out {
            while !self.outbox.is_empty() && out.may_send(ep) {
                out.push_shared(ep, self.outbox.pop_front().expect("not empty"));
                moved = true;
            }
        }
        while !self.has_all() {
            let Some(segment) = self.incoming.next(ep)? else { break };
            self.push(ep, params, self.partner, segment)?;
            moved = true;
        }
        let advanced = self.fold.advance(params.op, &mut self.collector);
        Ok(advanced.map_err(|error| fold_failed(ep, &self.sources, error))? || moved)
    }

    /// Whether the partner's whole stream has arrived.
    fn has_all(&self) -> bool {
        self.incoming.begun() && self.fold.is_complete(usize::from(self.partner != self.sources[0]))
    }

    fn done(&self) -> bool {
        self.fed && self.outbox.is_empty() && self.has_all() && self.fold.done()
    }
}

/// The reduction of all ranks' vectors.
pub async fn recursive_doubling<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    params: ReductionParams<'_>,
) -> Result<Form<T>> {
    let (me, size, width, n) = (ep.rank().0, ep.size(), params.shape.width, params.n);
    let core = 1 << size.ilog2();
    let density = view.nnz(width) as f64 / n.max(1) as f64;
    let mut own = params.encode_input(ep, view, 0, n);
    if me >= core {
        send(ep, EXTRA_INPUT, Stream::new(own, [me - core])).await?;
        let mut result = Assembler::new(&[0, n], params.shape, params.op.identity::<T>()?);
        exchange_and_place(ep, EXTRA_RESULT, vec![], &[(me - core, 0..1)], &mut result, false).await?;
        return Ok(result.finish());
    }
    let extra = (me + core < size).then_some((EXTRA_INPUT, me + core));
    let exchanges = (0..core.ilog2()).map(|i| (Round(i), me ^ 1 << i));
    let schedule: Vec<(Round, u32)> = extra.into_iter().chain(exchanges).collect();
    let mut rounds: Vec<DoublingRound<T>> = Vec::with_capacity(schedule.len());
    for (k, (round, partner)) in schedule.iter().enumerate() {
        let expected = (density * (1u64 << k) as f64).min(1.0);
        rounds.push(DoublingRound::new(ep, params, *round, *partner, expected, k + 1 == schedule.len())?);
    }
    if rounds.is_empty() {
        let streams = vec![Stream::new(own, [me])];
        let mut alone = exchange_and_fold(ep, params, Round(0), streams, &[me], (0, n), density).await?;
        alone.finish(params.op, size, width)?;
        return Ok(alone.form);
    }
    while !rounds.iter().all(DoublingRound::done) {
        let mut moved = false;
        while rounds[0].takes_more(ep) {
            rounds[0].feed(ep, params, own.next(), own.ended())?;
            moved = true;
        }
        for k in 0..rounds.len() {
            moved |= rounds[k].step(ep, params)?;
            if let [round, next, ..] = &mut rounds[k..] {
                moved |= feed_next(ep, params, round, next)?;
            }
        }
        if !moved {
            ep.progress().await?;
        }
    }
    let form = rounds.pop().expect("at least one round").collector.finish();
    let mut part = ReducedRange { lo: 0, hi: n, form, counts: Vec::new() };
    part.finish(params.op, size, width)?;
    if me + core < size {
        send(ep, EXTRA_RESULT, Stream::new(part.encode(ep, width, 0, n), [me + core])).await?;
    }
    Ok(part.form)
}

/// Feeds the sum of a round to the next round, in full segments until the end comes. Segments are cut by numbers of entries, not by
/// what has arrived, so all replicas of a rank send the same segments.
fn feed_next<T: Element>(
    ep: &Endpoint,
    params: ReductionParams<'_>,
    round: &mut DoublingRound<T>,
    next: &mut DoublingRound<T>,
) -> Result<bool> {
    let (width, end) = (params.shape.width, round.fold.done() && round.has_all() && round.fed);
    let segment_entries = (SEGMENT_BYTES / (width * size_of::<T>() + 2)).max(1);
    let full_entries = round.collector.len() / segment_entries * segment_entries;
    if next.fed || !end && full_entries == 0 {
        return Ok(false);
    }
    let form = round.collector.take(if end { usize::MAX } else { full_entries });
    let Form::Sparse { indices, values } = form else { unreachable!("the sum is sparse") };
    let view = View::Sparse { indices: indices.view(), values: &values };
    let at = |k: usize| match &indices {
        IndexList::Narrow(list) => u64::from(list[k]),
        IndexList::Wide(list) => list[k],
    };
    let mut segments = Vec::new();
    for last in (segment_entries..=full_entries).step_by(segment_entries).map(|count| at(count - 1)) {
        segments.extend(encode(ep, view, width, 0, next.fed_to, last + 1));
        next.fed_to = last + 1;
    }
    if end && (next.fed_to < params.n || params.n == 0) {
        segments.extend(encode(ep, view, width, 0, next.fed_to, params.n));
    }
    next.feed(ep, params, segments, end)?;
    Ok(true)
}
