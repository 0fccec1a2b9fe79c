//! Sums of outer products: G = Σᵢ aᵢᵀ bᵢ, where rank i holds rᵢ rows of a (N numbers each) and of b (M each) (*DSOP*).
//!
//! | | what travels, for each rank | multiply-adds of a rank | right for |
//! |---|---|---|---|
//! | [`by_owners`], each rank alone | all factors, K (N + M) | K N M | thin factors, slow links |
//! | [`by_owners`], a host's, a rack's or all ranks together | their slices of the factors, then N M | K N M / owners | thick factors |
//! | [`ring`] | 2 N M | r N M | factors thicker than G |
//!
//! with K = Σ rᵢ. The first two are one algorithm, the generalized Rabenseifner of the paper (§5.3) with its future work (§8):
//! the ranks of a sub-group own a block of G each, every rank sends each owner the slices of its factors that the block needs,
//! owners multiply, and the sub-group's ranks pass their blocks around. A sub-group of one is the paper's allgather (§5.1).
//! Products are made a tile at a time between messages, and blocks travel as their tiles are ready.
//!
//! Every number of G is summed by pairs in the order of ranks, whoever sums it; for rings in the order of the ring.

mod block_assignment;
mod blocks;
mod exchange;
mod factors;
mod local;
mod owners;
mod ring;
mod tiles;

pub use block_assignment::{Block, BlockAssignment, Level, best_grid};
pub use local::{butterfly, own_product};
pub use owners::{Exchange, by_owners, gather_factors};
pub use ring::{ring, ring_reduce_scatter};
pub use tiles::Gathered;

use crate::collectives::allgather::allgather_numbers;
use crate::collectives::barrier::barrier_from;
use crate::endpoint::Endpoint;
use crate::frame::ARRAYS;
use skyphos_types::{Error, Result};

/// Rounds: of telling how many rows there are, of factors, and of blocks and the ring (plus the step).
const TELL: u32 = 0x2000;
const FACTORS: u32 = ARRAYS | 0x3000;
const BLOCKS: u32 = ARRAYS | 0x300_0000;

/// What all ranks know of a sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Rows of G: numbers of a row of a.
    pub n: usize,
    /// Columns of G: numbers of a row of b.
    pub m: usize,
    /// Pairs of rows of each rank.
    pub pairs: Vec<usize>,
}

impl Terms {
    /// Pairs of all ranks.
    pub fn all_pairs(&self) -> usize {
        self.pairs.iter().sum()
    }

    /// Where each rank's pairs begin among all, and where the last end.
    fn starts(&self) -> Vec<usize> {
        let mut starts = vec![0];
        for pairs in &self.pairs {
            starts.push(starts[starts.len() - 1] + pairs);
        }
        starts
    }
}

/// A rank's factors: its rows of a, and as many of b, row after row.
#[derive(Clone, Copy, Debug)]
pub struct Pairs<'a, T> {
    /// Rows of N numbers.
    pub a: &'a [T],
    /// Rows of M.
    pub b: &'a [T],
}

/// Tells all ranks some numbers, the first of them how many pairs this one has, and gets theirs. Without data all say the
/// same. Cost: ⌈log2 P⌉ α.
pub async fn tell(ep: &Endpoint, said: &[f64]) -> Result<Vec<Vec<f64>>> {
    if ep.is_sized() {
        barrier_from(ep, TELL).await?;
        return Ok(vec![said.to_vec(); ep.size() as usize]);
    }
    let bits: Vec<u64> = said.iter().map(|number| number.to_bits()).collect();
    let all = allgather_numbers(ep, TELL, &bits).await?;
    let numbers = |bits: Vec<u64>| bits.into_iter().map(f64::from_bits).collect();
    Ok(all.into_iter().map(numbers).collect())
}

/// Refuses factors that are not whole rows, or as many of one as of the other.
pub fn check_pairs(n: usize, m: usize, pairs: usize, a: usize, b: usize) -> Result<()> {
    match pairs.checked_mul(n) == Some(a) && pairs.checked_mul(m) == Some(b) {
        true => Ok(()),
        false => Err(Error::bad_input(format!(
            "factors of {a} and {b} numbers are not {pairs} rows of {n} and of {m}"
        ))),
    }
}
