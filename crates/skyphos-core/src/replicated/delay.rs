//! The delay of siblings: how long a replica waits for a chunk that its sibling owns.

use std::time::Duration;

/// Bounds of the limit, and its first value.
const MIN_LIMIT: Duration = Duration::from_millis(10);
const MAX_LIMIT: Duration = Duration::from_millis(500);
const FIRST_LIMIT: Duration = Duration::from_millis(20);

/// The limit is the mean delay times this.
const LIMIT_FACTOR: u32 = 4;

/// A running mean of the delay.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DelayEstimate {
    mean: Duration,
}

impl Default for DelayEstimate {
    fn default() -> DelayEstimate {
        DelayEstimate { mean: FIRST_LIMIT / LIMIT_FACTOR }
    }
}

impl DelayEstimate {
    /// Adds a delay: from the time at which this process could have sent a chunk to the acknowledgement of a sibling's copy.
    pub fn add(&mut self, time: Duration) {
        // One late sibling says little about the others, so its delay is capped.
        self.mean = (self.mean * 7 + time.min(self.limit())) / 8;
    }

    /// The longest wait.
    pub fn limit(&self) -> Duration {
        (self.mean * LIMIT_FACTOR).clamp(MIN_LIMIT, MAX_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_mean_delay() {
        let mut delay = DelayEstimate::default();
        assert_eq!(delay.limit(), FIRST_LIMIT);
        (0..100).for_each(|_| delay.add(Duration::ZERO));
        assert_eq!(delay.limit(), MIN_LIMIT);
        (0..100).for_each(|_| delay.add(Duration::from_millis(30)));
        assert!(delay.limit() > Duration::from_millis(100), "{delay:?}");
        (0..100).for_each(|_| delay.add(Duration::from_secs(9)));
        assert_eq!(delay.limit(), MAX_LIMIT);
    }
}
