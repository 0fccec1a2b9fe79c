//! Duration and busy time of a blocking call.

use skyphos_tune::{Timing, TuningParameters};
use skyphos_types::Seconds;
use std::time::Instant;

/// A running measurement.
pub(crate) struct Stopwatch {
    start: Instant,
    busy: Option<Seconds>,
}

impl Stopwatch {
    /// Starts the measurement of a call on `bytes` bytes. Busy time takes some microseconds to read, so only large calls have it.
    pub(crate) fn start(bytes: usize) -> Stopwatch {
        let is_large = bytes >= TuningParameters::DEFAULT.timed_bytes;
        Stopwatch { busy: is_large.then(busy).flatten(), start: Instant::now() }
    }

    pub(crate) fn stop(self) -> Timing {
        let duration = Seconds(self.start.elapsed().as_secs_f64());
        let busy = self.busy.and_then(|before| Some(busy()? - before)).filter(|busy| *busy > Seconds(0.0));
        Timing { duration, busy }
    }
}

/// Time that this thread has run, or was ready to run and waited for a processor; `None` if the system does not report it.
fn busy() -> Option<Seconds> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let mut numbers = text.split_whitespace().map_while(|word| word.parse::<f64>().ok());
    Some(numbers.next()? + numbers.next()?).map(|nanoseconds| Seconds(nanoseconds / 1e9))
}
