//! What a target takes from the heap, and an end to it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

struct Counting;

thread_local! {
    /// Bytes of one allocation, and of all that live, that are too much. Without limits nothing is.
    static LIMITS: Cell<Limits> = const { Cell::new(NONE) };
    /// Bytes that live since counting began; what was there before may go meanwhile.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// Whether there is no more, rather than that more is wrong.
    static SMALL: Cell<bool> = const { Cell::new(false) };
}

/// Bytes that a target may take.
#[derive(Clone, Copy)]
pub struct Limits {
    /// At once.
    pub one: usize,
    /// Together.
    pub all: usize,
}

const NONE: Limits = Limits { one: usize::MAX, all: isize::MAX as usize };

/// Runs `body`, which panics as soon as it takes more than it may.
pub fn within<R>(limits: Limits, body: impl FnOnce() -> R) -> R {
    LIVE.set(0);
    LIMITS.set(limits);
    let result = body();
    LIMITS.set(NONE);
    result
}

/// Runs `body` on a machine that has no more: who asks for it gets none, and has to say so. For calls that are asked for what
/// may be as large: a vector of all rows, of which there are many.
pub fn on_small_machine<R>(limits: Limits, body: impl FnOnce() -> R) -> R {
    SMALL.set(true);
    let result = within(limits, body);
    SMALL.set(false);
    result
}

/// Counts what is taken and given back; whether it may be.
fn count(taken: usize, given_back: usize) -> bool {
    let (limits, live) = (LIMITS.get(), LIVE.get() + taken as isize - given_back as isize);
    // Who tells of a panic may take what it takes.
    let too_much = (taken > limits.one || live > limits.all as isize) && !std::thread::panicking();
    if too_much && SMALL.get() {
        return false;
    }
    LIVE.set(live);
    if too_much {
        // Whoever tells of it allocates. The hook for panics ends the process: nothing unwinds from here.
        LIMITS.set(NONE);
        panic!("{taken} bytes taken at once and {live} in all, of {} and {}", limits.one, limits.all);
    }
    true
}

// SAFETY: every call goes to the system's allocator unchanged, or none is there.
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
