//! Limits on the heap memory of a target: an allocator that counts bytes, and panics or fails above a limit.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

struct Counting;

thread_local! {
    /// The limits in force.
    static LIMITS: Cell<Limits> = const { Cell::new(UNLIMITED) };
    /// Live bytes, allocated minus freed since counting began; negative if earlier allocations are freed.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// Whether an allocation above the limits fails, instead of panicking.
    static FAILS: Cell<bool> = const { Cell::new(false) };
}

/// Bytes that a target may allocate.
#[derive(Clone, Copy)]
pub struct Limits {
    /// In one allocation.
    pub one: usize,
    /// In all live allocations.
    pub all: usize,
}

const UNLIMITED: Limits = Limits { one: usize::MAX, all: isize::MAX as usize };

/// Runs `body`, which panics when it allocates more than the limits.
pub fn within<R>(limits: Limits, body: impl FnOnce() -> R) -> R {
    LIVE.set(0);
    LIMITS.set(limits);
    let result = body();
    LIMITS.set(UNLIMITED);
    result
}

/// Runs `body` as on a machine with little memory: allocations above the limits fail, and the code has to report that. For calls
/// whose arguments rightly ask for much memory, such as a dense vector of a large index space.
pub fn on_small_machine<R>(limits: Limits, body: impl FnOnce() -> R) -> R {
    FAILS.set(true);
    let result = within(limits, body);
    FAILS.set(false);
    result
}

/// Counts an allocation and a release. Returns whether the allocation succeeds.
fn count(allocated: usize, freed: usize) -> bool {
    let (limits, live) = (LIMITS.get(), LIVE.get() + allocated as isize - freed as isize);
    // The report of a panic allocates, too.
    let too_much = (allocated > limits.one || live > limits.all as isize) && !std::thread::panicking();
    if too_much && FAILS.get() {
        return false;
    }
    LIVE.set(live);
    if too_much {
        // The panic's message allocates. The panic hook ends the process, so nothing unwinds from here.
        LIMITS.set(UNLIMITED);
        panic!("allocated {allocated} bytes (limit {}), {live} in all (limit {})", limits.one, limits.all);
    }
    true
}

// SAFETY: every call goes to the system's allocator unchanged, or fails with a null pointer.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match count(layout.size(), 0) {
            // SAFETY: the caller's promise is passed on.
            true => unsafe { System.alloc(layout) },
            false => null_mut(),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match count(layout.size(), 0) {
            // SAFETY: the caller's promise is passed on.
            true => unsafe { System.alloc_zeroed(layout) },
            false => null_mut(),
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match count(size, layout.size()) {
            // SAFETY: the caller's promise is passed on.
            true => unsafe { System.realloc(pointer, layout, size) },
            false => null_mut(),
        }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
