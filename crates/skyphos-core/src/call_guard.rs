//! The end of a call on this rank, and the guard that reports a failure to the other ranks.

use crate::endpoint::Endpoint;
use crate::frame::{FrameKind, Header};
use crate::mailbox::UNSEEN;
use skyphos_types::{Error, Result};

/// How a call ended on this rank.
pub(crate) enum Outcome {
    Done,
    /// Failed, with an error that every rank finds by itself.
    Agreed,
    Failed(Error),
    Panicked,
}

impl Outcome {
    pub(crate) fn of<R>(result: &Result<R>) -> Outcome {
        match result {
            Err(error) if error.is_agreed() => Outcome::Agreed,
            Err(error) => Outcome::Failed(error.clone()),
            Ok(_) => Outcome::Done,
        }
    }
}

/// Ends a call when dropped, and sends the error to the other ranks if it failed.
pub(crate) struct CallGuard<'a> {
    pub(crate) ep: &'a Endpoint,
    pub(crate) outcome: Outcome,
    /// Whether the program gets the outcome now, as from a blocking call.
    pub(crate) is_reported: bool,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let (node, (group, call)) = (self.ep.node(), self.ep.group_and_call());
        let received = node.mail(|m| m.look(group.comm, call)).err().filter(|(_, remote)| *remote);
        let outcome = std::mem::replace(&mut self.outcome, Outcome::Done);
        let message_error = match &outcome {
            Outcome::Failed(error) if self.ep.is_message() => Some(error.clone()),
            _ => None,
        };
        let completed = matches!(outcome, Outcome::Done);
        let error = match outcome {
            Outcome::Done | Outcome::Agreed => None,
            // Forwards the received error: other ranks may see this rank close before the failed rank's abort reaches them.
            Outcome::Failed(_) | Outcome::Panicked if received.is_some() => received.map(|(error, _)| error),
            // A `BadInput` names ranks of the group, all other errors ranks of the transport.
            Outcome::Failed(error @ Error::BadInput { .. }) => {
                Some(error.as_seen_by_others(group.named().me.0))
            }
            Outcome::Failed(error) => Some(error.as_seen_by_others(node.rank().0)),
            Outcome::Panicked => Some(node.panicked()),
        };
        let failed = error.is_some();
        if let Some(error) = error {
            let payload = node.pool().copy_of(&error.to_wire());
            // A program that never learns of the failure repeats no call; `UNSEEN` tells the peers so.
            let is_unseen = node.mail(|m| m.is_unseen(group.comm, call));
            for peer in self.ep.others() {
                let header = self.ep.control(FrameKind::Abort);
                let round = if is_unseen { UNSEEN } else { header.round };
                node.post(peer, Header { round, ..header }, payload.clone());
            }
        }
        node.mail(|m| {
            m.end(group.comm, call, completed);
            if let Some(error) = message_error {
                m.fail_paired_receive(group.comm, call, &error);
            }
            if completed && self.is_reported {
                m.report_success(group.comm, call);
            }
        });
        if node.has_background_work()
            && let Some((comm, call)) = self.ep.frame_id()
        {
            node.transport().end_call(comm, call, failed);
        }
    }
}
