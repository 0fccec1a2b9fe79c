//! Allgather of small messages by Bruck's algorithm (Bruck et al. 1997, §III).
//!
//! Each rank has a growing run of blocks, its own first. In round k it sends the first min(2^k, P - 2^k) blocks to
//! rank - 2^k and appends the blocks that rank + 2^k sends. After ⌈log2 P⌉ rounds it has all blocks, rotated by its rank.
//! Cost: ⌈log2 P⌉ α + (P - 1) b β for blocks of b bytes. Works for any P.

use crate::endpoint::Endpoint;
use skyphos_types::{Error, GroupRank, Result, Round};

/// Gathers every rank's numbers, in rank order. All ranks pass the same count. Takes the rounds of [`allgather_bytes`].
pub async fn allgather_numbers(ep: &Endpoint, first_round: Round, mine: &[u64]) -> Result<Vec<Vec<u64>>> {
    let block: Vec<u8> = mine.iter().flat_map(|v| v.to_le_bytes()).collect();
    let all = allgather_bytes(ep, first_round, &block).await?;
    let numbers = |block: &Vec<u8>| {
        block.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes"))).collect()
    };
    Ok(all.iter().map(numbers).collect())
}

/// [`allgather_numbers`] for counts of indices or entries. Refuses counts beyond 2^32 - 1, so sums over ranks fit.
pub(crate) async fn allgather_counts(
    ep: &Endpoint,
    first_round: Round,
    mine: &[u64],
) -> Result<Vec<Vec<u64>>> {
    let all = allgather_numbers(ep, first_round, mine).await?;
    for (rank, counts) in (0..).zip(&all) {
        if counts.iter().any(|count| *count > u64::from(u32::MAX)) {
            return Err(ep.corrupt(GroupRank(rank), "a count of more than 2^32 - 1 entries"));
        }
    }
    Ok(all)
}

/// Gathers every rank's `block`, in rank order. All blocks have the same length. Takes ⌈log2 P⌉ rounds from `first_round`.
pub async fn allgather_bytes(ep: &Endpoint, first_round: Round, block: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (me, size, len) = (ep.rank().index(), ep.size() as usize, block.len());
    let mut blocks = block.to_vec();
    let (mut count, mut round) = (1, first_round);
    while count < size {
        let moving = count.min(size - count);
        let (to, from) = ((me + size - count) % size, (me + count) % size);
        let message = ep.message_of(&blocks[..moving * len]);
        let received =
            ep.exchange(round, vec![(GroupRank(to as u32), message)], &[GroupRank(from as u32)]).await?;
        let bytes = received[0].as_bytes();
        if bytes.len() != moving * len {
            let message = format!("{} bytes, expected {moving} blocks of {len}", bytes.len());
            return Err(Error::Corrupt { rank: ep.world_rank(GroupRank(from as u32)).0, message });
        }
        blocks.extend(bytes);
        (count, round) = (count + moving, round + 1);
    }
    let start = |rank: usize| (rank + size - me) % size * len;
    Ok((0..size).map(|rank| blocks[start(rank)..start(rank) + len].to_vec()).collect())
}
