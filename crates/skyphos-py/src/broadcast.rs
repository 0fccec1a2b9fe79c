//! `Comm.broadcast` of memory of Python objects, received as arrays of bytes.

use crate::comm::Comm;
use crate::errors::{or_fail, to_py, unreported};
use crate::host_memory::array_of;
use crate::owned::Numbers;
use crate::report::Traffic;
use crate::work::perform;
use numpy::PyArray1;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use skyphos::{Error, MessageBuffer, Route};
use std::time::Duration;

/// The route with a name; `None` for "auto", which leaves it to the planner.
pub(crate) fn route_of(name: &str) -> Result<Option<Route>, Error> {
    if name == "auto" { Ok(None) } else { Route::from_name(name).map(Some) }
}

/// Settings of a broadcast: declared and documented in `skyphos::BroadcastOptions`.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct BroadcastOptions(skyphos::BroadcastOptions);

#[pymethods]
impl BroadcastOptions {
    #[new]
    #[pyo3(signature = (algorithm="auto", chunk_bytes=None, ack_timeout=None))]
    fn new(
        py: Python<'_>,
        algorithm: &str,
        chunk_bytes: Option<usize>,
        ack_timeout: Option<f64>,
    ) -> PyResult<BroadcastOptions> {
        let route = route_of(algorithm).map_err(|error| unreported(py, &error))?;
        let ack_timeout = ack_timeout.map(Duration::try_from_secs_f64).transpose();
        let ack_timeout =
            ack_timeout.map_err(|error| PyValueError::new_err(format!("ack_timeout in seconds: {error}")))?;
        Ok(BroadcastOptions(skyphos::BroadcastOptions { route, chunk_bytes, ack_timeout }))
    }
}

/// The result of a broadcast.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct Broadcasted {
    /// Received parts; none on the root.
    parts: Vec<Py<PyArray1<u8>>>,
    algorithm: &'static str,
    chunk_bytes: usize,
    message_bytes: usize,
    traffic: Py<Traffic>,
    /// The exception for a rank that was lost during the call.
    missed: Option<Py<PyAny>>,
}

/// Sends the root's parts to all other ranks.
#[pyfunction]
pub fn broadcast<'py>(
    py: Python<'py>,
    comm: &Comm,
    parts: Option<Vec<Bound<'py, PyAny>>>,
    root: u32,
    options: &BroadcastOptions,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let parts = parts.map(|parts| parts.iter().map(Numbers::of).collect::<PyResult<Vec<_>>>()).transpose();
    let parts = or_fail(py, comm, parts)?;
    let call = comm.broadcast(root, parts, MessageBuffer::default()).options(options.0);
    perform(py, comm, call, async_op, |py, done| {
        let array = |part| array_of(py, part).map(Bound::unbind);
        let parts = done.buffer.into_parts().into_iter().map(array).collect::<PyResult<_>>()?;
        let traffic = Py::new(py, Traffic::from(done.traffic))?;
        let missed = done.missed.map(|error| to_py(py, error).into_value(py).into_any());
        let (algorithm, chunk_bytes) = (done.choice.route.name(), done.choice.chunk_bytes);
        let message_bytes = done.bytes;
        Broadcasted { parts, algorithm, chunk_bytes, message_bytes, traffic, missed }.into_py_any(py)
    })
}
