//! `gather` of vectors to one rank.

use crate::comm::Comm;
use crate::errors::or_fail;
use crate::vector::{Vector, vectors_of, with_vector};
use crate::work::perform;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use skyphos::with_element;

/// `Comm.gather`: the vectors of all ranks on `root`, none elsewhere.
#[pyfunction]
pub fn gather(
    py: Python<'_>,
    comm: &Comm,
    vector: &Vector,
    root: u32,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    with_vector!(py, comm, vector, |T, x| {
        perform(py, comm, comm.gather(x, root), async_op, |py, all| vectors_of::<T>(py, all)?.into_py_any(py))
    })
}
