//! A steady reduction allocates nothing: counted on the threads that call it, on every transport.

mod common;

use common::{local, on_all, tcp};
use skyphos::{ConfigureOptions, Order, ReduceOp};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
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

#[test]
fn steady_reductions_allocate_nothing() {
    for (name, make) in [("local", local as fn(u32) -> _), ("tcp", tcp)] {
        for (degrees, repeats) in [(vec![4], false), (vec![2, 2], false), (vec![2, 2], true)] {
            let counted = on_all(make(4), |comm| {
                // Large enough for several chunks a message, with and without repeated indices.
                let mut mine: Vec<u64> = (0..100_000).map(|k| k * 3 + u64::from(comm.rank())).collect();
                if repeats {
                    mine[7] = mine[8];
                }
                let options =
                    ConfigureOptions { degrees: Some(degrees.clone()), ..ConfigureOptions::with_n(1 << 20) };
                let mut plan = comm.configure(&mine, &mine, &options).unwrap();
                let values = vec![1.0f64; mine.len()];
                let mut out = values.clone();
                let mut reduce = |out: &mut [f64]| {
                    comm.reduce(&mut plan, &values, out, &ReduceOp::Sum, Order::Rank).unwrap()
                };
                // Queues and the pool grow until they hold what the worst interleaving of messages needs;
                // then nothing more is allocated.
                let batches: Vec<u64> = (0..60)
                    .map(|_| {
                        let before = ALLOCATIONS.get();
                        (0..20).for_each(|_| reduce(&mut out));
                        ALLOCATIONS.get() - before
                    })
                    .collect();
                batches[40..].iter().sum::<u64>()
            });
            // 400 reductions on each rank.
            assert!(counted.iter().all(|c| *c <= 8), "{name}, {degrees:?}, repeats {repeats}: {counted:?}");
            assert!(counted.contains(&0), "{name}, {degrees:?}, repeats {repeats}: {counted:?}");
        }
    }
}
