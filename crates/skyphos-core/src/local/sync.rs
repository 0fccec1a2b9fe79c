//! The locks and atomics of `inbox.rs`; `loom/tests/inbox.rs` puts loom's in their place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub(crate) use std::sync::{Condvar, Mutex};
