//! Attempts to connect to one address, with growing pauses.

use crate::message::Hello;
use std::time::{Duration, Instant};

/// Pause before the next attempt: short at first, since rank 0 usually starts a moment later; longer each time, since its start may
/// take minutes.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Attempts to connect to one address.
pub(crate) struct Attempt {
    pub(crate) since: Instant,
    pub(crate) link: Option<usize>,
    pub(crate) next: Instant,
    pause: Duration,
    pub(crate) hello: Option<Hello>,
    /// Why the last attempt failed.
    pub(crate) last: String,
}

impl Attempt {
    pub(crate) fn new() -> Attempt {
        let now = Instant::now();
        Attempt { since: now, link: None, next: now, pause: FIRST_PAUSE, hello: None, last: String::new() }
    }

    pub(crate) fn due(&self) -> bool {
        self.link.is_none() && Instant::now() >= self.next
    }

    pub(crate) fn failed(&mut self, cause: String) {
        (self.link, self.hello) = (None, None);
        self.next = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.last = cause;
    }
}
