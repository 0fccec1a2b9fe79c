//! The header and checksum of a frame (`skyphos-core`, `frame.rs`), and the text of its call signature.

use crate::allocation::{Limits, within};
use skyphos_core::frame::{HEADER_BYTES, Header};
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_types::CallNumber;

/// Only error texts are allocated.
const LIMITS: Limits = Limits { one: 1024, all: 4096 };

/// The input is a header, then its payload.
pub fn run(data: &[u8]) {
    let Some((head, payload)) = data.split_first_chunk::<HEADER_BYTES>() else { return };
    check_frame(head, payload);
    // The same with valid fields that random bytes seldom have: magic and version, kind of frame, kind of call.
    let mut head = *head;
    head[..3].copy_from_slice(b"SY\x01");
    (head[3], head[60]) = (head[3] % 12, head[60] % 40);
    check_frame(&head, payload);
    head[32..36].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    check_frame(&head, payload);
}

fn check_frame(head: &[u8; HEADER_BYTES], payload: &[u8]) {
    let Ok((header, len, crc)) = within(LIMITS, || Header::decode(head)) else { return };
    assert!(len <= CHUNK_BYTES && header.call < CallNumber(1 << 48));
    assert!(header.sig.fits(&header.sig) && within(LIMITS, || header.sig.to_string()).len() < 256);
    let again = header.encode(payload);
    assert_eq!(Header::decode(&again).map(|(header, len, _)| (header, len)), expected(header, payload.len()));
    assert!(within(LIMITS, || Header::check(&again, payload)));
    if payload.len() == len {
        // Encoding a decoded header gives its bytes again.
        assert_eq!((&again[..4], &again[8..]), (&head[..4], &head[8..]));
        assert_eq!(Header::check(head, payload), again[4..8] == crc.to_le_bytes());
    }
    if let Some(last) = payload.last() {
        let other = [&payload[..payload.len() - 1], &[last ^ 1]].concat();
        assert!(!Header::check(&again, &other));
    }
}

/// The expected result of decoding a header with a payload of `len` bytes.
fn expected(header: Header, len: usize) -> Result<(Header, usize), String> {
    match len <= CHUNK_BYTES {
        true => Ok((header, len)),
        false => Err(format!("frame of {len} bytes, at most {CHUNK_BYTES} allowed")),
    }
}
