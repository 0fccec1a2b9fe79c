//! A running reduction: its arguments, and the times that it has spent so far.

use crate::endpoint::Endpoint;
use crate::message_stream::Incoming;
use crate::plan::Stats;
use skyphos_types::{ReduceOp, Result, Round};

/// Rounds of the exchanges down: this number plus the layer.
pub(crate) const DOWN: Round = Round(0x100);
/// Rounds of the exchanges up: this number plus the layer.
pub(crate) const UP: Round = Round(0x200);

/// The order in which the values of one index are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By rank: the same bits every time.
    #[default]
    Rank,
    /// By arrival: faster with late ranks; bits may differ from run to run.
    Arrival,
}

/// A running reduction.
pub(super) struct Run<'a> {
    pub(super) ep: &'a Endpoint,
    pub(super) op: &'a ReduceOp,
    pub(super) order: Order,
    pub(super) width: usize,
    pub(super) stats: Stats,
}

impl Run<'_> {
    /// Waits for progress, and adds the time to `wait_s` if some peer has sent nothing yet, else to `transfer_s`.
    pub(super) async fn progress(&mut self, receives: &[Incoming]) -> Result<()> {
        let late = receives.iter().any(|r| !r.begun());
        let start = self.ep.now();
        self.ep.progress().await?;
        let spent = (self.ep.now() - start).as_secs_f64();
        *(if late { &mut self.stats.wait_s } else { &mut self.stats.transfer_s }) += spent;
        Ok(())
    }

    /// Bytes to allocate for `rows` rows: 0 without data.
    pub(super) fn buffer_bytes<T>(&self, rows: usize) -> usize {
        if self.ep.is_sized() { 0 } else { rows * self.width * size_of::<T>() }
    }
}
