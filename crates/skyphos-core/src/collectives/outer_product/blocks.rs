//! Blocks of G around the ring of a sub-group: each goes out as its tiles are made.

use super::factors::Factors;
use super::tiles::Tiles;
use super::{BLOCKS, Block, BlockAssignment};
use crate::collectives::around::{Circle, Passing, around};
use crate::endpoint::Endpoint;
use crate::slab::Payload;
use skyphos_kernels::product::Factor;
use skyphos_types::Result;
use std::ops::Range;

/// The pieces of rows in which numbers `place` of a block lie in G, of `m` columns.
fn pieces(block: &Block, m: usize, place: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let (cols, first) = (block.cols.len(), block.rows.start * m + block.cols.start);
    let mut at = place.start;
    std::iter::from_fn(move || {
        (at < place.end).then(|| {
            let (row, col) = (at / cols, at % cols);
            let count = (cols - col).min(place.end - at);
            let start = first + row * m + col;
            at += count;
            start..start + count
        })
    })
}

/// The blocks of a sub-group on this rank.
struct Passed<'a, 'b, T: Factor> {
    ep: &'a Endpoint,
    assignment: &'a BlockAssignment,
    m: usize,
    factors: &'a Factors<T::Sum>,
    tiles: &'a mut Tiles<'b, T>,
    /// This rank's place among the members.
    place: usize,
    /// Where each block begins among the numbers of all, block after block.
    starts: Vec<usize>,
}

/// The member whose block goes out in a step.
fn sent_in(place: usize, count: usize, step: usize) -> usize {
    (place + 2 * count - step) % count
}

impl<T: Factor> Passed<'_, '_, T> {
    fn block(&self, member: usize) -> &Block {
        &self.assignment.blocks[self.assignment.members[member] as usize]
    }

    /// Where numbers of a member's block lie in G.
    fn pieces(&self, member: usize, numbers: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<T> {
        let first = self.starts[member];
        pieces(self.block(member), self.m, numbers.start - first..numbers.end - first)
    }
}

impl<T: Factor> Passing<T> for Passed<'_, '_, T> {
    fn own(&mut self, numbers: Range<usize>, chunk: &mut [T]) -> Result<()> {
        let (end, cols) = (numbers.end - self.starts[self.place], self.block(self.place).cols.len());
        while self.tiles.done_rows() * cols < end
            && self.tiles.step(self.ep, self.factors, self.ep.size() as usize)
        {}
        if self.ep.is_sized() {
            return Ok(());
        }
        let mut rest = chunk;
        for piece in self.pieces(self.place, &numbers) {
            let (here, after) = std::mem::take(&mut rest).split_at_mut(piece.len());
            here.copy_from_slice(&self.tiles.target.numbers[piece]);
            rest = after;
        }
        Ok(())
    }

    fn take(&mut self, step: usize, chunk: Payload, numbers: Range<usize>) -> Result<Payload> {
        if self.ep.is_sized() {
            return Ok(chunk);
        }
        let mut rest = chunk.as_slice::<T>().expect("whole numbers");
        for piece in self.pieces(sent_in(self.place, self.assignment.members.len(), step + 1), &numbers) {
            let (here, after) = rest.split_at(piece.len());
            self.tiles.target.numbers[piece].copy_from_slice(here);
            rest = after;
        }
        Ok(chunk)
    }
}

/// Passes the sub-group's blocks around until this rank has all of G in the tiles' target, which is the whole of it. All factors
/// are there.
pub(super) async fn pass_blocks<T: Factor>(
    ep: &Endpoint,
    assignment: &BlockAssignment,
    m: usize,
    factors: &Factors<T::Sum>,
    tiles: &mut Tiles<'_, T>,
) -> Result<()> {
    let (members, count) = (&assignment.members, assignment.members.len());
    let place = members.iter().position(|rank| *rank == ep.rank()).expect("this rank is a member");
    let mut starts = vec![0];
    members
        .iter()
        .for_each(|rank| starts.push(starts[starts.len() - 1] + assignment.blocks[*rank as usize].len()));
    let bounds = starts.clone();
    let stretch = |step: usize| {
        let member = sent_in(place, count, step);
        bounds[member]..bounds[member + 1]
    };
    let circle = Circle { before: members[(place + count - 1) % count], next: members[(place + 1) % count] };
    let passed = Passed { ep, assignment, m, factors, tiles, place, starts };
    around::<T>(ep, circle, count - 1, |step| BLOCKS + step as u32, stretch, passed).await
}
