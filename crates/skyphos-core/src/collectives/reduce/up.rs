//! The upward pass of a reduction: each rank sends its neighbours the results at their in-maps, and stores the results that it
//! receives.

use super::run::Run;
use crate::clock::Effort;
use crate::collectives::rows::{RowTarget, copy_repeats};
use crate::message_stream::{Incoming, Outgoing};
use crate::plan::{Buffers, Layer, Plan};
use crate::slab::AlignedVec;
use skyphos_kernels::gather_rows;
use skyphos_types::{Element, Result, Round};

impl Run<'_> {
    /// Goes up all layers, to the caller's result.
    pub(super) async fn up<T: Element>(
        &mut self,
        plan: &Plan,
        buffers: &mut Buffers,
        out: &mut [T],
        round: Round,
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
        round: Round,
    ) -> Result<()> {
        let (ep, width, row_bytes) = (self.ep, self.width, self.width * size_of::<T>());
        buffers.start(layer, round, |j| layer.in_maps[j].len() * row_bytes);
        let mut own_done = false;
        loop {
            let mut moved = buffers.send_chunks(ep, layer, row_bytes, |j, at, chunk| {
                let map = &layer.in_maps[j].positions()[at / row_bytes..(at + chunk.len()) / row_bytes];
                gather_rows(source, map, width, bytemuck::cast_slice_mut(chunk));
            });
            if !own_done {
                // This rank's own share, after the first chunks are on their way.
                let map = &layer.in_maps[layer.me];
                ep.compute(Effort::Gather { rows: map.len(), row_bytes }, || {
                    target.put_gathered(layer.in_split[layer.me], source, map.positions(), width);
                });
                own_done = true;
            }
            let share = |j: usize| layer.in_split[j + 1] - layer.in_split[j];
            moved |= buffers.take_chunks(ep, layer, row_bytes, share)?;
            for j in 0..layer.members.len() {
                while let Some(chunk) = buffers.waiting[j].pop_front() {
                    ep.compute(Effort::Gather { rows: chunk.rows, row_bytes }, || {
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
