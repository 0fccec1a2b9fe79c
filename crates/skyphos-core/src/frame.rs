//! Frames: a header of 64 bytes and up to 128 KB of payload.
//!
//! All numbers are little-endian. `crc` is CRC32C over the header (with `crc` as zero) and the
//! payload.
//!
//! | bytes | field | meaning |
//! |---|---|---|
//! | 0..2 | magic | "SY" |
//! | 2 | version | 1 |
//! | 3 | kind | [`FrameKind`] |
//! | 4..8 | crc | checksum |
//! | 8..16 | comm | which group; of a message from one rank to another the ordered pair of them |
//! | 16..22 | call | number of the collective call in that group, or of the pair's message |
//! | 22..24 | origin | of a chunk that is passed on: the process that sent it |
//! | 24..28 | round | which exchange of the call |
//! | 28..32 | seq | number of the chunk in its message |
//! | 32..36 | len | bytes of payload (18 bits); sig.outcomes (13 bits); the highest bit: the payload is lent, and a descriptor follows in its place ([`crate::loan`]) |
//! | 36..40 | sig.extra | plan, degrees, root or tag |
//! | 40..48 | total | bytes of the whole message (`Credit`: bytes consumed; `InputChecksum`: that; `Abort` of all calls: how many were begun) |
//! | 48..56 | sig.n | size of the index space; of a message its group |
//! | 56..60 | sig.width | numbers an index |
//! | 60..64 | sig.kind, op, dtype, flags | the call |

use crate::slab::{CHUNK_BYTES, Payload};
use skyphos_types::{DType, ReduceOp};

/// Bytes of an encoded header.
pub const HEADER_BYTES: usize = 64;

/// Bytes of one message that may be on the way and unconsumed. Messages up to this size are eager;
/// larger ones need the receiver's credits, which bounds what a slow receiver must hold.
pub const WINDOW_BYTES: u64 = 8 << 20;

const MAGIC: [u8; 2] = *b"SY";
const VERSION: u8 = 1;

/// In the last byte of `len`.
const LENT: u8 = 0x80;

/// Bits of a payload's length, beside those of [`CallSig::outcomes`].
const LEN_BITS: u32 = 18;
pub(crate) const OUTCOME_BITS: u32 = 13;

/// Bits of a call's number, and the numbers there are.
const CALL_BITS: u32 = 48;
const CALLS: u64 = (1 << CALL_BITS) - 1;

/// Rounds with this bit move arrays: in whole chunks, which are not copied on their way.
pub const ARRAYS: u32 = 0x2000_0000;

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// A chunk of a message.
    Data = 1,
    /// The sender has consumed `total` bytes of a stream: opens the window of the stream's sender.
    Credit = 2,
    /// The sender has left the call; the payload is an error.
    Abort = 3,
    /// Asks whether the receiver is in this call.
    Probe = 4,
    /// The sender is in this call, or past it.
    Present = 5,
    /// The sender has closed; nothing follows.
    Bye = 6,
    /// The sender has received nothing for too long and takes the receiver for lost; nothing follows.
    GivenUp = 7,
    /// Acknowledges chunks, to replicas that might send them too.
    Acknowledge = 8,
    /// A chunk that its receiver is to forward to its siblings.
    Forward = 9,
    /// A chunk that a sibling has forwarded.
    Forwarded = 10,
    /// Checksum `total` of the sender's input to the call, to its siblings.
    InputChecksum = 11,
    /// The sender is past this call, in which all ranks have done their part: to a rank that does not know, in a call that outlives losses.
    Past = 12,
    /// The sender's arguments of this call, whose hash differs from the receiver's.
    Arguments = 13,
    /// The outcomes that the sender's program knows, whose hash differs from the receiver's. Round 0 asks for the receiver's, round 1
    /// is the answer.
    Outcomes = 14,
}

impl FrameKind {
    fn from_code(code: u8) -> Option<FrameKind> {
        use FrameKind::*;
        let of_replicas = [Acknowledge, Forward, Forwarded, InputChecksum];
        let mut all = [Data, Credit, Abort, Probe, Present, Bye, GivenUp, Past, Arguments, Outcomes]
            .into_iter()
            .chain(of_replicas);
        all.find(|k| *k as u8 == code)
    }

    /// Whether the frame carries a chunk of a message. Chunks of one message go out in order.
    pub fn is_data(self) -> bool {
        matches!(self, FrameKind::Data | FrameKind::Forward | FrameKind::Forwarded)
    }
}

/// Which collective a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CallKind {
    /// `barrier`.
    Barrier = 1,
    /// `configure`.
    Configure = 2,
    /// `reduce` on a plan.
    Reduce = 3,
    /// `configure_reduce`.
    ConfigureReduce = 4,
    /// `split`.
    Split = 5,
    /// Small equal-shaped messages to all.
    AllgatherBytes = 6,
    /// A call that failed on this rank before it began; fits any other.
    Failed = 7,
    /// `allreduce` of sparse vectors.
    Allreduce = 8,
    /// `allreduce` of dense arrays.
    AllreduceDense = 9,
    /// `reduce_scatter` of sparse vectors.
    ReduceScatter = 10,
    /// `reduce` of sparse vectors.
    ReduceToRoot = 11,
    /// `allgather` of vectors.
    Allgather = 12,
    /// `gather` of vectors.
    Gather = 13,
    /// `alltoall` of vectors.
    Alltoall = 14,
    /// `scatter` of vectors.
    Scatter = 15,
    /// `topk_allreduce`.
    TopkAllreduce = 16,
    /// `reduce_scatter` of dense arrays.
    ReduceScatterDense = 17,
    /// `reduce` of dense arrays.
    ReduceToRootDense = 18,
    /// `shrink`.
    Shrink = 19,
    /// `broadcast`.
    Broadcast = 20,
    /// Blocks from each rank to each other.
    ExchangeBlocks = 21,
    /// `outer_product_sum`.
    OuterProduct = 22,
    /// An array from one rank of two to the other.
    Message = 23,
    /// A message from one rank to another: `send`, `recv` or `probe`.
    PointToPoint = 24,
    /// A measurement of `skyphos probe`.
    Measure = 32,
    /// The exchange of profiles when a group begins.
    Profile = 33,
    /// Agreement on arguments of something that is made of several calls.
    Agree = 34,
}

impl CallKind {
    fn from_code(code: u8) -> Option<CallKind> {
        use CallKind::*;
        let of_plans = [Configure, Reduce, ConfigureReduce];
        let reductions =
            [Allreduce, AllreduceDense, ReduceScatter, ReduceScatterDense, ReduceToRoot, ReduceToRootDense];
        let others = [
            Barrier,
            Split,
            AllgatherBytes,
            Failed,
            Allgather,
            Gather,
            Alltoall,
            Scatter,
            TopkAllreduce,
            Broadcast,
            ExchangeBlocks,
            OuterProduct,
            Message,
            PointToPoint,
        ];
        let mut all =
            of_plans.into_iter().chain(reductions).chain(others).chain([Shrink, Measure, Profile, Agree]);
        all.find(|k| *k as u8 == code)
    }
}

/// What all ranks must agree on in a call. Every data frame carries it, so that ranks that called
/// different things notice at the first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallSig {
    /// Which collective.
    pub kind: CallKind,
    /// Code of the operation ([`ReduceOp::code`]); 0 if none or a custom one.
    pub op: u8,
    /// Code of the element type; 0 if none.
    pub dtype: u8,
    /// Settings, by kind.
    pub flags: u8,
    /// Numbers an index; of arrays that are not one-dimensional a hash of their shape.
    pub width: u32,
    /// Size of the index space.
    pub n: u64,
    /// Number of the plan, hash of the degrees …, by kind.
    pub extra: u32,
    /// A hash of the calls of the group that this rank's program has seen fail, set by the mailbox when the call begins. Ranks
    /// that saw other calls fail may be at different places of their programs, whatever the calls look like.
    pub outcomes: u16,
}

impl CallSig {
    /// Flag of [`CallKind::Allgather`], `Gather`, `Alltoall` and `Scatter`: of arrays, which travel as they are.
    pub const ARRAYS: u8 = 1;
    /// Flag of [`CallKind::Broadcast`]: those who are left bring it to an end without who is lost.
    pub const HEALS: u8 = 0x80;
    /// Flags of [`CallKind::PointToPoint`], in frames: from which end of the message they are.
    pub const SENDS: u8 = 1;
    /// See [`CallSig::SENDS`].
    pub const RECEIVES: u8 = 2;
    /// The same of a rank that waits until a message is there; it sends no frame.
    pub const PROBES: u8 = 4;
    /// A receive or probe that takes any tag.
    pub const ANY_TAG: u8 = 8;
    /// In [`CallSig::width`] of a receive or probe that takes messages from any rank.
    pub const ANY_SOURCE: u32 = u32::MAX;

    /// A call without operation, values or index space.
    pub const fn plain(kind: CallKind) -> CallSig {
        CallSig { kind, op: 0, dtype: 0, flags: 0, width: 0, n: 0, extra: 0, outcomes: 0 }
    }

    /// Whether it is the same call, whatever their programs have seen fail before.
    pub(crate) fn is_call_of(&self, other: &CallSig) -> bool {
        *self == CallSig { outcomes: self.outcomes, ..*other }
    }
}

impl CallSig {
    /// Whether those who are left go on in it without who is lost.
    pub fn outlives_losses(&self) -> bool {
        match self.kind {
            CallKind::Shrink => true,
            CallKind::Broadcast => self.flags & CallSig::HEALS != 0,
            _ => false,
        }
    }

    /// Whether it is the same call with other arguments, of which only the hash is known.
    pub(crate) fn differs_in_hash(&self, other: &CallSig) -> bool {
        let (extra, width) = (self.extra, self.width);
        let hashed = CallSig {
            extra: if self.has_hash() { extra } else { other.extra },
            width: if self.is_of_arrays() { width } else { other.width },
            ..*other
        };
        !self.is_call_of(other) && self.is_call_of(&hashed)
    }

    /// Whether it moves or reduces arrays.
    fn is_of_arrays(&self) -> bool {
        use CallKind::*;
        match self.kind {
            AllreduceDense | ReduceScatterDense | ReduceToRootDense => true,
            Allgather | Gather | Alltoall | Scatter | Message => self.flags == CallSig::ARRAYS,
            _ => false,
        }
    }

    /// Whether `extra` is a hash of arguments.
    fn has_hash(&self) -> bool {
        use CallKind::*;
        let reductions =
            [Allreduce, AllreduceDense, ReduceScatter, ReduceScatterDense, TopkAllreduce, OuterProduct];
        let others = [Allgather, Alltoall, Configure, ConfigureReduce, Agree];
        reductions.contains(&self.kind) || others.contains(&self.kind)
    }

    /// Its text with hashes, which say no more to people than that something else differs.
    pub(crate) fn with_hashes(&self) -> String {
        self.text(true)
    }

    /// Whether a rank in this call may share it with one in `other`.
    pub fn fits(&self, other: &CallSig) -> bool {
        self.is_call_of(other) || self.kind == CallKind::Failed || other.kind == CallKind::Failed
    }
}

impl std::fmt::Display for CallSig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text(false))
    }
}

impl CallSig {
    fn text(&self, with_hash: bool) -> String {
        let name = match self.kind {
            CallKind::Barrier => "barrier",
            CallKind::Configure => "configure",
            CallKind::Reduce => "reduce",
            CallKind::ConfigureReduce => "configure_reduce",
            CallKind::Split => "split",
            CallKind::AllgatherBytes => "allgather",
            CallKind::Failed => "a call that failed",
            CallKind::Allreduce => "allreduce",
            CallKind::AllreduceDense => "allreduce of dense arrays",
            CallKind::ReduceScatter => "reduce_scatter",
            CallKind::ReduceToRoot => "reduce",
            CallKind::Allgather => "allgather",
            CallKind::Gather => "gather",
            CallKind::Alltoall => "alltoall",
            CallKind::Scatter => "scatter",
            CallKind::TopkAllreduce => "topk_allreduce",
            CallKind::ReduceScatterDense => "reduce_scatter of dense arrays",
            CallKind::ReduceToRootDense => "reduce of dense arrays",
            CallKind::Shrink => "shrink",
            CallKind::Broadcast => "broadcast",
            CallKind::ExchangeBlocks => "exchange of blocks",
            CallKind::OuterProduct => "outer_product_sum",
            CallKind::Message => "message",
            CallKind::Measure => "probe",
            CallKind::Profile => "init",
            CallKind::Agree => "settings",
            CallKind::PointToPoint => return self.text_of_message(),
        };
        use CallKind::*;
        let moves = matches!(self.kind, Allgather | Gather | Alltoall | Scatter | Message);
        let mut items: Vec<String> = Vec::new();
        if self.kind == CallKind::Reduce {
            items.push(format!("plan {}", self.extra));
        }
        if self.n > 0 && self.kind != Agree {
            items.push(format!("n={}", self.n));
        }
        if let Some(dtype) = DType::from_code(self.dtype) {
            items.push(format!("dtype={dtype}"));
            let op = usize::from(self.op).checked_sub(1).and_then(|k| ReduceOp::NAMED.get(k));
            if !moves && self.kind != OuterProduct {
                let name = op.map_or_else(|| "custom".to_owned(), |op| op.name().to_owned());
                // Which one of the caller's: bits of its name's hash.
                let tag =
                    if with_hash && op.is_none() { format!(" #{:x}", self.flags) } else { String::new() };
                items.push(format!("op={name}{tag}"));
            }
        }
        match self.kind {
            OuterProduct => items.push(format!("m={}", self.width)),
            _ if self.is_of_arrays() && with_hash && self.width > 1 => {
                items.push(format!("shape #{:x}", self.width));
            }
            _ if self.is_of_arrays() => {}
            _ if self.width > 1 => items.push(format!("width={}", self.width)),
            _ => {}
        }
        if matches!(self.kind, Configure | ConfigureReduce) {
            items.push(format!("missing={}", if self.flags & 1 == 0 { "error" } else { "identity" }));
        }
        if matches!(self.kind, ReduceToRoot | ReduceToRootDense | Gather | Scatter | Broadcast) {
            items.push(format!("root={}", self.extra));
        }
        if with_hash && self.has_hash() {
            items.push(format!("settings #{:x}", self.extra));
        }
        let arrays = if moves && self.flags == CallSig::ARRAYS { " of arrays" } else { "" };
        format!("{name}{arrays}({})", items.join(", "))
    }
}

impl CallSig {
    /// A point-to-point call: to or from `rank`, with a tag; `None`: any. `role` is one of `SENDS`, `RECEIVES` and `PROBES`.
    pub fn of_message(comm: u64, role: u8, rank: Option<u32>, tag: Option<u32>) -> CallSig {
        let flags = role | if tag.is_none() { CallSig::ANY_TAG } else { 0 };
        let (width, extra) = (rank.unwrap_or(CallSig::ANY_SOURCE), tag.unwrap_or(0));
        CallSig { flags, width, n: comm, extra, ..CallSig::plain(CallKind::PointToPoint) }
    }

    fn text_of_message(&self) -> String {
        let (name, end) = match self.flags & !CallSig::ANY_TAG {
            CallSig::SENDS => ("send", "dest"),
            CallSig::RECEIVES => ("recv", "source"),
            _ => ("probe", "source"),
        };
        let any = |is_any: bool, number: u32| if is_any { "any".to_owned() } else { number.to_string() };
        let rank = any(self.width == CallSig::ANY_SOURCE, self.width);
        let tag = any(self.flags & CallSig::ANY_TAG != 0, self.extra);
        format!("{name}({end}={rank}, tag={tag})")
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// What the frame is for.
    pub kind: FrameKind,
    /// Which group.
    pub comm: u64,
    /// Number of the call in that group, below 2^48.
    pub call: u64,
    /// The process that sent a chunk which is passed on; else 0.
    pub origin: u16,
    /// Which exchange of the call.
    pub round: u32,
    /// Number of the chunk in its message.
    pub seq: u32,
    /// Bytes of the whole message; for a credit, bytes consumed.
    pub total: u64,
    /// The call, as its sender sees it.
    pub sig: CallSig,
}

impl Header {
    /// A control frame of a call.
    pub fn control(kind: FrameKind, comm: u64, call: u64) -> Header {
        let sig = CallSig::plain(CallKind::Barrier);
        Header { kind, comm, call, origin: 0, round: 0, seq: 0, total: 0, sig }
    }

    /// The header's bytes, checksum included.
    pub fn encode(&self, payload: &[u8]) -> [u8; HEADER_BYTES] {
        self.encode_with(payload.len(), payload)
    }

    /// The same for a payload of so many bytes whose integrity is somebody else's to see to: [`Header::check`] it with none.
    pub fn encode_apart(&self, len: usize) -> [u8; HEADER_BYTES] {
        self.encode_with(len, &[])
    }

    fn encode_with(&self, len: usize, checked: &[u8]) -> [u8; HEADER_BYTES] {
        let mut b = [0u8; HEADER_BYTES];
        b[0..2].copy_from_slice(&MAGIC);
        b[2] = VERSION;
        b[3] = self.kind as u8;
        b[8..16].copy_from_slice(&self.comm.to_le_bytes());
        b[16..24].copy_from_slice(&(self.call & CALLS | u64::from(self.origin) << CALL_BITS).to_le_bytes());
        b[24..28].copy_from_slice(&self.round.to_le_bytes());
        b[28..32].copy_from_slice(&self.seq.to_le_bytes());
        let len = len as u32 | u32::from(self.sig.outcomes) << LEN_BITS;
        b[32..36].copy_from_slice(&len.to_le_bytes());
        b[36..40].copy_from_slice(&self.sig.extra.to_le_bytes());
        b[40..48].copy_from_slice(&self.total.to_le_bytes());
        b[48..56].copy_from_slice(&self.sig.n.to_le_bytes());
        b[56..60].copy_from_slice(&self.sig.width.to_le_bytes());
        b[60..64].copy_from_slice(&[self.sig.kind as u8, self.sig.op, self.sig.dtype, self.sig.flags]);
        let crc = checksum(&b, checked);
        b[4..8].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Marks a header as one of a payload that is lent. Its checksum is that without the mark.
    pub fn mark_lent(bytes: &mut [u8; HEADER_BYTES]) {
        bytes[35] |= LENT;
    }

    /// Takes the mark away. `false`: there was none.
    pub fn unmark_lent(bytes: &mut [u8; HEADER_BYTES]) -> bool {
        let lent = bytes[35] & LENT != 0;
        bytes[35] &= !LENT;
        lent
    }

    /// The header in `bytes`, and the length and checksum of the payload that follows.
    ///
    /// Nothing is trusted: wrong magic, version, kind or a length above [`CHUNK_BYTES`] is an error
    /// that says so. Check the payload with [`Header::check`] once it is there.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<(Header, usize, u32), String> {
        let u32_at = |k: usize| u32::from_le_bytes(bytes[k..k + 4].try_into().expect("4 bytes"));
        let u64_at = |k: usize| u64::from_le_bytes(bytes[k..k + 8].try_into().expect("8 bytes"));
        if bytes[0..2] != MAGIC {
            return Err("not a Skyphos frame".to_owned());
        }
        if bytes[2] != VERSION {
            return Err(format!("frame version {}, this build speaks {VERSION}", bytes[2]));
        }
        let kind = FrameKind::from_code(bytes[3]).ok_or_else(|| format!("frame kind {}", bytes[3]))?;
        let (len, rest) = (u32_at(32) as usize & ((1 << LEN_BITS) - 1), u32_at(32) >> LEN_BITS);
        if rest >> OUTCOME_BITS != 0 {
            return Err("a frame whose payload is lent where none can be".to_owned());
        }
        if len > CHUNK_BYTES {
            return Err(format!("frame of {len} bytes, at most {CHUNK_BYTES} allowed"));
        }
        let call_kind = CallKind::from_code(bytes[60]).ok_or_else(|| format!("call kind {}", bytes[60]))?;
        let sig = CallSig {
            kind: call_kind,
            op: bytes[61],
            dtype: bytes[62],
            flags: bytes[63],
            width: u32_at(56),
            n: u64_at(48),
            extra: u32_at(36),
            outcomes: rest as u16,
        };
        let header = Header {
            kind,
            comm: u64_at(8),
            call: u64_at(16) & CALLS,
            origin: (u64_at(16) >> CALL_BITS) as u16,
            round: u32_at(24),
            seq: u32_at(28),
            total: u64_at(40),
            sig,
        };
        Ok((header, len, u32_at(4)))
    }

    /// Whether the checksum that came with the header fits header and payload.
    pub fn check(bytes: &[u8; HEADER_BYTES], payload: &[u8]) -> bool {
        let mut head = *bytes;
        head[4..8].fill(0);
        checksum(&head, payload).to_le_bytes() == bytes[4..8]
    }
}

/// CRC32C of a header, with its checksum field as zero, and a payload.
fn checksum(header: &[u8; HEADER_BYTES], payload: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(header);
    digest.update(payload);
    digest.finalize() as u32
}

/// A header and its payload.
#[derive(Clone)]
pub struct Frame {
    /// Where it belongs.
    pub header: Header,
    /// What it carries.
    pub payload: Payload,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let sig = CallSig {
            kind: CallKind::Reduce,
            op: 1,
            dtype: DType::F64 as u8,
            flags: 2,
            width: 16,
            n: 1 << 62,
            extra: 77,
            outcomes: 0x1234,
        };
        Header {
            kind: FrameKind::Forwarded,
            comm: 5,
            call: 1 << 40,
            origin: 40_000,
            round: 3,
            seq: 9,
            total: 1 << 33,
            sig,
        }
    }

    #[test]
    fn round_trip_and_damage() {
        let bytes = header().encode(b"payload");
        let (back, len, _) = Header::decode(&bytes).unwrap();
        assert_eq!((back, len), (header(), 7));
        assert!(Header::check(&bytes, b"payload"));
        assert!(!Header::check(&bytes, b"pbyload"));
        for bit in 0..HEADER_BYTES * 8 {
            let mut broken = bytes;
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&broken).is_err() || !Header::check(&broken, b"payload"), "bit {bit}");
        }
    }

    #[test]
    fn what_is_lent_is_marked_and_else_the_same() {
        let plain = header().encode_apart(100_000);
        let mut marked = plain;
        Header::mark_lent(&mut marked);
        assert!(Header::decode(&marked).is_err(), "by who does not know of it");
        assert!(Header::unmark_lent(&mut marked) && !Header::unmark_lent(&mut marked));
        assert_eq!(marked, plain);
    }

    #[test]
    fn a_claimed_length_is_checked_before_memory_is_reserved() {
        let mut bytes = header().encode(b"");
        bytes[32..36].copy_from_slice(&(u32::MAX >> 1).to_le_bytes());
        assert!(Header::decode(&bytes).unwrap_err().contains("at most"));
        bytes[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Header::decode(&bytes).unwrap_err().contains("lent"));
    }

    #[test]
    fn the_checksum_is_crc32c() {
        // RFC 3720, B.4: 32 bytes of zeros. Two headers' worth of zeros by a bitwise oracle.
        let bitwise = |bytes: &[u8]| {
            !bytes.iter().fold(!0u32, |crc, byte| {
                (0..8).fold(crc ^ u32::from(*byte), |c, _| c >> 1 ^ (0x82f6_3b78 & (c & 1).wrapping_neg()))
            })
        };
        assert_eq!(bitwise(&[0; 32]), 0x8a91_36aa);
        let payload: Vec<u8> = (0..1000u32).map(|k| (k * 7) as u8).collect();
        let all = [vec![0; HEADER_BYTES], payload.clone()].concat();
        assert_eq!(checksum(&[0; HEADER_BYTES], &payload), bitwise(&all));
    }

    #[test]
    fn calls_describe_themselves() {
        let text = header().sig.to_string();
        assert_eq!(text, "reduce(plan 77, n=4611686018427387904, dtype=float64, op=sum, width=16)");
    }
}
