//! Allreduce of sparse vectors: every rank gets the reduction of all vectors.
//!
//! Each file is one algorithm. All algorithms move [segments](skyphos_kernels::stream) and fold them in an order that depends
//! only on ranks and options, so every rank gets the same bits every time.

pub mod butterfly;
pub mod dense;
pub mod gather_and_sum;
pub mod recursive_doubling;
pub mod ring;
