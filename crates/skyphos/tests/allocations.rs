//! A steady reduction allocates nothing, counted on the calling threads, on every transport.

mod common;

use common::{local, on_all, tcp};
use skyphos::ConfigureOptions;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's guarantees are those that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Consecutive reductions in which no rank may allocate.
const STEADY: usize = 400;

/// Attempts of [`STEADY`] reductions each; one without allocations suffices. Queues and the pool grow until they fit the worst
/// interleaving of messages, which may occur late. Code that allocates regularly does so in each attempt.
const TRIES: usize = 12;

#[test]
fn steady_reductions_allocate_nothing() {
    for (name, make) in [("local", local as fn(u32) -> _), ("tcp", tcp)] {
        for (degrees, repeats) in [(vec![4], false), (vec![2, 2], false), (vec![2, 2], true)] {
            let tries: [AtomicU64; TRIES] = Default::default();
            let steady = on_all(make(4), |comm| {
                // Large enough for several chunks a message, with and without repeated indices.
                let mut mine: Vec<u64> = (0..100_000).map(|k| k * 3 + u64::from(comm.rank())).collect();
                if repeats {
                    mine[7] = mine[8];
                }
                let options =
                    ConfigureOptions { degrees: Some(degrees.clone()), ..ConfigureOptions::with_n(1 << 20) };
                let mut plan = comm.configure(&mine, &mine).options(options.clone()).run().unwrap();
                let values = vec![1.0f64; mine.len()];
                let mut out = values.clone();
                tries.iter().any(|allocations| {
                    let before = ALLOCATIONS.get();
                    for _ in 0..STEADY {
                        comm.reduce(&mut plan, &values, &mut out).run().unwrap();
                    }
                    allocations.fetch_add(ALLOCATIONS.get() - before, Ordering::Relaxed);
                    // After this all ranks have added their numbers.
                    comm.barrier().run().unwrap();
                    allocations.load(Ordering::Relaxed) == 0
                })
            });
            let steady = steady.iter().all(|steady| *steady);
            assert!(
                steady,
                "{name}, {degrees:?}, repeats {repeats}: {tries:?} allocations in {STEADY} reductions"
            );
        }
    }
}
