//! The header of a frame, in memory and as 64 bytes.

use super::call_kind::CallKind;
use super::call_sig::CallSig;
use super::kind::FrameKind;
use crate::slab::CHUNK_BYTES;
use skyphos_types::{CallNumber, CommId, Round};

/// Bytes of an encoded header.
pub const HEADER_BYTES: usize = 64;

const MAGIC: [u8; 2] = *b"SY";
const VERSION: u8 = 1;

/// Set in the last byte of `len` if the payload is on loan.
const LENT: u8 = 0x80;

/// Bits of a payload's length. Those of [`CallSig::outcomes`] follow.
const LEN_BITS: u32 = 18;
pub(crate) const OUTCOME_BITS: u32 = 13;

/// Bits of a call's number, and the mask of them.
const CALL_BITS: u32 = 48;
const CALL_MASK: u64 = (1 << CALL_BITS) - 1;

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Purpose of the frame.
    pub kind: FrameKind,
    /// The group.
    pub comm: CommId,
    /// Number of the call in that group, below 2^48.
    pub call: CallNumber,
    /// The original sender of a forwarded chunk; else 0.
    pub origin: u16,
    /// Number of the exchange in the call.
    pub round: Round,
    /// Number of the chunk in its message.
    pub seq: u32,
    /// Bytes of the whole message; other frames use it as the table in [`crate::frame`] says.
    pub total: u64,
    /// The call, as its sender sees it.
    pub sig: CallSig,
}

impl Header {
    /// A control frame of a call.
    pub fn control(kind: FrameKind, comm: CommId, call: CallNumber) -> Header {
        let sig = CallSig::plain(CallKind::Barrier);
        Header { kind, comm, call, origin: 0, round: Round(0), seq: 0, total: 0, sig }
    }

    /// The header's bytes, checksum included.
    pub fn encode(&self, payload: &[u8]) -> [u8; HEADER_BYTES] {
        self.encode_with(payload.len(), payload)
    }

    /// The header's bytes for a payload of `len` bytes that the checksum does not cover: call [`Header::check`] without it.
    pub fn encode_without_payload_checksum(&self, len: usize) -> [u8; HEADER_BYTES] {
        self.encode_with(len, &[])
    }

    fn encode_with(&self, len: usize, checked: &[u8]) -> [u8; HEADER_BYTES] {
        let mut b = [0u8; HEADER_BYTES];
        b[0..2].copy_from_slice(&MAGIC);
        b[2] = VERSION;
        b[3] = self.kind as u8;
        b[8..16].copy_from_slice(&self.comm.0.to_le_bytes());
        b[16..24]
            .copy_from_slice(&(self.call.0 & CALL_MASK | u64::from(self.origin) << CALL_BITS).to_le_bytes());
        b[24..28].copy_from_slice(&self.round.0.to_le_bytes());
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

    /// Marks the payload as lent. The checksum does not cover the mark.
    pub fn mark_lent(bytes: &mut [u8; HEADER_BYTES]) {
        bytes[35] |= LENT;
    }

    /// Removes the mark. Returns whether there was one.
    pub fn unmark_lent(bytes: &mut [u8; HEADER_BYTES]) -> bool {
        let lent = bytes[35] & LENT != 0;
        bytes[35] &= !LENT;
        lent
    }

    /// The header in `bytes`, and the length and checksum of the payload that follows.
    ///
    /// Refuses a wrong magic, version or kind, and a length above [`CHUNK_BYTES`]. The caller checks the payload with
    /// [`Header::check`] once it has arrived.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<(Header, usize, u32), String> {
        let u32_at = |k: usize| u32::from_le_bytes(bytes[k..k + 4].try_into().expect("4 bytes"));
        let u64_at = |k: usize| u64::from_le_bytes(bytes[k..k + 8].try_into().expect("8 bytes"));
        if bytes[0..2] != MAGIC {
            return Err("not a Skyphos frame".to_owned());
        }
        if bytes[2] != VERSION {
            return Err(format!("frame version {}, this build speaks {VERSION}", bytes[2]));
        }
        let kind = FrameKind::from_repr(bytes[3]).ok_or_else(|| format!("frame kind {}", bytes[3]))?;
        let (len, rest) = (u32_at(32) as usize & ((1 << LEN_BITS) - 1), u32_at(32) >> LEN_BITS);
        if rest >> OUTCOME_BITS != 0 {
            return Err("a frame whose payload is lent, on a connection without lending".to_owned());
        }
        if len > CHUNK_BYTES {
            return Err(format!("frame of {len} bytes, at most {CHUNK_BYTES} allowed"));
        }
        let call_kind = CallKind::from_repr(bytes[60]).ok_or_else(|| format!("call kind {}", bytes[60]))?;
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
            comm: CommId(u64_at(8)),
            call: CallNumber(u64_at(16) & CALL_MASK),
            origin: (u64_at(16) >> CALL_BITS) as u16,
            round: Round(u32_at(24)),
            seq: u32_at(28),
            total: u64_at(40),
            sig,
        };
        Ok((header, len, u32_at(4)))
    }

    /// Whether the header's checksum fits header and payload.
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

#[cfg(test)]
mod tests {
    use super::*;
    use skyphos_types::DType;

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
            comm: CommId(5),
            call: CallNumber(1 << 40),
            origin: 40_000,
            round: Round(3),
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
    fn a_lent_payload_changes_only_the_mark() {
        let plain = header().encode_without_payload_checksum(100_000);
        let mut marked = plain;
        Header::mark_lent(&mut marked);
        assert!(Header::decode(&marked).is_err(), "a receiver that has no arena open refuses it");
        assert!(Header::unmark_lent(&mut marked) && !Header::unmark_lent(&mut marked));
        assert_eq!(marked, plain);
    }

    #[test]
    fn lengths_beyond_a_chunk_are_refused() {
        let mut bytes = header().encode(b"");
        bytes[32..36].copy_from_slice(&(u32::MAX >> 1).to_le_bytes());
        assert!(Header::decode(&bytes).unwrap_err().contains("at most"));
        bytes[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Header::decode(&bytes).unwrap_err().contains("lent"));
    }

    #[test]
    fn the_checksum_is_crc32c() {
        // RFC 3720, B.4 has the checksum of 32 zero bytes. It checks `bitwise`, which then checks `checksum`.
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
}
