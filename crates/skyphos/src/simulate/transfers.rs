//! Simulated calls of collectives that only move bytes: the broadcast, and the exchange of blocks of a shuffle.

use super::choices::{Choices, Slot, put};
use super::scenario::Scenario;
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

/// The root of broadcasts.
const ROOT: u32 = 0;

/// A receive buffer without memory, for a simulation without data.
struct NoMemory;

impl ReceiveBuffer for NoMemory {
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
pub(super) fn broadcast_call(comm: &Comm, scenario: &Scenario, choices: &Slot<Choices>) -> Result<Call<()>> {
    let (options, bytes) = (broadcast_options(scenario), scenario.message_bytes() as usize);
    let is_root = comm.rank() == ROOT;
    let call = match scenario.sized {
        true => {
            let lengths = is_root.then(|| vec![bytes]);
            comm.broadcast_lengths(ROOT, lengths, NoMemory)
                .options(options)
                .prepare()?
                .map(|done| done.choice)
        }
        false => {
            let parts = is_root.then(|| vec![vec![1u8; bytes]]);
            comm.broadcast(ROOT, parts, MessageBuffer::default())
                .options(options)
                .prepare()?
                .map(|done| done.choice)
        }
    };
    let (choices, algorithm) = (choices.clone(), scenario.algorithm);
    Ok(call.map(move |choice| {
        if is_root {
            put(&choices, Choices { algorithm, degrees: Vec::new(), route: Some(choice), outer: None });
        }
    }))
}

/// A rank's rows. Each rank gets an even share of them.
struct RowBlocks {
    /// The first row for each rank, and the end.
    bounds: Vec<u64>,
    row_bytes: usize,
    /// All rows; empty in a simulation without data.
    bytes: Vec<u8>,
    /// Incomplete blocks by sender.
    incomplete: BTreeMap<u32, Vec<u8>>,
}

impl RowBlocks {
    fn new(scenario: &Scenario) -> RowBlocks {
        let Scenario { row_bytes, sized, .. } = *scenario;
        let bounds = row_bounds(scenario);
        let all = bounds.last().map_or(0, |rows| *rows as usize * row_bytes);
        RowBlocks {
            bounds,
            row_bytes,
            bytes: vec![1; if sized { 0 } else { all }],
            incomplete: BTreeMap::new(),
        }
    }

    fn start(&self, rank: u32) -> usize {
        self.bounds[rank as usize] as usize * self.row_bytes
    }
}

/// The first row for each rank, and the end.
fn row_bounds(scenario: &Scenario) -> Vec<u64> {
    split_ranges(0, scenario.entries.round() as u64, scenario.network.ranks)
}

/// Complete blocks are dropped, since the simulation does not merge them.
impl Blocks for RowBlocks {
    fn len_for(&self, to: u32) -> usize {
        self.start(to + 1) - self.start(to)
    }

    fn copy_out(&self, to: u32, at: usize, bytes: &mut [u8]) {
        let from = self.start(to) + at;
        bytes.copy_from_slice(&self.bytes[from..from + bytes.len()]);
    }

    fn block_sent(&mut self, _: u32) {}

    fn begin_block(&mut self, from: u32, _: usize) -> Result<()> {
        self.incomplete.insert(from, Vec::new());
        Ok(())
    }

    fn put(&mut self, from: u32, bytes: &[u8]) -> Result<()> {
        self.incomplete.entry(from).or_default().extend_from_slice(bytes);
        Ok(())
    }

    fn complete_block(&mut self, from: u32) -> Result<()> {
        self.incomplete.remove(&from);
        Ok(())
    }

    fn blocks_in_memory(&self) -> usize {
        0
    }
}

/// The call of a shuffle's exchange of blocks between all ranks. Its stores, and the stage within a host, are not simulated.
pub(super) fn shuffle_call(comm: &Comm, scenario: &Scenario) -> Result<Call<()>> {
    let mut rows = RowBlocks::new(scenario);
    comm.prepare(CallSig::plain(CallKind::ExchangeBlocks), false, move |ep| async move {
        exchange_blocks(&ep, &mut rows, BlockLimits::default()).await
    })
}

/// An upper bound on the frames of a broadcast.
pub(super) fn broadcast_frames(scenario: &Scenario, profile: &Profile) -> f64 {
    let (ranks, bytes) = (scenario.network.ranks, scenario.message_bytes());
    let choice = broadcast_options(scenario).choose(profile, ranks, bytes as usize);
    // Each range of a ring may end with a short chunk, and each rank sends a few control messages.
    let chunks = bytes / choice.chunk_bytes as f64 + f64::from(ranks);
    f64::from(ranks - 1) * (chunks + 4.0)
}

/// An upper bound on the frames of a shuffle: for each block its chunks, its announcement and its request.
pub(super) fn shuffle_frames(scenario: &Scenario) -> f64 {
    let ranks = f64::from(scenario.network.ranks);
    let block = scenario.entries * scenario.row_bytes as f64 / ranks;
    ranks * (ranks - 1.0) * (block / CHUNK_BYTES as f64 + 3.0)
}
