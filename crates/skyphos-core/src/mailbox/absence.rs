//! The absence of a rank from a call or a group, and its effect on a call.

use crate::frame::CallSig;
use crate::transport::Loss;
use skyphos_types::{CallNumber, Error};

/// The reason why a rank takes no more part in a call that continues without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The rank has completed the call, and knows that all ranks have.
    Past,
    /// The rank makes no more calls in the group.
    Left,
    /// The rank is lost.
    Lost,
}

/// A rank that is lost or has left.
pub(super) struct LostPeer {
    pub(super) cause: String,
    pub(super) loss: Loss,
}

impl LostPeer {
    /// Whether the loss ends a call. A call that needs a rank that has left in order fails once it waits for that rank.
    pub(super) fn ends(&self, sig: CallSig) -> bool {
        self.loss != Loss::Left && !sig.outlives_losses()
    }

    /// The absence from a call that outlives losses.
    pub(super) fn absence(&self) -> Absence {
        if self.loss == Loss::Left { Absence::Left } else { Absence::Lost }
    }
}

/// The departure of a rank: it makes no more calls in a group.
pub(super) struct Departure {
    pub(super) error: Error,
    /// Number of calls that the rank has begun; `None` if other ranks have reported it as lost.
    pub(super) begun: Option<CallNumber>,
}

impl Departure {
    /// The absence from a call that outlives losses; `None` if that call cannot succeed.
    pub(super) fn absence(&self, call: CallNumber) -> Option<Absence> {
        match self.begun {
            None => Some(Absence::Left),
            Some(begun) if begun > call => Some(Absence::Past),
            Some(_) => None,
        }
    }

    /// Whether the departure ends a call.
    pub(super) fn ends(&self, call: CallNumber, sig: CallSig) -> bool {
        match sig.outlives_losses() {
            true => self.absence(call).is_none(),
            false => self.begun.is_none_or(|begun| begun <= call),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::CallKind;

    const BARRIER: CallSig = CallSig::plain(CallKind::Barrier);
    const SHRINK: CallSig = CallSig::plain(CallKind::Shrink);

    #[test]
    fn a_loss_ends_a_call_unless_the_call_outlives_losses() {
        let table = [
            // loss, ends a barrier, ends a shrink, absence
            (Loss::Ended, true, false, Absence::Lost),
            (Loss::Silent, true, false, Absence::Lost),
            (Loss::Left, false, false, Absence::Left),
        ];
        for (loss, ends_barrier, ends_shrink, absence) in table {
            let peer = LostPeer { cause: String::new(), loss };
            assert_eq!((peer.ends(BARRIER), peer.ends(SHRINK)), (ends_barrier, ends_shrink), "{loss:?}");
            assert_eq!(peer.absence(), absence);
        }
    }

    #[test]
    fn a_departure_ends_calls_that_the_rank_has_not_begun() {
        let table = [
            // calls begun, call, ends a barrier, absence from a call that outlives losses
            (None, 0, true, Some(Absence::Left)),
            (None, 9, true, Some(Absence::Left)),
            (Some(3), 2, false, Some(Absence::Past)),
            (Some(3), 3, true, None),
            (Some(3), 4, true, None),
            (Some(0), 0, true, None),
        ];
        for (begun, call, ends, absence) in table {
            let departure = Departure { error: Error::Interrupted, begun: begun.map(CallNumber) };
            assert_eq!(departure.ends(CallNumber(call), BARRIER), ends, "{begun:?} {call}");
            assert_eq!(departure.absence(CallNumber(call)), absence, "{begun:?} {call}");
            assert_eq!(departure.ends(CallNumber(call), SHRINK), absence.is_none(), "{begun:?} {call}");
        }
    }
}
