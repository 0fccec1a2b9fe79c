//! `reduce_scatter` and `reduce` of arrays.

use crate::arrays::{ValueArrays, with_owned};
use crate::comm::Comm;
use crate::errors::or_fail;
use crate::op::Operation;
use crate::work::perform;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use skyphos::ArrayOptions;

/// `Comm.reduce_scatter` (`root` is `None`) or `Comm.reduce` of an array, into `out`.
#[pyfunction]
pub fn reduce_arrays(
    py: Python<'_>,
    comm: &Comm,
    values: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    op: &Operation,
    root: Option<u32>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let mut arrays = or_fail(py, comm, ValueArrays::new(values, out))?;
    let shape = arrays.shape();
    with_owned!(arrays, |numbers, result| {
        let call = comm.reduce_arrays(root, numbers, result).op(op.0.clone());
        perform(py, comm, call.options(ArrayOptions { shape }), async_op, |py, _| ().into_py_any(py))
    })
}
