//! Whether this is still the process that made something, or a child that inherited it by a fork.
//!
//! Every call asks this. The process's number would be a system call, which takes as long as all else that a small call does
//! before its first message; so the system counts forks for us.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks from the first process that asked down to this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process in which this was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// This one.
    ///
    /// # Panics
    /// If the system has no memory for the handler that counts forks.
    pub fn this() -> Process {
        static COUNTED: Once = Once::new();
        COUNTED.call_once(|| {
            // SAFETY: the handler does nothing but add to an atomic number, and code of this library is never unloaded.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
            assert_eq!(failed, 0, "no memory to watch for forks");
        });
        Process(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is that one.
    pub fn is_this(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_process() {
        let made = Process::this();
        assert!(made.is_this() && Process::this() == made);
        // SAFETY: the child does nothing but compare and leave.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let other = !made.is_this() && Process::this().is_this();
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(!other)) };
        }
        let mut status = -1;
        // SAFETY: it waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(made.is_this());
    }
}
