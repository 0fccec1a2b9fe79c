//! Allreduce of dense arrays: by the transport itself where it can ([`by_transport`]), and three schedules that move the least bytes, 2 (P - 1)/P of the array each way.
//!
//! | | rounds | right for |
//! |---|---|---|
//! | [`direct`] | 2; 1 for a few numbers | small arrays |
//! | [`rabenseifner`] | 2 ⌈log2 P⌉ (+ 2) | many ranks, medium sizes (Rabenseifner 2004) |
//! | [`ring`] | 2 (P - 1), overlapping | large arrays: each rank hears from one other only, and copies least |

mod at_once;
mod bitmap;
mod by_transport;
mod direct;
mod parts;
mod rabenseifner;
mod ring;

pub use bitmap::with_bitmap;
pub use by_transport::by_transport;
pub use direct::direct;
pub use parts::{direct_reduce_scatter, reduce_to_root};
pub use rabenseifner::rabenseifner;
pub use ring::{ring, ring_of_entries, ring_reduce_scatter};

use crate::frame::ARRAYS;
use skyphos_kernels::split_ranges;
use skyphos_types::{Element, ReduceOp};
use std::ops::Range;

/// Rounds of the phases (plus the step).
const REDUCE: u32 = ARRAYS | 0x1000;
const GATHER: u32 = ARRAYS | 0x100_0000;

/// Rounds of the transport's own allreduce: of asking, and of what comes of it.
const ASK: u32 = 0x1000;
const OWN: u32 = ARRAYS | 0x200_0000;

/// Added to those of the bitmap that goes with an array.
const BITMAP: u32 = 0x4000_0000;

/// Even ranges of `len` numbers, one a rank.
fn ranges(len: usize, parts: u32) -> Vec<Range<usize>> {
    split_ranges(0, len as u64, parts).windows(2).map(|w| w[0] as usize..w[1] as usize).collect()
}

fn finish<T: Element>(op: &ReduceOp, part: &mut [T], size: u32) {
    if matches!(op, ReduceOp::Mean | ReduceOp::MeanPresent) {
        // Of dense arrays every rank has every entry. A quotient that is too small for the type is not taken for absent.
        let mean = |v: T| if v.is_absent() { v } else { v.divide(u64::from(size)).add(T::ZERO) };
        part.iter_mut().for_each(|v| *v = mean(*v));
    }
}
