//! The purpose of a frame.

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::FromRepr)]
#[repr(u8)]
pub enum FrameKind {
    /// A chunk of a message.
    Data = 1,
    /// The sender has consumed `total` bytes of a stream: opens the window of the stream's sender.
    Credit = 2,
    /// The sender has left the call; the payload is an error.
    Abort = 3,
    /// A request: is the receiver in this call?
    Probe = 4,
    /// The sender is in this call, or past it.
    Present = 5,
    /// The sender has closed; nothing follows.
    Bye = 6,
    /// The sender has heard nothing for too long and counts the receiver as lost; nothing follows.
    GivenUp = 7,
    /// Acknowledges chunks to the replicas that may send them too.
    Acknowledge = 8,
    /// A chunk that the receiver is to forward to its own siblings.
    Forward = 9,
    /// A chunk that a sibling has forwarded.
    Forwarded = 10,
    /// The checksum of the sender's input to the call, in `total`, for the sender's siblings.
    InputChecksum = 11,
    /// The sender is past this call, which outlives losses: all remaining ranks have completed it, and the receiver may leave it.
    Past = 12,
    /// The sender's arguments of this call, whose hash differs from the receiver's.
    Arguments = 13,
    /// The failed calls that the sender's program knows of, since their hash differs from the receiver's. Round 0 requests the
    /// receiver's; round 1 answers.
    Outcomes = 14,
}

impl FrameKind {
    /// Whether the frame carries a chunk of a message. Chunks of one message go out in order.
    pub fn is_data(self) -> bool {
        matches!(self, FrameKind::Data | FrameKind::Forward | FrameKind::Forwarded)
    }
}
