//! `Comm.send`, `recv` and `probe`: messages from one rank to another.

use crate::comm::Comm;
use crate::errors::to_py;
use crate::owned::{Numbers, NumbersMut};
use crate::work::{Work, perform_call};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use skyphos::{Error, Status};

/// Envelope of a message.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct MessageStatus {
    source: u32,
    tag: u32,
    bytes: u64,
}

impl From<Status> for MessageStatus {
    fn from(Status { source, tag, bytes }: Status) -> MessageStatus {
        MessageStatus { source, tag, bytes }
    }
}

/// Memory for the second part of a message whose first part is `first`.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct ReceiveInto {
    first: Py<PyBytes>,
    out: Py<PyArray1<u8>>,
}

#[pymethods]
impl ReceiveInto {
    #[new]
    fn new(first: Py<PyBytes>, out: Py<PyArray1<u8>>) -> ReceiveInto {
        ReceiveInto { first, out }
    }
}

/// A received message.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct ReceivedMessage {
    status: Py<MessageStatus>,
    parts: Vec<Py<PyArray1<u8>>>,
    /// Whether the second part is in the memory of [`ReceiveInto`].
    in_place: bool,
}

/// Sends arrays of bytes to a rank.
#[pyfunction]
pub fn send(
    py: Python<'_>,
    comm: &Comm,
    dest: u32,
    tag: u32,
    parts: Vec<Bound<'_, PyAny>>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let parts = parts.iter().map(Numbers::of).collect::<PyResult<Vec<_>>>()?;
    let comm = comm.shared();
    perform_call(py, comm, comm.send(dest, tag, parts), async_op, |py, ()| Ok(py.None()))
}

/// Sends an error in place of a message: an error of the library, encoded in `wire`, or else `message`. Returns the exception to
/// raise on this rank.
#[pyfunction]
#[pyo3(signature = (comm, dest, tag, message, wire=None))]
pub fn fail_send(
    py: Python<'_>,
    comm: &Comm,
    dest: u32,
    tag: u32,
    message: &str,
    wire: Option<&[u8]>,
) -> PyErr {
    let error = wire.and_then(Error::from_wire).unwrap_or_else(|| Error::bad_input(message));
    let comm = comm.shared();
    let error = py.detach(|| comm.fail_send(dest, tag, error));
    to_py(py, error)
}

/// Receives a message; `None` means any source or any tag. If the send `beside` fails first, the receive fails, too.
#[pyfunction]
#[pyo3(signature = (comm, source, tag, into, async_op, beside=None))]
pub fn recv(
    py: Python<'_>,
    comm: &Comm,
    source: Option<u32>,
    tag: Option<u32>,
    into: Option<&ReceiveInto>,
    async_op: bool,
    beside: Option<&Work>,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let destination = into
        .map(|into| -> PyResult<_> {
            let out = into.out.bind(py);
            // SAFETY: the documentation asks Python's callers to leave the array alone until the call is over.
            #[allow(unsafe_code, reason = "the array outlives this function")]
            let memory = unsafe { NumbersMut::new(&mut out.readwrite()) }?;
            Ok(skyphos::ReceiveInto { first: into.first.as_bytes(py).to_vec(), memory })
        })
        .transpose()?;
    let call = comm.receive(source, tag, destination).map(|call| match beside {
        Some(send) => call.fail_with(&send.work),
        None => call,
    });
    perform_call(py, comm, call, async_op, |py, got| {
        let status = Py::new(py, MessageStatus::from(got.status))?;
        let parts = got.parts.into_iter().map(|part| PyArray1::from_vec(py, part).unbind()).collect();
        ReceivedMessage { status, parts, in_place: got.memory.is_some() }.into_py_any(py)
    })
}

/// Waits for a message that `recv` would receive, and leaves it in place.
#[pyfunction]
pub fn probe(py: Python<'_>, comm: &Comm, source: Option<u32>, tag: Option<u32>) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    perform_call(py, comm, comm.probe(source, tag), false, |py, status| {
        MessageStatus::from(status).into_py_any(py)
    })
}

/// Like `probe`, without waiting: `None` if no message has arrived.
#[pyfunction]
pub fn probe_now(
    py: Python<'_>,
    comm: &Comm,
    source: Option<u32>,
    tag: Option<u32>,
) -> PyResult<Option<MessageStatus>> {
    let comm = comm.shared();
    let status = py.detach(|| comm.probe_now(source, tag)).map_err(|e| to_py(py, e))?;
    Ok(status.map(MessageStatus::from))
}
