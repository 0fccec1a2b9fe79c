//! Arrays of indices, without copies.

use crate::owned::Numbers;
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use skyphos::{IndexInput, Indices};

/// An array of indices, borrowed while a call uses it.
pub enum IndexArray<'py> {
    I32(PyReadonlyArray1<'py, i32>),
    I64(PyReadonlyArray1<'py, i64>),
    U32(PyReadonlyArray1<'py, u32>),
    U64(PyReadonlyArray1<'py, u64>),
}

impl<'py> IndexArray<'py> {
    pub fn new(array: &Bound<'py, PyAny>) -> PyResult<IndexArray<'py>> {
        let array = IndexArray::of_type(array)?;
        array.slice()?; // the call must not begin unless the array is contiguous and aligned
        Ok(array)
    }

    fn of_type(array: &Bound<'py, PyAny>) -> PyResult<IndexArray<'py>> {
        if let Ok(a) = array.extract() {
            Ok(IndexArray::I64(a))
        } else if let Ok(a) = array.extract() {
            Ok(IndexArray::I32(a))
        } else if let Ok(a) = array.extract() {
            Ok(IndexArray::U64(a))
        } else if let Ok(a) = array.extract() {
            Ok(IndexArray::U32(a))
        } else {
            Err(PyTypeError::new_err("indices must be a 1-D array of int32, int64, uint32 or uint64"))
        }
    }

    pub fn slice(&self) -> PyResult<Indices<'_>> {
        Ok(match self {
            IndexArray::I32(a) => Indices::I32(a.as_slice()?),
            IndexArray::I64(a) => Indices::I64(a.as_slice()?),
            IndexArray::U32(a) => Indices::U32(a.as_slice()?),
            IndexArray::U64(a) => Indices::U64(a.as_slice()?),
        })
    }
}

/// An array of indices that a call keeps alive.
pub enum OwnedIndices {
    I32(Numbers<i32>),
    I64(Numbers<i64>),
    U32(Numbers<u32>),
    U64(Numbers<u64>),
}

impl OwnedIndices {
    pub fn new(array: &Bound<'_, PyAny>) -> PyResult<OwnedIndices> {
        Ok(match &IndexArray::new(array)? {
            IndexArray::I32(list) => OwnedIndices::I32(Numbers::new(list)?),
            IndexArray::I64(list) => OwnedIndices::I64(Numbers::new(list)?),
            IndexArray::U32(list) => OwnedIndices::U32(Numbers::new(list)?),
            IndexArray::U64(list) => OwnedIndices::U64(Numbers::new(list)?),
        })
    }
}

impl IndexInput for OwnedIndices {
    fn indices(&self) -> Indices<'_> {
        match self {
            OwnedIndices::I32(list) => Indices::I32(list.as_ref()),
            OwnedIndices::I64(list) => Indices::I64(list.as_ref()),
            OwnedIndices::U32(list) => Indices::U32(list.as_ref()),
            OwnedIndices::U64(list) => Indices::U64(list.as_ref()),
        }
    }
}
