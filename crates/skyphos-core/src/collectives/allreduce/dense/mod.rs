//! Allreduce of dense arrays: by the transport's own allreduce ([`native`]), or by one of three schedules that move the
//! fewest bytes possible, 2 (P - 1)/P of the array in each direction.
//!
//! | | rounds | right for |
//! |---|---|---|
//! | [`direct`] | 2; 1 for a few numbers | small arrays |
//! | [`rabenseifner`] | 2 ⌈log2 P⌉ (+ 2) | many ranks, medium sizes (Rabenseifner 2004) |
//! | [`ring`] | 2 (P - 1), overlapped | large arrays: one sender per rank, and the fewest copies |

mod bitmap;
mod direct;
mod native;
mod one_round;
mod rabenseifner;
mod reduce_scatter;
mod ring;

pub use bitmap::with_bitmap;
pub use direct::direct;
pub use native::native;
pub use rabenseifner::rabenseifner;
pub use reduce_scatter::{direct_reduce_scatter, reduce_to_root};
pub use ring::{ring, ring_of_entries, ring_reduce_scatter};

use crate::frame::ARRAYS;
use skyphos_kernels::split_ranges;
use skyphos_types::{Element, ReduceOp, Round};
use std::ops::Range;

/// First rounds of the two phases; each step adds one.
const REDUCE: Round = Round(ARRAYS | 0x1000);
const GATHER: Round = Round(ARRAYS | 0x100_0000);

/// Rounds of the transport's own allreduce: the agreement to use it, and its results.
const AGREEMENT: Round = Round(0x1000);
const NATIVE_RESULTS: Round = Round(ARRAYS | 0x200_0000);

/// Offset of the rounds of a bitmap, whose allreduce runs at the same time as its array's.
const BITMAP: u32 = 0x4000_0000;

/// Even ranges of `len` numbers, one per rank.
fn ranges(len: usize, parts: u32) -> Vec<Range<usize>> {
    split_ranges(0, len as u64, parts).windows(2).map(|w| w[0] as usize..w[1] as usize).collect()
}

/// Turns sums into means. `MeanPresent` also divides by the number of ranks, because an array has a value from each of them.
/// Entries that are absent on all ranks stay absent.
fn finish<T: Element>(op: &ReduceOp, sums: &mut [T], size: u32) {
    if matches!(op, ReduceOp::Mean | ReduceOp::MeanPresent) {
        // Adding zero turns a quotient that rounds to -0, the mark of an absent entry, into 0.
        let mean = |v: T| if v.is_absent() { v } else { v.divide(u64::from(size)).add(T::ZERO) };
        sums.iter_mut().for_each(|v| *v = mean(*v));
    }
}
