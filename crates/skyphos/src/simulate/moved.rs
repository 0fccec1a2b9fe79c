//! Simulated calls of collectives that only move bytes: the broadcast, and the exchange of blocks of a shuffle.

use super::Scenario;
use super::calls::{Settled, Slot, put};
use crate::{BroadcastOptions, Comm};
use skyphos_core::Call;
use skyphos_core::collectives::broadcast::{HostCopy, MessageBuffer, ReceiveBuffer};
use skyphos_core::collectives::exchange_blocks::{BlockLimits, Blocks, exchange_blocks};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_kernels::split_ranges;
use skyphos_plan::Profile;
use skyphos_types::Result;
use std::collections::BTreeMap;
use std::ops::Range;

/// Who has the message.
const ROOT: u32 = 0;

/// A room of which there is nothing but the length.
struct Nowhere;

impl ReceiveBuffer for Nowhere {
    fn allocate(&mut self, _: &[usize]) -> Result<()> {
        Ok(())
    }

    fn write(&mut self, _: usize, _: &[u8]) {}

    fn read(&self, _: usize, _: &mut [u8]) {}

    fn set_shared(&mut self, _: HostCopy, _: Vec<Range<usize>>) {}
}

/// The options of a scenario's broadcast.
pub(super) fn broadcast_options(scenario: &Scenario) -> BroadcastOptions {
    let Scenario { route, chunk_bytes, .. } = *scenario;
    BroadcastOptions { route, chunk_bytes, ack_timeout: None }
}

/// The call of a broadcast of one part, n rows long.
pub(super) fn broadcast_call(comm: &Comm, scenario: &Scenario, settled: &Slot<Settled>) -> Result<Call<()>> {
    let (options, bytes) = (broadcast_options(scenario), scenario.message_bytes() as usize);
    let is_root = comm.rank() == ROOT;
    let call = match scenario.sized {
        true => {
            let lengths = is_root.then(|| vec![bytes]);
            comm.broadcast_lengths(ROOT, lengths, Nowhere).options(options).prepare()?.map(|done| done.way)
        }
        false => {
            let parts = is_root.then(|| vec![vec![1u8; bytes]]);
            comm.broadcast(ROOT, parts, MessageBuffer::default())
                .options(options)
                .prepare()?
                .map(|done| done.way)
        }
    };
    let (settled, algorithm) = (settled.clone(), scenario.algorithm);
    Ok(call.map(move |way| {
        if is_root {
            put(&settled, Settled { algorithm, degrees: Vec::new(), way: Some(way), outer: None });
        }
    }))
}

/// Rows of a rank, spread evenly over all: where those for each begin, and the end.
struct Rows {
    bounds: Vec<u64>,
    row_bytes: usize,
    /// All of them; nothing where there are only lengths.
    bytes: Vec<u8>,
    /// By rank: what has come so far.
    coming: BTreeMap<u32, Vec<u8>>,
}

impl Rows {
    fn new(scenario: &Scenario) -> Rows {
        let Scenario { row_bytes, sized, .. } = *scenario;
        let bounds = shares(scenario);
        let all = bounds.last().map_or(0, |rows| *rows as usize * row_bytes);
        Rows { bounds, row_bytes, bytes: vec![1; if sized { 0 } else { all }], coming: BTreeMap::new() }
    }

    fn start(&self, rank: u32) -> usize {
        self.bounds[rank as usize] as usize * self.row_bytes
    }
}

/// The first row for each rank, and the end.
fn shares(scenario: &Scenario) -> Vec<u64> {
    split_ranges(0, scenario.entries.round() as u64, scenario.network.ranks)
}

/// Complete blocks are dropped, since the simulation does not merge them.
impl Blocks for Rows {
    fn len_for(&self, to: u32) -> usize {
        self.start(to + 1) - self.start(to)
    }

    fn copy_out(&self, to: u32, at: usize, bytes: &mut [u8]) {
        let from = self.start(to) + at;
        bytes.copy_from_slice(&self.bytes[from..from + bytes.len()]);
    }

    fn block_sent(&mut self, _: u32) {}

    fn begin_block(&mut self, from: u32, _: usize) -> Result<()> {
        self.coming.insert(from, Vec::new());
        Ok(())
    }

    fn put(&mut self, from: u32, bytes: &[u8]) -> Result<()> {
        self.coming.entry(from).or_default().extend_from_slice(bytes);
        Ok(())
    }

    fn complete_block(&mut self, from: u32) -> Result<()> {
        self.coming.remove(&from);
        Ok(())
    }

    fn blocks_in_memory(&self) -> usize {
        0
    }
}

/// The call of a shuffle's exchange of blocks between all ranks. Its stores, and the stage within a host, are not simulated.
pub(super) fn shuffle_call(comm: &Comm, scenario: &Scenario) -> Result<Call<()>> {
    let mut rows = Rows::new(scenario);
    comm.prepare(CallSig::plain(CallKind::ExchangeBlocks), false, move |ep| async move {
        exchange_blocks(&ep, &mut rows, BlockLimits::default()).await
    })
}

/// An upper bound on the frames of a broadcast.
pub(super) fn broadcast_frames(scenario: &Scenario, profile: &Profile) -> f64 {
    let (ranks, bytes) = (scenario.network.ranks, scenario.message_bytes());
    let way = broadcast_options(scenario).way(profile, ranks, bytes as usize);
    // Each range of a ring may end with a short chunk, and each rank sends a few control messages.
    let chunks = bytes / way.chunk_bytes as f64 + f64::from(ranks);
    f64::from(ranks - 1) * (chunks + 4.0)
}

/// An upper bound on the frames of a shuffle: for each block its chunks, its announcement and its request.
pub(super) fn shuffle_frames(scenario: &Scenario) -> f64 {
    let ranks = f64::from(scenario.network.ranks);
    let block = scenario.entries * scenario.row_bytes as f64 / ranks;
    ranks * (ranks - 1.0) * (block / CHUNK_BYTES as f64 + 3.0)
}
