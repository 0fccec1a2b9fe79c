//! Hashes in a call's signature: the shape of an array, and the name of a custom operation.

use skyphos_types::ReduceOp;
use std::sync::Arc;

/// The shape of an array; `None`: it has one dimension.
pub type Shape = Option<Arc<[usize]>>;

/// The shape of an array of these dimensions.
pub fn shape_of(dimensions: &[usize]) -> Shape {
    (dimensions.len() != 1).then(|| dimensions.into())
}

/// A hash of a shape, for [`CallSig::width`](skyphos_core::frame::CallSig::width): 1 for a single dimension.
pub(crate) fn shape_hash(shape: &Shape) -> u32 {
    let Some(shape) = shape else { return 1 };
    let mix = |hash: u32, size: &usize| (hash ^ *size as u32).wrapping_mul(0x9e37_79b1).rotate_left(13);
    shape.iter().fold(shape.len() as u32, mix) | 2
}

/// A 6-bit hash of the name of a custom operation, which has no code; 0 for built-in operations.
pub(crate) fn custom_tag(op: &ReduceOp) -> u8 {
    match op {
        ReduceOp::Custom(custom) => {
            custom.name().bytes().fold(7u8, |h, b| h.wrapping_mul(31).wrapping_add(b)) & 0x3f
        }
        _ => 0,
    }
}
