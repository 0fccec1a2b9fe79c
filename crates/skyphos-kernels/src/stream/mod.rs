//! Sparse streams: entries of ascending index on the wire, and their reduction as they come.

mod absent;
mod addend;
mod append;
mod bitpack;
mod bits;
mod collect;
mod few;
mod fold;
mod quantised;
mod segment;
mod shuffled;
mod source;
mod vector;
mod words;

pub(crate) use absent::read_off;
pub use absent::{absent_number, as_entries, tell_apart};
pub use addend::Addend;
pub use bits::{clear_beyond, count_between, first_set_bits, set_bits_between, set_run};
pub use collect::{Collector, Shape, dense_form};
pub use fold::Fold;
pub use quantised::{NotFinite, QuantisedValues};
pub use segment::{
    Encoder, HEAD_BYTES, Head, Next, Offsets, Places, Reader, STEP, Segment, entries, stream_entries,
};
pub use shuffled::{shuffle, shuffled_len, unshuffle};
pub use source::{FoldError, Sink};
pub(crate) use vector::with_room;
pub use vector::{Form, IndexList, SparseVec, View, put_entries};
pub use words::{list_bitmap, put_bitmap};
