//! A steady exchange allocates nothing on the heap, as a counting allocator shows.

mod common;

use skyphos_core::frame::{Frame, FrameKind, Header};
use skyphos_core::slab::{CHUNK_BYTES, Pool};
use skyphos_core::transport::{Event, Transport};
use skyphos_tcp::Tcp;
use skyphos_types::{CallNumber, CommId, WorldRank};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Frames of each size, both ways at once, on two transports that this one thread drives.
fn exchange(ends: &mut [Tcp; 2], pool: &Pool, events: &mut [Vec<Event>; 2]) {
    for len in [0, 1, 4096, 20_000, CHUNK_BYTES] {
        const FRAMES: usize = 40;
        for seq in 0..FRAMES {
            for end in &mut *ends {
                let mut header = Header::control(FrameKind::Data, CommId(1), CallNumber(0));
                header.seq = seq as u32;
                let to = WorldRank(1 - end.rank().0);
                end.post(to, Frame { header, payload: pool.take(len).freeze() });
            }
        }
        let count = |events: &[Event]| events.iter().filter(|e| matches!(e, Event::Frame { .. })).count();
        while events.iter().any(|e| count(e) < FRAMES) {
            for (end, events) in ends.iter_mut().zip(&mut *events) {
                end.poll(Duration::ZERO, events);
            }
        }
        events.iter_mut().for_each(Vec::clear);
    }
}

#[test]
fn a_steady_exchange_allocates_nothing() {
    assert_allocates_nothing(common::group(2));
    assert_allocates_nothing(common::shared_memory_group(2, false));
}

fn assert_allocates_nothing(group: Vec<Tcp>) {
    let mut ends: [Tcp; 2] = group.try_into().ok().unwrap();
    let pool = Pool::default();
    let mut events = [Vec::with_capacity(200), Vec::with_capacity(200)];
    for _ in 0..3 {
        exchange(&mut ends, &pool, &mut events);
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..50 {
        exchange(&mut ends, &pool, &mut events);
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
}
