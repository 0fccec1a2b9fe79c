//! Memory of NumPy arrays that a call uses while it runs, on any thread.
//!
//! [`Numbers`] and [`NumbersMut`] keep their arrays alive, so the memory stays valid. Python code can still write to an array that a
//! call under way reads; the documentation asks callers not to, like that of other non-blocking interfaces over NumPy.

use numpy::{Element, PyReadonlyArray, PyReadwriteArray};
use pyo3::prelude::*;

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
    /// The numbers of an array, which must be contiguous and aligned.
    pub fn new<D: numpy::ndarray::Dimension>(array: &PyReadonlyArray<'_, T, D>) -> PyResult<Numbers<T>> {
        let numbers = array.as_slice()?;
        let (start, len) = (numbers.as_ptr(), numbers.len());
        Ok(Numbers { start, len, _array: array.as_any().clone().unbind() })
    }

    /// The numbers of an object, which must be a contiguous and aligned array of this type.
    pub fn of(array: &Bound<'_, PyAny>) -> PyResult<Numbers<T>> {
        Numbers::new(&array.extract::<numpy::PyReadonlyArrayDyn<'_, T>>()?)
    }
}

impl<T: Element> NumbersMut<T> {
    /// The numbers of an array, which must be contiguous and aligned.
    ///
    /// # Safety
    /// While the result lives, nothing else may read or write the array.
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
        // SAFETY: the array is kept alive, and was contiguous, aligned and writable when this was made; the caller of `new`
        // promised that nothing else uses it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}
