//! What `skyphos.TopK` needs of the native library: selection, quantisation, and `Comm.topk_allreduce`.

use crate::comm::Comm;
use crate::errors::{or_fail, to_py};
use crate::op::reduce_op;
use crate::owned::{Arrays, Vector};
use crate::stream::{dtype_of, index_list, parts};
use crate::work::perform;
use numpy::{IntoPyArray, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use skyphos::{Draw, Element, Error, Incoming, Layer, Magnitude, Quantize, Real, Scale, Select, with_real};

/// k and bucket, or a threshold in an array of one value of the gradient's type.
type Choice<'py> = (Option<usize>, Option<usize>, Option<Bound<'py, PyAny>>);

fn no_floats<R>(py: Python<'_>) -> PyResult<R> {
    Err(to_py(py, Error::bad_input("values must be float16, bfloat16, float32 or float64")))
}

fn select<T: Magnitude + numpy::Element>((k, bucket, threshold): &Choice<'_>) -> PyResult<Select<T>> {
    if let Some(threshold) = threshold {
        let threshold: PyReadonlyArray1<'_, T> = threshold.extract()?;
        return Ok(Select::AtLeast(threshold.as_slice()?.first().copied().unwrap_or(T::ZERO)));
    }
    let k = k.unwrap_or(0);
    Ok(bucket.map_or(Select::Whole { k }, |bucket| Select::Buckets { k, bucket }))
}

/// The chosen values of residual + gradient, moved out of the residual, or of the gradient alone.
#[pyfunction]
pub fn topk_take<'py>(
    py: Python<'py>,
    residual: Option<&Bound<'py, PyAny>>,
    gradient: &Bound<'py, PyAny>,
    choice: Choice<'py>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    with_real!(dtype_of(gradient)?, T => {
        let select = select::<T>(&choice)?;
        let values: PyReadonlyArray1<'_, T> = gradient.extract()?;
        let values = values.as_slice()?;
        let mut residual: Option<PyReadwriteArray1<'_, T>> = residual.map(|r| r.extract()).transpose()?;
        let residual = residual.as_mut().map(|r| r.as_slice_mut()).transpose()?;
        let (mut indices, mut picked) = (Vec::new(), Vec::new());
        let done = py.detach(|| match residual {
            Some(residual) => skyphos::take_topk_of_sum(residual, values, select, &mut indices, &mut picked),
            None => skyphos::topk(values, select, &mut indices, &mut picked),
        });
        done.map_err(|e| to_py(py, e))?;
        Ok((indices.into_pyarray(py).into_any(), picked.into_pyarray(py).into_any()))
    }, else no_floats(py))
}

/// The chosen values of residual + gradient, moved out of the residual, layer by layer: (start, end, k, bucket) each. Also
/// how many times the gradient counts, the velocity and its momentum, if there are any. Returns places, values, and which
/// of them is the first that is not finite.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
pub fn topk_take_layers<'py>(
    py: Python<'py>,
    residual: &Bound<'py, PyAny>,
    gradient: &Bound<'py, PyAny>,
    layers: Vec<(usize, usize, usize, usize)>,
    scale: Option<f64>,
    velocity: Option<&Bound<'py, PyAny>>,
    momentum: f64,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>, Option<usize>)> {
    with_real!(dtype_of(gradient)?, T => {
        let layers: Vec<Layer<T>> = layers
            .into_iter()
            .map(|(start, end, k, bucket)| Layer { range: start..end, select: Select::Buckets { k, bucket } })
            .collect();
        let gradient: PyReadonlyArray1<'_, T> = gradient.extract()?;
        let mut residual: PyReadwriteArray1<'_, T> = residual.extract()?;
        let mut velocity: Option<PyReadwriteArray1<'_, T>> = velocity.map(|u| u.extract()).transpose()?;
        let velocity = velocity.as_mut().map(|u| u.as_slice_mut()).transpose()?;
        let incoming = Incoming {
            gradient: gradient.as_slice()?,
            scale: scale.map(T::from_f64),
            velocity: velocity.map(|u| (u, T::from_f64(momentum))),
        };
        let residual = residual.as_slice_mut()?;
        let (mut indices, mut picked) = (Vec::new(), Vec::new());
        let done = py.detach(|| {
            skyphos::take_layers(residual, incoming, &layers, &mut indices, &mut picked)?;
            // What is not finite is larger than all that is, so it has been chosen.
            Ok(picked.iter().position(|v| v.sub(*v) != T::ZERO))
        });
        let odd = done.map_err(|e| to_py(py, e))?;
        Ok((indices.into_pyarray(py).into_any(), picked.into_pyarray(py).into_any(), odd))
    }, else no_floats(py))
}

/// Replaces values by what their quantised form stands for. `how`: bits, bucket, seed; `place`: call and rank.
#[pyfunction]
pub fn topk_quantise(
    py: Python<'_>,
    values: &Bound<'_, PyAny>,
    how: (u8, u32, u64),
    place: (u64, u32),
) -> PyResult<()> {
    let ((bits, bucket, seed), (call, rank)) = (how, place);
    let params = Quantize::new(bits, bucket, Scale::Max, seed).map_err(|e| to_py(py, e))?;
    let draw = Draw { call, rank, first_bucket: 0 };
    with_real!(dtype_of(values)?, T => {
        let mut values: PyReadwriteArray1<'_, T> = values.extract()?;
        let values = values.as_slice_mut()?;
        py.detach(|| skyphos::quantise_in_place(values, &params, draw)).map_err(|e| to_py(py, e))
    }, else no_floats(py))
}

/// The values that quantised bytes stand for, to `values`. `how`: bits and bucket.
#[pyfunction]
pub fn dequantise(
    py: Python<'_>,
    packed: PyReadonlyArray1<'_, u8>,
    how: (u8, u32),
    values: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let params = Quantize::new(how.0, how.1, Scale::Max, 0).map_err(|e| to_py(py, e))?;
    let packed = packed.as_slice()?;
    with_real!(dtype_of(values)?, T => {
        let mut values: PyReadwriteArray1<'_, T> = values.extract()?;
        let values = values.as_slice_mut()?;
        py.detach(|| skyphos::dequantise(packed, &params, values).map_err(Error::bad_input))
            .map_err(|e| to_py(py, e))
    }, else no_floats(py))
}

/// Adds `picked` - `sent` to the residual at `indices`.
#[pyfunction]
pub fn topk_put_back(
    py: Python<'_>,
    residual: &Bound<'_, PyAny>,
    indices: PyReadonlyArray1<'_, u32>,
    picked: &Bound<'_, PyAny>,
    sent: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let indices = indices.as_slice()?;
    with_real!(dtype_of(residual)?, T => {
        let mut residual: PyReadwriteArray1<'_, T> = residual.extract()?;
        let (picked, sent): (PyReadonlyArray1<'_, T>, PyReadonlyArray1<'_, T>) = (picked.extract()?, sent.extract()?);
        let (residual, picked, sent) = (residual.as_slice_mut()?, picked.as_slice()?, sent.as_slice()?);
        py.detach(|| skyphos::put_back(residual, indices, picked, sent)).map_err(|e| to_py(py, e))
    }, else no_floats(py))
}

/// `Comm.topk_allreduce`: the largest entries of the sum, the indices that this rank offered, and words of entries
/// sent and received.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
pub fn topk_allreduce<'py>(
    py: Python<'py>,
    comm: &Comm,
    n: u64,
    vector: Arrays<'py>,
    k: u64,
    op: &Bound<'py, PyAny>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let op = or_fail(py, comm, reduce_op(op, op))?;
    with_real!(or_fail(py, comm, dtype_of(&vector.1))?, T => {
        let x = or_fail(py, comm, Vector::<T>::new(n, 1, &vector))?;
        perform(py, comm, comm.topk_allreduce(x, k).op(op), async_op, |py, got| {
            let words = (got.sent_words, got.received_words);
            (parts::<T>(py, got.sum), index_list(py, got.offered), words).into_py_any(py)
        })
    }, else or_fail(py, comm, no_floats(py)))
}
