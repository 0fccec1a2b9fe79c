//! Memory of NumPy arrays that a call uses while it runs, on whichever thread.
//!
//! Each piece keeps its array alive, so the memory stays where it is. Python code can still write to an array that a call
//! under way reads: the documentation asks callers not to, as those of other non-blocking interfaces over NumPy do.

use crate::arrays::IndexArray;
use numpy::{Element, PyReadonlyArray, PyReadwriteArray};
use pyo3::prelude::*;
use skyphos::{IndexInput, Indices};

/// Numbers of an array.
pub struct Numbers<T> {
    start: *const T,
    len: usize,
    _array: Py<PyAny>,
}

/// Numbers of an array that a call writes.
pub struct NumbersMut<T> {
    start: *mut T,
    len: usize,
    _array: Py<PyAny>,
}

// SAFETY: the memory belongs to an array that is kept alive, and numbers may be read and written on any thread.
unsafe impl<T: Send + Sync> Send for Numbers<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Numbers<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for NumbersMut<T> {}

impl<T: Element> Numbers<T> {
    /// Refuses an array that is not contiguous and aligned.
    pub fn new<D: numpy::ndarray::Dimension>(array: &PyReadonlyArray<'_, T, D>) -> PyResult<Numbers<T>> {
        let numbers = array.as_slice()?;
        let (start, len) = (numbers.as_ptr(), numbers.len());
        Ok(Numbers { start, len, _array: array.as_any().clone().unbind() })
    }

    /// Refuses what is no contiguous and aligned array of this type.
    pub fn of(array: &Bound<'_, PyAny>) -> PyResult<Numbers<T>> {
        Numbers::new(&array.extract::<numpy::PyReadonlyArrayDyn<'_, T>>()?)
    }
}

impl<T: Element> NumbersMut<T> {
    /// Refuses an array that is not contiguous and aligned.
    ///
    /// # Safety
    /// While the result lives, nothing else reads or writes the array.
    pub unsafe fn new<D: numpy::ndarray::Dimension>(
        array: &mut PyReadwriteArray<'_, T, D>,
    ) -> PyResult<NumbersMut<T>> {
        let numbers = array.as_slice_mut()?;
        let (start, len) = (numbers.as_mut_ptr(), numbers.len());
        Ok(NumbersMut { start, len, _array: array.as_any().clone().unbind() })
    }
}

impl<T> AsRef<[T]> for Numbers<T> {
    fn as_ref(&self) -> &[T] {
        // SAFETY: the array is kept alive, and was contiguous and aligned when this was made.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T> AsMut<[T]> for NumbersMut<T> {
    fn as_mut(&mut self) -> &mut [T] {
        // SAFETY: the array is kept alive, and was contiguous, aligned and writable when this was made; whoever made this
        // promised that nothing else uses it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// Indices of an array.
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
