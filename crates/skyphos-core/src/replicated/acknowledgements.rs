//! The wire format of acknowledgements, which are grouped by message.
//!
//! | bytes | meaning |
//! |---|---|
//! | 8, 8, 4 | group, call, round |
//! | 4 | process that sent the chunks |
//! | 4 | number of chunks |
//! | 4, 4 each | chunk number, checksum |

use super::chunk::Chunk;
use super::inflow::Acknowledgement;
use skyphos_types::{CallNumber, CommId, ProcessId, Round, WorldRank};

/// Bytes of a message's head, and of each chunk.
const HEAD_BYTES: usize = 28;
const ENTRY_BYTES: usize = 8;

/// Upper bound on the chunks in a frame.
pub(super) const MAX_CHUNKS: usize = 2048;

/// Encodes acknowledgements. In `list` those of one message are consecutive.
pub(super) fn encode(list: &[Acknowledgement]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + ENTRY_BYTES * list.len());
    let message = |ack: &Acknowledgement| (ack.chunk.comm, ack.chunk.call, ack.chunk.round, ack.by);
    for run in list.chunk_by(|a, b| message(a) == message(b)) {
        let (comm, call, round, by) = message(&run[0]);
        bytes.extend(comm.0.to_le_bytes());
        bytes.extend(call.0.to_le_bytes());
        [round.0, by.0, run.len() as u32].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        for ack in run {
            bytes.extend(ack.chunk.seq.to_le_bytes());
            bytes.extend(ack.sum.to_le_bytes());
        }
    }
    bytes
}

/// Decodes acknowledgements of chunks that were sent to `rank`; `None` if they are malformed.
pub(super) fn decode(mut bytes: &[u8], rank: WorldRank) -> Option<Vec<Acknowledgement>> {
    let mut all_read = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
        let long = |k: usize| u64::from_le_bytes(head[k..k + 8].try_into().expect("8 bytes"));
        let word = |k: usize| u32::from_le_bytes(head[k..k + 4].try_into().expect("4 bytes"));
        let (comm, call, round) = (CommId(long(0)), CallNumber(long(8)), Round(word(16)));
        let (by, count) = (ProcessId(word(20)), word(24) as usize);
        let (list, rest) = rest.split_at_checked(count.checked_mul(ENTRY_BYTES)?)?;
        for entry in list.chunks_exact(ENTRY_BYTES) {
            let word = |k: usize| u32::from_le_bytes(entry[k..k + 4].try_into().expect("4 bytes"));
            all_read.push(Acknowledgement {
                chunk: Chunk { comm, call, round, rank, seq: word(0) },
                sum: word(4),
                by,
            });
        }
        bytes = rest;
    }
    Some(all_read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_survive_the_wire_and_malformed_ones_are_refused() {
        let ack = |call, round, seq, by| {
            let chunk = Chunk { comm: CommId(9 << 40), call, round, rank: WorldRank(3), seq };
            Acknowledgement { chunk, sum: seq.wrapping_mul(0x9e37_79b9), by }
        };
        let all = [
            ack(CallNumber(1), Round(0), 0, ProcessId(2)),
            ack(CallNumber(1), Round(0), 2, ProcessId(2)),
            ack(CallNumber(1), Round(0), 3, ProcessId(6)),
            ack(CallNumber(1), Round(1), 0, ProcessId(6)),
            ack(CallNumber(2), Round(1), 1, ProcessId(6)),
        ];
        for count in 0..=all.len() {
            let bytes = encode(&all[..count]);
            assert_eq!(decode(&bytes, WorldRank(3)).as_deref(), Some(&all[..count]));
        }
        let bytes = encode(&all);
        assert_eq!(bytes.len(), 4 * HEAD_BYTES + 5 * ENTRY_BYTES);
        for cut in 0..bytes.len() {
            let found = decode(&bytes[..cut], WorldRank(3));
            assert!(found.is_none_or(|all_read| all_read.len() < all.len()), "{cut}");
        }
        let mut long = bytes;
        long[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&long, WorldRank(3)), None, "more than there are");
    }
}
