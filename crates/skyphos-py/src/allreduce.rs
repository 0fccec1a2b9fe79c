//! `allreduce` of vectors and of arrays.

use crate::arrays::{ValueArrays, with_owned};
use crate::comm::Comm;
use crate::errors::{or_fail, to_py, unreported};
use crate::op::Operation;
use crate::quantize::Quantize;
use crate::report::Explanation;
use crate::vector::{Vector, with_vector};
use crate::work::perform;
use numpy::IntoPyArray;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use skyphos::{Algorithm, DenseThreshold, Error, ReduceOp, Result, Split, shape_of, with_element};

/// Settings of an allreduce: declared and documented in `skyphos::AllreduceOptions`.
#[pyclass(module = "skyphos._skyphos", frozen)]
#[derive(Clone)]
pub struct AllreduceOptions(pub skyphos::AllreduceOptions);

/// Entries above which a vector turns dense, or "paper".
#[derive(FromPyObject)]
pub enum Threshold {
    Entries(u64),
    Named(String),
}

#[pymethods]
impl AllreduceOptions {
    #[new]
    #[pyo3(signature = (algorithm="auto", *, degrees=None, split="quantiles", dense_threshold=None, quantize=None,
                        expected_nnz=None, tell_sent=false, shape=None))]
    #[allow(clippy::too_many_arguments, reason = "the one place where Python names the options")]
    fn new(
        py: Python<'_>,
        algorithm: &str,
        degrees: Option<Vec<u32>>,
        split: &str,
        dense_threshold: Option<Threshold>,
        quantize: Option<&Quantize>,
        expected_nnz: Option<u64>,
        tell_sent: bool,
        shape: Option<Vec<usize>>,
    ) -> PyResult<AllreduceOptions> {
        let checked = || -> Result<skyphos::AllreduceOptions> {
            Ok(skyphos::AllreduceOptions {
                algorithm: Algorithm::from_name(algorithm)?,
                degrees,
                split: split_of(split)?,
                dense_threshold: threshold_of(dense_threshold)?,
                quantize: quantize.map(|quantize| quantize.0),
                expected_nnz,
                tell_sent,
                shape: shape.and_then(|shape| shape_of(&shape)),
            })
        };
        checked().map(AllreduceOptions).map_err(|error| unreported(py, &error))
    }
}

fn split_of(name: &str) -> Result<Split> {
    match name {
        "even" => Ok(Split::Even),
        "quantiles" => Ok(Split::Quantiles),
        "hash" => Ok(Split::Hash),
        other => {
            let message = format!("split must be \"even\", \"quantiles\" or \"hash\", not {other:?}");
            Err(Error::bad_input(message))
        }
    }
}

fn threshold_of(threshold: Option<Threshold>) -> Result<DenseThreshold> {
    match threshold {
        None => Ok(DenseThreshold::Auto),
        Some(Threshold::Entries(entries)) => Ok(DenseThreshold::Entries(entries)),
        Some(Threshold::Named(name)) if name == "paper" => Ok(DenseThreshold::Paper),
        Some(Threshold::Named(name)) => Err(Error::bad_input(format!(
            "dense_threshold must be a number of entries or \"paper\", not {name:?}"
        ))),
    }
}

/// The result of an allreduce of vectors.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct Allreduced {
    sum: Py<Vector>,
    explanation: Py<Explanation>,
    /// This rank's values after quantisation; `None` unless the options set `tell_sent`.
    sent: Option<Py<PyAny>>,
}

/// `Comm.allreduce` of a vector.
#[pyfunction]
pub fn allreduce(
    py: Python<'_>,
    comm: &Comm,
    vector: &Vector,
    op: &Operation,
    options: &AllreduceOptions,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let (comm, options) = (comm.shared(), options.0.clone());
    let tell_sent = options.tell_sent;
    with_vector!(py, comm, vector, |T, x| {
        let call = comm.allreduce(x).op(op.0.clone()).options(options);
        perform(py, comm, call, async_op, move |py, done| {
            let sent = tell_sent.then(|| done.sent.into_pyarray(py).into_any().unbind());
            let (sum, explanation) = (Vector::of::<T>(py, done.sum), Explanation::from(done.explanation));
            Allreduced { sum: Py::new(py, sum)?, explanation: Py::new(py, explanation)?, sent }
                .into_py_any(py)
        })
    })
}

/// `Comm.allreduce` of an array into `out`; returns the explanation.
#[pyfunction]
pub fn allreduce_dense(
    py: Python<'_>,
    comm: &Comm,
    values: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    op: &Operation,
    options: &AllreduceOptions,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let mut arrays = or_fail(py, comm, ValueArrays::new(values, out))?;
    // The other options are for sparse vectors: ranks may differ in them.
    let skyphos::AllreduceOptions { algorithm, quantize, .. } = options.0;
    let shape = arrays.shape();
    let options = skyphos::AllreduceOptions { algorithm, quantize, shape, ..Default::default() };
    with_owned!(arrays, |numbers, result| {
        let call = comm.allreduce_dense(numbers, result).op(op.0.clone()).options(options);
        perform(py, comm, call, async_op, |py, done| Explanation::from(done.explanation).into_py_any(py))
    })
}

/// The fast path of `Comm.allreduce` for arrays without conversion: blocking, with default options. Returns `false` and does nothing
/// if the arrays need conversion.
#[pyfunction]
pub fn allreduce_plain(
    py: Python<'_>,
    comm: &Comm,
    values: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    op: &str,
) -> PyResult<bool> {
    let Ok(op) = ReduceOp::from_name(op) else { return Ok(false) };
    let Ok(mut arrays) = ValueArrays::plain(values, out) else { return Ok(false) };
    let (comm, shape) = (comm.shared(), arrays.shape());
    let options = skyphos::AllreduceOptions { shape, ..Default::default() };
    with_owned!(arrays, |numbers, result| {
        let call = comm.allreduce_dense(numbers, result).op(op).options(options);
        py.detach(|| call.run().map(drop)).map_err(|e| to_py(py, e))?;
    });
    Ok(true)
}
