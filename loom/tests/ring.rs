//! The shared-memory ring: bytes are read as they were written, and neither end sleeps for ever.

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "../../crates/skyphos-tcp/src/ring/control.rs"]
#[allow(dead_code)]
mod control;

use control::Control;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Notify};

/// A ring of `CAPACITY` cells.
#[derive(Default)]
struct Ring {
    control: Control,
    cells: [UnsafeCell<u64>; CAPACITY],
}

const CAPACITY: usize = 2;

/// Writes `total` numbers in one thread and reads them in another. Notifications take the place of the bytes on a socket that wake a
/// process.
fn transfer(total: u64) {
    loom::model(move || {
        let ring = Arc::new(Ring::default());
        let (to_reader, to_writer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (there, data_ready, room) = (ring.clone(), to_reader.clone(), to_writer.clone());
        let writer = loom::thread::spawn(move || {
            let mut written = 0;
            while written < total {
                if written - there.control.read() == CAPACITY as u64 {
                    there.control.announce_blocked();
                    if written - there.control.read() == CAPACITY as u64 {
                        room.wait();
                    } else {
                        there.control.end_blocked();
                    }
                    continue;
                }
                // SAFETY: the cell is free, since the reader has published that it read it; loom checks that.
                there.cells[written as usize % CAPACITY].with_mut(|cell| unsafe { *cell = written * 7 });
                written += 1;
                there.control.publish_written(written);
                if there.control.must_wake_reader() {
                    data_ready.notify();
                }
            }
        });
        let mut read = 0;
        while read < total {
            if ring.control.written() == read {
                ring.control.announce_sleep();
                if ring.control.written() == read {
                    to_reader.wait();
                }
                ring.control.end_sleep();
                continue;
            }
            // SAFETY: the cell was written, since the writer has published it; loom checks that.
            let value = ring.cells[read as usize % CAPACITY].with(|cell| unsafe { *cell });
            assert_eq!(value, read * 7);
            read += 1;
            ring.control.publish_read(read);
            if ring.control.must_wake_writer(|| ring.control.written() - read <= CAPACITY as u64 / 2) {
                to_writer.notify();
            }
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_sleeping_reader_is_woken() {
    transfer(2);
}

#[test]
fn a_blocked_writer_is_woken() {
    transfer(3);
}
