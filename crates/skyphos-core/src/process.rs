//! The identity of a process, to detect a child that has inherited an object by a fork.
//!
//! Every call checks it. Reading the process id would be a system call, which takes as long as all other work of a small call
//! before its first message; so a handler counts forks.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the first process that used this module and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The identity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The current process.
    ///
    /// # Panics
    /// If the system has no memory for the handler that counts forks.
    pub fn this() -> Process {
        static COUNTED: Once = Once::new();
        COUNTED.call_once(|| {
            // SAFETY: the handler only adds to an atomic number, and the library's code is never unloaded.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
            assert_eq!(failed, 0, "no memory to watch for forks");
        });
        Process(FORKS.load(Ordering::Relaxed))
    }

    /// Whether it is the current process.
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
