//! Broadcast from process 0 while a replicated group starts, before the processes have ranks.

use crate::frame::{Frame, FrameKind, Header};
use crate::slab::CHUNK_BYTES;
use crate::transport::{Event, Facts, Transport};
use skyphos_types::{CallNumber, CommId, Error, Result, WorldRank};
use std::time::Duration;

/// A group number that no group has.
const COMM: CommId = CommId(u64::MAX);

/// Gives all processes the bytes of process 0, or its error. Collective. Other events that arrive meanwhile are appended to
/// `waiting`.
pub fn startup_broadcast(
    transport: &mut dyn Transport,
    mine: Result<Vec<u8>>,
    timeout: Duration,
    waiting: &mut Vec<Event>,
) -> Result<Vec<u8>> {
    let Facts { clock, pool, addresses, .. } = transport.facts();
    let until = clock.now() + timeout;
    if transport.rank() == WorldRank(0) {
        let bytes = match &mine {
            Ok(bytes) => [&[0], &bytes[..]].concat(),
            Err(error) => [&[1], &error.as_seen_by_others(0).to_wire()[..]].concat(),
        };
        let header = |seq| Header {
            seq: seq as u32,
            total: bytes.len() as u64,
            ..Header::control(FrameKind::Data, COMM, CallNumber(0))
        };
        for (seq, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
            let payload = pool.copy_of(chunk);
            for to in 1..transport.size() {
                transport.post(WorldRank(to), Frame { header: header(seq), payload: payload.clone() });
            }
        }
        while !transport.is_idle() {
            let left = until.saturating_sub(clock.now());
            if left.is_zero() {
                break; // processes without the bytes report a timeout
            }
            transport.poll(left.min(Duration::from_millis(100)), waiting);
        }
        return mine;
    }
    let mut received: Vec<u8> = Vec::new();
    loop {
        let mut events = Vec::new();
        let left = until.saturating_sub(clock.now());
        transport.poll(left.min(Duration::from_millis(100)), &mut events);
        let (mut total, mut lost) = (None, None);
        for event in events {
            match event {
                Event::Frame { from: WorldRank(0), frame } if frame.header.comm == COMM => {
                    received.extend_from_slice(frame.payload.as_bytes());
                    total = Some(frame.header.total);
                }
                Event::PeerDown { rank: WorldRank(0), ref cause, .. } => {
                    lost = Some(cause.clone());
                    waiting.push(event);
                }
                other => waiting.push(other),
            }
        }
        if total == Some(received.len() as u64) {
            return match received.split_first() {
                Some((0, bytes)) => Ok(bytes.to_vec()),
                Some((_, error)) => Err(Error::from_wire(error)
                    .unwrap_or(Error::Aborted { rank: 0, cause: "it sent no cause".to_owned() })),
                None => Err(Error::Corrupt { rank: 0, message: "it sent no bytes".to_owned() }),
            };
        }
        if let Some(cause) = lost {
            return Err(Error::PeerLost { rank: 0, address: addresses[0].clone(), cause });
        }
        if left.is_zero() {
            return Err(Error::Timeout { missing: vec![0], call: "init".to_owned(), after: timeout });
        }
    }
}
