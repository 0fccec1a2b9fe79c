//! Sparse streams: vectors of entries with ascending indices, their encoding in segments, and their reduction as segments arrive.

mod absent;
mod addend;
mod append;
mod bitmap;
mod bitpack;
mod bits;
mod collect;
mod encoder;
mod fold;
mod fold_block;
mod merge_fold;
mod quantised;
mod reader;
mod segment;
mod shuffled;
mod source;
#[cfg(test)]
mod testing;
mod vector;

pub(crate) use absent::copy_marking_absent;
pub use absent::{absent_number, as_entries, bitmap_of_entries};
pub use addend::Addend;
pub use bitmap::{list_bitmap, put_bitmap};
pub use bits::{clear_beyond, count_between, first_set_bits, set_bits_between, set_run};
pub use collect::{Collector, Shape, dense_form};
pub use encoder::{Encoder, EntryIndices, SegmentPlan};
pub use fold::Fold;
pub use quantised::{NotFinite, QuantisedValues};
pub use reader::{Offsets, Reader, STEP};
pub use segment::{HEAD_BYTES, Head, Segment, entries, stream_entries};
pub use shuffled::{shuffle, shuffled_len, unshuffle};
pub use source::{FoldError, Sink};
pub(crate) use vector::try_with_capacity;
pub use vector::{Form, IndexList, SparseVec, View, put_entries};
