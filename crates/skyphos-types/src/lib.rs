//! Words that all layers share: element types, reduce operations, errors.
//!
//! Nothing here sends, waits or allocates in a hot path. Lower than this there is no layer.

mod dtype;
mod error;
mod half_float;
mod op;

pub use dtype::{DType, Element, Real};
pub use error::{Error, NO_MEMBER, Result};
pub use half::{bf16, f16};
pub use op::{CustomOp, ReduceOp};
