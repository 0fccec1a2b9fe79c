//! Duration and busy time of a blocking call.

use skyphos_tune::{Timing, TuningParameters};
use std::time::Instant;

/// A running measurement.
pub(crate) struct Stopwatch {
    start: Instant,
    busy_s: Option<f64>,
}

impl Stopwatch {
    /// Starts the measurement of a call on `bytes` bytes. Busy time takes some microseconds to read, so only large calls have it.
    pub(crate) fn start(bytes: usize) -> Stopwatch {
        let closely = bytes >= TuningParameters::DEFAULT.timed_bytes;
        Stopwatch { busy_s: closely.then(busy_s).flatten(), start: Instant::now() }
    }

    pub(crate) fn stop(self) -> Timing {
        let seconds = self.start.elapsed().as_secs_f64();
        let busy_s = self.busy_s.and_then(|before| Some(busy_s()? - before)).unwrap_or(0.0);
        Timing { seconds, busy_s }
    }
}

/// Seconds that this thread has run, or was ready to run and waited for a processor; `None` if the system does not report them.
fn busy_s() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let mut numbers = text.split_whitespace().map_while(|word| word.parse::<f64>().ok());
    Some(numbers.next()? + numbers.next()?).map(|nanoseconds| nanoseconds / 1e9)
}
