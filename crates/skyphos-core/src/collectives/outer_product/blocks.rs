//! Exchange of the blocks of G, the sum of all outer products, on the ring of a sub-group. Each rank sends its block while the
//! block's tiles are computed.

use super::factors::Factors;
use super::tiles::Tiles;
use super::{BLOCKS, Block, BlockAssignment};
use crate::collectives::ring_pipeline::{RingNeighbours, RingStep, ring_pipeline};
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use skyphos_kernels::product::Factor;
use skyphos_types::Result;
use std::ops::Range;

/// Ranges of G (row-major, `m` columns) that hold the elements `numbers` of a block, counted row by row in the block. One range a
/// row.
fn pieces(block: &Block, m: usize, numbers: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let (cols, first) = (block.cols.len(), block.rows.start * m + block.cols.start);
    let mut at = numbers.start;
    std::iter::from_fn(move || {
        (at < numbers.end).then(|| {
            let (row, col) = (at / cols, at % cols);
            let count = (cols - col).min(numbers.end - at);
            let start = first + row * m + col;
            at += count;
            start..start + count
        })
    })
}

/// The blocks of a sub-group, in this rank's result.
struct BlockRing<'a, 'b, T: Factor> {
    ep: &'a Endpoint,
    assignment: &'a BlockAssignment,
    m: usize,
    factors: &'a Factors<T::Sum>,
    tiles: &'a mut Tiles<'b, T>,
    /// This rank's index among the members.
    index: usize,
    /// Offset of each block if all blocks were stored one after the other.
    starts: Vec<usize>,
}

/// The index of the member whose block is sent in a step.
fn member_sent_in(index: usize, count: usize, step: usize) -> usize {
    (index + 2 * count - step) % count
}

impl<T: Factor> BlockRing<'_, '_, T> {
    fn block(&self, member: usize) -> &Block {
        &self.assignment.blocks[self.assignment.members[member] as usize]
    }

    /// Ranges of G that hold the elements `numbers` of a member's block; offsets as in `starts`.
    fn pieces(&self, member: usize, numbers: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<T> {
        let first = self.starts[member];
        pieces(self.block(member), self.m, numbers.start - first..numbers.end - first)
    }
}

impl<T: Factor> RingStep<T> for BlockRing<'_, '_, T> {
    fn fill(&mut self, numbers: Range<usize>, chunk: &mut [T]) -> Result<()> {
        let (end, cols) = (numbers.end - self.starts[self.index], self.block(self.index).cols.len());
        while self.tiles.done_rows() * cols < end
            && self.tiles.step(self.ep, self.factors, self.ep.size() as usize)
        {}
        if self.ep.is_sized() {
            return Ok(());
        }
        let mut rest = chunk;
        for piece in self.pieces(self.index, &numbers) {
            let (here, after) = std::mem::take(&mut rest).split_at_mut(piece.len());
            here.copy_from_slice(&self.tiles.target.numbers[piece]);
            rest = after;
        }
        Ok(())
    }

    fn receive(&mut self, step: usize, chunk: Payload, numbers: Range<usize>) -> Result<Payload> {
        if self.ep.is_sized() {
            return Ok(chunk);
        }
        let mut rest = chunk.as_slice::<T>().expect("whole numbers");
        for piece in
            self.pieces(member_sent_in(self.index, self.assignment.members.len(), step + 1), &numbers)
        {
            let (here, after) = rest.split_at(piece.len());
            self.tiles.target.numbers[piece].copy_from_slice(here);
            rest = after;
        }
        Ok(chunk)
    }
}

/// Exchanges the sub-group's blocks, after which the tiles' target, the whole of G, is complete. All factors must have arrived.
pub(super) async fn exchange_blocks<T: Factor>(
    ep: &Endpoint,
    assignment: &BlockAssignment,
    m: usize,
    factors: &Factors<T::Sum>,
    tiles: &mut Tiles<'_, T>,
) -> Result<()> {
    let (members, count) = (&assignment.members, assignment.members.len());
    let index = members.iter().position(|rank| *rank == ep.rank().0).expect("this rank is a member");
    let mut starts = vec![0];
    members
        .iter()
        .for_each(|rank| starts.push(starts[starts.len() - 1] + assignment.blocks[*rank as usize].len()));
    let bounds = starts.clone();
    let sent_range = |step: usize| {
        let member = member_sent_in(index, count, step);
        bounds[member]..bounds[member + 1]
    };
    let (previous, next) = (members[(index + count - 1) % count], members[(index + 1) % count]);
    let neighbours = RingNeighbours { previous, next };
    let ring = BlockRing { ep, assignment, m, factors, tiles, index, starts };
    ring_pipeline::<T>(ep, neighbours, count - 1, |step| BLOCKS + step as u32, sent_range, ring).await
}
