//! Calls of collectives: blocking, or as a [`Work`] that Python waits for.

use crate::errors::{take_raised, to_py};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use skyphos::{Body, Call, CallBuilder, Comm, Result};
use std::sync::Arc;
use std::time::Duration;

/// Converts a result to a Python object.
pub type Deliver = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// A call under way.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct Work {
    pub(crate) work: skyphos::Work<Deliver>,
    /// Keeps the group open while the call runs.
    _comm: Arc<Comm>,
}

#[pymethods]
impl Work {
    /// The call, as errors name it.
    #[getter]
    fn name(&self) -> String {
        self.work.name()
    }

    fn done(&self) -> bool {
        self.work.is_done()
    }

    /// Waits for at most `timeout` seconds (`None`: without a limit). Returns whether the call is over. Raises an exception that
    /// a signal handler raised meanwhile, unless that exception ended the call: then `take` raises it.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = timeout.map(|s| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX));
        let done = py.detach(|| self.work.wait_for(timeout));
        match self.work.has_failed() {
            true => Ok(done),
            false => take_raised().map_or(Ok(done), Err),
        }
    }

    /// Advances calls under way as far as possible without waiting.
    fn advance(&self, py: Python<'_>) {
        py.detach(|| self.work.advance());
    }

    /// Ends the call, if it is not over.
    fn withdraw(&self, py: Python<'_>) {
        py.detach(|| self.work.withdraw());
    }

    /// Records that the call has failed on this rank after it had ended.
    fn note_failure(&self) {
        self.work.note_failure();
    }

    /// The result, once; raises the call's error. `None` if the call is not over, or its result was taken before.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.work.take() {
            None => Ok(None),
            Some(Ok(deliver)) => deliver(py).map(Some),
            Some(Err(error)) => Err(to_py(py, error)),
        }
    }
}

/// Runs a collective and returns its result, or starts it and returns its `Work`.
pub fn perform<B: Body<Output: 'static> + 'static>(
    py: Python<'_>,
    comm: &Arc<Comm>,
    collective: CallBuilder<'_, B>,
    async_op: bool,
    convert: impl FnOnce(Python<'_>, B::Output) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    if async_op {
        return perform_call(py, comm, collective.prepare(), true, convert);
    }
    let result = py.detach(|| collective.run()).map_err(|e| to_py(py, e))?;
    convert(py, result)
}

/// Like [`perform`], for a call that is already prepared.
pub fn perform_call<R: Send + 'static>(
    py: Python<'_>,
    comm: &Arc<Comm>,
    call: Result<Call<R>>,
    async_op: bool,
    convert: impl FnOnce(Python<'_>, R) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    let call = call.map_err(|e| to_py(py, e))?;
    if !async_op {
        let result = py.detach(|| call.run()).map_err(|e| to_py(py, e))?;
        return convert(py, result);
    }
    let work = py
        .detach(|| call.map(|result| Box::new(move |py: Python<'_>| convert(py, result)) as Deliver).start());
    Work { work, _comm: comm.clone() }.into_py_any(py)
}
