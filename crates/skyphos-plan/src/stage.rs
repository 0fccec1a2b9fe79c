//! One stage of a collective: a rank's messages and work, and the time that they take.

use crate::profile::Profile;

/// Payload bytes of the largest frame. Longer messages are sent in chunks of this size.
pub const CHUNK_BYTES: f64 = 128.0 * 1024.0;

/// One rank's part of a stage; where ranks differ, that of the busiest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stage {
    /// Bytes sent.
    pub sent: f64,
    /// Bytes received.
    pub received: f64,
    /// Messages sent.
    pub messages: f64,
    /// Ranks that send to this one at once.
    pub senders: f64,
    /// Messages in sequence, each of which waits for the one before.
    pub rounds: f64,
    /// Processor time of encoding, adding and placing.
    pub compute_s: f64,
    /// Processor time including that of messages.
    pub work_s: f64,
    /// Duration of the stage.
    pub seconds: f64,
}

impl Stage {
    /// Bytes sent and received, messages, rounds, processor seconds, seconds.
    pub fn numbers(&self) -> [f64; 6] {
        [self.sent, self.received, self.messages, self.rounds, self.compute_s, self.seconds]
    }

    /// Computes `work_s` and `seconds`.
    pub fn timed(self, profile: &Profile) -> Stage {
        let stage = self;
        let crowd = 1.0 + profile.incast * (stage.senders - 1.0).max(0.0);
        let messages_s = stage.messages * profile.message_s;
        let wire = stage.sent.max(stage.received * crowd) / profile.rate + messages_s;
        let frames = |bytes: f64| stage.messages.max(bytes / CHUNK_BYTES);
        let moving = (stage.sent + stage.received) * profile.byte_s
            + (frames(stage.sent) + frames(stage.received)) * profile.frame_s
            + stage.messages * profile.wake_s;
        let work_s = moving + stage.compute_s;
        let seconds = wire.max(work_s / profile.cores) + stage.rounds * profile.latency_s;
        Stage { work_s, seconds, ..stage }
    }
}

/// A direct exchange: the same number of bytes to and from `others` ranks at once.
pub(crate) fn exchange(bytes: f64, others: f64, compute_s: f64) -> Stage {
    let (messages, senders) = (others, others);
    let (sent, received) = (bytes, bytes);
    Stage { sent, received, messages, senders, rounds: 1.0, compute_s, ..Stage::default() }
}
