//! The receiver of a connection (`skyphos-tcp`, `receive.rs`): a stream of bytes in arbitrary pieces, over a socket or through
//! shared memory (`ring.rs`).

use crate::allocation::{Limits, within};
use arbitrary::{Arbitrary, Result, Unstructured};
use skyphos_core::frame::{CallKind, CallSig, FrameKind, HEADER_BYTES, Header};
use skyphos_core::shared_memory::arena::{ARENA_BYTES, SLOTS};
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_core::transport::Event;
use skyphos_tcp::fuzzing::{PIECE_BYTES, Receiver};
use skyphos_types::{CallNumber, CommId, WorldRank};

/// A frame's buffer; and the buffers of all frames of a script with those of the receiver.
const LIMITS: Limits = Limits { one: CHUNK_BYTES + 64, all: 10 * CHUNK_BYTES };

/// Limits on a script.
const MAX_FRAMES: usize = 12;
const MAX_BYTES: usize = 4 * CHUNK_BYTES;

const KINDS: [FrameKind; 8] = [
    FrameKind::Data,
    FrameKind::Credit,
    FrameKind::Abort,
    FrameKind::Probe,
    FrameKind::Acknowledge,
    FrameKind::Forwarded,
    FrameKind::Bye,
    FrameKind::GivenUp,
];

/// A frame that the peer sends.
#[derive(Arbitrary)]
struct Sent {
    kind: u8,
    /// Bytes of the payload, modulo 5,000; `chunk`: one chunk minus this many instead.
    len: u16,
    chunk: Option<u8>,
    filled: u8,
    number: u64,
}

/// The input has the lengths of the pieces, then a stream: raw bytes, or frames of which one byte may be changed.
pub fn run(data: &[u8]) {
    let _ = feed(&mut Unstructured::new(data));
}

fn feed(u: &mut Unstructured<'_>) -> Result<()> {
    let cuts: [u16; 6] = u.arbitrary()?;
    if u.ratio(1, 4)? {
        // Raw bytes, over a socket or through shared memory, where the peer may also write arbitrary counters.
        let (shared, counters): (bool, Option<(u64, u64)>) = u.arbitrary()?;
        if shared && u.ratio(1, 2)? {
            return lent(u, &cuts);
        }
        let stream = u.bytes(u.len())?;
        let mut receiver = if shared { Receiver::shared() } else { Receiver::default() };
        let (events, _) = receive(&mut receiver, &stream[..stream.len().min(MAX_BYTES)], &cuts, counters);
        assert!(events.len() * HEADER_BYTES <= stream.len());
        return Ok(());
    }
    let damage: Option<(u32, u8)> = u.arbitrary()?;
    let sent: Vec<Sent> = u.arbitrary_iter()?.take(MAX_FRAMES).collect::<Result<_>>()?;
    let (mut stream, mut frames, mut ended) = (Vec::new(), Vec::new(), None);
    for Sent { kind, len, chunk, filled, number } in sent {
        let kind = KINDS[usize::from(kind) % KINDS.len()];
        let len = match chunk {
            Some(less) => CHUNK_BYTES - usize::from(less),
            None => usize::from(len) % 5000,
        };
        if stream.len() + HEADER_BYTES + len > MAX_BYTES {
            break;
        }
        let sig = CallSig { n: number, ..CallSig::plain(CallKind::Allreduce) };
        let (call, origin) = (number & 0xffff, number as u16);
        let header =
            Header { origin, sig, total: number, ..Header::control(kind, CommId(number), CallNumber(call)) };
        let payload = vec![filled; len];
        stream.extend(header.encode(&payload));
        stream.extend(&payload);
        match kind {
            FrameKind::Bye | FrameKind::GivenUp => ended = ended.or(Some(frames.len())),
            _ => {}
        }
        frames.push((stream.len(), header, filled, len));
    }
    // Frames before the damage are delivered, and nothing after it.
    let mut whole = ended.unwrap_or(frames.len());
    let mut damaged = false;
    if let Some((at, change)) = damage.filter(|(_, change)| *change != 0)
        && !stream.is_empty()
    {
        let at = at as usize % stream.len();
        stream[at] ^= change;
        let before = frames.iter().take_while(|(end, ..)| *end <= at).count();
        damaged = before < whole || (ended == Some(before) && before == whole);
        whole = whole.min(before);
    }
    let (events, end) = receive(&mut Receiver::default(), &stream, &cuts, None);
    assert_eq!(events.len(), whole);
    for (event, (_, header, filled, len)) in events.iter().zip(&frames) {
        let Event::Frame { from: WorldRank(1), frame } = event else { panic!("not a frame") };
        assert_eq!((frame.header, frame.payload.len()), (*header, *len));
        assert!(frame.payload.as_bytes().iter().all(|byte| byte == filled));
    }
    match ended {
        _ if damaged => assert!(end.contains("damaged") || end.contains("middle of a frame"), "{end}"),
        Some(k) if frames[k].1.kind == FrameKind::Bye => assert_eq!(end, "bye"),
        Some(_) => assert!(end.starts_with("Silent"), "{end}"),
        None => assert!(end.contains("without a goodbye"), "{end}"),
    }
    Ok(())
}

/// Frames whose payloads are lent, at descriptors inside or outside the peer's memory.
fn lent(u: &mut Unstructured<'_>, cuts: &[u16]) -> Result<()> {
    let descriptors: Vec<(u32, u32, u32)> = u.arbitrary_iter()?.take(MAX_FRAMES).collect::<Result<_>>()?;
    let (mut stream, mut lens, mut invalid) = (Vec::new(), Vec::new(), false);
    for (slot, line, len) in descriptors {
        let len = len as usize % (CHUNK_BYTES + 1);
        // Half of them are near the bounds.
        let slot = if slot & 1 == 0 { slot >> 1 } else { slot % (SLOTS as u32 + 2) };
        let line = if line & 1 == 0 { line >> 1 } else { line % (ARENA_BYTES as u32 / 64 + 2) };
        let header = Header::control(FrameKind::Data, CommId(1), CallNumber(0));
        let mut head = header.encode_without_payload_checksum(len);
        Header::mark_lent(&mut head);
        stream.extend([&head[..], &slot.to_le_bytes(), &line.to_le_bytes()].concat());
        let end = u64::from(line) * 64 + len.next_multiple_of(64) as u64;
        invalid |= slot as usize >= SLOTS || end > ARENA_BYTES as u64;
        if !invalid {
            lens.push(len);
        }
    }
    let (events, end) = receive(&mut Receiver::shared(), &stream, cuts, None);
    assert_eq!(events.len(), lens.len());
    for (event, len) in events.iter().zip(lens) {
        let Event::Frame { from: WorldRank(1), frame } = event else { panic!("not a frame") };
        assert_eq!(frame.payload.len(), len);
        assert!(frame.payload.as_bytes().iter().all(|byte| *byte == 0), "unused memory is not zero");
    }
    assert!(end.contains(if invalid { "damaged" } else { "without a goodbye" }), "{end}");
    Ok(())
}

/// Receives a stream in pieces. `counters`: those that the peer writes to shared memory afterwards. Returns the events and the
/// reason of the end.
fn receive(
    receiver: &mut Receiver,
    mut stream: &[u8],
    cuts: &[u16],
    counters: Option<(u64, u64)>,
) -> (Vec<Event>, String) {
    let (mut events, mut cuts) = (Vec::new(), cuts.iter().cycle());
    loop {
        let cut = cuts.next().map_or(PIECE_BYTES, |cut| usize::from(*cut).max(1));
        let (piece, rest) = stream.split_at(cut.min(stream.len()).min(PIECE_BYTES));
        let bytes = (!piece.is_empty()).then_some(piece);
        if let (None, Some((written, read))) = (bytes, counters) {
            receiver.publish_false_counters(written, read);
        }
        let end = within(LIMITS, || receiver.write_and_read(bytes, &mut events));
        match end {
            Some(end) => return (events, end),
            None => assert!(bytes.is_some(), "the end of a stream is not reported"),
        }
        stream = rest;
    }
}
