//! The nested butterfly's reduction (Kylix §III-B): down by the out-maps, up by the in-maps.
//!
//! ```text
//! down, layer i = 1..l:  send every neighbour its share of v[i-1]
//!                        v[i][out_map_j] ⊕= share of neighbour j, for every j in rank order
//! at the bottom:         the last in-map leads from what is asked to v[l]
//! up, layer i = l..1:    send every neighbour the values at its in-map
//!                        r[i-1] = what the neighbours send, one after the other
//! ```
//!
//! Cost: Σ 2 (d_i - 1) α, and β times the rows of [`Plan::volume`]. Memory: one sum a layer, and at
//! most the window of each neighbour held back while an earlier rank's chunk is due. Values are read
//! from the caller's array into messages and written from messages into the caller's result, without
//! a copy between. With [`Order::Rank`] the order of additions depends on ranks and degrees alone.
//!
//! Dropping the future leaves the plan usable; its buffers hold no borrowed memory.

use crate::clock::Effort;
use crate::collectives::rows::{Source, Target, copy_repeats, fold_block_rows, stage_repeats};
use crate::endpoint::Endpoint;
use crate::message_stream::{Incoming, Outgoing};
use crate::plan::{BlockCuts, Layer, Memory, Plan, Stats};
use crate::slab::{AlignedVec, CHUNK_BYTES};
use skyphos_kernels::{fold_rows, gather_rows};
use skyphos_types::{Element, Error, ReduceOp, Result};

/// Round numbers of the exchanges going down (plus the layer).
pub(crate) const DOWN: u32 = 0x100;
/// Round numbers of the exchanges coming up.
pub(crate) const UP: u32 = 0x200;

/// Which order values of one index are added in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By rank: the same bits every time.
    #[default]
    Rank,
    /// As they come.
    Arrival,
}

/// Refuses rows that no chunk can hold.
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
    let mut memory = std::mem::take(&mut plan.memory);
    let mut run = Run { ep, op, order, width: plan.width, stats: Stats::default() };
    let result = async {
        if matches!(op, ReduceOp::MeanPresent) && plan.present.is_none() {
            plan.present = Some(run.count_present(plan, &mut memory).await?);
        }
        run.down(plan, &mut memory, values, DOWN).await?;
        let bottom = memory.down.last_mut().expect("a layer").as_slice_mut::<T>();
        finish_mean(op, bottom, plan.width, ep.size(), plan.present.as_deref());
        run.up(plan, &mut memory, out, UP).await
    }
    .await;
    plan.memory = memory;
    plan.stats = Stats { total_s: (ep.now() - start).as_secs_f64(), ..run.stats };
    result
}

/// Goes through the motions of [`reduce`] for rows of so many bytes, in a simulation that has lengths alone.
pub async fn reduce_sized(ep: &Endpoint, plan: &mut Plan, row_bytes: usize) -> Result<()> {
    debug_assert!(ep.is_sized());
    check_width::<u8>(row_bytes)?;
    let start = ep.now();
    let mut memory = std::mem::take(&mut plan.memory);
    let (op, order) = (&ReduceOp::Max, Order::Rank);
    let mut run = Run { ep, op, order, width: row_bytes, stats: Stats::default() };
    let result = async {
        run.down_from::<u8>(plan, &mut memory, Source::Counted, DOWN).await?;
        run.up::<u8>(plan, &mut memory, &mut [], UP).await
    }
    .await;
    plan.memory = memory;
    plan.stats = Stats { total_s: (ep.now() - start).as_secs_f64(), ..run.stats };
    result
}

/// Refuses values, results and operations that do not fit the lengths of `contribute` and `want`.
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
    for (what, numbers, side, indices) in sides {
        if numbers != indices * width {
            return Err(Error::bad_input(format!(
                "{what} {numbers} numbers, the plan's {side} has {indices} indices of width {width}"
            )));
        }
    }
    Ok(())
}

/// Turns sums into means at the bottom, where each index is held once.
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

/// One reduction under way.
pub(crate) struct Run<'a> {
    pub(crate) ep: &'a Endpoint,
    pub(crate) op: &'a ReduceOp,
    pub(crate) order: Order,
    pub(crate) width: usize,
    pub(crate) stats: Stats,
}

impl Run<'_> {
    /// Waits for progress, on the account of late peers or of transfer.
    async fn progress(&mut self, receives: &[Incoming]) -> Result<()> {
        let late = receives.iter().any(|r| !r.begun());
        let start = self.ep.now();
        self.ep.progress().await?;
        let spent = (self.ep.now() - start).as_secs_f64();
        *(if late { &mut self.stats.wait_s } else { &mut self.stats.transfer_s }) += spent;
        Ok(())
    }

    /// Bytes of memory for so many rows; none without data.
    fn row_memory<T>(&self, rows: usize) -> usize {
        if self.ep.is_sized() { 0 } else { rows * self.width * size_of::<T>() }
    }

    /// How many ranks put out each index of the bottom range: a reduction of ones.
    async fn count_present(&mut self, plan: &Plan, memory: &mut Memory) -> Result<Vec<u32>> {
        let ones = vec![1u32; plan.contribute_len];
        let mut counting =
            Run { ep: self.ep, op: &ReduceOp::Max, order: Order::Rank, width: 1, stats: Stats::default() };
        // Repeats on one rank count once, hence max there and sum between ranks.
        let staged = stage_repeats(counting.op, &plan.contribute, &ones, 1, &mut memory.staged)?.to_vec();
        counting.op = &ReduceOp::Sum;
        let order = &plan.contribute.order;
        counting.down_from(plan, memory, Source::Permuted(&staged, order), DOWN + 0x40).await?;
        let bottom = memory.down.last().expect("a layer").as_slice::<u32>();
        Ok(bottom[..bottom.len() - 1].to_vec())
    }

    /// All layers down: the sums of this rank's bottom range end up in the last of `memory.down`.
    async fn down<T: Element>(
        &mut self,
        plan: &Plan,
        memory: &mut Memory,
        values: &[T],
        round: u32,
    ) -> Result<()> {
        let order = &plan.contribute.order;
        if plan.contribute.repeats.is_empty() {
            return self.down_from(plan, memory, Source::Permuted(values, order), round).await;
        }
        let mut staged = std::mem::take(&mut memory.staged);
        let result = match stage_repeats(self.op, &plan.contribute, values, self.width, &mut staged) {
            Ok(values) => self.down_from(plan, memory, Source::Permuted(values, order), round).await,
            Err(error) => Err(error),
        };
        memory.staged = staged;
        result
    }

    async fn down_from<T: Element>(
        &mut self,
        plan: &Plan,
        memory: &mut Memory,
        top: Source<'_, T>,
        round: u32,
    ) -> Result<()> {
        let mut sums = std::mem::take(&mut memory.down);
        sums.resize_with(plan.layers.len(), AlignedVec::default);
        let mut result = Ok(());
        for (k, layer) in plan.layers.iter().enumerate() {
            let (above, below) = sums.split_at_mut(k);
            let source = match above.last() {
                None => top,
                Some(sum) => Source::Plain(sum.as_slice::<T>()),
            };
            let source = if self.ep.is_sized() { Source::Counted } else { source };
            below[0].resize(self.row_memory::<T>(layer.out_len + 1));
            result = self.down_layer(k, layer, memory, source, below[0].as_slice_mut(), round).await;
            if result.is_err() {
                break;
            }
        }
        memory.down = sums;
        result
    }

    async fn down_layer<T: Element>(
        &mut self,
        k: usize,
        layer: &Layer,
        memory: &mut Memory,
        source: Source<'_, T>,
        sum: &mut [T],
        round: u32,
    ) -> Result<()> {
        let (ep, width, row) = (self.ep, self.width, self.width * size_of::<T>());
        let identity = self.op.identity::<T>()?;
        let share = |j: usize| layer.out_split[j]..layer.out_split[j + 1];
        memory.start(layer, round + k as u32, |j| share(j).len() * row);
        memory.have[layer.me] = layer.out_maps[layer.me].len();
        // None without data.
        let body = sum.len().saturating_sub(width);
        sum[body..].fill(identity); // what an index that nobody puts out is answered with
        let mut next_block = 0;
        let arrival = self.order == Order::Arrival;
        if arrival {
            sum[..body].fill(identity);
            let (start, map) = (layer.out_split[layer.me], &layer.out_maps[layer.me]);
            ep.try_compute(Effort::Fold { rows: map.len(), row_bytes: row }, || {
                source.fold(self.op, &mut sum[..body], 0, map.places(), start, width)
            })?;
        }
        let block_rows = fold_block_rows::<T>(width);
        let blocks = layer.out_len.div_ceil(block_rows);
        if !arrival {
            memory.cuts.resize_with(memory.cuts.len().max(k + 1), BlockCuts::default);
            memory.cuts[k].ready(layer, block_rows);
        }
        loop {
            let mut moved = memory.send_chunks(ep, layer, row, |j, at, chunk| {
                source.copy_rows(
                    share(j).start + at / row,
                    chunk.len() / row,
                    width,
                    bytemuck::cast_slice_mut(chunk),
                );
            });
            moved |= memory.take_chunks(ep, layer, row, |j| layer.out_maps[j].len())?;
            if arrival {
                fold_arrived(ep, self.op, layer, memory, &mut sum[..body], width)?;
            } else {
                let ready = match memory.all_here(layer) {
                    true => blocks,
                    false => memory.ready_rows(layer, layer.out_len) / block_rows,
                };
                if ready > next_block {
                    let target =
                        (next_block * block_rows * width).min(body)..(ready * block_rows * width).min(body);
                    let (target, blocks) = (&mut sum[target], next_block..ready);
                    let effort = Effort::Fold { rows: memory.cuts[k].rows(blocks.clone()), row_bytes: row };
                    ep.try_compute(effort, || {
                        self.fold_blocks(k, layer, memory, source, target, blocks.clone(), block_rows)
                    })?;
                    memory.release(k, layer, blocks.end);
                    next_block = ready;
                    moved = true;
                }
            }
            if memory.sends.iter().all(Outgoing::done) && memory.receives.iter().all(Incoming::done) {
                return Ok(());
            }
            if !moved {
                self.progress(&memory.receives).await?;
            }
        }
    }

    /// Folds blocks of the sum for which all sources are here, each from all sources in rank order.
    /// Blocks are independent, so which thread folds one does not change the result.
    #[allow(clippy::too_many_arguments, reason = "one call, from down_layer")]
    fn fold_blocks<T: Element>(
        &self,
        k: usize,
        layer: &Layer,
        memory: &Memory,
        source: Source<'_, T>,
        target: &mut [T],
        blocks: std::ops::Range<usize>,
        block_rows: usize,
    ) -> Result<()> {
        let (op, width, held, cuts) = (self.op, self.width, &memory.held, &memory.cuts[k]);
        let identity = op.identity::<T>()?;
        let fold_one = |block: usize, sum: &mut [T]| -> Result<()> {
            sum.fill(identity);
            let first = (block * block_rows) as u32;
            for (j, map) in layer.out_maps.iter().enumerate() {
                let (part, map) = (cuts.of(j, block), map.places());
                if j == layer.me {
                    source.fold(
                        op,
                        sum,
                        first,
                        &map[part.clone()],
                        layer.out_split[j] + part.start,
                        width,
                    )?;
                    continue;
                }
                // Held chunks lie in order; the first may begin before the block.
                for piece in held[j].iter().take_while(|h| h.start < part.end) {
                    let (a, b) = (part.start.max(piece.start), part.end.min(piece.start + piece.rows));
                    if a < b {
                        let values = piece.chunk.as_slice::<T>().expect("whole rows, checked on arrival");
                        let values = &values[(a - piece.start) * width..(b - piece.start) * width];
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

    /// All layers up: the caller's result.
    async fn up<T: Element>(
        &mut self,
        plan: &Plan,
        memory: &mut Memory,
        out: &mut [T],
        round: u32,
    ) -> Result<()> {
        let mut results = std::mem::take(&mut memory.up);
        results.resize_with(plan.layers.len(), AlignedVec::default);
        let sums = std::mem::take(&mut memory.down);
        let mut result = Ok(());
        for (k, layer) in plan.layers.iter().enumerate().rev() {
            // results[k] is what this rank holds of node layer k's in-set; layer 0's is `out`.
            let (above, below) = results.split_at_mut(k + 1);
            let source = match below.first() {
                None => sums[k].as_slice::<T>(),
                Some(held) => held.as_slice::<T>(),
            };
            let round = round + k as u32;
            let target = if self.ep.is_sized() {
                Target::Counted
            } else if k == 0 {
                Target::Scattered(out, &plan.want.order)
            } else {
                above[k].resize(self.row_memory::<T>(plan.layers[k - 1].in_len));
                Target::Plain(above[k].as_slice_mut())
            };
            result = self.up_layer(layer, memory, source, target, round).await;
            if result.is_err() {
                break;
            }
        }
        memory.up = results;
        memory.down = sums;
        result?;
        copy_repeats(&plan.want.repeats, out, self.width);
        Ok(())
    }

    async fn up_layer<T: Element>(
        &mut self,
        layer: &Layer,
        memory: &mut Memory,
        source: &[T],
        mut target: Target<'_, T>,
        round: u32,
    ) -> Result<()> {
        let (ep, width, row) = (self.ep, self.width, self.width * size_of::<T>());
        memory.start(layer, round, |j| layer.in_maps[j].len() * row);
        let mut own_done = false;
        loop {
            let mut moved = memory.send_chunks(ep, layer, row, |j, at, chunk| {
                let map = &layer.in_maps[j].places()[at / row..(at + chunk.len()) / row];
                gather_rows(source, map, width, bytemuck::cast_slice_mut(chunk));
            });
            if !own_done {
                // After the first chunks are on their way: this rank's own share.
                let map = &layer.in_maps[layer.me];
                ep.compute(Effort::Gather { rows: map.len(), row_bytes: row }, || {
                    target.put_gathered(layer.in_split[layer.me], source, map.places(), width);
                });
                own_done = true;
            }
            let share = |j: usize| layer.in_split[j + 1] - layer.in_split[j];
            moved |= memory.take_chunks(ep, layer, row, share)?;
            for j in 0..layer.members.len() {
                while let Some(piece) = memory.held[j].pop_front() {
                    ep.compute(Effort::Gather { rows: piece.rows, row_bytes: row }, || {
                        let values = piece.chunk.as_slice::<T>().expect("whole rows, checked on arrival");
                        target.put(layer.in_split[j] + piece.start, values, width);
                    });
                }
            }
            if memory.sends.iter().all(Outgoing::done) && memory.receives.iter().all(Incoming::done) {
                return Ok(());
            }
            if !moved {
                self.progress(&memory.receives).await?;
            }
        }
    }
}

/// Folds every chunk that is here, in the order of members, as far as they have come.
fn fold_arrived<T: Element>(
    ep: &Endpoint,
    op: &ReduceOp,
    layer: &Layer,
    memory: &mut Memory,
    sum: &mut [T],
    width: usize,
) -> Result<()> {
    for (j, map) in layer.out_maps.iter().enumerate() {
        while let Some(piece) = memory.held[j].pop_front() {
            let effort = Effort::Fold { rows: piece.rows, row_bytes: width * size_of::<T>() };
            ep.try_compute(effort, || {
                let values = piece.chunk.as_slice::<T>().expect("whole rows, checked on arrival");
                fold_rows(op, sum, 0, &map.places()[piece.start..piece.start + piece.rows], values, width)
            })?;
        }
    }
    Ok(())
}
