//! Synchronisation of one ring: its counters, and the flags by which its ends ask to be woken.
//!
//! | end | sets | then checks | is woken by the other end |
//! |---|---|---|---|
//! | reader | `sleeps` | whether there are bytes | after its next write |
//! | writer | `blocked` | whether there is room | once half of the ring is free |
//!
//! Each end sets its flag and then checks; the other end publishes its counter and then checks the flag. Between the two steps there is
//! a fence on both sides, so at least one end sees what the other has set, and no wake-up is lost. `loom/tests/ring.rs` tries all
//! orders; it supplies its own `sync`.

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Counters and flags, each in cache lines of its own, since one end writes it and the other reads it.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Control {
    /// Bytes ever written, and ever read.
    written: Line<AtomicU64>,
    read: Line<AtomicU64>,
    sleeps: Line<AtomicU32>,
    blocked: Line<AtomicU32>,
}

#[derive(Default)]
#[repr(C, align(128))]
struct Line<T>(T);

impl Control {
    /// Bytes ever written; all of them can be read.
    pub(crate) fn written(&self) -> u64 {
        self.written.0.load(Ordering::Acquire)
    }

    pub(crate) fn publish_written(&self, bytes: u64) {
        self.written.0.store(bytes, Ordering::Release);
    }

    /// Bytes ever read; their room can be overwritten.
    pub(crate) fn read(&self) -> u64 {
        self.read.0.load(Ordering::Acquire)
    }

    pub(crate) fn publish_read(&self, bytes: u64) {
        self.read.0.store(bytes, Ordering::Release);
    }

    /// The reader is about to sleep, unless there are bytes: it must check after this.
    pub(crate) fn announce_sleep(&self) {
        self.sleeps.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The reader is awake.
    pub(crate) fn end_sleep(&self) {
        self.sleeps.0.store(0, Ordering::Relaxed);
    }

    /// Whether the writer must wake the reader; asked after it has published bytes.
    pub(crate) fn must_wake_reader(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeps.0.load(Ordering::Relaxed) != 0 && take(&self.sleeps.0)
    }

    /// The writer is about to wait for room, unless there is some: it must check after this.
    pub(crate) fn announce_blocked(&self) {
        self.blocked.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The writer does not wait for room.
    pub(crate) fn end_blocked(&self) {
        self.blocked.0.store(0, Ordering::Relaxed);
    }

    /// Whether the reader must wake the writer; asked after it has published its reads. `has_room`: whether enough of the ring is free.
    pub(crate) fn must_wake_writer(&self, has_room: impl FnOnce() -> bool) -> bool {
        fence(Ordering::SeqCst);
        self.blocked.0.load(Ordering::Relaxed) != 0 && has_room() && take(&self.blocked.0)
    }
}

/// Clears a flag. Returns whether it was set. A flag that its owner has cleared is not written, so that this cannot undo a later
/// announcement.
fn take(flag: &AtomicU32) -> bool {
    flag.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}
