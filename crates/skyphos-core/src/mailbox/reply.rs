//! Replies: frames that the mailbox owes to peers. The node sends them.

use crate::frame::{CallSig, FrameKind, Header};

/// A frame that answers a peer's.
pub(crate) struct Reply {
    pub(crate) to: u32,
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

impl Reply {
    pub(super) fn control(to: u32, kind: FrameKind, comm: u64, call: u64) -> Reply {
        Reply { to, header: Header::control(kind, comm, call), payload: Vec::new() }
    }

    /// A control frame about a point-to-point message, from its other end.
    pub(super) fn about(to: u32, kind: FrameKind, asked: &Header) -> Reply {
        let flags = if asked.sig.flags == CallSig::SENDS { CallSig::RECEIVES } else { CallSig::SENDS };
        let header =
            Header { sig: CallSig { flags, ..asked.sig }, ..Header::control(kind, asked.comm, asked.call) };
        Reply { to, header, payload: Vec::new() }
    }
}
