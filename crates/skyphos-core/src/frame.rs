//! Frames: a header of 64 bytes and up to 128 KB of payload.
//!
//! All numbers are little-endian. `crc` is CRC32C over the header (with `crc` as zero) and the payload.
//!
//! | bytes | field | meaning |
//! |---|---|---|
//! | 0..2 | magic | "SY" |
//! | 2 | version | 1 |
//! | 3 | kind | [`FrameKind`] |
//! | 4..8 | crc | checksum |
//! | 8..16 | comm | the group; of a point-to-point message, the ordered pair of ranks |
//! | 16..22 | call | number of the collective call in that group, or of the pair's message |
//! | 22..24 | origin | of a forwarded chunk: the process that sent it |
//! | 24..28 | round | number of the exchange in the call |
//! | 28..32 | seq | number of the chunk in its message |
//! | 32..36 | len | bytes of payload (18 bits); sig.outcomes (13 bits); the highest bit: the payload is lent, and a descriptor follows in its place ([`crate::loan`]) |
//! | 36..40 | sig.extra | plan, degrees, root or tag |
//! | 40..48 | total | bytes of the whole message (`Credit`: bytes consumed; `InputChecksum`: the checksum; `Abort` of all calls: number of calls begun) |
//! | 48..56 | sig.n | size of the index space; of a point-to-point message, its group |
//! | 56..60 | sig.width | numbers per index |
//! | 60..64 | sig.kind, op, dtype, flags | the call |

mod call_kind;
mod call_sig;
mod header;
mod kind;

pub use call_kind::CallKind;
pub use call_sig::CallSig;
pub(crate) use header::OUTCOME_BITS;
pub use header::{HEADER_BYTES, Header};
pub use kind::FrameKind;

use crate::slab::Payload;

/// Bytes of one message that may be under way and not consumed. Messages up to this size are sent at once; larger ones need the
/// receiver's credits, which bounds the memory of a slow receiver.
pub const WINDOW_BYTES: u64 = 8 << 20;

/// Flag of the rounds that move arrays, in whole chunks that are not copied on their way.
pub const ARRAYS: u32 = 0x2000_0000;

/// A header and its payload.
#[derive(Clone)]
pub struct Frame {
    /// The header.
    pub header: Header,
    /// The payload.
    pub payload: Payload,
}
