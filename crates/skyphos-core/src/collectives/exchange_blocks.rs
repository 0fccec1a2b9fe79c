//! Blocks of bytes from every rank to every other, as long as their senders say: what a shuffle moves.
//!
//! A short block goes at once (*pushed*). Of a long one the sender tells the length (*announced*), and the receiver asks for
//! it (*fetched*), for some at a time: so what a rank holds of others is bounded, and a slow one holds back nobody but who
//! sends to it. Rank j asks ranks j + 1, j + 2, … in turn, so that not all ask the same one, and takes blocks in that
//! order: what comes of them is the same in each run.
//!
//! Cost at each rank: α for each other, the bytes of its blocks out and in, and 2 α more for each that is fetched.

use crate::clock::Effort;
use crate::endpoint::Endpoint;
use crate::frame::ARRAYS;
use crate::message_stream::{Incoming, Outgoing};
use crate::transport::Loss;
use skyphos_types::Result;

/// Rounds: short blocks; lengths of long ones; "send me yours"; long blocks.
const PUSHED: u32 = ARRAYS | 0x600;
const ANNOUNCED: u32 = 0x601;
const FETCH: u32 = 0x602;
const FETCHED: u32 = ARRAYS | 0x603;

/// Bytes of a length.
const LEN_BYTES: usize = 8;

/// What a rank has for the others, and what it does with theirs.
pub trait Blocks: Send {
    /// Bytes of the block for a rank. Always the same.
    fn len_for(&self, to: u32) -> usize;

    /// Some of them.
    fn copy_out(&self, to: u32, at: usize, bytes: &mut [u8]);

    /// All of the block for a rank is on its way.
    fn sent(&mut self, to: u32);

    /// A block of so many bytes begins to come: what another rank says, which may be more than there is memory for.
    ///
    /// # Errors
    /// There is no room for it.
    fn begins(&mut self, from: u32, len: usize) -> Result<()>;

    /// The next of its bytes.
    ///
    /// # Errors
    /// There is no room for them.
    fn put(&mut self, from: u32, bytes: &[u8]) -> Result<()>;

    /// All of it has come.
    ///
    /// # Errors
    /// It could not be kept.
    fn came(&mut self, from: u32) -> Result<()>;

    /// How many of the long ones that came are still held: those before them in turn have come, or were asked for.
    fn held(&self) -> usize;
}

/// What goes at once, and what waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLimits {
    /// Blocks of up to so many bytes are pushed.
    pub push_bytes: usize,
    /// So many long blocks are asked for, or have come and are held, at a time; at least one.
    pub fetches: usize,
}

impl Default for BlockLimits {
    /// Those of a shuffle that names none.
    fn default() -> BlockLimits {
        BlockLimits { push_bytes: 64 * 1024, fetches: 4 }
    }
}

/// A block on its way out.
struct Out {
    to: u32,
    send: Outgoing,
}

impl Out {
    /// Sends what may go; whether anything did.
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
            blocks.sent(self.to);
        }
        moved
    }
}

/// How far the block of a rank is.
enum State {
    /// It comes as a short one, or it is announced.
    Unknown {
        announced: Incoming,
    },
    /// It waits to be asked for, so long; without data, nobody knows.
    Announced {
        len: Option<usize>,
    },
    /// It was asked for.
    Asked {
        len: Option<usize>,
    },
    Whole,
}

/// A rank's block on its way in.
struct In {
    from: u32,
    incoming: Incoming,
    state: State,
}

impl In {
    fn new(from: u32) -> In {
        let announced = Incoming::new(from, ANNOUNCED);
        In { from, incoming: Incoming::new(from, PUSHED), state: State::Unknown { announced } }
    }

    /// Takes what has come; whether anything did.
    fn step(&mut self, ep: &Endpoint, blocks: &mut impl Blocks, limits: BlockLimits) -> Result<bool> {
        let (from, mut moved) = (self.from, false);
        loop {
            let first = !self.incoming.begun();
            let fits = match &mut self.state {
                State::Announced { .. } | State::Whole => return Ok(moved),
                State::Unknown { .. } => 0..=limits.push_bytes,
                State::Asked { len } => len.map_or(0..=usize::MAX, |len| len..=len),
            };
            let chunk = match self.incoming.next(ep) {
                Ok(Some(chunk)) => chunk,
                // Who has sent all and left sends no short block, but may have announced one.
                other => match first && self.look_for_word(ep)? {
                    true => return Ok(true),
                    false => return other.map(|_| moved),
                },
            };
            moved = true;
            if first {
                let len = usize::try_from(self.incoming.total()).unwrap_or(usize::MAX);
                if !fits.contains(&len) {
                    return Err(ep.corrupt(from, "a block of another length than it may have"));
                }
                blocks.begins(from, len)?;
            }
            ep.spend(Effort::Dense { bytes: 2 * chunk.len() });
            if !ep.is_sized() {
                blocks.put(from, chunk.as_bytes())?;
            }
            if self.incoming.done() {
                self.state = State::Whole;
                blocks.came(from)?;
            }
        }
    }

    /// Whether the block has just been announced.
    fn look_for_word(&mut self, ep: &Endpoint) -> Result<bool> {
        let State::Unknown { announced } = &mut self.state else { return Ok(false) };
        // That there will be none is for who waits for the block to say.
        let Ok(Some(word)) = announced.next(ep) else { return Ok(false) };
        let len = match ep.is_sized() {
            true => None,
            false => {
                let len = word.as_bytes().try_into().ok().map(u64::from_le_bytes);
                let len = len.and_then(|len| usize::try_from(len).ok());
                Some(len.ok_or_else(|| ep.corrupt(self.from, "a length of a block that is none"))?)
            }
        };
        self.state = State::Announced { len };
        Ok(true)
    }

    /// Asks for a block that was announced.
    fn ask(&mut self, ep: &Endpoint, len: Option<usize>) {
        Outgoing::new(self.from, FETCH, 0).push(ep, ep.chunk(0));
        self.incoming = Incoming::new(self.from, FETCHED);
        self.state = State::Asked { len };
    }

    /// It was asked for, and not all of it has come.
    fn is_asked(&self) -> bool {
        matches!(self.state, State::Asked { .. })
    }

    fn is_whole(&self) -> bool {
        matches!(self.state, State::Whole)
    }
}

/// Brings each rank's block to each other. Its own stays where it is.
///
/// # Errors
/// What `blocks` says, on all ranks; `Corrupt` where a rank says other lengths than it sends.
pub async fn exchange_blocks(ep: &Endpoint, blocks: &mut impl Blocks, limits: BlockLimits) -> Result<()> {
    let (me, size) = (ep.rank(), ep.size());
    let others = || (1..size).map(|far| (me + far) % size);
    let (mut outs, mut asked_of_us) = (Vec::new(), Vec::new());
    for to in others() {
        let len = blocks.len_for(to);
        if len <= limits.push_bytes {
            outs.push(Out { to, send: Outgoing::new(to, PUSHED, len as u64) });
        } else {
            let mut word = ep.chunk(LEN_BYTES);
            if !ep.is_sized() {
                word.as_bytes_mut().copy_from_slice(&(len as u64).to_le_bytes());
            }
            Outgoing::new(to, ANNOUNCED, LEN_BYTES as u64).push(ep, word);
            asked_of_us.push((to, Incoming::new(to, FETCH)));
        }
    }
    let mut ins: Vec<In> = others().map(In::new).collect();
    loop {
        let mut moved = false;
        for part in &mut ins {
            moved |= part.step(ep, blocks, limits)?;
        }
        // In turn: who is asked next is the first whose block has not come, or been asked for.
        let asked = ins.iter().filter(|part| part.is_asked()).count();
        let mut room = limits.fetches.max(1).saturating_sub(asked + blocks.held());
        for part in &mut ins {
            match part.state {
                State::Announced { len } if room > 0 => {
                    part.ask(ep, len);
                    (room, moved) = (room - 1, true);
                }
                State::Announced { .. } | State::Unknown { .. } => break,
                State::Asked { .. } | State::Whole => {}
            }
        }
        let mut waiting = Vec::new();
        for (to, mut word) in asked_of_us {
            match word.next(ep) {
                Ok(Some(_)) => {
                    let send = Outgoing::new(to, FETCHED, blocks.len_for(to) as u64);
                    outs.push(Out { to, send });
                    moved = true;
                }
                Ok(None) => waiting.push((to, word)),
                // It has the block, from another replica of this rank.
                Err(_) if ep.losses()[to as usize] == Some(Loss::Left) => {
                    blocks.sent(to);
                    moved = true;
                }
                Err(error) => return Err(error),
            }
        }
        asked_of_us = waiting;
        for out in &mut outs {
            moved |= out.step(ep, blocks);
        }
        outs.retain(|out| !out.send.done());
        if outs.is_empty() && asked_of_us.is_empty() && ins.iter().all(In::is_whole) {
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

    /// Takes what comes at once, and counts.
    struct Counted {
        mine: Vec<Vec<u8>>,
        came: BTreeMap<u32, Vec<u8>>,
        /// Long ones that were asked for and are not whole, and the most of them at a time.
        open: usize,
        most: usize,
        sent: Vec<u32>,
    }

    impl Blocks for Counted {
        fn len_for(&self, to: u32) -> usize {
            self.mine[to as usize].len()
        }

        fn copy_out(&self, to: u32, at: usize, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.mine[to as usize][at..at + bytes.len()]);
        }

        fn sent(&mut self, to: u32) {
            self.sent.push(to);
        }

        fn begins(&mut self, from: u32, len: usize) -> Result<()> {
            self.came.insert(from, Vec::with_capacity(len));
            if len > LIMITS.push_bytes {
                self.open += 1;
                self.most = self.most.max(self.open);
            }
            Ok(())
        }

        fn put(&mut self, from: u32, bytes: &[u8]) -> Result<()> {
            self.came.get_mut(&from).expect("begun").extend(bytes);
            Ok(())
        }

        fn came(&mut self, from: u32) -> Result<()> {
            self.open -= usize::from(self.came[&from].len() > LIMITS.push_bytes);
            Ok(())
        }

        fn held(&self) -> usize {
            0
        }
    }

    #[test]
    fn each_has_the_blocks_of_all_and_asks_for_few_at_a_time() {
        for size in 1..=9 {
            on_all(size, 20.0, |rank, node, group| {
                let (came, sent) = Default::default();
                let mine = (0..size).map(|to| block(rank, to)).collect();
                let mut blocks = Counted { mine, came, open: 0, most: 0, sent };
                let sig = CallSig::plain(CallKind::ExchangeBlocks);
                node.call(&group, sig, async |ep| exchange_blocks(ep, &mut blocks, LIMITS).await).unwrap();
                let want: BTreeMap<u32, Vec<u8>> =
                    (0..size).filter(|from| *from != rank).map(|from| (from, block(from, rank))).collect();
                assert!(blocks.came == want, "rank {rank} of {size}");
                assert!(blocks.most <= LIMITS.fetches, "{} were open", blocks.most);
                blocks.sent.sort_unstable();
                assert_eq!(blocks.sent, (0..size).filter(|to| *to != rank).collect::<Vec<_>>());
            });
        }
    }
}
