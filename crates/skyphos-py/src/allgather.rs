//! `allgather` of vectors.

use crate::comm::Comm;
use crate::errors::or_fail;
use crate::report::Explanation;
use crate::vector::{Vector, vectors_of, with_vector};
use crate::work::perform;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use skyphos::{AllgatherOptions, Schedule, with_element};

/// The vectors of all ranks.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct Gathered {
    /// In rank order.
    vectors: Vec<Py<Vector>>,
    explanation: Py<Explanation>,
}

/// The schedule with this name; `None` for "auto".
pub fn schedule_of(name: &str) -> PyResult<Option<Schedule>> {
    if name == "auto" {
        return Ok(None);
    }
    Schedule::ALL.into_iter().find(|s| s.name() == name).map(Some).ok_or_else(|| {
        let known: Vec<_> = ["auto"].into_iter().chain(Schedule::ALL.iter().map(|s| s.name())).collect();
        PyTypeError::new_err(format!("unknown algorithm {name:?}: use one of {}", known.join(", ")))
    })
}

/// `Comm.allgather` by a schedule.
#[pyfunction]
pub fn allgather(
    py: Python<'_>,
    comm: &Comm,
    vector: &Vector,
    schedule: &str,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let schedule = or_fail(py, comm, schedule_of(schedule))?;
    with_vector!(py, comm, vector, |T, x| {
        let call = comm.allgather(x).options(AllgatherOptions { schedule });
        perform(py, comm, call, async_op, |py, done| {
            let explanation = Explanation::of_schedule(done.choice, done.traffic);
            let vectors = vectors_of::<T>(py, done.vectors)?;
            Gathered { vectors, explanation: Py::new(py, explanation)? }.into_py_any(py)
        })
    })
}
