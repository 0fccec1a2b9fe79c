//! What time it is on a rank, and what its work costs.
//!
//! On a real machine time passes by itself. In a simulation it passes only when somebody says so: a rank's clock is moved
//! by the messages it waits for, and by the work that [`Clock::compute`] is told of. Where a simulation has no data, only
//! its lengths, the work is not done at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Work on data, as collectives know it: how much of what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effort {
    /// Rows read at mapped places into a message, or from a message to mapped places.
    Gather {
        /// How many.
        rows: usize,
        /// Bytes of each.
        row_bytes: usize,
    },
    /// Rows added at mapped places.
    Fold {
        /// How many.
        rows: usize,
        /// Bytes of each.
        row_bytes: usize,
    },
    /// Entries of a stream encoded into segments.
    Encode {
        /// How many.
        entries: usize,
        /// Bytes of the row of each.
        row_bytes: usize,
    },
    /// Entries that came put into a result.
    Place {
        /// How many.
        entries: usize,
        /// Bytes of the row of each.
        row_bytes: usize,
    },
    /// Entries taken into a reduction of streams.
    Merge {
        /// How many.
        entries: usize,
        /// Bytes of the row of each.
        row_bytes: usize,
        /// Streams that are reduced together.
        sources: usize,
    },
    /// Bytes of an array read, added or copied.
    Dense {
        /// How many, counted once for each time they are read or written.
        bytes: usize,
    },
    /// A product of matrices.
    Product {
        /// Multiplications with an addition each.
        multiply_adds: usize,
        /// Bytes of what comes of it.
        bytes: usize,
        /// Of each number that is multiplied.
        number_bytes: usize,
    },
    /// Indices of a set encoded into a message, or decoded from one.
    SetCode {
        /// How many.
        indices: usize,
    },
    /// Indices of sets joined, and found again in the union.
    SetJoin {
        /// How many there are in all of them.
        indices: usize,
    },
}

/// A rank's clock.
#[derive(Clone)]
pub enum Clock {
    /// Goes by itself, from here.
    Real(Instant),
    /// Is told.
    Virtual(Arc<VirtualClock>),
}

/// The clock of a simulated rank.
pub struct VirtualClock {
    /// Nanoseconds since the simulation began.
    at: AtomicU64,
    /// By how much this rank's clock is ahead of the true one, in nanoseconds.
    ahead: i64,
    /// Nanoseconds that work takes on this rank.
    price: Box<dyn Fn(Effort) -> u64 + Send + Sync>,
    /// Whether there is no data, only its lengths.
    sized: bool,
}

impl Clock {
    /// The real one.
    pub fn real() -> Clock {
        Clock::Real(Instant::now())
    }

    /// Time since the clock was made, or the simulation began, as this rank sees it.
    pub fn now(&self) -> Duration {
        match self {
            Clock::Real(start) => start.elapsed(),
            Clock::Virtual(clock) => clock.seen(),
        }
    }

    /// Whether there is no data, only its lengths.
    pub fn is_sized(&self) -> bool {
        matches!(self, Clock::Virtual(clock) if clock.sized)
    }

    /// Does work of a known cost. Without data it is not done, and takes its time all the same.
    pub fn compute<R: Default>(&self, effort: Effort, work: impl FnOnce() -> R) -> R {
        self.spend(effort);
        if self.is_sized() { R::default() } else { work() }
    }

    /// Accounts for work that is done elsewhere.
    pub fn spend(&self, effort: Effort) {
        if let Clock::Virtual(clock) = self {
            clock.pass((clock.price)(effort));
        }
    }
}

impl VirtualClock {
    /// A clock at the beginning. `ahead`: nanoseconds by which the rank takes it to be later than it is; `price`:
    /// nanoseconds that work takes; `sized`: whether there is no data, only its lengths.
    pub fn new(
        ahead: i64,
        price: impl Fn(Effort) -> u64 + Send + Sync + 'static,
        sized: bool,
    ) -> VirtualClock {
        VirtualClock { at: AtomicU64::new(0), ahead, price: Box::new(price), sized }
    }

    /// True nanoseconds since the simulation began.
    pub fn at(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }

    /// Goes to a moment, unless it has passed.
    pub fn go_to(&self, at: u64) {
        self.at.fetch_max(at, Ordering::Relaxed);
    }

    /// Lets nanoseconds pass; at the end of what can be counted time stands still.
    pub fn pass(&self, nanoseconds: u64) {
        let later = |at: u64| Some(at.saturating_add(nanoseconds));
        let _ = self.at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    fn seen(&self) -> Duration {
        Duration::from_nanos(self.at().saturating_add_signed(self.ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_passes_by_work_alone() {
        let price = |effort| match effort {
            Effort::Dense { bytes } => bytes as u64,
            _ => 0,
        };
        let one = Arc::new(VirtualClock::new(5, price, false));
        let clock = Clock::Virtual(one.clone());
        assert_eq!(clock.now(), Duration::from_nanos(5));
        assert_eq!(clock.compute(Effort::Dense { bytes: 100 }, || 7), 7);
        one.go_to(40);
        assert_eq!(one.at(), 100, "time does not go back");
        one.pass(u64::MAX);
        one.pass(1);
        assert_eq!((one.at(), clock.now()), (u64::MAX, Duration::from_nanos(u64::MAX)), "nor around");
        let lengths = Clock::Virtual(Arc::new(VirtualClock::new(0, price, true)));
        assert_eq!(lengths.compute(Effort::Dense { bytes: 30 }, || 7), 0);
        assert_eq!(lengths.now(), Duration::from_nanos(30));
    }
}
