//! Signs of life: notices a host that has vanished, or a link that is cut, which no closed connection tells of.
//!
//! The systems at both ends do the beating: a connection on which nothing is on its way is probed (keep-alive), and what
//! is on its way is acknowledged or sent again. So a process that is stopped, starved or at work elsewhere is never taken for
//! dead, and nothing is sent beside what the kernels send anyway. What is asked of the kernel now and then, while somebody
//! waits for the network, is when it last heard of the peer's and whether something is unanswered since. Both must hold: a
//! peer that does not read closes its window, and then the kernel asks it less and less often.

use crate::sockets::{self, info};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Looks in the time after which a silent peer is lost. What is unanswered in two of them on end is not just on its way.
const LOOKS: u32 = 16;

/// The least time after which a silent peer may be lost: the kernel probes once a second at most.
pub(crate) const LEAST: Duration = Duration::from_secs(2);

/// How long a peer may be silent, and what the last look showed.
pub(crate) struct Pulse {
    limit: Duration,
    next: Instant,
    unanswered: Vec<bool>,
}

impl Pulse {
    pub(crate) fn new(limit: Duration, peers: usize) -> Pulse {
        Pulse { limit, next: Instant::now() + limit / LOOKS, unanswered: vec![false; peers] }
    }

    /// Whether it is time for a look.
    pub(crate) fn due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.next;
        if due {
            self.next = now + self.limit / LOOKS;
        }
        due
    }

    /// How long a peer has been silent, if that is too long.
    pub(crate) fn lost(&mut self, peer: usize, stream: impl AsFd) -> Option<Duration> {
        let info = info(stream).ok()?;
        let heard_ms = info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv);
        let silent = Duration::from_millis(u64::from(heard_ms));
        let unanswered = info.tcpi_retransmits > 0 || info.tcpi_probes > 0;
        let before = std::mem::replace(&mut self.unanswered[peer], unanswered);
        (unanswered && before && silent >= self.limit).then_some(silent)
    }

    /// What a lost peer is reported with.
    pub(crate) fn cause(silent: Duration) -> String {
        format!(
            "no sign of life of its host for {:.0} s: the host or the link to it is down",
            silent.as_secs_f64()
        )
    }
}

/// Lets the kernel ask a silent peer so often that one that is gone is known in time.
pub(crate) fn beat(stream: impl AsFd, limit: Duration) -> io::Result<()> {
    let every = (limit / 4).max(Duration::from_secs(1));
    sockets::keep_alive(stream, every)
}
