//! Blocks of bytes from every rank to every other, as long as their senders say: what a shuffle moves.
//!
//! Each rank tells each other how long its block for it is. A short one goes along (*pushed*); a long one waits until the receiver asks
//! for it (*fetched*), which asks for some at a time: so what a rank holds of others is bounded, and a slow one holds back
//! nobody but who sends to it. Rank j asks ranks j + 1, j + 2, … in turn, so that not all ask the same one, and takes blocks in that
//! order: what comes of them is the same in each run.
//!
//! Cost at each rank: α for each other, the bytes of its blocks out and in, and α more for each that is fetched.

use crate::clock::Effort;
use crate::endpoint::{Endpoint, Incoming, Outgoing};
use crate::frame::ARRAYS;
use skyphos_types::Result;

/// Rounds: lengths, and short blocks; "send me yours"; long blocks.
const HEADS: u32 = 0x600;
const FETCH: u32 = 0x601;
const LONG: u32 = ARRAYS | 0x602;

/// Bytes of a length.
const HEAD_BYTES: usize = 8;

/// What a rank has for the others, and what it does with theirs.
pub trait Blocks: Send {
    /// Bytes of the block for a rank. Always the same.
    fn len_for(&self, to: u32) -> usize;

    /// Some of them.
    fn copy_out(&self, to: u32, at: usize, bytes: &mut [u8]);

    /// All of the block for a rank is on its way.
    fn sent(&mut self, to: u32);

    /// Makes room for the block of a rank.
    ///
    /// # Errors
    /// There is none.
    fn make_room(&mut self, from: u32, len: usize) -> Result<()>;

    /// The next of its bytes.
    fn put(&mut self, from: u32, bytes: &[u8]);

    /// All of it has come.
    fn came(&mut self, from: u32);

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

/// A block on its way out.
struct Out {
    to: u32,
    send: Outgoing,
    /// Of the head, which goes first.
    head: Option<[u8; HEAD_BYTES]>,
    len: usize,
}

impl Out {
    fn done(&self) -> bool {
        self.send.done()
    }

    /// Sends what may go; whether anything did.
    fn step(&mut self, ep: &Endpoint, blocks: &impl Blocks) -> bool {
        let mut moved = false;
        while let Some(range) = self.send.next_range(ep, 1) {
            let mut chunk = ep.chunk(range.len());
            ep.spend(Effort::Dense { bytes: 2 * range.len() });
            if !ep.is_sized() {
                let head = self.head.as_ref().map_or(&[][..], |head| head);
                let bytes = chunk.as_bytes_mut();
                let of_head = head.len().saturating_sub(range.start).min(bytes.len());
                bytes[..of_head].copy_from_slice(&head[head.len().min(range.start)..][..of_head]);
                if of_head < bytes.len() {
                    let at = range.start + of_head - head.len();
                    blocks.copy_out(self.to, at, &mut bytes[of_head..]);
                }
            }
            self.send.push(ep, chunk);
            moved = true;
        }
        moved
    }
}

/// How far the block of a rank is.
enum State {
    /// Its length has not come, or its bytes, which come with it.
    Head {
        incoming: Incoming,
        head: Vec<u8>,
    },
    /// It is long, and waits to be asked for.
    Known {
        len: usize,
    },
    /// It was asked for.
    Asked {
        incoming: Incoming,
        len: usize,
    },
    Whole,
}

struct In {
    from: u32,
    state: State,
}

impl In {
    /// Takes what has come; whether anything did.
    fn step(&mut self, ep: &Endpoint, blocks: &mut impl Blocks) -> Result<bool> {
        let (from, mut moved) = (self.from, false);
        loop {
            match &mut self.state {
                State::Head { incoming, head } => {
                    let Some(chunk) = incoming.next(ep)? else { return Ok(moved) };
                    moved = true;
                    let mut bytes = chunk.as_bytes();
                    if head.len() < HEAD_BYTES {
                        let (first, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - head.len()));
                        head.extend_from_slice(first);
                        bytes = rest;
                        if head.len() < HEAD_BYTES {
                            continue;
                        }
                        let len = u64::from_le_bytes(head[..].try_into().expect("8 bytes"));
                        let (with_it, len) = (incoming.total() - HEAD_BYTES as u64, usize::try_from(len));
                        let len = len.ok().filter(|len| with_it == 0 || with_it == *len as u64);
                        let len =
                            len.ok_or_else(|| ep.corrupt(from, "a block of another length than it says"))?;
                        if with_it == 0 && len > 0 {
                            self.state = State::Known { len };
                            continue;
                        }
                        blocks.make_room(from, len)?;
                    }
                    blocks.put(from, bytes);
                    if incoming.done() {
                        self.state = State::Whole;
                        blocks.came(from);
                    }
                }
                State::Asked { incoming, len } => {
                    let Some(chunk) = incoming.next(ep)? else { return Ok(moved) };
                    moved = true;
                    if incoming.total() != *len as u64 {
                        return Err(ep.corrupt(from, "a block of another length than was told"));
                    }
                    ep.spend(Effort::Dense { bytes: 2 * chunk.len() });
                    if !ep.is_sized() {
                        blocks.put(from, chunk.as_bytes());
                    }
                    if incoming.done() {
                        self.state = State::Whole;
                        blocks.came(from);
                    }
                }
                State::Known { .. } | State::Whole => return Ok(moved),
            }
        }
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
    let is_long = |len: usize| len > limits.push_bytes;
    let mut outs: Vec<Out> = others()
        .map(|to| {
            let len = blocks.len_for(to);
            let with_it = if is_long(len) { 0 } else { len };
            let send = Outgoing::new(to, HEADS, (HEAD_BYTES + with_it) as u64);
            Out { to, send, head: Some((len as u64).to_le_bytes()), len: with_it }
        })
        .collect();
    let mut asked_of_us: Vec<(u32, Incoming)> =
        others().filter(|to| is_long(blocks.len_for(*to))).map(|to| (to, Incoming::new(to, FETCH))).collect();
    let head = |from| State::Head { incoming: Incoming::new(from, HEADS), head: Vec::new() };
    let mut ins: Vec<In> = others().map(|from| In { from, state: head(from) }).collect();
    loop {
        let mut moved = false;
        for part in &mut ins {
            moved |= part.step(ep, blocks)?;
        }
        // In turn: who is asked next is the first whose block has not come, or been asked for.
        let asked = ins.iter().filter(|part| matches!(part.state, State::Asked { .. })).count();
        let mut room = limits.fetches.max(1).saturating_sub(asked + blocks.held());
        for part in &mut ins {
            match part.state {
                State::Known { len } if room > 0 => {
                    blocks.make_room(part.from, len)?;
                    Outgoing::new(part.from, FETCH, 0).push(ep, ep.chunk(0));
                    part.state = State::Asked { incoming: Incoming::new(part.from, LONG), len };
                    (room, moved) = (room - 1, true);
                }
                State::Known { .. } | State::Head { .. } => break,
                State::Asked { .. } | State::Whole => {}
            }
        }
        let mut waiting = Vec::new();
        for (to, mut word) in asked_of_us {
            match word.next(ep)? {
                Some(_) => {
                    let len = blocks.len_for(to);
                    outs.push(Out { to, send: Outgoing::new(to, LONG, len as u64), head: None, len });
                    moved = true;
                }
                None => waiting.push((to, word)),
            }
        }
        asked_of_us = waiting;
        for out in &mut outs {
            moved |= out.step(ep, blocks);
        }
        outs.retain(|out| {
            if out.done() && (out.len > 0 || blocks.len_for(out.to) == 0) {
                blocks.sent(out.to);
            }
            !out.done()
        });
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

        fn make_room(&mut self, from: u32, len: usize) -> Result<()> {
            self.came.insert(from, Vec::with_capacity(len));
            if len > LIMITS.push_bytes {
                self.open += 1;
                self.most = self.most.max(self.open);
            }
            Ok(())
        }

        fn put(&mut self, from: u32, bytes: &[u8]) {
            self.came.get_mut(&from).expect("room").extend(bytes);
        }

        fn came(&mut self, from: u32) {
            self.open -= usize::from(self.came[&from].len() > LIMITS.push_bytes);
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
