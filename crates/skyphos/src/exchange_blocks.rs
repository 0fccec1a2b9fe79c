//! Exchange of blocks: each rank sends a block of bytes to each other rank, and takes incoming blocks one by one as they arrive.

use crate::Comm;
use skyphos_core::collectives::exchange_blocks::{BlockLimits, Blocks, exchange_blocks};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{Call, Endpoint, Traffic, Work};
use skyphos_types::{Error, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The received blocks.
#[derive(Default)]
struct ReceivedBlocks {
    /// Complete blocks that were not taken, by rank.
    complete: BTreeMap<u32, Vec<u8>>,
    /// The call, to wake it when a block was taken.
    call: Weak<Endpoint>,
}

#[derive(Default)]
struct Queue {
    blocks: Mutex<ReceivedBlocks>,
    /// Whether a block has arrived since this was unset.
    has_new: AtomicBool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, ReceivedBlocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The incoming blocks of an exchange.
pub struct IncomingBlocks {
    queue: Arc<Queue>,
    /// Ranks whose blocks were not taken, in the order of taking.
    order: std::vec::IntoIter<u32>,
}

impl IncomingBlocks {
    /// The next block with its sender, if it has arrived. Blocks come in the order of their senders: from the rank after this one around to
    /// the rank before it.
    pub fn take(&mut self) -> Option<(u32, Vec<u8>)> {
        let rank = self.order.as_slice().first().copied()?;
        let mut received = self.queue.lock();
        let block = received.complete.remove(&rank)?;
        let call = received.call.upgrade();
        drop(received);
        self.order.next();
        // The call may request another block now.
        call.into_iter().for_each(|call| call.look_again());
        Some((rank, block))
    }

    /// Number of blocks that were not taken, whether they have arrived or not.
    pub fn remaining(&self) -> usize {
        self.order.len()
    }

    /// Number of blocks that have arrived and were not taken.
    pub fn waiting(&self) -> usize {
        self.queue.lock().complete.len()
    }
}

/// An exchange under way: see [`Comm::exchange_blocks`].
pub struct BlockExchange {
    work: Work<Traffic>,
    /// The call's result, once it is known.
    done: Option<Result<Traffic>>,
    blocks: IncomingBlocks,
}

impl BlockExchange {
    /// The next block with its sender; `None` once all were taken. Blocks come in the order of their senders: from the rank after
    /// this one around to the rank before it.
    ///
    /// # Errors
    /// The error that ended the call. No blocks follow it.
    pub fn next_block(&mut self) -> Result<Option<(u32, Vec<u8>)>> {
        while self.blocks.remaining() > 0 {
            self.blocks.queue.has_new.store(false, Ordering::Release);
            if let Some(next) = self.blocks.take() {
                return Ok(Some(next));
            }
            self.done = self.done.take().or_else(|| self.work.take());
            if let Some(Err(error)) = &self.done {
                return Err(error.clone());
            }
            self.work.wait_on(&self.blocks.queue.has_new, None);
        }
        Ok(None)
    }

    /// Number of blocks that have arrived and were not taken.
    pub fn waiting(&self) -> usize {
        self.blocks.waiting()
    }

    /// Ends the call on all ranks; no more blocks are taken.
    pub fn fail(&self, error: Error) {
        let call = self.blocks.queue.lock().call.upgrade();
        call.into_iter().for_each(|call| call.fail(error.clone()));
    }

    /// Waits until the other ranks have this rank's blocks. All incoming blocks must have been taken.
    ///
    /// # Errors
    /// The error that ended the call.
    pub fn finish(self) -> Result<Traffic> {
        self.done.unwrap_or_else(|| self.work.wait())
    }
}

/// A rank's outgoing and incoming blocks.
struct RankBlocks<P> {
    /// Blocks that were not sent, by receiver.
    parts: Vec<Option<P>>,
    /// Bytes of each block, by receiver.
    lens: Vec<usize>,
    /// Incoming blocks that are not complete, by sender.
    incomplete: BTreeMap<u32, Vec<u8>>,
    push_bytes: usize,
    queue: Arc<Queue>,
}

impl<P: AsRef<[u8]> + Send> Blocks for RankBlocks<P> {
    fn len_for(&self, to: u32) -> usize {
        self.lens[to as usize]
    }

    fn copy_out(&self, to: u32, at: usize, bytes: &mut [u8]) {
        if let Some(part) = &self.parts[to as usize] {
            bytes.copy_from_slice(&part.as_ref()[at..at + bytes.len()]);
        }
    }

    fn block_sent(&mut self, to: u32) {
        self.parts[to as usize] = None;
    }

    fn begin_block(&mut self, from: u32, _: usize) -> Result<()> {
        self.incomplete.insert(from, Vec::new());
        Ok(())
    }

    fn put(&mut self, from: u32, bytes: &[u8]) -> Result<()> {
        // A claimed length is trusted only up to the bytes that have arrived.
        let block = self.incomplete.entry(from).or_default();
        block.try_reserve(bytes.len()).map_err(|_| {
            let so_far = block.len();
            Error::bad_input(format!("out of memory after {so_far} bytes of rank {from}'s block"))
        })?;
        block.extend_from_slice(bytes);
        Ok(())
    }

    fn complete_block(&mut self, from: u32) -> Result<()> {
        let block = self.incomplete.remove(&from).unwrap_or_default();
        self.queue.lock().complete.insert(from, block);
        self.queue.has_new.store(true, Ordering::Release);
        Ok(())
    }

    fn blocks_in_memory(&self) -> usize {
        self.queue.lock().complete.values().filter(|block| block.len() > self.push_bytes).count()
    }
}

/// An exchange that has not started: see [`Comm::exchange_blocks`].
pub struct PreparedExchange {
    call: Call<Traffic>,
    blocks: IncomingBlocks,
}

impl PreparedExchange {
    /// Starts the exchange.
    pub fn start(self) -> BlockExchange {
        BlockExchange { work: self.call.start(), done: None, blocks: self.blocks }
    }

    /// The call, and its incoming blocks.
    pub fn into_call(self) -> (Call<Traffic>, IncomingBlocks) {
        (self.call, self.blocks)
    }
}

impl Comm {
    /// Sends block k of `blocks` to rank k. Blocks of other ranks are taken from the started exchange one by one. The block for
    /// this rank itself is not sent. All ranks pass the same limits. Collective.
    ///
    /// # Errors
    /// In the call: `BadInput` unless there is one block per rank, and memory for each incoming block.
    ///
    /// ```
    /// use skyphos::{BlockLimits, Comm};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// let blocks = ranks.map_ranks(|comm| {
    ///     let blocks = vec![vec![comm.rank() as u8; 3]; 2];
    ///     let mut exchange = comm.exchange_blocks(blocks, BlockLimits::default()).unwrap().start();
    ///     let block = exchange.next_block().unwrap();
    ///     exchange.finish().unwrap();
    ///     block
    /// });
    /// assert_eq!(blocks, [Some((1, vec![1; 3])), Some((0, vec![0; 3]))]);
    /// ```
    pub fn exchange_blocks<P: AsRef<[u8]> + Send + Sync + 'static>(
        &self,
        blocks: Vec<P>,
        limits: BlockLimits,
    ) -> Result<PreparedExchange> {
        let (me, size) = (self.rank(), self.size());
        let queue = Arc::new(Queue::default());
        let kind = CallSig::plain(CallKind::ExchangeBlocks);
        let sig = CallSig { extra: limits.fetches as u32, n: limits.push_bytes as u64, ..kind };
        let lens: Vec<usize> = blocks.iter().map(|block| block.as_ref().len()).collect();
        let parts = blocks.into_iter().map(Some).collect();
        let (incomplete, push_bytes) = (BTreeMap::new(), limits.push_bytes);
        let mut all = RankBlocks { parts, lens, incomplete, push_bytes, queue: queue.clone() };
        let call = self.prepare(sig, false, move |ep| async move {
            if all.lens.len() != ep.size() as usize {
                let message = format!("{} blocks for {} ranks", all.lens.len(), ep.size());
                return Err(Error::bad_input(message));
            }
            all.queue.lock().call = Arc::downgrade(&ep);
            ep.checksum_input(|sum| all.parts.iter().flatten().for_each(|part| sum.add(part.as_ref())));
            exchange_blocks(&ep, &mut all, limits).await?;
            Ok(ep.traffic())
        })?;
        let order: Vec<u32> = (1..size).map(|step| (me + step) % size).collect();
        Ok(PreparedExchange { call, blocks: IncomingBlocks { queue, order: order.into_iter() } })
    }
}
