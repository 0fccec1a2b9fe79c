//! Tests under loom: `tests/ring.rs` and `tests/inbox.rs` include source files of the crates, with loom's types in place of std's.
