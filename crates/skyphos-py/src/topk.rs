//! Selection and quantisation for `skyphos.TopK`.

use crate::errors::to_py;
use crate::quantize::Quantize;
use crate::vector::dtype_of;
use numpy::{IntoPyArray, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;
use skyphos::{Draw, Element, Error, Incoming, Layer, Magnitude, Real, Select, with_real};

/// The error for values that are not floats.
pub fn refuse_integers<R>(py: Python<'_>) -> PyResult<R> {
    Err(to_py(py, Error::bad_input("values must be float16, bfloat16, float32 or float64")))
}

/// The selection by a threshold, which is an array of one value of the gradient's type.
fn at_least<T: Magnitude + numpy::Element>(threshold: &Bound<'_, PyAny>) -> PyResult<Select<T>> {
    let threshold: PyReadonlyArray1<'_, T> = threshold.extract()?;
    Ok(Select::AtLeast(threshold.as_slice()?.first().copied().unwrap_or(T::ZERO)))
}

/// Chooses the `k` largest values (of each bucket), or those that reach a threshold. With a residual, the values are those of residual +
/// gradient, and the chosen ones leave the residual; without, those of the gradient. Returns indices and values.
#[pyfunction]
#[pyo3(signature = (residual, gradient, *, k=None, bucket=None, threshold=None))]
pub fn topk_take<'py>(
    py: Python<'py>,
    residual: Option<&Bound<'py, PyAny>>,
    gradient: &Bound<'py, PyAny>,
    k: Option<usize>,
    bucket: Option<usize>,
    threshold: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    with_real!(dtype_of(gradient)?, T => {
        let k = k.unwrap_or(0);
        let select = match (threshold, bucket) {
            (Some(threshold), _) => at_least::<T>(threshold)?,
            (None, Some(bucket)) => Select::Buckets { k, bucket },
            (None, None) => Select::Whole { k },
        };
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
    }, else refuse_integers(py))
}

/// A layer of a gradient: values from `start` to `stop`, of which the `k` largest of each bucket are chosen.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct TopkLayer {
    start: usize,
    stop: usize,
    k: usize,
    bucket: usize,
}

#[pymethods]
impl TopkLayer {
    #[new]
    fn new(start: usize, stop: usize, k: usize, bucket: usize) -> TopkLayer {
        TopkLayer { start, stop, k, bucket }
    }
}

/// The chosen values of residual + gradient, moved out of the residual, layer by layer.
/// `scale` multiplies the gradient. Returns indices, values, and the position of the first value that is not finite.
#[pyfunction]
pub fn topk_take_layers<'py>(
    py: Python<'py>,
    residual: &Bound<'py, PyAny>,
    gradient: &Bound<'py, PyAny>,
    layers: Vec<PyRef<'py, TopkLayer>>,
    scale: Option<f64>,
    velocity: Option<&Bound<'py, PyAny>>,
    momentum: f64,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>, Option<usize>)> {
    with_real!(dtype_of(gradient)?, T => {
        let layers: Vec<Layer<T>> = layers
            .iter()
            .map(|layer| {
                let select = Select::Buckets { k: layer.k, bucket: layer.bucket };
                Layer { range: layer.start..layer.stop, select }
            })
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
            // Values that are not finite have the largest magnitudes, so they have been chosen.
            Ok(picked.iter().position(|v| v.sub(*v) != T::ZERO))
        });
        let not_finite = done.map_err(|e| to_py(py, e))?;
        Ok((indices.into_pyarray(py).into_any(), picked.into_pyarray(py).into_any(), not_finite))
    }, else refuse_integers(py))
}

/// Quantises values and decodes them again, in place. The number of the call and the rank are part of the seed.
#[pyfunction]
pub fn topk_quantise(
    py: Python<'_>,
    values: &Bound<'_, PyAny>,
    quantize: &Quantize,
    call: u64,
    rank: u32,
) -> PyResult<()> {
    let params = quantize.0.params;
    let draw = Draw { call, rank, first_bucket: 0 };
    with_real!(dtype_of(values)?, T => {
        let mut values: PyReadwriteArray1<'_, T> = values.extract()?;
        let values = values.as_slice_mut()?;
        py.detach(|| skyphos::quantise_in_place(values, &params, draw)).map_err(|e| to_py(py, e))
    }, else refuse_integers(py))
}

/// Decodes quantised bytes into `values`.
#[pyfunction]
pub fn dequantise(
    py: Python<'_>,
    packed: PyReadonlyArray1<'_, u8>,
    quantize: &Quantize,
    values: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let params = quantize.0.params;
    let packed = packed.as_slice()?;
    with_real!(dtype_of(values)?, T => {
        let mut values: PyReadwriteArray1<'_, T> = values.extract()?;
        let values = values.as_slice_mut()?;
        py.detach(|| skyphos::dequantise(packed, &params, values).map_err(Error::bad_input))
            .map_err(|e| to_py(py, e))
    }, else refuse_integers(py))
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
    }, else refuse_integers(py))
}
