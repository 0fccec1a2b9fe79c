//! The fuzz targets, one module each: `run` takes any bytes and panics if a decoder breaks one of its promises. Coverage and
//! findings: `docs/fuzzing.md`.
//!
//! A target's program passes `run` to libFuzzer; `tests/replay.rs` feeds it the corpus, and mutations of it.

pub mod allocation;
pub mod bringup;
pub mod calls;
pub mod collectives;
pub mod frame;
pub mod index_set;
pub mod keyed;
pub mod liar;
pub mod pem;
pub mod quantised;
pub mod receive;
pub mod replicated;
pub mod scripted;
pub mod segment;
pub mod small_messages;

/// A target: takes any bytes, and panics if a decoder breaks one of its promises.
pub type Run = fn(&[u8]);

/// All targets.
pub const TARGETS: [(&str, Run); 12] = [
    ("bringup", bringup::run),
    ("calls", calls::run),
    ("collectives", collectives::run),
    ("frame", frame::run),
    ("index_set", index_set::run),
    ("keyed", keyed::run),
    ("pem", pem::run),
    ("quantised", quantised::run),
    ("receive", receive::run),
    ("replicated", replicated::run),
    ("segment", segment::run),
    ("small_messages", small_messages::run),
];

/// A number of any size, small ones as often as large ones.
fn number(u: &mut arbitrary::Unstructured<'_>) -> arbitrary::Result<u64> {
    Ok(u.arbitrary::<u64>()? >> u.int_in_range(0..=63)?)
}

/// Splits off the first byte, which selects the decoder of the rest.
fn split_kind(data: &[u8], kinds: u8) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(kind, rest)| (kind % kinds, rest))
}
