//! What a rank does in one stage of a collective, and how long that takes.

use crate::profile::Profile;

/// Bytes of the largest frame: a message of more is sent in chunks of so many.
pub const CHUNK_BYTES: f64 = 128.0 * 1024.0;

/// What one rank does in a stage, the busiest where they differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stage {
    /// Bytes that leave, and that come.
    pub sent: f64,
    /// See `sent`.
    pub received: f64,
    /// Messages that it sends.
    pub messages: f64,
    /// Ranks that send to it at once.
    pub senders: f64,
    /// Messages that wait for each other.
    pub rounds: f64,
    /// Processor time of encoding, adding and placing.
    pub compute_s: f64,
    /// Processor time of all, messages included.
    pub work_s: f64,
    /// Seconds that the stage takes.
    pub seconds: f64,
}

impl Stage {
    /// Bytes sent and received, messages, rounds, processor seconds, seconds.
    pub fn numbers(&self) -> [f64; 6] {
        [self.sent, self.received, self.messages, self.rounds, self.compute_s, self.seconds]
    }

    /// With the time that it takes.
    pub fn timed(self, profile: &Profile) -> Stage {
        let stage = self;
        let crowd = 1.0 + profile.incast * (stage.senders - 1.0).max(0.0);
        let taken_s = stage.messages * profile.message_s;
        let wire = stage.sent.max(stage.received * crowd) / profile.rate + taken_s;
        let frames = |bytes: f64| stage.messages.max(bytes / CHUNK_BYTES);
        let moving = (stage.sent + stage.received) * profile.byte_s
            + (frames(stage.sent) + frames(stage.received)) * profile.frame_s
            + stage.messages * profile.wake_s;
        let work_s = moving + stage.compute_s;
        let seconds = wire.max(work_s / profile.cores) + stage.rounds * profile.latency_s;
        Stage { work_s, seconds, ..stage }
    }
}

/// As many bytes to `others` as come from them, all at once.
pub(crate) fn exchange(bytes: f64, others: f64, compute_s: f64) -> Stage {
    let (messages, senders) = (others, others);
    let (sent, received) = (bytes, bytes);
    Stage { sent, received, messages, senders, rounds: 1.0, compute_s, ..Stage::default() }
}
