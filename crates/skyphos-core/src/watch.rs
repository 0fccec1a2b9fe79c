//! The time-out of a call that makes no progress.
//!
//! Shortly before the time-out every rank is asked whether it is in the call. A rank that is inside drives the transport, so it
//! answers at once; the error names the ranks that have not answered.

use crate::endpoint::Endpoint;
use crate::frame::FrameKind;
use crate::mailbox::Mailbox;
use crate::node::Node;
use crate::slab::Payload;
use skyphos_types::{Error, Result, WorldRank};
use std::time::Duration;

/// The time at which a call last made progress, and its time-outs.
pub(crate) struct Watch {
    /// Version of the box at the last look.
    version: Option<u64>,
    moved: Duration,
    timeout: Duration,
    grace: Duration,
    /// Whether the other ranks have been probed.
    probed: bool,
}

impl Watch {
    pub(crate) fn new(node: &Node) -> Watch {
        let (timeout, grace) = (node.settings().timeout, node.grace());
        Watch { version: None, moved: node.now(), timeout, grace, probed: false }
    }

    /// Notes progress. `Err` if the call has failed, or has not moved for too long.
    pub(crate) fn look(&mut self, ep: &Endpoint) -> Result<()> {
        let now = ep.version()?;
        if self.version != Some(now) {
            (self.version, self.moved, self.probed) = (Some(now), ep.now(), false);
        } else if self.quiet(ep) >= self.timeout {
            return Err(ep.node().timed_out(ep));
        } else if !self.probed && self.overdue(ep) {
            self.probed = true;
            ep.node().probe_ranks(ep);
        }
        Ok(())
    }

    /// Time since the call moved.
    fn quiet(&self, ep: &Endpoint) -> Duration {
        ep.now().saturating_sub(self.moved)
    }

    fn overdue(&self, ep: &Endpoint) -> bool {
        self.quiet(ep) >= if self.probed { self.timeout } else { self.timeout - self.grace }
    }

    /// Whether [`Watch::look`] would find anything.
    pub(crate) fn has_news(&self, ep: &Endpoint, mail: &mut Mailbox) -> bool {
        let (group, call) = ep.group_and_call();
        mail.version(group.comm, call) != self.version || self.overdue(ep)
    }

    pub(crate) fn version(&self) -> Option<u64> {
        self.version
    }
}

impl Node {
    /// Asks every rank whether it is in the call.
    fn probe_ranks(&self, ep: &Endpoint) {
        for peer in ep.others() {
            self.post(peer, ep.control(FrameKind::Probe), Payload::default());
        }
    }

    /// The error of a call that has not moved for the whole time-out.
    fn timed_out(&self, ep: &Endpoint) -> Error {
        let (group, call) = ep.group_and_call();
        if let Some(error) = self.mail(|m| m.disputed(group.comm, call)) {
            return error;
        }
        let (present, losses) = self.mail(|m| (m.present(group.comm, call), m.losses(group)));
        // A shrink goes on without ranks that are lost.
        let awaited = ep.awaited();
        let absent = |rank: WorldRank| awaited.contains(&rank) && !present.contains(&rank);
        let each = group.ranks.iter().zip(&losses);
        let missing =
            each.filter(|(rank, loss)| loss.is_none() && absent(**rank)).map(|(rank, _)| rank.0).collect();
        Error::Timeout { missing, call: ep.sig().to_string(), after: self.settings().timeout }
    }
}
