//! Log records of the Rust crates, as records of Python's logger "skyphos".
//!
//! Any thread may make a record, and runtime threads never take the GIL. So records are queued, and a thread of this module,
//! which lives while there are records, hands them to Python. [`Log::flush`] waits until all are handed over. It is called at the end
//! of a program, without the GIL.

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Largest number of records that wait. Further ones are dropped, since Python may be stopped in a debugger.
const MAX_WAITING: usize = 1000;

/// Time limit of a flush.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A level of Python's `logging`, and a message.
type Message = (u8, String);

#[derive(Default)]
struct State {
    waiting: VecDeque<Message>,
    /// Whether a thread is handing records over.
    busy: bool,
}

struct Forward {
    state: Mutex<State>,
    idle: Condvar,
}

static FORWARD: Forward =
    Forward { state: Mutex::new(State { waiting: VecDeque::new(), busy: false }), idle: Condvar::new() };

impl Forward {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next record. If there is none, clears `busy`.
    fn next(&self) -> Option<Message> {
        let mut state = self.state();
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.busy = false;
            self.idle.notify_all();
        }
        next
    }
}

impl Log for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("skyphos")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = match record.level() {
            Level::Error => 40,
            Level::Warn => 30,
            Level::Info => 20,
            Level::Debug | Level::Trace => 10,
        };
        let mut state = self.state();
        if state.waiting.len() < MAX_WAITING {
            state.waiting.push_back((level, record.args().to_string()));
        }
        if !std::mem::replace(&mut state.busy, true)
            && std::thread::Builder::new().name("skyphos-log".to_owned()).spawn(hand_over).is_err()
        {
            state.busy = false; // the next record tries again
        }
    }

    fn flush(&self) {
        let state = self.state();
        let _ = self.idle.wait_timeout_while(state, FLUSH_TIMEOUT, |state| state.busy);
    }
}

/// Hands waiting records to Python, except to an interpreter that is ending.
fn hand_over() {
    while let Some((level, text)) = FORWARD.next() {
        Python::try_attach(|py| {
            let logged = py
                .import("logging")
                .and_then(|logging| logging.call_method1("getLogger", ("skyphos",)))
                .and_then(|logger| logger.call_method1("log", (level, "%s", text)));
            // An error in a handler of the program is reported like other unraisable exceptions.
            if let Err(error) = logged {
                error.write_unraisable(py, None);
            }
        });
    }
}

/// Sends the crates' log records to Python from now on, unless the program has installed a logger of its own.
pub fn install() {
    if log::set_logger(&FORWARD).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
}
