//! Sums of outer products: G = Σᵢ aᵢᵀ bᵢ, where rank i has rᵢ rows of a (N numbers each) and of b (M each) (*DSOP*:
//! Enderlin et al.).
//!
//! | algorithm | numbers received per rank | multiply-adds per rank | right for |
//! |---|---|---|---|
//! | [`by_owners`], sub-groups of one rank | all factors, K (N + M) | K N M | thin factors (few pairs), slow links |
//! | [`by_owners`], sub-groups of a host, a rack or all ranks | slices of the factors, then N M | K N M / owners | thick factors (many pairs) |
//! | [`ring`] | 2 N M | r N M | factors thicker than G |
//!
//! with K = Σ rᵢ. The first two rows are one algorithm, the paper's generalized Rabenseifner (§5.3), extended by its future work (§8):
//! each rank of a sub-group owns a block of G; every rank sends each owner the slices of its factors that the block needs; the
//! owners multiply; and the ranks of a sub-group exchange their blocks on a ring. A sub-group of one rank is the paper's
//! allgather (§5.1). Products are computed tile by tile between messages, and a block is sent as its tiles are ready.
//!
//! Every number of G is a sum over pairs in rank order, on every rank; with [`ring`], in the order of the ring.

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
use skyphos_types::{Error, Result, Round};

/// Rounds of the numbers of pairs, of the factors, and of the blocks or the ring (the step is added).
const SHAPES: Round = Round(0x2000);
const FACTORS: Round = Round(ARRAYS | 0x3000);
const BLOCKS: Round = Round(ARRAYS | 0x300_0000);

/// The shape of a sum, which all ranks know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProductShape {
    /// Rows of G; length of a row of `a`.
    pub n: usize,
    /// Columns of G; length of a row of `b`.
    pub m: usize,
    /// Number of pairs of each rank; a pair is a row of a and the row of b that it is multiplied with.
    pub pairs: Vec<usize>,
}

impl ProductShape {
    /// Number of pairs on all ranks.
    pub fn all_pairs(&self) -> usize {
        self.pairs.iter().sum()
    }

    /// The index of each rank's first pair among all pairs; the last item is the number of pairs.
    fn starts(&self) -> Vec<usize> {
        let mut starts = vec![0];
        for pairs in &self.pairs {
            starts.push(starts[starts.len() - 1] + pairs);
        }
        starts
    }
}

/// A rank's factors: its rows of a, and equally many rows of b, both row-major.
#[derive(Clone, Copy, Debug)]
pub struct Pairs<'a, T> {
    /// Rows of N numbers.
    pub a: &'a [T],
    /// Rows of M numbers.
    pub b: &'a [T],
}

/// Gathers the numbers of every rank, of which the first is its number of pairs. In a simulation without data all ranks give the
/// same numbers. Cost: ⌈log2 P⌉ α.
pub async fn gather_numbers(ep: &Endpoint, mine: &[f64]) -> Result<Vec<Vec<f64>>> {
    if ep.is_sized() {
        barrier_from(ep, SHAPES).await?;
        return Ok(vec![mine.to_vec(); ep.size() as usize]);
    }
    let bits: Vec<u64> = mine.iter().map(|number| number.to_bits()).collect();
    let all = allgather_numbers(ep, SHAPES, &bits).await?;
    let numbers = |bits: Vec<u64>| bits.into_iter().map(f64::from_bits).collect();
    Ok(all.into_iter().map(numbers).collect())
}

/// Refuses factors whose lengths are not those of `pairs` rows.
pub fn check_pairs(n: usize, m: usize, pairs: usize, a: usize, b: usize) -> Result<()> {
    match pairs.checked_mul(n) == Some(a) && pairs.checked_mul(m) == Some(b) {
        true => Ok(()),
        false => Err(Error::bad_input(format!(
            "factors of {a} and {b} numbers are not {pairs} rows of {n} and of {m}"
        ))),
    }
}
