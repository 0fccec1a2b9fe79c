//! Arrays of bytes over memory that the ranks of a host share.

use numpy::PyArray1;
use numpy::ndarray::ArrayView1;
use pyo3::prelude::*;
use skyphos::{HostCopy, ReceivedPart};
use std::sync::Arc;

/// Keeps shared memory mapped while an array over it lives.
#[pyclass(module = "skyphos._skyphos", frozen)]
struct HostMemory {
    _copy: Arc<HostCopy>,
}

/// A received part as an array, without a copy.
pub fn array_of(py: Python<'_>, part: ReceivedPart) -> PyResult<Bound<'_, PyArray1<u8>>> {
    let (copy, range) = match part {
        ReceivedPart::Own(bytes) => return Ok(PyArray1::from_vec(py, bytes)),
        ReceivedPart::Shared(copy, range) => (copy, range),
    };
    let start = copy.as_mut_ptr(range.clone());
    let memory = Bound::new(py, HostMemory { _copy: copy })?.into_any();
    // SAFETY: `start` begins `range.len()` bytes; the array keeps them mapped, and nothing else uses them from now on.
    Ok(unsafe {
        let bytes = ArrayView1::from_shape_ptr(range.len(), start.cast_const());
        PyArray1::borrow_from_array(&bytes, memory)
    })
}
