//! NumPy memory that a call keeps while it runs, on whichever thread.
//!
//! Each piece holds its array, so the memory stays where it is. Python code may still write to it meanwhile, as with
//! every non-blocking interface over NumPy: the documentation asks callers not to.

use crate::arrays::IndexArray;
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

// SAFETY: the memory belongs to an array that is held, and numbers may be read and written on any thread.
unsafe impl<T: Send + Sync> Send for Numbers<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Numbers<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for NumbersMut<T> {}

impl<T> Numbers<T> {
    /// `numbers` must be those of `array`.
    pub fn new(numbers: &[T], array: &Bound<'_, PyAny>) -> Numbers<T> {
        Numbers { start: numbers.as_ptr(), len: numbers.len(), _array: array.clone().unbind() }
    }
}

impl<T> NumbersMut<T> {
    /// `numbers` must be those of `array`.
    pub fn new(numbers: &mut [T], array: &Bound<'_, PyAny>) -> NumbersMut<T> {
        NumbersMut { start: numbers.as_mut_ptr(), len: numbers.len(), _array: array.clone().unbind() }
    }
}

impl<T> AsRef<[T]> for Numbers<T> {
    fn as_ref(&self) -> &[T] {
        // SAFETY: the array is held, and was contiguous and aligned when this was made.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T> AsMut<[T]> for NumbersMut<T> {
    fn as_mut(&mut self) -> &mut [T] {
        // SAFETY: the array is held, was contiguous, aligned and writable when this was made, and shared no memory
        // with the call's other arguments.
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
        let held = IndexArray::new(array)?;
        Ok(match held.slice()? {
            Indices::I32(list) => OwnedIndices::I32(Numbers::new(list, array)),
            Indices::I64(list) => OwnedIndices::I64(Numbers::new(list, array)),
            Indices::U32(list) => OwnedIndices::U32(Numbers::new(list, array)),
            Indices::U64(list) => OwnedIndices::U64(Numbers::new(list, array)),
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
