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
    whole: BTreeMap<u32, Vec<u8>>,
    /// The waker of the call, which waits for room.
    call: Weak<Endpoint>,
}

#[derive(Default)]
struct Queue {
    came: Mutex<ReceivedBlocks>,
    /// A block has arrived since this was unset.
    news: AtomicBool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, ReceivedBlocks> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The incoming blocks of an exchange.
pub struct ComingBlocks {
    queue: Arc<Queue>,
    /// Ranks whose blocks were not taken, in the order of taking.
    order: std::vec::IntoIter<u32>,
}

impl ComingBlocks {
    /// The next block with its sender, if it has arrived. Blocks come from the next rank, the one after it, and so on around.
    pub fn take(&mut self) -> Option<(u32, Vec<u8>)> {
        let rank = self.order.as_slice().first().copied()?;
        let mut came = self.queue.lock();
        let block = came.whole.remove(&rank)?;
        let call = came.call.upgrade();
        drop(came);
        self.order.next();
        // The call may request another block now.
        call.into_iter().for_each(|call| call.look_again());
        Some((rank, block))
    }

    /// Number of blocks that were not taken, whether they have arrived or not.
    pub fn left(&self) -> usize {
        self.order.len()
    }

    /// Number of blocks that have arrived and were not taken.
    pub fn waiting(&self) -> usize {
        self.queue.lock().whole.len()
    }
}

/// An exchange under way: see [`Comm::exchange_blocks`].
pub struct BlockExchange {
    work: Work<Traffic>,
    /// The call's result, once it is known.
    done: Option<Result<Traffic>>,
    blocks: ComingBlocks,
}

impl BlockExchange {
    /// The next block with its sender; `None` once all were taken. Blocks come from the next rank, the one after it, and so on
    /// around.
    ///
    /// # Errors
    /// The error that ended the call. It has no blocks after that.
    pub fn next_block(&mut self) -> Result<Option<(u32, Vec<u8>)>> {
        while self.blocks.left() > 0 {
            self.blocks.queue.news.store(false, Ordering::Release);
            if let Some(next) = self.blocks.take() {
                return Ok(Some(next));
            }
            self.done = self.done.take().or_else(|| self.work.take());
            if let Some(Err(error)) = &self.done {
                return Err(error.clone());
            }
            self.work.wait_on(&self.blocks.queue.news, None);
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

    /// Waits until the other ranks have this rank's blocks, if all incoming blocks were taken.
    ///
    /// # Errors
    /// The error that ended the call.
    pub fn finish(self) -> Result<Traffic> {
        self.done.unwrap_or_else(|| self.work.wait())
    }
}

/// A rank's outgoing and incoming blocks.
struct Both<P> {
    parts: Vec<Option<P>>,
    lens: Vec<usize>,
    open: BTreeMap<u32, Vec<u8>>,
    push_bytes: usize,
    queue: Arc<Queue>,
}

impl<P: AsRef<[u8]> + Send> Blocks for Both<P> {
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
        self.open.insert(from, Vec::new());
        Ok(())
    }

    fn put(&mut self, from: u32, bytes: &[u8]) -> Result<()> {
        // A claimed length is trusted only up to the bytes that have arrived.
        let room = self.open.entry(from).or_default();
        room.try_reserve(bytes.len()).map_err(|_| {
            let so_far = room.len();
            Error::bad_input(format!("there is no memory for rank {from}'s block after {so_far} bytes of it"))
        })?;
        room.extend_from_slice(bytes);
        Ok(())
    }

    fn complete_block(&mut self, from: u32) -> Result<()> {
        let block = self.open.remove(&from).unwrap_or_default();
        self.queue.lock().whole.insert(from, block);
        self.queue.news.store(true, Ordering::Release);
        Ok(())
    }

    fn blocks_in_memory(&self) -> usize {
        self.queue.lock().whole.values().filter(|block| block.len() > self.push_bytes).count()
    }
}

/// An exchange that has not started: see [`Comm::exchange_blocks`].
pub struct PreparedExchange {
    call: Call<Traffic>,
    blocks: ComingBlocks,
}

impl PreparedExchange {
    /// Starts the exchange.
    pub fn start(self) -> BlockExchange {
        BlockExchange { work: self.call.start(), done: None, blocks: self.blocks }
    }

    /// The call, and its incoming blocks.
    pub fn into_call(self) -> (Call<Traffic>, ComingBlocks) {
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
    /// let came = ranks.map_ranks(|comm| {
    ///     let blocks = vec![vec![comm.rank() as u8; 3]; 2];
    ///     let mut exchange = comm.exchange_blocks(blocks, BlockLimits::default()).unwrap().start();
    ///     let block = exchange.next_block().unwrap();
    ///     exchange.finish().unwrap();
    ///     block
    /// });
    /// assert_eq!(came, [Some((1, vec![1; 3])), Some((0, vec![0; 3]))]);
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
        let (open, push_bytes) = (BTreeMap::new(), limits.push_bytes);
        let mut both = Both { parts, lens, open, push_bytes, queue: queue.clone() };
        let of_call = queue.clone();
        let call = self.prepare(sig, false, move |ep| async move {
            if both.lens.len() != ep.size() as usize {
                let message = format!("{} blocks for {} ranks", both.lens.len(), ep.size());
                return Err(Error::bad_input(message));
            }
            of_call.lock().call = Arc::downgrade(&ep);
            ep.checksum_input(|sum| both.parts.iter().flatten().for_each(|part| sum.add(part.as_ref())));
            exchange_blocks(&ep, &mut both, limits).await?;
            Ok(ep.traffic())
        })?;
        let order: Vec<u32> = (1..size).map(|far| (me + far) % size).collect();
        Ok(PreparedExchange { call, blocks: ComingBlocks { queue, order: order.into_iter() } })
    }
}
