//! The inbox of a rank in this process: neither an event nor a wake-up is lost.

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Condvar, Mutex};
}

#[path = "../../crates/skyphos-core/src/local/inbox.rs"]
mod inbox;

use inbox::Inbox;
use loom::sync::Arc;
use std::time::Duration;

/// Loom's waits never time out: a lost wake-up is a deadlock, which it reports.
const LONG: Duration = Duration::from_secs(1000);

#[test]
fn an_event_ends_a_wait() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::default());
        let senders = [1, 2].map(|event| {
            let inbox = inbox.clone();
            loom::thread::spawn(move || inbox.put(event))
        });
        let mut events = Vec::new();
        while events.len() < 2 {
            inbox.take_all(LONG, &mut events);
        }
        events.sort_unstable();
        assert_eq!(events, [1, 2]);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn a_wake_up_ends_a_wait_before_or_after_it_begins() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::<u32>::default());
        let there = inbox.clone();
        let waker = loom::thread::spawn(move || there.wake());
        let mut events = Vec::new();
        inbox.take_all(LONG, &mut events);
        assert!(events.is_empty());
        waker.join().unwrap();
    });
}

#[test]
fn a_poll_without_a_wait_returns_earlier_events() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::default());
        let there = inbox.clone();
        loom::thread::spawn(move || there.put(1)).join().unwrap();
        let mut events = Vec::new();
        inbox.take_all(Duration::ZERO, &mut events);
        assert_eq!(events, [1]);
    });
}
