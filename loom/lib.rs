//! Tests only: `tests/ring.rs` and `tests/inbox.rs` take in source files of the crates, with loom's types in place of std's.
