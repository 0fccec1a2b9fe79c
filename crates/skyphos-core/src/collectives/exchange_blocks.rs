//! Exchange of blocks of bytes between all pairs of ranks (all-to-all with lengths that only senders know), for the shuffle.
//!
//! A short block is *pushed*: sent at once. The length of a long block is *announced*; the receiver then *fetches* the block,
//! a few blocks at a time. So the bytes that a rank stores for others are bounded, and a slow rank delays only its own
//! senders. Rank j fetches from ranks j + 1, j + 2, … in that order: requests spread over all ranks, and the order in which
//! blocks are delivered is the same in each run.
//!
//! Cost at each rank: (P - 1) α and the bytes of its blocks in both directions; 2 α more for each block fetched.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::frame::ARRAYS;
use crate::message_stream::{Incoming, Outgoing};
use crate::transport::Loss;
use skyphos_types::{GroupRank, Result, Round};

/// Rounds: short blocks; lengths of long blocks; requests; long blocks.
const PUSHED: Round = Round(ARRAYS | 0x600);
const ANNOUNCED: Round = Round(0x601);
const FETCH: Round = Round(0x602);
const FETCHED: Round = Round(ARRAYS | 0x603);

/// Bytes of an announced length.
const LEN_BYTES: usize = 8;

/// A rank's blocks for other ranks, and its handling of the blocks that it receives.
pub trait Blocks: Send {
    /// Bytes of the block for a rank; the same at each call.
    fn len_for(&self, to: u32) -> usize;

    /// Copies bytes of the block for a rank, from offset `at`.
    fn copy_out(&self, to: u32, at: usize, bytes: &mut [u8]);

    /// Called when the whole block for a rank has been handed to the transport.
    fn block_sent(&mut self, to: u32);

    /// Called before the bytes of a block arrive. The sender gives `len`, which may exceed the memory there is.
    ///
    /// # Errors
    /// There is not enough memory.
    fn begin_block(&mut self, from: u32, len: usize) -> Result<()>;

    /// Takes the next bytes of a block.
    ///
    /// # Errors
    /// There is not enough memory.
    fn put(&mut self, from: u32, bytes: &[u8]) -> Result<()>;

    /// Called when a block is complete.
    ///
    /// # Errors
    /// The block could not be stored.
    fn complete_block(&mut self, from: u32) -> Result<()>;

    /// The number of complete long blocks that still take memory here.
    fn blocks_in_memory(&self) -> usize;
}

/// The length up to which blocks are pushed, and the number of blocks that are fetched at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLimits {
    /// Blocks of at most this many bytes are pushed.
    pub push_bytes: usize,
    /// Upper bound on the long blocks that are requested, or complete and still in memory; at least 1.
    pub fetches: usize,
}

impl Default for BlockLimits {
    /// The limits of a shuffle without options.
    fn default() -> BlockLimits {
        BlockLimits { push_bytes: 64 * 1024, fetches: 4 }
    }
}

/// A block that this rank sends.
struct OutBlock {
    to: u32,
    send: Outgoing,
}

impl OutBlock {
    /// Sends the chunks that may go now. Returns whether there were any.
    fn step(&mut self, ep: &Endpoint, blocks: &mut impl Blocks) -> bool {
        let mut moved = false;
        while let Some(range) = self.send.next_range(ep, 1) {
            let mut chunk = ep.chunk(range.len());
            ep.spend(Effort::Dense { bytes: 2 * range.len() });
            if !ep.is_sized() {
                blocks.copy_out(self.to, range.start, chunk.as_bytes_mut());
            }
            self.send.push(ep, chunk);
            moved = true;
        }
        if self.send.done() {
            blocks.block_sent(self.to);
        }
        moved
    }
}

/// The state of a block that this rank receives.
enum State {
    /// The block may be pushed or announced.
    Unknown {
        announcement: Incoming,
    },
    /// A long block, not requested yet. Its length is `None` in a simulation without data.
    Announced {
        len: Option<usize>,
    },
    /// A long block that was requested.
    Requested {
        len: Option<usize>,
    },
    Complete,
}

/// A block that this rank receives.
struct InBlock {
    from: u32,
    incoming: Incoming,
    state: State,
}

impl InBlock {
    fn new(from: u32) -> InBlock {
        let announcement = Incoming::new(GroupRank(from), ANNOUNCED);
        InBlock {
            from,
            incoming: Incoming::new(GroupRank(from), PUSHED),
            state: State::Unknown { announcement },
        }
    }

    /// Takes the chunks and the announcement that have arrived. Returns whether there were any.
    fn step(&mut self, ep: &Endpoint, blocks: &mut impl Blocks, limits: BlockLimits) -> Result<bool> {
        let (from, mut moved) = (self.from, false);
        loop {
            let first = !self.incoming.begun();
            let lengths = match &mut self.state {
                State::Announced { .. } | State::Complete => return Ok(moved),
                State::Unknown { .. } => 0..=limits.push_bytes,
                State::Requested { len } => len.map_or(0..=usize::MAX, |len| len..=len),
            };
            let chunk = match self.incoming.next(ep) {
                Ok(Some(chunk)) => chunk,
                // A sender that has left the call may have announced a block before.
                other => match first && self.read_announcement(ep)? {
                    true => return Ok(true),
                    false => return other.map(|_| moved),
                },
            };
            moved = true;
            if first {
                let len = usize::try_from(self.incoming.total()).unwrap_or(usize::MAX);
                if !lengths.contains(&len) {
                    return Err(ep.corrupt(
                        GroupRank(from),
                        "a block that is neither short nor of its announced length",
                    ));
                }
                blocks.begin_block(from, len)?;
            }
            ep.spend(Effort::Dense { bytes: 2 * chunk.len() });
            if !ep.is_sized() {
                blocks.put(from, chunk.as_bytes())?;
            }
            if self.incoming.done() {
                self.state = State::Complete;
                blocks.complete_block(from)?;
            }
        }
    }

    /// Reads the announcement of the block. Returns whether it has arrived.
    fn read_announcement(&mut self, ep: &Endpoint) -> Result<bool> {
        let State::Unknown { announcement } = &mut self.state else { return Ok(false) };
        // The caller reports an error of the sender, which the block's stream returns too.
        let Ok(Some(message)) = announcement.next(ep) else { return Ok(false) };
        let len = match ep.is_sized() {
            true => None,
            false => {
                let len = message.as_bytes().try_into().ok().map(u64::from_le_bytes);
                let len = len.and_then(|len| usize::try_from(len).ok());
                Some(len.ok_or_else(|| {
                    ep.corrupt(GroupRank(self.from), "an announcement that is not a length")
                })?)
            }
        };
        self.state = State::Announced { len };
        Ok(true)
    }

    /// Requests a block that was announced.
    fn request(&mut self, ep: &Endpoint, len: Option<usize>) {
        Outgoing::new(GroupRank(self.from), FETCH, 0).push(ep, ep.chunk(0));
        self.incoming = Incoming::new(GroupRank(self.from), FETCHED);
        self.state = State::Requested { len };
    }

    /// The block is requested and not complete.
    fn is_requested(&self) -> bool {
        matches!(self.state, State::Requested { .. })
    }

    fn is_complete(&self) -> bool {
        matches!(self.state, State::Complete)
    }
}

/// Requests announced blocks in order while the limit allows. A block is requested only after all before it have been
/// received or requested. Returns whether any was requested.
fn request_next(ep: &Endpoint, ins: &mut [InBlock], blocks: &impl Blocks, limits: BlockLimits) -> bool {
    let requested = ins.iter().filter(|block| block.is_requested()).count();
    let mut free = limits.fetches.max(1).saturating_sub(requested + blocks.blocks_in_memory());
    let mut moved = false;
    for block in ins {
        match block.state {
            State::Announced { len } if free > 0 => {
                block.request(ep, len);
                (free, moved) = (free - 1, true);
            }
            State::Announced { .. } | State::Unknown { .. } => break,
            State::Requested { .. } | State::Complete => {}
        }
    }
    moved
}

/// Sends every other rank its block, and receives a block from each. A rank's block for itself is not touched.
///
/// # Errors
/// An error of `blocks`, on all ranks; `Corrupt` if a rank sends another length than it announced.
pub async fn exchange_blocks(ep: &Endpoint, blocks: &mut impl Blocks, limits: BlockLimits) -> Result<()> {
    let (me, size) = (ep.rank().0, ep.size());
    let others = || (1..size).map(|step| (me + step) % size);
    let (mut outs, mut unrequested) = (Vec::new(), Vec::new());
    for to in others() {
        let len = blocks.len_for(to);
        if len <= limits.push_bytes {
            outs.push(OutBlock { to, send: Outgoing::new(GroupRank(to), PUSHED, len as u64) });
        } else {
            let mut message = ep.chunk(LEN_BYTES);
            if !ep.is_sized() {
                message.as_bytes_mut().copy_from_slice(&(len as u64).to_le_bytes());
            }
            Outgoing::new(GroupRank(to), ANNOUNCED, LEN_BYTES as u64).push(ep, message);
            unrequested.push((to, Incoming::new(GroupRank(to), FETCH)));
        }
    }
    let mut ins: Vec<InBlock> = others().map(InBlock::new).collect();
    loop {
        let mut moved = false;
        for block in &mut ins {
            moved |= block.step(ep, blocks, limits)?;
        }
        moved |= request_next(ep, &mut ins, blocks, limits);
        let mut waiting = Vec::new();
        for (to, mut request) in unrequested {
            match request.next(ep) {
                Ok(Some(_)) => {
                    let send = Outgoing::new(GroupRank(to), FETCHED, blocks.len_for(to) as u64);
                    outs.push(OutBlock { to, send });
                    moved = true;
                }
                Ok(None) => waiting.push((to, request)),
                // The rank has left the call, so it has the block from another replica of this rank.
                Err(_) if ep.losses()[to as usize] == Some(Loss::Left) => {
                    blocks.block_sent(to);
                    moved = true;
                }
                Err(error) => return Err(error),
            }
        }
        unrequested = waiting;
        for out in &mut outs {
            moved |= out.step(ep, blocks);
        }
        outs.retain(|out| !out.send.done());
        if outs.is_empty() && unrequested.is_empty() && ins.iter().all(InBlock::is_complete) {
            return Ok(());
        }
        if !moved {
            ep.progress().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{CallKind, CallSig};
    use crate::tests::on_all;
    use std::collections::BTreeMap;

    const LIMITS: BlockLimits = BlockLimits { push_bytes: 1000, fetches: 2 };

    fn block(from: u32, to: u32) -> Vec<u8> {
        let len = [0, 1, 999, 1000, 1001, 300_000, 9 << 20][(from as usize * 5 + to as usize * 3) % 7];
        (0..len).map(|k| (k * 7 + from as usize * 31 + to as usize) as u8).collect()
    }

    /// Stores every block, and counts the long ones that are incomplete.
    struct Recorder {
        mine: Vec<Vec<u8>>,
        received: BTreeMap<u32, Vec<u8>>,
        /// Incomplete long blocks, now and at most.
        incomplete: usize,
        most_incomplete: usize,
        sent: Vec<u32>,
    }

    impl Blocks for Recorder {
        fn len_for(&self, to: u32) -> usize {
            self.mine[to as usize].len()
        }

        fn copy_out(&self, to: u32, at: usize, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.mine[to as usize][at..at + bytes.len()]);
        }

        fn block_sent(&mut self, to: u32) {
            self.sent.push(to);
        }

        fn begin_block(&mut self, from: u32, len: usize) -> Result<()> {
            self.received.insert(from, Vec::with_capacity(len));
            if len > LIMITS.push_bytes {
                self.incomplete += 1;
                self.most_incomplete = self.most_incomplete.max(self.incomplete);
            }
            Ok(())
        }

        fn put(&mut self, from: u32, bytes: &[u8]) -> Result<()> {
            self.received.get_mut(&from).expect("begun").extend(bytes);
            Ok(())
        }

        fn complete_block(&mut self, from: u32) -> Result<()> {
            self.incomplete -= usize::from(self.received[&from].len() > LIMITS.push_bytes);
            Ok(())
        }

        fn blocks_in_memory(&self) -> usize {
            0
        }
    }

    #[test]
    fn every_block_arrives_and_few_are_fetched_at_a_time() {
        for size in 1..=9 {
            on_all(size, 20.0, |rank, node, group| {
                let (received, sent) = Default::default();
                let mine = (0..size).map(|to| block(rank, to)).collect();
                let mut blocks = Recorder { mine, received, incomplete: 0, most_incomplete: 0, sent };
                let sig = CallSig::plain(CallKind::ExchangeBlocks);
                node.call(&group, sig, async |ep| exchange_blocks(ep, &mut blocks, LIMITS).await).unwrap();
                let want: BTreeMap<u32, Vec<u8>> =
                    (0..size).filter(|from| *from != rank).map(|from| (from, block(from, rank))).collect();
                assert!(blocks.received == want, "rank {rank} of {size}");
                assert!(
                    blocks.most_incomplete <= LIMITS.fetches,
                    "{} were incomplete",
                    blocks.most_incomplete
                );
                blocks.sent.sort_unstable();
                assert_eq!(blocks.sent, (0..size).filter(|to| *to != rank).collect::<Vec<_>>());
            });
        }
    }
}
