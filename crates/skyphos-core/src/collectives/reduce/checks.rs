//! Checks of a reduction's arguments.

use crate::slab::CHUNK_BYTES;
use skyphos_types::{Element, Error, ReduceOp, Result};

/// Refuses rows that do not fit a chunk.
pub(super) fn check_width<T>(width: usize) -> Result<()> {
    let row = width.saturating_mul(size_of::<T>());
    if row == 0 || row > CHUNK_BYTES {
        return Err(Error::bad_input(format!(
            "a row of width={width} takes {row} bytes; a row takes 1 to {CHUNK_BYTES}"
        )));
    }
    Ok(())
}

/// Refuses an operation that the type lacks, and arrays of other lengths than `contribute` and `want` require.
pub(crate) fn check_shapes<T: Element>(
    (contribute_len, want_len): (usize, usize),
    width: usize,
    values: &[T],
    out: &[T],
    op: &ReduceOp,
) -> Result<()> {
    op.check(T::DTYPE)?;
    check_width::<T>(width)?;
    let sides = [
        ("values hold", values.len(), "contribute", contribute_len),
        ("out holds", out.len(), "want", want_len),
    ];
    for (array, numbers, side, indices) in sides {
        if numbers != indices * width {
            return Err(Error::bad_input(format!(
                "{array} {numbers} numbers, the plan's {side} has {indices} indices of width {width}"
            )));
        }
    }
    Ok(())
}
