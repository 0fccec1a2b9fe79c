//! Attempts to connect to one address, with growing pauses.

use crate::message::Hello;
use std::time::{Duration, Instant};

/// Pause before the next attempt: short at first, since rank 0 usually starts a moment later; longer each time, since it may start
/// minutes later.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Attempts to connect to one address.
pub(crate) struct Attempt {
    /// When the first attempt began.
    pub(crate) since: Instant,
    /// The connection of the attempt under way.
    pub(crate) link: Option<usize>,
    /// When the next attempt is due.
    pub(crate) next: Instant,
    pause: Duration,
    pub(crate) hello: Option<Hello>,
    /// Why the last attempt failed.
    pub(crate) last_failure: String,
}

impl Attempt {
    pub(crate) fn new() -> Attempt {
        let (now, last_failure) = (Instant::now(), String::new());
        Attempt { since: now, link: None, next: now, pause: FIRST_PAUSE, hello: None, last_failure }
    }

    /// Whether it is time to connect again.
    pub(crate) fn due(&self) -> bool {
        self.link.is_none() && Instant::now() >= self.next
    }

    pub(crate) fn failed(&mut self, cause: String) {
        (self.link, self.hello) = (None, None);
        self.next = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.last_failure = cause;
    }
}
