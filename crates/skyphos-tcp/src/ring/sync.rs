//! The atomics of `control.rs`; `loom/tests/ring.rs` puts loom's in their place.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
