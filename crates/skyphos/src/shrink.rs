//! Going on without ranks that are lost.

use crate::Comm;
use skyphos_core::Group;
use skyphos_core::collectives::shrink::{Shrinking, shrink};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::survivors::{Decision, StopReason};
use skyphos_core::transport::Loss;
use skyphos_types::{Error, Result};
use std::sync::PoisonError;

/// How far a group is with it.
#[derive(Default)]
pub(crate) enum Shrunk {
    /// Nobody has asked.
    #[default]
    Not,
    /// Not decided: the next try goes on from here.
    Begun(Box<Shrinking>),
    /// The others have another group.
    Done,
}

impl Comm {
    /// A group of the ranks that are left, in the same order: the same on all of them, agreed by all of them. For after
    /// [`Error::PeerLost`], which ends this group for good; works without any loss as well. Every rank that is left must call
    /// it, at whatever place of its program it learned of the loss; ranks that are lost while it goes on are left out too.
    ///
    /// Four short messages in a row; more if ranks are lost meanwhile.
    ///
    /// # Errors
    /// `PeerLost` where this rank cannot go on: the others cannot all reach it and go on without, or too few are left to know
    /// that no others go on (more than half of the ranks that may live must be, or half of them with the lowest: a rank whose
    /// process has ended cannot, one of which nothing is heard may). `Timeout` with the ranks that did not come: try again.
    pub fn shrink(&self) -> Result<Comm> {
        if self.node().is_replicated() {
            return Err(Error::bad_input(
                "shrink cannot run in a replicated group: its ranks go on without processes that are lost; once a rank has \
                 none left, start a group of those that are",
            ));
        }
        let mut shrunk = self.shrunk.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*shrunk, Shrunk::Done) {
            return Err(Error::bad_input(format!("rank {}: this group was shrunk before", self.rank())));
        }
        let sig = CallSig::plain(CallKind::Shrink);
        let (decision, losses, call) = self.call(sig, async |ep| {
            if matches!(*shrunk, Shrunk::Not) {
                *shrunk = Shrunk::Begun(Box::new(Shrinking::new(ep)));
            }
            let Shrunk::Begun(begun) = &mut *shrunk else { unreachable!("begun just now") };
            Ok((shrink(ep, begun).await?, ep.losses(), ep.call_number()))
        })?;
        *shrunk = Shrunk::Done;
        match decision {
            Decision::Continue(ranks) => {
                let topology = self.topology().of_group(&ranks);
                let number = Group::number_of_some(self.number(), call, &ranks);
                Ok(self.regroup(number, &ranks, topology))
            }
            Decision::Stop(why) => Err(self.left_out(why, &losses)),
        }
    }

    fn left_out(&self, why: StopReason, losses: &[Option<Loss>]) -> Error {
        let silent = losses.iter().position(|loss| *loss == Some(Loss::Silent));
        let lost = silent.or_else(|| losses.iter().position(Option::is_some)).unwrap_or(0) as u32;
        let cause = match why {
            StopReason::Excluded => "others cannot reach this rank, and go on without it".to_owned(),
            StopReason::Minority => {
                let left = losses.iter().filter(|loss| loss.is_none()).count();
                format!(
                    "{left} of {} ranks are left here, too few to know that no others go on elsewhere: end this process",
                    losses.len()
                )
            }
        };
        Error::PeerLost { rank: lost, address: self.address(lost).to_owned(), cause }
    }
}
