//! `reduce` of vectors to one rank.

use crate::comm::Comm;
use crate::errors::or_fail;
use crate::op::Operation;
use crate::vector::{Vector, with_vector};
use crate::work::perform;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use skyphos::with_element;

/// `Comm.reduce`: the result on `root`, `None` elsewhere.
#[pyfunction]
pub fn reduce(
    py: Python<'_>,
    comm: &Comm,
    vector: &Vector,
    op: &Operation,
    root: u32,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    with_vector!(py, comm, vector, |T, x| {
        perform(py, comm, comm.reduce_to_root(x, root).op(op.0.clone()), async_op, |py, sum| {
            sum.map(|sum| Vector::of::<T>(py, sum)).into_py_any(py)
        })
    })
}
