//! Waiting for MPI, which has no call that sleeps: test, yield or sleep a little, test again.

use crate::abi::Handle;
use crate::library::Library;
use crate::options::Options;
use skyphos_types::{Error, Result};
use std::time::{Duration, Instant};

/// Time for which a waiting rank only yields between tests. Then it sleeps, longer each time.
const YIELD_TIME: Duration = Duration::from_millis(2);
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_micros(500);

/// The end of a wait for other processes.
pub(crate) struct Until<'a> {
    pub(crate) end: Instant,
    pub(crate) options: &'a Options,
}

impl Until<'_> {
    /// `Err` if the wait in `call` has to end.
    pub(crate) fn check(&self, call: &str) -> Result<()> {
        if self.options.interrupted.is_some_and(|ask| ask()) {
            return Err(Error::Interrupted);
        }
        match Instant::now() < self.end {
            true => Ok(()),
            // MPI does not say which processes are missing.
            false => Err(Error::Timeout {
                missing: Vec::new(),
                call: format!("{call}, to which not all processes of the communicator have come"),
                after: self.options.timeout,
            }),
        }
    }
}

/// Waits until a request is complete.
pub(crate) fn wait(library: &Library, request: &mut Handle, until: &Until<'_>) -> Result<()> {
    let mut idle = Idle::new();
    loop {
        let mut done = 0;
        // SAFETY: the caller's request, which is not freed.
        let code = unsafe { (library.call.test)(request, &mut done, library.constants.status_ignore) };
        library.check(code, "MPI_Test").map_err(Error::bad_input)?;
        if done != 0 {
            return Ok(());
        }
        until.check("init over MPI")?;
        idle.pause(Duration::MAX);
    }
}

/// The pauses between tests.
pub(crate) struct Idle {
    since: Instant,
    sleep: Duration,
}

impl Idle {
    pub(crate) fn new() -> Idle {
        Idle { since: Instant::now(), sleep: SHORTEST_SLEEP }
    }

    /// Yields or sleeps, for at most `longest`.
    pub(crate) fn pause(&mut self, longest: Duration) {
        if self.since.elapsed() < YIELD_TIME {
            std::thread::yield_now();
        } else {
            std::thread::sleep(self.sleep.min(longest));
            self.sleep = (self.sleep * 2).min(LONGEST_SLEEP);
        }
    }
}
