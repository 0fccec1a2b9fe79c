//! Allgather of small messages by Bruck's algorithm (Bruck et al. 1997, §III).
//!
//! Each rank holds a growing run of blocks, its own first. In round k it sends the first
//! min(2^k, P - 2^k) of them to rank - 2^k and appends what rank + 2^k sends; after ⌈log2 P⌉ rounds it
//! holds all, rotated by its rank. Cost: ⌈log2 P⌉ α + (P - 1) b β for blocks of b bytes. Any P.

use crate::endpoint::Endpoint;
use skyphos_types::{Error, Result};

/// Numbers of every rank, by rank; all have as many. Rounds as [`allgather_bytes`].
pub async fn allgather_numbers(ep: &Endpoint, first_round: u32, mine: &[u64]) -> Result<Vec<Vec<u64>>> {
    let block: Vec<u8> = mine.iter().flat_map(|v| v.to_le_bytes()).collect();
    let all = allgather_bytes(ep, first_round, &block).await?;
    let numbers = |block: &Vec<u8>| {
        block.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes"))).collect()
    };
    Ok(all.iter().map(numbers).collect())
}

/// [`allgather_numbers`] of how many indices or entries ranks have of something: as many as one can have, so that sums fit.
pub(crate) async fn allgather_counts(ep: &Endpoint, first_round: u32, mine: &[u64]) -> Result<Vec<Vec<u64>>> {
    let all = allgather_numbers(ep, first_round, mine).await?;
    for (rank, counts) in (0..).zip(&all) {
        if counts.iter().any(|count| *count > u64::from(u32::MAX)) {
            return Err(ep.corrupt(rank, "more entries than one rank can have"));
        }
    }
    Ok(all)
}

/// Every rank's `block`, in rank order. All blocks must have the same length. Takes ⌈log2 P⌉ rounds
/// from `first_round`.
pub async fn allgather_bytes(ep: &Endpoint, first_round: u32, block: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (me, size, len) = (ep.rank() as usize, ep.size() as usize, block.len());
    let mut held = block.to_vec();
    let (mut count, mut round) = (1, first_round);
    while count < size {
        let moving = count.min(size - count);
        let (to, from) = ((me + size - count) % size, (me + count) % size);
        let message = ep.message_of(&held[..moving * len]);
        let got = ep.exchange(round, vec![(to as u32, message)], &[from as u32]).await?;
        let bytes = got[0].as_bytes();
        if bytes.len() != moving * len {
            let message = format!("{} bytes where {moving} blocks of {len} were due", bytes.len());
            return Err(Error::Corrupt { rank: ep.world_rank(from as u32), message });
        }
        held.extend(bytes);
        (count, round) = (count + moving, round + 1);
    }
    let block_of = |rank: usize| (rank + size - me) % size * len;
    Ok((0..size).map(|rank| held[block_of(rank)..block_of(rank) + len].to_vec()).collect())
}
