//! Replies: frames that the mailbox owes to peers. The node sends them.

use crate::frame::{CallSig, FrameKind, Header};
use skyphos_types::{CallNumber, CommId, WorldRank};

/// A frame that answers a peer's.
pub(crate) struct Reply {
    pub(crate) to: WorldRank,
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

impl Reply {
    pub(super) fn control(to: WorldRank, kind: FrameKind, comm: CommId, call: CallNumber) -> Reply {
        Reply { to, header: Header::control(kind, comm, call), payload: Vec::new() }
    }

    /// A control frame of a point-to-point message, in reply to a frame from its other end.
    pub(super) fn about(to: WorldRank, kind: FrameKind, request: &Header) -> Reply {
        let flags = if request.sig.flags == CallSig::SENDS { CallSig::RECEIVES } else { CallSig::SENDS };
        let header = Header {
            sig: CallSig { flags, ..request.sig },
            ..Header::control(kind, request.comm, request.call)
        };
        Reply { to, header, payload: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::CallKind;

    #[test]
    fn a_reply_about_a_message_comes_from_its_other_end() {
        for (end, other) in [(CallSig::SENDS, CallSig::RECEIVES), (CallSig::RECEIVES, CallSig::SENDS)] {
            let sig = CallSig { flags: end, extra: 5, n: 7, ..CallSig::plain(CallKind::PointToPoint) };
            let request = Header { sig, ..Header::control(FrameKind::Probe, CommId(12), CallNumber(3)) };
            let reply = Reply::about(WorldRank(2), FrameKind::Present, &request);
            assert_eq!(
                (reply.to, reply.header.kind, reply.header.comm, reply.header.call),
                (WorldRank(2), FrameKind::Present, CommId(12), CallNumber(3))
            );
            assert_eq!(reply.header.sig, CallSig { flags: other, ..sig });
        }
    }
}
