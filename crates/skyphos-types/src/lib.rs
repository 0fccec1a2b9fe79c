//! Types of all layers: element types, reduce operations, errors. The lowest layer.
//!
//! Nothing here sends, waits, or allocates on a call's path.

#![forbid(unsafe_code)]

mod dtype;
mod error;
mod half_float;
mod identifiers;
pub mod names;
mod op;
mod quantities;

pub use dtype::{DType, Element, Real};
pub use error::{Error, NO_MEMBER, Result};
pub use half::{bf16, f16};
pub use identifiers::{CallNumber, CommId, GroupRank, ProcessId, Round, WorldRank};
pub use op::{CustomOp, ReduceOp};
pub use quantities::{Bytes, Seconds};
