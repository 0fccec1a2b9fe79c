//! The plan of a configured reduction: the maps and splits of every layer, and buffers to reduce with.
//!
//! Node layers are numbered as in Kylix §III: layer 0 is the user's sets, layer i the sets of a rank after communication layer i.
//! Positions are in hash order. A plan determines all of a reduction's sends, receives, folds and gathers; it does not depend on
//! values.

use crate::slab::{AlignedVec, Payload};
use crate::{Incoming, Outgoing};
use skyphos_kernels::{BlockHash, Prepared};
use skyphos_types::GroupRank;
use std::collections::VecDeque;
use std::sync::Arc;

/// The positions of a share's rows in a union. In a simulation without data only their number is known.
#[derive(Clone, Debug)]
pub enum Map {
    /// The position of each row, ascending.
    Positions(Arc<Vec<u32>>),
    /// Only the number of rows; they count as spread evenly.
    Sized {
        /// Rows of the share.
        len: usize,
        /// Rows of the union.
        into: usize,
    },
}

impl Map {
    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            Map::Positions(positions) => positions.len(),
            Map::Sized { len, .. } => *len,
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The positions; empty without data.
    pub fn positions(&self) -> &[u32] {
        match self {
            Map::Positions(positions) => positions,
            Map::Sized { .. } => &[],
        }
    }

    /// The positions, mutable; empty without data.
    pub(crate) fn positions_mut(&mut self) -> &mut [u32] {
        match self {
            Map::Positions(positions) => Arc::make_mut(positions).as_mut_slice(),
            Map::Sized { .. } => &mut [],
        }
    }

    /// The position of a row; `None` beyond the last row.
    pub(crate) fn position(&self, row: usize) -> Option<usize> {
        match self {
            Map::Positions(positions) => positions.get(row).map(|position| *position as usize),
            Map::Sized { len, into } => (row < *len).then(|| spread(row, *len, *into)),
        }
    }

    /// The first row, from `row` on, whose position is at least `position`.
    pub(crate) fn first_from(&self, row: usize, position: usize) -> usize {
        match self {
            Map::Positions(positions) => row + positions[row..].partition_point(|p| (*p as usize) < position),
            Map::Sized { len, into } => spread(position, *into, *len).max(row).min(*len),
        }
    }
}

/// The position of row k of `rows` rows that are spread evenly over `into` positions.
fn spread(k: usize, rows: usize, into: usize) -> usize {
    (k as u128 * into as u128).div_ceil(rows.max(1) as u128) as usize
}

/// One communication layer of one rank.
#[derive(Debug)]
pub struct Layer {
    /// The ranks of this layer's group, ascending. Member j is the rank at index j.
    pub members: Vec<GroupRank>,
    /// This rank's position in `members`.
    pub me: usize,
    /// Positions in the out-set above at which each member's share begins; one more at the end.
    pub out_split: Vec<usize>,
    /// Positions in the in-set above at which each member's share begins; one more at the end.
    pub in_split: Vec<usize>,
    /// By member: the map from its out-share to the out-union below (Kylix's maps going down).
    pub out_maps: Vec<Map>,
    /// By member: the map from its in-share to the in-union below. In the last layer, where the in-set meets the out-set, the
    /// map leads to the out-union (*Sparse Allreduce*'s finalMap, composed), or to `out_len` for an index that no rank
    /// contributes. If the in-set and the out-set are equal, the maps share their memory with `out_maps`.
    pub in_maps: Vec<Map>,
    /// Indices in the out-union below.
    pub out_len: usize,
    /// Indices in the in-union below.
    pub in_len: usize,
    /// Bytes this rank sent to others to configure this layer: going down, coming back up.
    pub config_bytes: [u64; 2],
}

/// Seconds of the last reduction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// The whole reduction.
    pub total_s: f64,
    /// Waiting while some peer had sent nothing yet in the current layer.
    pub wait_s: f64,
    /// Waiting while data was under way from all peers.
    pub transfer_s: f64,
}

impl Stats {
    /// Gathering, folding, scattering, and handing data to the transport.
    pub fn merge_s(&self) -> f64 {
        self.total_s - self.wait_s - self.transfer_s
    }
}

/// Traffic of one layer in one direction, in rows of `width` numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Communication layer, from 1.
    pub layer: usize,
    /// Its degree.
    pub degree: usize,
    /// Whether the traffic goes up.
    pub up: bool,
    /// Messages to other ranks.
    pub messages: usize,
    /// Rows in them.
    pub rows: usize,
    /// Rows that stay on this rank.
    pub own_rows: usize,
    /// Bytes sent to other ranks by `configure`.
    pub config_bytes: u64,
}

/// The predicted cost of a layer: bytes sent and received, messages, rounds, processor seconds, seconds.
pub type Expected = [f64; 6];

/// Degrees that were considered for a plan, with their predicted costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Considered {
    /// Degree of each layer.
    pub degrees: Vec<u32>,
    /// The configuration's costs: each layer down, then up.
    pub configure: Vec<Expected>,
    /// A reduction's costs: each layer down, then up.
    pub reduce: Vec<Expected>,
}

/// A configured reduction: a rank contributes values at the indices of `contribute`, and gets results at those of `want`.
#[derive(Debug)]
pub struct Plan {
    /// The plan's number, which is the same on all ranks.
    pub id: u32,
    /// Size of the index space.
    pub n: u64,
    /// Numbers per index.
    pub width: usize,
    /// Degree of each layer.
    pub degrees: Vec<u32>,
    /// The permutation of blocks.
    pub hash: BlockHash,
    /// The indices that this rank contributes.
    pub contribute: Prepared,
    /// The indices whose results this rank gets.
    pub want: Prepared,
    /// Length of the user's `contribute`, repeats included.
    pub contribute_len: usize,
    /// Length of the user's `want`.
    pub want_len: usize,
    /// If the planner chose the degrees: the chosen ones, and the next best.
    pub considered: Vec<Considered>,
    /// The layers, from the top.
    pub layers: Vec<Layer>,
    /// Number of ranks that contribute each index of this rank's bottom range; computed when it is first needed.
    pub(crate) present: Option<Vec<u32>>,
    pub(crate) buffers: Buffers,
    /// Times of the last reduction.
    pub stats: Stats,
}

impl Plan {
    /// Traffic of one reduction, layer by layer: down, then up.
    pub fn volume(&self) -> Vec<Volume> {
        let volume = |k: usize, layer: &Layer, up: bool| {
            // Down, this rank sends shares of its set above; up, the values that each member requested.
            let rows = |j: usize| match up {
                false => layer.out_split[j + 1] - layer.out_split[j],
                true => layer.in_maps[j].len(),
            };
            let all: usize = (0..layer.members.len()).map(rows).sum();
            Volume {
                layer: k + 1,
                degree: layer.members.len(),
                up,
                messages: layer.members.len() - 1,
                rows: all - rows(layer.me),
                own_rows: rows(layer.me),
                config_bytes: layer.config_bytes[usize::from(up)],
            }
        };
        let down = self.layers.iter().enumerate().map(|(k, l)| volume(k, l, false));
        let up = self.layers.iter().enumerate().rev().map(|(k, l)| volume(k, l, true));
        down.chain(up).collect()
    }
}

/// A received chunk that waits for chunks of earlier ranks.
#[derive(Debug)]
pub(crate) struct WaitingChunk {
    pub(crate) chunk: Payload,
    /// First row of the chunk in its message.
    pub(crate) start: usize,
    pub(crate) rows: usize,
}

/// Buffers that all reductions of a plan reuse, so a steady sequence allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// Sums on the way down, one per layer. Each is one row longer than the union: the last row is the identity.
    pub(crate) down: Vec<AlignedVec>,
    /// Results on the way up, between layers.
    pub(crate) up: Vec<AlignedVec>,
    /// Values in hash order, with repeated indices added up.
    pub(crate) staged: AlignedVec,
    pub(crate) sends: Vec<Outgoing>,
    pub(crate) receives: Vec<Incoming>,
    pub(crate) waiting: Vec<VecDeque<WaitingChunk>>,
    /// Rows received from each member.
    pub(crate) received: Vec<usize>,
    /// The positions at which fold blocks cut the maps, by layer.
    pub(crate) cuts: Vec<BlockCuts>,
}

/// By member: the indices in its out-map at which fold blocks begin; one more at the end.
/// Searching the maps for every block would cost as much as folding it.
#[derive(Debug, Default)]
pub(crate) struct BlockCuts {
    block_rows: usize,
    starts: Vec<Vec<u32>>,
}

impl BlockCuts {
    /// Computes the cuts for blocks of `block_rows`, unless they are computed already.
    pub(crate) fn prepare(&mut self, layer: &Layer, block_rows: usize) {
        if self.block_rows == block_rows {
            return;
        }
        self.block_rows = block_rows;
        let blocks = layer.out_len.div_ceil(block_rows);
        let cut = |map: &Map| {
            let mut starts = Vec::with_capacity(blocks + 1);
            let mut at = 0;
            for block in 0..blocks {
                at = map.first_from(at, block * block_rows);
                starts.push(at as u32);
            }
            starts.push(map.len() as u32);
            starts
        };
        self.starts = layer.out_maps.iter().map(cut).collect();
    }

    /// Number of rows of all members that are folded into `blocks`.
    pub(crate) fn rows(&self, blocks: std::ops::Range<usize>) -> usize {
        self.starts.iter().map(|starts| (starts[blocks.end] - starts[blocks.start]) as usize).sum()
    }

    /// The rows of member j that are folded into a block.
    pub(crate) fn rows_of(&self, j: usize, block: usize) -> std::ops::Range<usize> {
        self.starts[j][block] as usize..self.starts[j][block + 1] as usize
    }
}
