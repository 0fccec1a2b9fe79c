//! `alltoall` and `scatter` of vectors, one for each rank.

use crate::comm::Comm;
use crate::errors::or_fail;
use crate::vector::{OwnedVector, Vector, vectors_of};
use crate::work::perform;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use skyphos::{Element, with_element};

type Vectors<'py> = Vec<Bound<'py, Vector>>;

fn owned<T: Element + numpy::Element>(
    py: Python<'_>,
    vectors: &Vectors<'_>,
) -> PyResult<Vec<OwnedVector<T>>> {
    vectors.iter().map(|vector| vector.get().owned(py)).collect()
}

/// `Comm.alltoall`. `like` has the n, width and dtype of all vectors.
#[pyfunction]
pub fn alltoall(
    py: Python<'_>,
    comm: &Comm,
    vectors: Vectors<'_>,
    like: &Vector,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    with_element!(or_fail(py, comm, like.dtype(py))?, T => {
        let xs = or_fail(py, comm, owned::<T>(py, &vectors))?;
        let call = comm.alltoall(like.n, like.width, xs);
        perform(py, comm, call, async_op, |py, all| vectors_of::<T>(py, all)?.into_py_any(py))
    })
}

/// `Comm.scatter`. `like` has the n, width and dtype of all vectors; only `root` passes vectors.
#[pyfunction]
pub fn scatter(
    py: Python<'_>,
    comm: &Comm,
    vectors: Vectors<'_>,
    like: &Vector,
    root: u32,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    with_element!(or_fail(py, comm, like.dtype(py))?, T => {
        let xs = or_fail(py, comm, owned::<T>(py, &vectors))?;
        let call = comm.scatter(like.n, like.width, xs, root);
        perform(py, comm, call, async_op, |py, share| Vector::of::<T>(py, share).into_py_any(py))
    })
}
