//! Reduce operations from Python: a name, or a ufunc with its identity.

use crate::errors::{store_raised, unreported};
use numpy::{Element as NumpyElement, PyArray1, PyArrayMethods};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use skyphos::{CustomOp, DType, Element, Error, ReduceOp, Result, bf16, f16, with_element};
use std::sync::Arc;

/// A reduce operation.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct Operation(pub ReduceOp);

#[pymethods]
impl Operation {
    /// `op`: a name, or a ufunc. `identity`: a ufunc's identity, as an array.
    #[new]
    #[pyo3(signature = (op, identity=None))]
    fn new(op: &Bound<'_, PyAny>, identity: Option<Py<PyAny>>) -> PyResult<Operation> {
        if let Ok(name) = op.extract::<String>() {
            return ReduceOp::from_name(&name).map(Operation).map_err(|error| unreported(op.py(), &error));
        }
        let identity = identity.ok_or_else(|| PyTypeError::new_err("a ufunc needs its identity"))?;
        let name = op.getattr("__name__").and_then(|n| n.extract()).unwrap_or_else(|_| "custom".to_owned());
        Ok(Operation(ReduceOp::Custom(Arc::new(Ufunc { name, ufunc: op.clone().unbind(), identity }))))
    }
}

/// Converts a Python number.
trait FromItem: Sized {
    fn from_item(item: &Bound<'_, PyAny>) -> PyResult<Self>;
}

macro_rules! from_item {
    ($($t:ty),*) => {$(
        impl FromItem for $t {
            fn from_item(item: &Bound<'_, PyAny>) -> PyResult<Self> {
                item.extract()
            }
        }
    )*};
}
from_item!(f32, f64, i32, i64, u8, u32, u64);

impl FromItem for bf16 {
    fn from_item(item: &Bound<'_, PyAny>) -> PyResult<Self> {
        item.extract().map(bf16::from_f64)
    }
}

impl FromItem for f16 {
    fn from_item(item: &Bound<'_, PyAny>) -> PyResult<Self> {
        item.extract().map(f16::from_f64)
    }
}

struct Ufunc {
    name: String,
    ufunc: Py<PyAny>,
    identity: Py<PyAny>,
}

impl Ufunc {
    fn failed(&self, error: PyErr) -> Error {
        let message = format!("op={} failed: {error}", self.name);
        if !Python::attach(|py| error.is_instance_of::<PyException>(py)) {
            store_raised(error); // KeyboardInterrupt or SystemExit: the call raises it unchanged
        }
        Error::bad_input(message)
    }

    fn call<T: Element + NumpyElement>(&self, py: Python<'_>, acc: &mut [T], src: &[T]) -> PyResult<()> {
        let left = PyArray1::from_slice(py, acc);
        let right = PyArray1::from_slice(py, src);
        let options = PyDict::new(py);
        options.set_item("out", &left)?;
        options.set_item("casting", "same_kind")?;
        self.ufunc.bind(py).call((&left, &right), Some(&options))?;
        acc.copy_from_slice(left.readonly().as_slice()?);
        Ok(())
    }
}

impl CustomOp for Ufunc {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self, dtype: DType, out: &mut [u8]) -> Result<()> {
        Python::attach(|py| {
            let mut write = || -> PyResult<()> {
                with_element!(dtype, T => {
                    let value = T::from_item(&self.identity.bind(py).call_method0("item")?)?;
                    out.copy_from_slice(bytemuck::bytes_of(&value));
                });
                Ok(())
            };
            write().map_err(|error| self.failed(error))
        })
    }

    fn combine(&self, dtype: DType, acc: &mut [u8], src: &[u8]) -> Result<()> {
        Python::attach(|py| {
            with_element!(dtype, T => {
                self.call::<T>(py, bytemuck::cast_slice_mut(acc), bytemuck::cast_slice(src))
            })
            .map_err(|error| self.failed(error))
        })
    }
}
