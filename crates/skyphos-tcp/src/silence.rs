//! Detection of hosts that are down and links that are cut, which close no connection.
//!
//! The kernels at both ends answer for the processes: they probe an idle connection (keep-alive), and acknowledge or retransmit bytes
//! under way. So a process that is stopped, starved or busy is never taken for dead, and this module sends nothing. While a thread polls,
//! it reads from the kernel when the peer's kernel last answered, and whether bytes or probes are unanswered. A peer is lost only if
//! both show silence: a peer that does not read closes its window, and then the kernel probes it less and less often.

use crate::sockets::{self, info};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Number of checks within the time after which a silent peer is lost. A peer is lost only if two checks in a row find unanswered bytes.
const CHECKS: u32 = 16;

/// The shortest time after which a silent peer may be lost: the kernel probes at most once a second.
pub(crate) const MIN_LIMIT: Duration = Duration::from_secs(2);

/// The limit of a peer's silence, and the result of the last check.
pub(crate) struct SilenceDetector {
    limit: Duration,
    next: Instant,
    unanswered: Vec<bool>,
}

impl SilenceDetector {
    pub(crate) fn new(limit: Duration, peers: usize) -> SilenceDetector {
        SilenceDetector { limit, next: Instant::now() + limit / CHECKS, unanswered: vec![false; peers] }
    }

    /// Whether it is time for a check. If so, the time of the next check is set.
    pub(crate) fn due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.next;
        if due {
            self.next = now + self.limit / CHECKS;
        }
        due
    }

    /// The duration of a peer's silence, if it exceeds the limit and this check and the last one found unanswered bytes.
    pub(crate) fn lost(&mut self, peer: usize, stream: impl AsFd) -> Option<Duration> {
        let info = info(stream).ok()?;
        let silent_ms = info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv);
        let silent = Duration::from_millis(u64::from(silent_ms));
        let unanswered = info.tcpi_retransmits > 0 || info.tcpi_probes > 0;
        let before = std::mem::replace(&mut self.unanswered[peer], unanswered);
        (unanswered && before && silent >= self.limit).then_some(silent)
    }

    /// The cause with which a silent peer is reported.
    pub(crate) fn cause(silent: Duration) -> String {
        format!(
            "no sign of life from its host for {:.0} s: the host or the link to it is down",
            silent.as_secs_f64()
        )
    }
}

/// Sets the kernel's keep-alive so that a dead peer is known within the limit.
pub(crate) fn set_keep_alive(stream: impl AsFd, limit: Duration) -> io::Result<()> {
    let every = (limit / 4).max(Duration::from_secs(1));
    sockets::keep_alive(stream, every)
}
