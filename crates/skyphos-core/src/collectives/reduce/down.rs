//! The downward pass of a reduction: each rank sends its neighbours their shares, and adds the shares that it receives.

use super::run::{Order, Run};
use crate::clock::Effort;
use crate::collectives::rows::{RowSource, fold_block_rows, stage_repeats};
use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::plan::{BlockCuts, Buffers, Layer, Plan, Stats};
use crate::slab::AlignedVec;
use skyphos_kernels::fold_rows;
use skyphos_types::{Element, ReduceOp, Result, Round};

/// Rounds of the count of ranks per index (plus the layer).
const COUNT_PRESENT: Round = Round(0x140);

impl Run<'_> {
    /// The number of ranks that contribute each index of the bottom range: a reduction of ones.
    pub(super) async fn count_present(&mut self, plan: &Plan, buffers: &mut Buffers) -> Result<Vec<u32>> {
        let ones = vec![1u32; plan.contribute_len];
        let mut counting =
            Run { ep: self.ep, op: &ReduceOp::Max, order: Order::Rank, width: 1, stats: Stats::default() };
        // Repeats on one rank count once: maximum within a rank, sum between ranks.
        let staged = stage_repeats(counting.op, &plan.contribute, &ones, 1, &mut buffers.staged)?.to_vec();
        counting.op = &ReduceOp::Sum;
        let order = &plan.contribute.order;
        counting.down_from(plan, buffers, RowSource::Permuted(&staged, order), COUNT_PRESENT).await?;
        let bottom = buffers.down.last().expect("a layer").as_slice::<u32>();
        Ok(bottom[..bottom.len() - 1].to_vec())
    }

    /// Goes down all layers; the sums of this rank's bottom range end up in the last of `buffers.down`.
    pub(super) async fn down<T: Element>(
        &mut self,
        plan: &Plan,
        buffers: &mut Buffers,
        values: &[T],
        round: Round,
    ) -> Result<()> {
        let order = &plan.contribute.order;
        if plan.contribute.repeats.is_empty() {
            return self.down_from(plan, buffers, RowSource::Permuted(values, order), round).await;
        }
        let mut staged = std::mem::take(&mut buffers.staged);
        let result = match stage_repeats(self.op, &plan.contribute, values, self.width, &mut staged) {
            Ok(values) => self.down_from(plan, buffers, RowSource::Permuted(values, order), round).await,
            Err(error) => Err(error),
        };
        buffers.staged = staged;
        result
    }

    pub(super) async fn down_from<T: Element>(
        &mut self,
        plan: &Plan,
        buffers: &mut Buffers,
        top: RowSource<'_, T>,
        round: Round,
    ) -> Result<()> {
        let mut sums = std::mem::take(&mut buffers.down);
        sums.resize_with(plan.layers.len(), AlignedVec::default);
        let mut result = Ok(());
        for (k, layer) in plan.layers.iter().enumerate() {
            let (above, below) = sums.split_at_mut(k);
            let source = match above.last() {
                None => top,
                Some(sum) => RowSource::Plain(sum.as_slice::<T>()),
            };
            let source = if self.ep.is_sized() { RowSource::Sized } else { source };
            below[0].resize(self.buffer_bytes::<T>(layer.out_len + 1));
            result = self.down_layer(k, layer, buffers, source, below[0].as_slice_mut(), round).await;
            if result.is_err() {
                break;
            }
        }
        buffers.down = sums;
        result
    }

    async fn down_layer<T: Element>(
        &mut self,
        k: usize,
        layer: &Layer,
        buffers: &mut Buffers,
        source: RowSource<'_, T>,
        sum: &mut [T],
        round: Round,
    ) -> Result<()> {
        let (ep, width, row_bytes) = (self.ep, self.width, self.width * size_of::<T>());
        let identity = self.op.identity::<T>()?;
        let share = |j: usize| layer.out_split[j]..layer.out_split[j + 1];
        buffers.start(layer, round + k as u32, |j| share(j).len() * row_bytes);
        buffers.received[layer.me] = layer.out_maps[layer.me].len();
        // Without data the sum is empty. With data its last row is the result of an index that no rank contributes.
        let body = sum.len().saturating_sub(width);
        sum[body..].fill(identity);
        let mut next_block = 0;
        let arrival = self.order == Order::Arrival;
        if arrival {
            sum[..body].fill(identity);
            let (start, map) = (layer.out_split[layer.me], &layer.out_maps[layer.me]);
            ep.try_compute(Effort::Fold { rows: map.len(), row_bytes }, || {
                source.fold(self.op, &mut sum[..body], 0, map.positions(), start, width)
            })?;
        }
        let block_rows = fold_block_rows::<T>(width);
        let blocks = layer.out_len.div_ceil(block_rows);
        if !arrival {
            buffers.cuts.resize_with(buffers.cuts.len().max(k + 1), BlockCuts::default);
            buffers.cuts[k].prepare(layer, block_rows);
        }
        loop {
            let mut moved = buffers.send_chunks(ep, layer, row_bytes, |j, at, chunk| {
                source.copy_rows(
                    share(j).start + at / row_bytes,
                    chunk.len() / row_bytes,
                    width,
                    bytemuck::cast_slice_mut(chunk),
                );
            });
            moved |= buffers.take_chunks(ep, layer, row_bytes, |j| layer.out_maps[j].len())?;
            if arrival {
                fold_arrived(ep, self.op, layer, buffers, &mut sum[..body], width)?;
            } else {
                let ready = match buffers.all_received(layer) {
                    true => blocks,
                    false => buffers.ready_rows(layer, layer.out_len) / block_rows,
                };
                if ready > next_block {
                    let target =
                        (next_block * block_rows * width).min(body)..(ready * block_rows * width).min(body);
                    let (target, blocks) = (&mut sum[target], next_block..ready);
                    let effort = Effort::Fold { rows: buffers.cuts[k].rows(blocks.clone()), row_bytes };
                    ep.try_compute(effort, || {
                        self.fold_blocks(k, layer, buffers, source, target, blocks.clone(), block_rows)
                    })?;
                    buffers.release(k, layer, blocks.end);
                    next_block = ready;
                    moved = true;
                }
            }
            if buffers.sends.iter().all(Outgoing::done) && buffers.receives.iter().all(Incoming::done) {
                return Ok(());
            }
            if !moved {
                self.progress(&buffers.receives).await?;
            }
        }
    }

    /// Folds blocks of the sum for which the values of all members have arrived, each in rank order. Threads share the
    /// blocks; a block is folded by one thread, so the result does not depend on their number.
    #[allow(clippy::too_many_arguments, reason = "one call, from down_layer")]
    fn fold_blocks<T: Element>(
        &self,
        k: usize,
        layer: &Layer,
        buffers: &Buffers,
        source: RowSource<'_, T>,
        target: &mut [T],
        blocks: std::ops::Range<usize>,
        block_rows: usize,
    ) -> Result<()> {
        let (op, width, cuts) = (self.op, self.width, &buffers.cuts[k]);
        let identity = op.identity::<T>()?;
        let fold_block = |block: usize, sum: &mut [T]| -> Result<()> {
            sum.fill(identity);
            let first = (block * block_rows) as u32;
            for (j, map) in layer.out_maps.iter().enumerate() {
                let (rows, map) = (cuts.rows_of(j, block), map.positions());
                if j == layer.me {
                    let start = layer.out_split[j] + rows.start;
                    source.fold(op, sum, first, &map[rows], start, width)?;
                    continue;
                }
                // Waiting chunks are in order; the first may begin before the block.
                for chunk in buffers.waiting[j].iter().take_while(|chunk| chunk.start < rows.end) {
                    let (a, b) = (rows.start.max(chunk.start), rows.end.min(chunk.start + chunk.rows));
                    if a < b {
                        let values = chunk.chunk.as_slice::<T>().expect("whole rows, checked on arrival");
                        let values = &values[(a - chunk.start) * width..(b - chunk.start) * width];
                        fold_rows(op, sum, first, &map[a..b], values, width)?;
                    }
                }
            }
            Ok(())
        };
        let size = block_rows * width;
        match self.ep.node().merge_pool() {
            Some(pool) if target.len() > size && !matches!(op, ReduceOp::Custom(_)) => {
                use rayon::prelude::*;
                pool.install(|| {
                    let each = target.par_chunks_mut(size).enumerate();
                    each.try_for_each(|(k, sum)| fold_block(blocks.start + k, sum))
                })?;
            }
            _ => {
                for (k, sum) in target.chunks_mut(size).enumerate() {
                    fold_block(blocks.start + k, sum)?;
                }
            }
        }
        Ok(())
    }
}

/// Folds every chunk that has arrived, member by member.
fn fold_arrived<T: Element>(
    ep: &Endpoint,
    op: &ReduceOp,
    layer: &Layer,
    buffers: &mut Buffers,
    sum: &mut [T],
    width: usize,
) -> Result<()> {
    for (j, map) in layer.out_maps.iter().enumerate() {
        while let Some(chunk) = buffers.waiting[j].pop_front() {
            let effort = Effort::Fold { rows: chunk.rows, row_bytes: width * size_of::<T>() };
            ep.try_compute(effort, || {
                let values = chunk.chunk.as_slice::<T>().expect("whole rows, checked on arrival");
                fold_rows(op, sum, 0, &map.positions()[chunk.start..chunk.start + chunk.rows], values, width)
            })?;
        }
    }
    Ok(())
}

/// Turns sums into means at the bottom, where each index is on one rank. `present` counts the ranks that contributed a row.
pub(crate) fn finish_mean<T: Element>(
    op: &ReduceOp,
    bottom: &mut [T],
    width: usize,
    size: u32,
    present: Option<&[u32]>,
) {
    match (op, present) {
        (ReduceOp::Mean, _) => bottom.iter_mut().for_each(|v| *v = v.divide(u64::from(size))),
        (ReduceOp::MeanPresent, Some(counts)) => {
            for (row, count) in bottom.chunks_exact_mut(width).zip(counts) {
                row.iter_mut().for_each(|v| *v = v.divide(u64::from(*count)));
            }
        }
        _ => {}
    }
}
