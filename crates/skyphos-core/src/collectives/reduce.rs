//! Reduction on the nested butterfly (Kylix §III-B): values go down by the out-maps, results up by the in-maps.
//!
//! ```text
//! down, layer i = 1..l:  send each neighbour its share of v[i-1]
//!                        v[i][out_map_j] ⊕= share of neighbour j, for every j in rank order
//! at the bottom:         the last in-map leads from the wanted indices to the rows of v[l]
//! up, layer i = l..1:    send each neighbour the values at its in-map
//!                        r[i-1] = the neighbours' values, one share after the other
//! ```
//!
//! Cost: Σ 2 (d_i - 1) α, and β times the rows of [`Plan::volume`]. Memory: one sum per layer, and at most one window per
//! neighbour of chunks that wait for an earlier rank's. Values are copied once from the caller's array into messages, and
//! once from messages into the caller's result. With [`Order::Rank`] the order of additions depends only on ranks and degrees.
//!
//! Dropping the future leaves the plan usable; its buffers borrow nothing.

use crate::clock::Effort;
use crate::collectives::rows::{RowSource, RowTarget, copy_repeats, fold_block_rows, stage_repeats};
use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::plan::{BlockCuts, Buffers, Layer, Plan, Stats};
use crate::slab::{AlignedVec, CHUNK_BYTES};
use skyphos_kernels::{fold_rows, gather_rows};
use skyphos_types::{Element, Error, ReduceOp, Result};

/// Round numbers of the exchanges going down (plus the layer).
pub(crate) const DOWN: u32 = 0x100;
/// Round numbers of the exchanges coming up.
pub(crate) const UP: u32 = 0x200;

/// The order in which the values of one index are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By rank: the same bits every time.
    #[default]
    Rank,
    /// By arrival: faster with late ranks; bits may differ from run to run.
    Arrival,
}

/// Refuses rows that do not fit a chunk.
fn check_width<T>(width: usize) -> Result<()> {
    let row = width.saturating_mul(size_of::<T>());
    if row == 0 || row > CHUNK_BYTES {
        return Err(Error::bad_input(format!(
            "a row of width={width} takes {row} bytes; a row takes 1 to {CHUNK_BYTES}"
        )));
    }
    Ok(())
}

/// Reduces `values` (rows along the plan's `contribute`) into `out` (rows along its `want`).
pub async fn reduce<T: Element>(
    ep: &Endpoint,
    plan: &mut Plan,
    values: &[T],
    out: &mut [T],
    op: &ReduceOp,
    order: Order,
) -> Result<()> {
    check_shapes((plan.contribute_len, plan.want_len), plan.width, values, out, op)?;
    let start = ep.now();
    let mut buffers = std::mem::take(&mut plan.buffers);
    let mut run = Run { ep, op, order, width: plan.width, stats: Stats::default() };
    let result = async {
        if matches!(op, ReduceOp::MeanPresent) && plan.present.is_none() {
            plan.present = Some(run.count_present(plan, &mut buffers).await?);
        }
        run.down(plan, &mut buffers, values, DOWN).await?;
        let bottom = buffers.down.last_mut().expect("a layer").as_slice_mut::<T>();
        finish_mean(op, bottom, plan.width, ep.size(), plan.present.as_deref());
        run.up(plan, &mut buffers, out, UP).await
    }
    .await;
    plan.buffers = buffers;
    plan.stats = Stats { total_s: (ep.now() - start).as_secs_f64(), ..run.stats };
    result
}

/// [`reduce`] in a simulation without data, for rows of `row_bytes` bytes.
pub async fn reduce_sized(ep: &Endpoint, plan: &mut Plan, row_bytes: usize) -> Result<()> {
    debug_assert!(ep.is_sized());
    check_width::<u8>(row_bytes)?;
    let start = ep.now();
    let mut buffers = std::mem::take(&mut plan.buffers);
    let (op, order) = (&ReduceOp::Max, Order::Rank);
    let mut run = Run { ep, op, order, width: row_bytes, stats: Stats::default() };
    let result = async {
        run.down_from::<u8>(plan, &mut buffers, RowSource::Sized, DOWN).await?;
        run.up::<u8>(plan, &mut buffers, &mut [], UP).await
    }
    .await;
    plan.buffers = buffers;
    plan.stats = Stats { total_s: (ep.now() - start).as_secs_f64(), ..run.stats };
    result
}

/// Refuses an operation that the type lacks, and arrays of other lengths than `contribute` and `want` require.
pub(crate) fn check_shapes<T: Element>(
    (contribute_len, want_len): (usize, usize),
    width: usize,
    values: &[T],
    out: &[T],
    op: &ReduceOp,
) -> Result<()> {
    op.check(T::DTYPE)?;
    check_width::<T>(width)?;
    let sides = [
        ("values hold", values.len(), "contribute", contribute_len),
        ("out holds", out.len(), "want", want_len),
    ];
    for (array, numbers, side, indices) in sides {
        if numbers != indices * width {
            return Err(Error::bad_input(format!(
                "{array} {numbers} numbers, the plan's {side} has {indices} indices of width {width}"
            )));
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

/// One running reduction.
pub(crate) struct Run<'a> {
    pub(crate) ep: &'a Endpoint,
    pub(crate) op: &'a ReduceOp,
    pub(crate) order: Order,
    pub(crate) width: usize,
    pub(crate) stats: Stats,
}

impl Run<'_> {
    /// Waits for progress, and adds the time to `wait_s` if some peer has sent nothing yet, else to `transfer_s`.
    async fn progress(&mut self, receives: &[Incoming]) -> Result<()> {
        let late = receives.iter().any(|r| !r.begun());
        let start = self.ep.now();
        self.ep.progress().await?;
        let spent = (self.ep.now() - start).as_secs_f64();
        *(if late { &mut self.stats.wait_s } else { &mut self.stats.transfer_s }) += spent;
        Ok(())
    }

    /// Bytes to allocate for `rows` rows: 0 without data.
    fn buffer_bytes<T>(&self, rows: usize) -> usize {
        if self.ep.is_sized() { 0 } else { rows * self.width * size_of::<T>() }
    }

    /// The number of ranks that contribute each index of the bottom range: a reduction of ones.
    async fn count_present(&mut self, plan: &Plan, buffers: &mut Buffers) -> Result<Vec<u32>> {
        let ones = vec![1u32; plan.contribute_len];
        let mut counting =
            Run { ep: self.ep, op: &ReduceOp::Max, order: Order::Rank, width: 1, stats: Stats::default() };
        // Repeats on one rank count once: maximum within a rank, sum between ranks.
        let staged = stage_repeats(counting.op, &plan.contribute, &ones, 1, &mut buffers.staged)?.to_vec();
        counting.op = &ReduceOp::Sum;
        let order = &plan.contribute.order;
        counting.down_from(plan, buffers, RowSource::Permuted(&staged, order), DOWN + 0x40).await?;
        let bottom = buffers.down.last().expect("a layer").as_slice::<u32>();
        Ok(bottom[..bottom.len() - 1].to_vec())
    }

    /// Goes down all layers; the sums of this rank's bottom range end up in the last of `buffers.down`.
    async fn down<T: Element>(
        &mut self,
        plan: &Plan,
        buffers: &mut Buffers,
        values: &[T],
        round: u32,
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

    async fn down_from<T: Element>(
        &mut self,
        plan: &Plan,
        buffers: &mut Buffers,
        top: RowSource<'_, T>,
        round: u32,
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
        round: u32,
    ) -> Result<()> {
        let (ep, width, row) = (self.ep, self.width, self.width * size_of::<T>());
        let identity = self.op.identity::<T>()?;
        let share = |j: usize| layer.out_split[j]..layer.out_split[j + 1];
        buffers.start(layer, round + k as u32, |j| share(j).len() * row);
        buffers.received[layer.me] = layer.out_maps[layer.me].len();
        // Without data the sum is empty. With data its last row is the result of an index that no rank contributes.
        let body = sum.len().saturating_sub(width);
        sum[body..].fill(identity);
        let mut next_block = 0;
        let arrival = self.order == Order::Arrival;
        if arrival {
            sum[..body].fill(identity);
            let (start, map) = (layer.out_split[layer.me], &layer.out_maps[layer.me]);
            ep.try_compute(Effort::Fold { rows: map.len(), row_bytes: row }, || {
                source.fold(self.op, &mut sum[..body], 0, map.positions(), start, width)
            })?;
        }
        let block_rows = fold_block_rows::<T>(width);
        let blocks = layer.out_len.div_ceil(block_rows);
        if !arrival {
            buffers.cuts.resize_with(buffers.cuts.len().max(k + 1), BlockCuts::default);
            buffers.cuts[k].ready(layer, block_rows);
        }
        loop {
            let mut moved = buffers.send_chunks(ep, layer, row, |j, at, chunk| {
                source.copy_rows(
                    share(j).start + at / row,
                    chunk.len() / row,
                    width,
                    bytemuck::cast_slice_mut(chunk),
                );
            });
            moved |= buffers.take_chunks(ep, layer, row, |j| layer.out_maps[j].len())?;
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
                    let effort = Effort::Fold { rows: buffers.cuts[k].rows(blocks.clone()), row_bytes: row };
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
    /// blocks; a block is folded by one thread, so the result does not depend on threads.
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
        let fold_one = |block: usize, sum: &mut [T]| -> Result<()> {
            sum.fill(identity);
            let first = (block * block_rows) as u32;
            for (j, map) in layer.out_maps.iter().enumerate() {
                let (rows, map) = (cuts.of(j, block), map.positions());
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
                    each.try_for_each(|(k, sum)| fold_one(blocks.start + k, sum))
                })?;
            }
            _ => {
                for (k, sum) in target.chunks_mut(size).enumerate() {
                    fold_one(blocks.start + k, sum)?;
                }
            }
        }
        Ok(())
    }

    /// Goes up all layers, to the caller's result.
    async fn up<T: Element>(
        &mut self,
        plan: &Plan,
        buffers: &mut Buffers,
        out: &mut [T],
        round: u32,
    ) -> Result<()> {
        let mut results = std::mem::take(&mut buffers.up);
        results.resize_with(plan.layers.len(), AlignedVec::default);
        let sums = std::mem::take(&mut buffers.down);
        let mut result = Ok(());
        for (k, layer) in plan.layers.iter().enumerate().rev() {
            // results[k] has this rank's values of node layer k's in-set; those of layer 0 go to `out`.
            let (above, below) = results.split_at_mut(k + 1);
            let source = match below.first() {
                None => sums[k].as_slice::<T>(),
                Some(values) => values.as_slice::<T>(),
            };
            let round = round + k as u32;
            let target = if self.ep.is_sized() {
                RowTarget::Sized
            } else if k == 0 {
                RowTarget::Scattered(out, &plan.want.order)
            } else {
                above[k].resize(self.buffer_bytes::<T>(plan.layers[k - 1].in_len));
                RowTarget::Plain(above[k].as_slice_mut())
            };
            result = self.up_layer(layer, buffers, source, target, round).await;
            if result.is_err() {
                break;
            }
        }
        buffers.up = results;
        buffers.down = sums;
        result?;
        copy_repeats(&plan.want.repeats, out, self.width);
        Ok(())
    }

    async fn up_layer<T: Element>(
        &mut self,
        layer: &Layer,
        buffers: &mut Buffers,
        source: &[T],
        mut target: RowTarget<'_, T>,
        round: u32,
    ) -> Result<()> {
        let (ep, width, row) = (self.ep, self.width, self.width * size_of::<T>());
        buffers.start(layer, round, |j| layer.in_maps[j].len() * row);
        let mut own_done = false;
        loop {
            let mut moved = buffers.send_chunks(ep, layer, row, |j, at, chunk| {
                let map = &layer.in_maps[j].positions()[at / row..(at + chunk.len()) / row];
                gather_rows(source, map, width, bytemuck::cast_slice_mut(chunk));
            });
            if !own_done {
                // This rank's own share, after the first chunks are on their way.
                let map = &layer.in_maps[layer.me];
                ep.compute(Effort::Gather { rows: map.len(), row_bytes: row }, || {
                    target.put_gathered(layer.in_split[layer.me], source, map.positions(), width);
                });
                own_done = true;
            }
            let share = |j: usize| layer.in_split[j + 1] - layer.in_split[j];
            moved |= buffers.take_chunks(ep, layer, row, share)?;
            for j in 0..layer.members.len() {
                while let Some(chunk) = buffers.waiting[j].pop_front() {
                    ep.compute(Effort::Gather { rows: chunk.rows, row_bytes: row }, || {
                        let values = chunk.chunk.as_slice::<T>().expect("whole rows, checked on arrival");
                        target.put(layer.in_split[j] + chunk.start, values, width);
                    });
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
