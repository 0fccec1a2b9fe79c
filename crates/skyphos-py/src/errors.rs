//! Conversion of the library's errors to the exceptions in `skyphos.errors`.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use skyphos::{Error, NO_MEMBER};
use std::cell::RefCell;

thread_local! {
    /// The exception that a signal handler or a custom operation raised while a collective waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Stores a Python exception until the call during which it was raised returns.
pub fn store_raised(error: PyErr) {
    RAISED.with(|raised| {
        raised.borrow_mut().get_or_insert(error);
    });
}

/// Takes the exception that Python code raised while a call waited, if one is stored.
pub fn take_raised() -> Option<PyErr> {
    RAISED.with(|raised| raised.borrow_mut().take())
}

/// Runs signal handlers. Returns whether one raised an exception (Ctrl-C).
pub fn interrupted() -> bool {
    Python::attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(error) => {
            store_raised(error);
            true
        }
    })
}

/// Returns converted arguments. If the conversion failed, fails the group's next call on all ranks.
pub fn or_fail<T>(py: Python<'_>, comm: &skyphos::Comm, converted: PyResult<T>) -> PyResult<T> {
    converted.map_err(|error| {
        let message = error.value(py).to_string();
        let error = py.detach(|| comm.fail_call(Error::bad_input(message)));
        to_py(py, error)
    })
}

/// The attribute `_wire` of the exception that other ranks raise if a rank leaves a call without an error of its program.
#[pyfunction]
pub fn wire_of_leaving<'py>(py: Python<'py>, rank: u32, cause: &str) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &Error::Aborted { rank, cause: cause.to_owned() }.to_wire())
}

/// The exception for an error, or the exception that Python code raised during the call.
pub fn to_py(py: Python<'_>, error: Error) -> PyErr {
    let raised = take_raised().unwrap_or_else(|| unreported(py, &error));
    mark_raised_by_all(py, &raised);
    raised
}

/// The exception for an error that the other ranks do not know of yet; the collective that raises it reports it to them.
pub fn unreported(py: Python<'_>, error: &Error) -> PyErr {
    build(py, error).unwrap_or_else(|failed| failed)
}

/// The module `skyphos.errors`. It is cached, because an interpreter that shuts down imports no modules.
pub fn exceptions_module(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    MODULE
        .get_or_try_init(py, || py.import("skyphos.errors").map(Bound::unbind))
        .map(|module| module.bind(py))
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let details = PyDict::new(py);
    let class = match error {
        Error::BadInput { .. } | Error::Unmet { .. } => "BadInput",
        Error::PeerLost { rank, address, .. } => {
            details.set_item("rank", (*rank != NO_MEMBER).then_some(rank))?;
            details.set_item("address", address)?;
            "PeerLost"
        }
        Error::Timeout { missing, call, .. } => {
            details.set_item("missing", PyTuple::new(py, missing)?)?;
            details.set_item("call", call)?;
            "Timeout"
        }
        Error::Mismatch { .. } => "Mismatch",
        Error::Diverged { .. } => "Diverged",
        Error::Refused { .. } => "Refused",
        Error::Interrupted => return Ok(PyKeyboardInterrupt::new_err(())),
        _ => "SkyphosError",
    };
    let class = exceptions_module(py)?.getattr(class)?;
    let exception = class.call((error.to_string(),), Some(&details))?;
    exception.setattr("_wire", PyBytes::new(py, &error.to_wire()))?;
    Ok(PyErr::from_value(exception))
}

/// Marks an exception as raised on all ranks. An exception without attributes cannot be marked: Python code then reports it to the
/// other ranks again, and they raise twice.
fn mark_raised_by_all(py: Python<'_>, error: &PyErr) {
    let _ = exceptions_module(py)
        .and_then(|module| module.call_method1("mark_raised_by_all", (error.value(py),)));
}
