//! `topk_allreduce` of vectors.

use crate::comm::Comm;
use crate::errors::or_fail;
use crate::op::Operation;
use crate::topk::refuse_integers;
use crate::vector::{Vector, index_array};
use crate::work::perform;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use skyphos::with_real;

/// The largest entries of a sum.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct TopkSum {
    sum: Py<Vector>,
    /// Indices of this rank's values that entered the sum.
    offered: Py<PyAny>,
    /// Words (an index or a value each) of entries that this rank sent.
    sent_words: u64,
    received_words: u64,
}

/// `Comm.topk_allreduce`.
#[pyfunction]
pub fn topk_allreduce(
    py: Python<'_>,
    comm: &Comm,
    vector: &Vector,
    k: u64,
    op: &Operation,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    with_real!(or_fail(py, comm, vector.dtype(py))?, T => {
        let x = or_fail(py, comm, vector.owned::<T>(py))?;
        perform(py, comm, comm.topk_allreduce(x, k).op(op.0.clone()), async_op, |py, done| {
            let (sum, offered) = (Vector::of::<T>(py, done.sum), index_array(py, done.offered).unbind());
            let (sent_words, received_words) = (done.sent_words, done.received_words);
            TopkSum { sum: Py::new(py, sum)?, offered, sent_words, received_words }.into_py_any(py)
        })
    }, else or_fail(py, comm, refuse_integers(py)))
}
