//! Shrinking a group to the ranks that survive a loss.

use crate::Comm;
use crate::shrink_state::ShrinkState;
use skyphos_core::Group;
use skyphos_core::collectives::shrink::{Shrinking, shrink};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::survivors::{Decision, StopReason};
use skyphos_core::transport::Loss;
use skyphos_types::{Error, Result};
use std::sync::PoisonError;

impl Comm {
    /// A group of the surviving ranks, in the same order, on which all of them agree. Use it after [`Error::PeerLost`], which ends
    /// this group for good; it works without a loss, too. Every surviving rank must call it, wherever in its program it learned of
    /// the loss. Ranks that are lost during the call are left out, too.
    ///
    /// Takes four short messages one after another; more if ranks are lost during the call.
    ///
    /// # Errors
    /// `PeerLost` if this rank cannot continue. Either the other ranks cannot all reach it, and continue without it; or too few
    /// ranks survive to exclude that others continue elsewhere. The survivors must be more than half of the ranks that may live,
    /// or half of them if the lowest is among these; a silent rank may live, a rank whose process has ended does not. `Timeout` with the
    /// ranks that did not call `shrink` in time: try again.
    pub fn shrink(&self) -> Result<Comm> {
        if self.node().is_replicated() {
            return Err(Error::bad_input(
                "shrink cannot run in a replicated group: its ranks go on without lost processes; once a rank has no process \
                 left, start a new group of the remaining ones",
            ));
        }
        let mut state = self.shrink_state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, ShrinkState::Decided) {
            return Err(Error::bad_input(format!("rank {}: this group was shrunk before", self.rank())));
        }
        let sig = CallSig::plain(CallKind::Shrink);
        let (decision, losses, call) = self.call(sig, async |ep| {
            if matches!(*state, ShrinkState::Whole) {
                *state = ShrinkState::Undecided(Box::new(Shrinking::new(ep)));
            }
            let ShrinkState::Undecided(begun) = &mut *state else { unreachable!("set above") };
            Ok((shrink(ep, begun).await?, ep.losses(), ep.call_number()))
        })?;
        *state = ShrinkState::Decided;
        match decision {
            Decision::Continue(ranks) => {
                let topology = self.topology().of_group(&ranks);
                let number = Group::number_with_ranks(self.number(), call, ranks.iter().copied());
                Ok(self.regroup(number, &ranks, topology))
            }
            Decision::Stop(why) => Err(self.left_out(why, &losses)),
        }
    }

    fn left_out(&self, why: StopReason, losses: &[Option<Loss>]) -> Error {
        let silent = losses.iter().position(|loss| *loss == Some(Loss::Silent));
        let lost = silent.or_else(|| losses.iter().position(Option::is_some)).unwrap_or(0) as u32;
        let cause = match why {
            StopReason::Excluded => "other ranks cannot reach this rank, and continue without it".to_owned(),
            StopReason::Minority => {
                let left = losses.iter().filter(|loss| loss.is_none()).count();
                format!(
                    "{left} of {} ranks survive here, too few to exclude that others continue elsewhere: end this process",
                    losses.len()
                )
            }
        };
        Error::PeerLost { rank: lost, address: self.address(lost).to_owned(), cause }
    }
}
