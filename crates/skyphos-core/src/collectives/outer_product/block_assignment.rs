//! Assignment of the blocks of G, the sum of all outer products, to ranks, and the ring on which ranks exchange their blocks.
//!
//! Each sub-group of ranks has the whole of G, cut by a grid into one block per rank. The ranks of a sub-group are in the
//! topology's order, so the ranks of a host share rows of G, and the ring enters each host once.

use crate::topology::Topology;
use skyphos_kernels::split_ranges;
use skyphos_types::{Error, Result};
use std::ops::Range;

/// The extent of the sub-groups. The ranks of a sub-group together own G.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Each rank alone: no blocks are exchanged.
    Rank,
    /// The ranks of a host.
    Host,
    /// The ranks of a rack.
    Rack,
    /// All ranks: the algorithm of *DSOP*.
    All,
}

impl Level {
    /// All levels.
    pub const ALL: [Level; 4] = [Level::Rank, Level::Host, Level::Rack, Level::All];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Level::Rank => "rank",
            Level::Host => "host",
            Level::Rack => "rack",
            Level::All => "all",
        }
    }
}

/// A block of G.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Rows of G.
    pub rows: Range<usize>,
    /// Columns of G.
    pub cols: Range<usize>,
}

impl Block {
    /// Rows times columns.
    pub fn len(&self) -> usize {
        self.rows.len() * self.cols.len()
    }

    /// Whether the block has no numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of each pair (of a and b together) that the block needs.
    pub fn pair_len(&self) -> usize {
        self.rows.len() + self.cols.len()
    }
}

/// The blocks of all ranks, and the ring of this rank's sub-group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockAssignment {
    /// Ranks of this rank's sub-group, in the order of the ring.
    pub members: Vec<u32>,
    /// The block of each rank of the group.
    pub blocks: Vec<Block>,
}

/// The grid (rows and columns of blocks, one block per rank) for which a block needs the fewest elements of the factors.
pub fn best_grid(ranks: u32, n: usize, m: usize) -> (u32, u32) {
    let needs = |rows: u32, cols: u32| n.div_ceil(rows as usize) + m.div_ceil(cols as usize);
    let grids = (1..=ranks).filter(|rows| ranks.is_multiple_of(*rows)).map(|rows| (rows, ranks / rows));
    grids.min_by_key(|(rows, cols)| (needs(*rows, *cols), *cols)).expect("1 divides all")
}

fn cut(len: usize, parts: u32, part: u32) -> Range<usize> {
    let bounds = split_ranges(0, len as u64, parts);
    bounds[part as usize] as usize..bounds[part as usize + 1] as usize
}

impl BlockAssignment {
    /// Assigns the blocks of G, `n` by `m`, in sub-groups of a level. `grid` is the number of rows and of columns of blocks;
    /// `None` stands for [`best_grid`].
    pub fn new(
        topology: &Topology,
        me: u32,
        level: Level,
        grid: Option<(u32, u32)>,
        (n, m): (usize, usize),
    ) -> Result<BlockAssignment> {
        let size = topology.hosts().len() as u32;
        let group_of = |rank: u32| match level {
            Level::Rank => rank,
            Level::Host => topology.hosts()[rank as usize],
            Level::Rack => topology.racks()[rank as usize],
            Level::All => 0,
        };
        let in_order: Vec<u32> = (0..size).map(|k| topology.rank_at(k)).collect();
        let mut groups: Vec<Vec<u32>> = vec![Vec::new(); size as usize];
        in_order.iter().for_each(|rank| groups[group_of(*rank) as usize].push(*rank));
        let mut blocks = vec![Block::default(); size as usize];
        for group in groups.iter().filter(|group| !group.is_empty()) {
            let count = group.len() as u32;
            let (rows, cols) = grid.unwrap_or_else(|| best_grid(count, n, m));
            if rows.checked_mul(cols) != Some(count) {
                return Err(Error::bad_input(format!(
                    "grid=({rows}, {cols}) does not have one block for each of {count} ranks"
                )));
            }
            for (k, rank) in (0..).zip(group) {
                let (row, col) = (k / cols, k % cols);
                blocks[*rank as usize] = Block { rows: cut(n, rows, row), cols: cut(m, cols, col) };
            }
        }
        let members = groups.swap_remove(group_of(me) as usize);
        Ok(BlockAssignment { members, blocks })
    }

    /// Assigns rows of G to ranks in rank order, for a reduce-scatter. No blocks are exchanged.
    pub fn rows(size: u32, me: u32, (n, m): (usize, usize)) -> BlockAssignment {
        let block = |rank| Block { rows: cut(n, size, rank), cols: 0..m };
        BlockAssignment { members: vec![me], blocks: (0..size).map(block).collect() }
    }

    /// Assigns the whole of G to each rank, which then needs all factors.
    pub fn whole(size: u32, me: u32, (n, m): (usize, usize)) -> BlockAssignment {
        BlockAssignment { members: vec![me], blocks: vec![Block { rows: 0..n, cols: 0..m }; size as usize] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subgroup_covers_the_matrix_once() {
        let hosts = [0, 1, 0, 2, 1, 0, 2, 3, 3, 3, 1, 0, 2];
        let racks: Vec<u32> = hosts.iter().map(|host| host / 2).collect();
        let topology = Topology::new(&hosts, &racks).unwrap();
        for (n, m) in [(10, 7), (3, 40), (1, 1), (0, 5), (64, 64)] {
            for level in Level::ALL {
                let mut covered = vec![0; n * m];
                let mut groups: Vec<Vec<u32>> = Vec::new();
                for me in 0..13 {
                    let assignment = BlockAssignment::new(&topology, me, level, None, (n, m)).unwrap();
                    assert!(assignment.members.contains(&me));
                    let block = &assignment.blocks[me as usize];
                    for row in block.rows.clone() {
                        block.cols.clone().for_each(|col| covered[row * m + col] += 1);
                    }
                    if !groups.contains(&assignment.members) {
                        groups.push(assignment.members);
                    }
                }
                assert!(covered.iter().all(|times| *times == groups.len()), "{level:?} {n} {m}");
                let want = match level {
                    Level::Rank => 13,
                    Level::Host => 4,
                    Level::Rack => 2,
                    Level::All => 1,
                };
                assert_eq!(groups.len(), want);
            }
        }
        let error = BlockAssignment::new(&topology, 0, Level::All, Some((2, 6)), (9, 9)).unwrap_err();
        assert!(error.to_string().contains("13 ranks"), "{error}");
    }

    #[test]
    fn the_best_grid_needs_the_fewest_numbers() {
        assert_eq!(best_grid(8, 4000, 4000), (4, 2));
        assert_eq!(best_grid(8, 4000, 10), (8, 1));
        assert_eq!(best_grid(8, 10, 4000), (1, 8));
        assert_eq!(best_grid(7, 100, 100), (7, 1));
        assert_eq!(best_grid(16, 100, 100), (4, 4));
    }
}
