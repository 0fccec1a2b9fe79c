//! A rank's clock: real, or virtual in a simulation.
//!
//! Messages that a simulated rank waits for advance its virtual clock, and so does the work passed to [`Clock::compute`], by its
//! cost. In a simulation without data (*sized*: messages have lengths and no bytes) the work is not done, only accounted for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Work on data: its kind and amount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effort {
    /// Rows gathered at mapped positions into a message, or scattered from a message to mapped positions.
    Gather {
        /// Number of rows.
        rows: usize,
        /// Bytes of a row.
        row_bytes: usize,
    },
    /// Rows added at mapped positions.
    Fold {
        /// Number of rows.
        rows: usize,
        /// Bytes of a row.
        row_bytes: usize,
    },
    /// Entries of a stream encoded into segments.
    Encode {
        /// Number of entries.
        entries: usize,
        /// Bytes of an entry's row.
        row_bytes: usize,
    },
    /// Received entries stored in a result.
    Place {
        /// Number of entries.
        entries: usize,
        /// Bytes of an entry's row.
        row_bytes: usize,
    },
    /// Entries merged in a reduction of streams.
    Merge {
        /// Number of entries.
        entries: usize,
        /// Bytes of an entry's row.
        row_bytes: usize,
        /// Streams that are reduced together.
        sources: usize,
    },
    /// Bytes of an array read, added or copied.
    Dense {
        /// Number of bytes, counted once per read or write.
        bytes: usize,
    },
    /// A product of matrices.
    Product {
        /// Multiply-adds.
        multiply_adds: usize,
        /// Bytes of the result.
        bytes: usize,
        /// Bytes of a factor's number.
        number_bytes: usize,
    },
    /// Indices of a set encoded into a message, or decoded from one.
    SetCode {
        /// Number of indices.
        indices: usize,
    },
    /// Indices of sets united, and located in the union.
    SetJoin {
        /// Number of indices of all sets.
        indices: usize,
    },
}

/// A rank's clock.
#[derive(Clone)]
pub enum Clock {
    /// The system's clock, from this instant on.
    Real(Instant),
    /// The clock of a simulated rank.
    Virtual(Arc<VirtualClock>),
}

/// The clock of a simulated rank.
pub struct VirtualClock {
    /// Nanoseconds since the simulation began.
    at: AtomicU64,
    /// Nanoseconds by which this rank's clock is ahead of the true time.
    ahead: i64,
    /// The cost of work on this rank, in nanoseconds.
    cost: Box<dyn Fn(Effort) -> u64 + Send + Sync>,
    /// Whether the simulation has no data.
    sized: bool,
}

impl Clock {
    /// The system's clock.
    pub fn real() -> Clock {
        Clock::Real(Instant::now())
    }

    /// Time since the clock was made, or the simulation began, as this rank sees it.
    pub fn now(&self) -> Duration {
        match self {
            Clock::Real(start) => start.elapsed(),
            Clock::Virtual(clock) => clock.rank_time(),
        }
    }

    /// Whether the simulation has no data, only lengths.
    pub fn is_sized(&self) -> bool {
        matches!(self, Clock::Virtual(clock) if clock.sized)
    }

    /// Does work of a known cost. Without data the work is only accounted for.
    pub fn compute<R: Default>(&self, effort: Effort, work: impl FnOnce() -> R) -> R {
        self.spend(effort);
        if self.is_sized() { R::default() } else { work() }
    }

    /// Accounts for work without doing it.
    pub fn spend(&self, effort: Effort) {
        if let Clock::Virtual(clock) = self {
            clock.advance_by((clock.cost)(effort));
        }
    }
}

impl VirtualClock {
    /// A clock at time 0. `ahead`: nanoseconds by which the rank's clock is ahead of the true time; `cost`: the cost of work in
    /// nanoseconds; `sized`: whether the simulation has no data.
    pub fn new(
        ahead: i64,
        cost: impl Fn(Effort) -> u64 + Send + Sync + 'static,
        sized: bool,
    ) -> VirtualClock {
        VirtualClock { at: AtomicU64::new(0), ahead, cost: Box::new(cost), sized }
    }

    /// True nanoseconds since the simulation began.
    pub fn at(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }

    /// Advances to a time, unless it has passed.
    pub fn advance_to(&self, at: u64) {
        self.at.fetch_max(at, Ordering::Relaxed);
    }

    /// Advances by nanoseconds. Saturates at the largest time.
    pub fn advance_by(&self, nanoseconds: u64) {
        let later = |at: u64| Some(at.saturating_add(nanoseconds));
        let _ = self.at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    fn rank_time(&self) -> Duration {
        Duration::from_nanos(self.at().saturating_add_signed(self.ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_follows_the_cost_of_work_and_never_goes_back() {
        let cost = |effort| match effort {
            Effort::Dense { bytes } => bytes as u64,
            _ => 0,
        };
        let rank_clock = Arc::new(VirtualClock::new(5, cost, false));
        let clock = Clock::Virtual(rank_clock.clone());
        assert_eq!(clock.now(), Duration::from_nanos(5));
        assert_eq!(clock.compute(Effort::Dense { bytes: 100 }, || 7), 7);
        rank_clock.advance_to(40);
        assert_eq!(rank_clock.at(), 100, "time does not go back");
        rank_clock.advance_by(u64::MAX);
        rank_clock.advance_by(1);
        let end = (u64::MAX, Duration::from_nanos(u64::MAX));
        assert_eq!((rank_clock.at(), clock.now()), end, "nor wrap around");
        let sized = Clock::Virtual(Arc::new(VirtualClock::new(0, cost, true)));
        assert_eq!(sized.compute(Effort::Dense { bytes: 30 }, || 7), 0);
        assert_eq!(sized.now(), Duration::from_nanos(30));
    }
}
