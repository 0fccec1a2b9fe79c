//! Messages of the bring-up (`skyphos-tcp`, `message.rs`, `link.rs`), from unauthenticated peers and from ranks, with TLS and
//! without.

use crate::allocation::{Limits, within};
use crate::pem::files;
use crate::split_kind;
use skyphos_tcp::fuzzing::{Files, PIECE_BYTES, decode_body, hello_with_proof, kind_byte, read_link};
use std::sync::LazyLock;

/// An unauthenticated peer: TLS reads 64 KB ahead, and one message may have 64 KB.
const STRANGER: Limits = Limits { one: 80 << 10, all: 512 << 10 };

/// A rank: its buffer grows with the bytes that have arrived.
const MEMBER: Limits = Limits { one: 8 * PIECE_BYTES, all: 32 * PIECE_BYTES };

/// A message's body: the decoded fields take no more bytes than the body, unless it has many small fields.
const BODY: Limits = Limits { one: 16 * PIECE_BYTES, all: 48 * PIECE_BYTES };

static FILES: LazyLock<Files> = LazyLock::new(|| Files::read(files()).expect("our own files"));
static OPENING: LazyLock<Vec<u8>> = LazyLock::new(|| FILES.client_hello());

/// The first byte selects the decoder of the rest.
pub fn run(data: &[u8]) {
    LazyLock::force(&OPENING);
    let (kind, data) = split_kind(data, 8);
    let data = &data[..data.len().min(4 * PIECE_BYTES)];
    match kind {
        0 => within(BODY, || decode_body(data)),
        1 => within(BODY, || decode_body(&hello_with_proof(data))),
        2 => within(BODY, || decode_body(&[b"SKYPHOS", data].concat())),
        3 => stream(data, None, true, false),
        4 => stream(data, None, true, true),
        5 => stream(&framed(data), None, data.len() % 2 == 0, true),
        // With TLS: arbitrary bytes from a peer that listens, or a damaged first message of one that connects.
        6 => stream(data, Some(&FILES), false, false),
        _ => {
            let (from, data) = split_kind(data, 255);
            let mut opening = OPENING.clone();
            for change in data.chunks_exact(3) {
                let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % opening.len();
                opening[at] = change[2];
            }
            opening.truncate(opening.len() - usize::from(from) % 64);
            stream(&opening, Some(&FILES), true, false);
        }
    }
}

/// Messages of valid kinds, with right lengths.
fn framed(mut data: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(([number, len], rest)) = data.split_first_chunk() {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        all.extend((body.len() as u32 + 1).to_le_bytes());
        all.push(kind_byte(*number));
        all.extend(body);
        data = rest;
    }
    all
}

fn stream(data: &[u8], tls: Option<&Files>, incoming: bool, member: bool) {
    // The first two bytes give the lengths of the first two pieces.
    let (first, second) =
        (data.first().map_or(0, |b| usize::from(*b)), data.get(1).map_or(0, |b| usize::from(*b)));
    let (one, rest) = data.split_at(first.min(data.len()));
    let (two, three) = rest.split_at(second.min(rest.len()));
    let pieces: Vec<&[u8]> =
        [one, two].into_iter().chain(three.chunks(PIECE_BYTES)).filter(|p| !p.is_empty()).collect();
    let limits = if member { MEMBER } else { STRANGER };
    let (messages, end) = within(limits, || read_link(&pieces, tls, incoming, member));
    if tls.is_some() {
        return assert!(messages.is_empty(), "random bytes passed TLS");
    }
    let all = messages.concat();
    assert!(data.starts_with(&all), "messages differ from the bytes that were sent");
    if end.is_none() {
        let longest = if member { 16 << 20 } else { 1024 };
        assert!(member || data.len() - all.len() < 4 + longest);
    }
    for message in messages {
        decode_body(&message[5..]);
    }
}
