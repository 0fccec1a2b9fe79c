//! `reduce_scatter` of vectors.

use crate::allreduce::AllreduceOptions;
use crate::comm::Comm;
use crate::errors::or_fail;
use crate::op::Operation;
use crate::report::Explanation;
use crate::vector::{Vector, with_vector};
use crate::work::perform;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use skyphos::with_element;

/// This rank's part of a reduction: the entries of its range, `low` to `high`.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct Scattered {
    part: Py<Vector>,
    low: u64,
    high: u64,
    explanation: Py<Explanation>,
}

/// `Comm.reduce_scatter`.
#[pyfunction]
pub fn reduce_scatter(
    py: Python<'_>,
    comm: &Comm,
    vector: &Vector,
    op: &Operation,
    options: &AllreduceOptions,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    with_vector!(py, comm, vector, |T, x| {
        let call = comm.reduce_scatter(x).op(op.0.clone()).options(options.0.clone());
        perform(py, comm, call, async_op, |py, done| {
            let part = Py::new(py, Vector::of::<T>(py, done.part))?;
            let explanation = Py::new(py, Explanation::from(done.explanation))?;
            Scattered { part, low: done.owned.start, high: done.owned.end, explanation }.into_py_any(py)
        })
    })
}
