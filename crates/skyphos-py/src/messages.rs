//! `Comm.send`, `recv` and `probe`: stretches of memory from one rank to another.

use crate::comm::Comm;
use crate::errors::to_py;
use crate::owned::{Numbers, NumbersMut};
use crate::work::{Work, perform_call};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use skyphos::{Error, ReceiveInto, Status};

/// Source, tag, bytes.
type Told = (u32, u32, u64);

fn told(status: Status) -> Told {
    (status.source, status.tag, status.bytes)
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
    let held = |part: &Bound<'_, PyAny>| -> PyResult<Numbers<u8>> {
        let bytes: PyReadonlyArray1<'_, u8> = part.extract()?;
        Ok(Numbers::new(bytes.as_slice()?, part))
    };
    let parts = parts.iter().map(held).collect::<PyResult<Vec<_>>>()?;
    let comm = comm.shared();
    perform_call(py, comm, comm.send(dest, tag, parts), async_op, |py, ()| Ok(py.None()))
}

/// In place of a message: its receiver gets an error of the library's own, or one in words. What is raised here.
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

/// Receives a message (None: of any rank, with any tag): source, tag and bytes; its parts; and whether the second is in `out`,
/// where it goes if the first is `first` and it is as long. `beside`: a send; if it fails first, the receive does too.
#[pyfunction]
#[pyo3(signature = (comm, source, tag, first, out, async_op, beside=None))]
#[expect(clippy::too_many_arguments, reason = "Python passes them one by one")]
pub fn recv<'py>(
    py: Python<'py>,
    comm: &Comm,
    source: Option<u32>,
    tag: Option<u32>,
    first: Option<Vec<u8>>,
    out: Option<Bound<'py, PyArray1<u8>>>,
    async_op: bool,
    beside: Option<&Work>,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let into = match (first, out) {
        (Some(first), Some(out)) => {
            let memory = NumbersMut::new(out.readwrite().as_slice_mut()?, out.as_any());
            Some(ReceiveInto { first, memory })
        }
        _ => None,
    };
    let call = comm.receive(source, tag, into).map(|call| match beside {
        Some(send) => call.beside(&send.work),
        None => call,
    });
    perform_call(py, comm, call, async_op, |py, got| {
        let parts: Vec<_> = got.parts.into_iter().map(|part| PyArray1::from_vec(py, part)).collect();
        (told(got.status), parts, got.memory.is_some()).into_py_any(py)
    })
}

/// Waits for a message that `recv` would get: source, tag and bytes.
#[pyfunction]
pub fn probe(py: Python<'_>, comm: &Comm, source: Option<u32>, tag: Option<u32>) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    perform_call(py, comm, comm.probe(source, tag), false, |py, status| told(status).into_py_any(py))
}

/// The same if it has come; else None.
#[pyfunction]
pub fn probe_now(
    py: Python<'_>,
    comm: &Comm,
    source: Option<u32>,
    tag: Option<u32>,
) -> PyResult<Option<Told>> {
    let comm = comm.shared();
    let seen = py.detach(|| comm.probe_now(source, tag)).map_err(|e| to_py(py, e))?;
    Ok(seen.map(told))
}
