//! Ranks that take no more part in a call or in a group, and what that means for a call.

use crate::frame::CallSig;
use crate::transport::Loss;
use skyphos_types::Error;

/// Why a rank takes no more part in a call that goes on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// It has done its part, and knows that all ranks have.
    Past,
    /// It makes no more calls in the group.
    Left,
    /// It is lost.
    Lost,
}

/// A rank that is lost or has left.
pub(super) struct LostPeer {
    pub(super) cause: String,
    pub(super) loss: Loss,
}

impl LostPeer {
    /// Whether a call ends by the loss. A call that needs a rank that has left finds out by itself.
    pub(super) fn ends(&self, sig: CallSig) -> bool {
        self.loss != Loss::Left && !sig.outlives_losses()
    }

    /// What the loss means for a call that outlives losses.
    pub(super) fn absence(&self) -> Absence {
        if self.loss == Loss::Left { Absence::Left } else { Absence::Lost }
    }
}

/// That a rank makes no more calls in a group, and why.
pub(super) struct Departure {
    pub(super) error: Error,
    /// Calls that the rank has begun. `None`: other ranks say that it is lost.
    pub(super) begun: Option<u64>,
}

impl Departure {
    /// What it means for a call that outlives losses; `None` if that call cannot succeed.
    pub(super) fn absence(&self, call: u64) -> Option<Absence> {
        match self.begun {
            None => Some(Absence::Left),
            Some(begun) if begun > call => Some(Absence::Past),
            Some(_) => None,
        }
    }

    /// Whether a call fails by it.
    pub(super) fn ends(&self, call: u64, sig: CallSig) -> bool {
        match sig.outlives_losses() {
            true => self.absence(call).is_none(),
            false => self.begun.is_none_or(|begun| begun <= call),
        }
    }
}
