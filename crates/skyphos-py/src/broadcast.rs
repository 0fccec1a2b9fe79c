//! `Comm.broadcast`: bytes of memory that Python objects hold, to arrays of bytes.

use crate::comm::Comm;
use crate::errors::{or_fail, to_py};
use crate::owned::Numbers;
use crate::work::perform;
use numpy::ndarray::ArrayView1;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use skyphos::{BroadcastOptions, Error, HostCopy, Memory, Part, Route};
use std::sync::Arc;
use std::time::Duration;

/// The route that is named; `None` is the planner's.
pub(crate) fn route_of(name: &str) -> Result<Option<Route>, Error> {
    if name == "auto" { Ok(None) } else { Route::from_name(name).map(Some) }
}

/// What an array's memory belongs to that ranks of the host share.
#[pyclass(module = "skyphos._skyphos", frozen)]
struct HostMemory {
    _copy: Arc<HostCopy>,
}

/// A part that has come, as an array that has its memory.
fn array_of(py: Python<'_>, part: Part) -> PyResult<Bound<'_, PyArray1<u8>>> {
    let (copy, range) = match part {
        Part::Own(bytes) => return Ok(PyArray1::from_vec(py, bytes)),
        Part::Shared(copy, range) => (copy, range),
    };
    let start = copy.at(range.clone());
    let memory = Bound::new(py, HostMemory { _copy: copy })?.into_any();
    // SAFETY: as many bytes, which the array keeps, and which it alone reads and writes from now on.
    Ok(unsafe {
        let bytes = ArrayView1::from_shape_ptr(range.len(), start.cast_const());
        PyArray1::borrow_from_array(&bytes, memory)
    })
}

/// Brings the root's parts to all others: what they get (nothing on the root); how: route, bytes of a chunk and of the message,
/// bytes and frames sent, bytes received; and the exception for who was lost meanwhile.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python's keyword arguments, one by one")]
pub fn broadcast<'py>(
    py: Python<'py>,
    comm: &Comm,
    parts: Option<Vec<Bound<'py, PyAny>>>,
    root: u32,
    algorithm: &str,
    chunk_bytes: Option<usize>,
    ack_timeout: Option<f64>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let route = or_fail(py, comm, route_of(algorithm).map_err(|error| to_py(py, error)))?;
    let held = |part: &Bound<'py, PyAny>| -> PyResult<Numbers<u8>> {
        let bytes: PyReadonlyArray1<'_, u8> = part.extract()?;
        Ok(Numbers::new(bytes.as_slice()?, part))
    };
    let parts = parts.map(|parts| parts.iter().map(held).collect::<PyResult<Vec<_>>>()).transpose();
    let parts = or_fail(py, comm, parts)?;
    let ack_timeout = ack_timeout.map(Duration::try_from_secs_f64).transpose();
    let seconds = |error: std::time::TryFromFloatSecsError| {
        pyo3::exceptions::PyValueError::new_err(format!("ack_timeout in seconds: {error}"))
    };
    let ack_timeout = or_fail(py, comm, ack_timeout.map_err(seconds))?;
    let options = BroadcastOptions { route, chunk_bytes, ack_timeout };
    let call = comm.broadcast(root, parts, Memory::default()).options(options);
    perform(py, comm, call, async_op, |py, done| {
        let parts = done.room.into_parts().into_iter().map(|part| array_of(py, part));
        let parts: Vec<_> = parts.collect::<PyResult<_>>()?;
        let traffic = done.traffic;
        let told = (
            (done.way.route.name(), done.way.chunk_bytes, done.bytes),
            (traffic.sent_bytes, traffic.sent_frames, traffic.received_bytes),
        );
        (parts, told, done.missed.map(|error| to_py(py, error))).into_py_any(py)
    })
}
