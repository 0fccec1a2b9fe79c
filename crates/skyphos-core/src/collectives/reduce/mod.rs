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

mod checks;
mod down;
mod run;
mod up;

pub(crate) use checks::check_shapes;
pub(crate) use down::finish_mean;
pub use run::Order;
pub(crate) use run::{DOWN, UP};

use crate::collectives::rows::RowSource;
use crate::endpoint::Endpoint;
use crate::plan::{Plan, Stats};
use checks::check_width;
use run::Run;
use skyphos_types::{Element, ReduceOp, Result};

/// Reduces `values` (a row for each index of the plan's `contribute`) into `out` (a row for each index of its `want`).
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
