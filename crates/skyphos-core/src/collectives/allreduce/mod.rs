//! Allreduce of sparse vectors: every rank gets the reduction of all.
//!
//! One file an algorithm. All of them move [segments](skyphos_kernels::stream) and fold them in an order that
//! ranks and settings fix, so that every rank gets the same bits every time.

pub mod butterfly;
pub mod dense;
pub mod gather_and_sum;
pub mod recursive_doubling;
pub mod ring;
