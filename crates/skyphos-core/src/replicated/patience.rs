//! How long a replica waits for what its sibling should bring.

use std::time::Duration;

/// The least and the most, and what it begins with.
const LEAST: Duration = Duration::from_millis(5);
const MOST: Duration = Duration::from_millis(500);
const FIRST: Duration = Duration::from_millis(20);

/// So many times what it usually takes.
const TIMES: u32 = 4;

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Patience {
    usual: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { usual: FIRST / TIMES }
    }
}

impl Patience {
    /// A receiver had something so long after it could have had it from here.
    pub fn took(&mut self, time: Duration) {
        // One that was given up for late says little of the others.
        self.usual = (self.usual * 7 + time.min(self.most())) / 8;
    }

    /// The longest wait.
    pub fn most(&self) -> Duration {
        (self.usual * TIMES).clamp(LEAST, MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_is_usual() {
        let mut patience = Patience::default();
        assert_eq!(patience.most(), FIRST);
        (0..100).for_each(|_| patience.took(Duration::ZERO));
        assert_eq!(patience.most(), LEAST);
        (0..100).for_each(|_| patience.took(Duration::from_millis(30)));
        assert!(patience.most() > Duration::from_millis(100), "{patience:?}");
        (0..100).for_each(|_| patience.took(Duration::from_secs(9)));
        assert_eq!(patience.most(), MOST);
    }
}
