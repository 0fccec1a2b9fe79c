//! Limits of simulations: impossible parameters, and runs that would take too much memory or time.

use super::collective::Collective;
use super::data::Law;
use super::scenario::Scenario;
use super::{outer, transfers};
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_plan::{Profile, Union};
use skyphos_types::{Error, Result};

/// Limit on the numbers in all ranks' vectors, if data is real.
const MAX_NUMBERS: f64 = 2e9;

/// Limit on the frames of a run without data. A frame is one or a few events; a run of this many frames takes about an hour.
const MAX_FRAMES: f64 = 1e9;

/// Limit on a rank's rows in collectives without indices.
const MAX_ROWS: f64 = 1e18;

impl Scenario {
    /// Refuses a run without data whose frames would take too long to simulate.
    pub(super) fn check_frames(
        &self,
        union: &Union,
        degrees: &[u32],
        probed: Option<&Profile>,
    ) -> Result<()> {
        let described = self.network.profile();
        let all = match self.collective {
            Collective::Broadcast => {
                self.repeats as f64 * transfers::broadcast_frames(self, probed.unwrap_or(&described))
            }
            Collective::Shuffle => self.repeats as f64 * transfers::shuffle_frames(self),
            Collective::OuterProductSum => self.repeats as f64 * outer::frames(self),
            _ => self.plan_frames(union, degrees),
        };
        if all > MAX_FRAMES {
            return Err(Error::bad_input(format!(
                "about {all:.1e} frames of at most {CHUNK_BYTES} bytes exceed the limit of a simulation, {MAX_FRAMES:.0e} \
                 frames: simulate fewer ranks, entries, bytes or repeats"
            )));
        }
        Ok(())
    }

    /// Refuses impossible parameters.
    pub fn check(&self) -> Result<()> {
        self.network.check()?;
        let refuse = |message: String| Err(Error::bad_input(message));
        if self.n == 0 || self.n > 1 << 63 {
            return refuse(format!("the size of the index space must be 1 to 2^63, not n = {}", self.n));
        }
        let (max_entries, name) =
            if self.collective.has_indices() { (self.n as f64, "n = ") } else { (MAX_ROWS, "") };
        if !self.entries.is_finite() || self.entries < 0.0 || self.entries > max_entries {
            return refuse(format!(
                "the entries per rank must be at least 0 and at most {name}{max_entries}, not {}",
                self.entries
            ));
        }
        if let Law::PowerLaw { alpha } = self.law
            && !(0.0..=10.0).contains(&alpha)
        {
            return refuse(format!("the exponent of a power law must be between 0 and 10, not {alpha}"));
        }
        let has_numbers = self.collective.has_indices() || self.collective.is_dense();
        if self.row_bytes == 0 || (has_numbers && !self.sized && !self.row_bytes.is_multiple_of(4)) {
            return refuse(format!(
                "rows of {} bytes: a row has at least 1 byte, and with real data a multiple of 4",
                self.row_bytes
            ));
        }
        if self.repeats == 0 {
            return refuse("a simulation runs at least once".to_owned());
        }
        transfers::broadcast_options(self).check()?;
        if self.collective == Collective::OuterProductSum {
            outer::check(self)?;
        }
        if self.sized {
            let can = Collective::ALL.into_iter().filter(|collective| collective.has_sized());
            let can: Vec<_> = can.map(Collective::name).collect();
            return match self.collective {
                known if known.has_sized() => Ok(()),
                other => refuse(format!(
                    "{} cannot run with lengths in place of data: {} can; simulate it with real data",
                    other.name(),
                    can.join(", ")
                )),
            };
        }
        let each = match self.collective {
            Collective::AllreduceDense | Collective::Broadcast => self.n as f64,
            Collective::OuterProductSum => outer::numbers(self),
            _ => self.entries,
        };
        let numbers = f64::from(self.network.ranks) * each * self.row_bytes as f64 / 4.0;
        if numbers > MAX_NUMBERS {
            return refuse(format!(
                "{numbers:.3e} numbers on all ranks do not fit one machine's memory: simulate fewer, or lengths in place of \
                 data"
            ));
        }
        Ok(())
    }
}
