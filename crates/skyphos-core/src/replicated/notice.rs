//! How notices of chunks that have come travel: those of one message together.
//!
//! | bytes | meaning |
//! |---|---|
//! | 8, 8, 4 | group, call, round |
//! | 4 | process that sent the chunks |
//! | 4 | how many |
//! | 4, 4 each | place in the message, checksum |

use super::chunk::Chunk;
use super::inflow::Have;

/// Bytes of a message's head, and of a chunk.
const HEAD: usize = 28;
const EACH: usize = 8;

/// Chunks in a frame, at most.
pub(super) const MOST: usize = 2048;

/// The bytes of some notices, those of one message in a row.
pub(super) fn encode(notices: &[Have]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + EACH * notices.len());
    let message = |have: &Have| (have.chunk.comm, have.chunk.call, have.chunk.round, have.by);
    for run in notices.chunk_by(|a, b| message(a) == message(b)) {
        let (comm, call, round, by) = message(&run[0]);
        bytes.extend(comm.to_le_bytes());
        bytes.extend(call.to_le_bytes());
        [round, by, run.len() as u32].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        for have in run {
            bytes.extend(have.chunk.seq.to_le_bytes());
            bytes.extend(have.sum.to_le_bytes());
        }
    }
    bytes
}

/// The notices in `bytes`, of chunks that were sent to `rank`; `None` if they make no sense.
pub(super) fn decode(mut bytes: &[u8], rank: u32) -> Option<Vec<Have>> {
    let mut notices = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let long = |k: usize| u64::from_le_bytes(head[k..k + 8].try_into().expect("8 bytes"));
        let word = |k: usize| u32::from_le_bytes(head[k..k + 4].try_into().expect("4 bytes"));
        let (comm, call, round, by, count) = (long(0), long(8), word(16), word(20), word(24) as usize);
        let (list, rest) = rest.split_at_checked(count.checked_mul(EACH)?)?;
        for each in list.chunks_exact(EACH) {
            let word = |k: usize| u32::from_le_bytes(each[k..k + 4].try_into().expect("4 bytes"));
            notices.push(Have { chunk: Chunk { comm, call, round, rank, seq: word(0) }, sum: word(4), by });
        }
        bytes = rest;
    }
    Some(notices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_survive_the_wire_and_nothing_else_is_one() {
        let have = |call, round, seq, by| {
            let chunk = Chunk { comm: 9 << 40, call, round, rank: 3, seq };
            Have { chunk, sum: seq.wrapping_mul(0x9e37_79b9), by }
        };
        let all = [have(1, 0, 0, 2), have(1, 0, 2, 2), have(1, 0, 3, 6), have(1, 1, 0, 6), have(2, 1, 1, 6)];
        for count in 0..=all.len() {
            let bytes = encode(&all[..count]);
            assert_eq!(decode(&bytes, 3).as_deref(), Some(&all[..count]));
        }
        let bytes = encode(&all);
        assert_eq!(bytes.len(), 4 * HEAD + 5 * EACH);
        for cut in 0..bytes.len() {
            let found = decode(&bytes[..cut], 3);
            assert!(found.is_none_or(|notices| notices.len() < all.len()), "{cut}");
        }
        let mut long = bytes;
        long[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&long, 3), None, "more than there are");
    }
}
