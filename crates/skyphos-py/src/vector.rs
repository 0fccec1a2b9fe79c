//! `Vector`: a sparse or dense vector in NumPy arrays.

use crate::indices::OwnedIndices;
use crate::owned::Numbers;
use numpy::{IntoPyArray, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use skyphos::{DType, Element, Form, IndexInput, IndexList, SparseVec, VectorInput, View};

/// A vector of `n` rows of `width` numbers. Without `indices` it has every row, or those whose bit is set in `present`.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct Vector {
    pub n: u64,
    pub width: usize,
    indices: Option<Py<PyAny>>,
    values: Py<PyAny>,
    present: Option<Py<PyAny>>,
}

#[pymethods]
impl Vector {
    #[new]
    fn new(
        n: u64,
        width: usize,
        indices: Option<Py<PyAny>>,
        values: Py<PyAny>,
        present: Option<Py<PyAny>>,
    ) -> Vector {
        Vector { n, width, indices, values, present }
    }
}

impl Vector {
    /// Moves a vector into NumPy arrays.
    pub fn of<T: Element + numpy::Element>(py: Python<'_>, vector: SparseVec<T>) -> Vector {
        let SparseVec { n, width, form } = vector;
        let (indices, values, present) = match form {
            Form::Sparse { indices, values } => (Some(index_array(py, indices).unbind()), values, None),
            Form::Dense { values, present } => (None, values, present),
        };
        let present = present.map(|bits| bits.into_pyarray(py).into_any().unbind());
        Vector { n, width, indices, values: values.into_pyarray(py).into_any().unbind(), present }
    }

    /// The type of the vector's numbers.
    pub fn dtype(&self, py: Python<'_>) -> PyResult<DType> {
        dtype_of(self.values.bind(py))
    }

    /// The vector as input of a call, which keeps the arrays alive.
    pub fn owned<T: Element + numpy::Element>(&self, py: Python<'_>) -> PyResult<OwnedVector<T>> {
        let indices = self.indices.as_ref().map(|list| OwnedIndices::new(list.bind(py))).transpose()?;
        let present = self.present.as_ref().map(|bits| Numbers::of(bits.bind(py))).transpose()?;
        let (n, width, values) = (self.n, self.width, Numbers::of(self.values.bind(py))?);
        Ok(OwnedVector { n, width, indices, values, present })
    }
}

/// A vector that keeps its arrays alive while a call uses them.
pub struct OwnedVector<T> {
    n: u64,
    width: usize,
    indices: Option<OwnedIndices>,
    values: Numbers<T>,
    present: Option<Numbers<u64>>,
}

impl<T: Element> VectorInput<T> for OwnedVector<T> {
    fn n(&self) -> u64 {
        self.n
    }

    fn width(&self) -> usize {
        self.width
    }

    fn view(&self) -> View<'_, T> {
        let values = self.values.as_ref();
        match &self.indices {
            Some(list) => View::Sparse { indices: list.indices(), values },
            None => View::Dense { values, present: self.present.as_ref().map(AsRef::as_ref) },
        }
    }
}

/// The type of an array's numbers.
pub fn dtype_of(array: &Bound<'_, PyAny>) -> PyResult<DType> {
    // NumPy computes a type's name in Python at each access, so its own types are found by kind and size. The kind is the name's
    // first letter. bfloat16 is another package's type, of kind V, and is found by its name.
    if let Ok(array) = array.cast::<PyUntypedArray>() {
        let kind_and_size = (array.dtype().kind(), array.dtype().itemsize());
        if let Some(dtype) =
            DType::ALL.into_iter().find(|d| (d.name().as_bytes()[0], d.size()) == kind_and_size)
        {
            return Ok(dtype);
        }
    }
    let name: String = array.getattr("dtype")?.getattr("name")?.extract()?;
    DType::ALL
        .into_iter()
        .find(|d| d.name() == name)
        .ok_or_else(|| PyTypeError::new_err(format!("values of {name} cannot be reduced")))
}

/// Indices as an array.
pub fn index_array(py: Python<'_>, list: IndexList) -> Bound<'_, PyAny> {
    match list {
        IndexList::Narrow(list) => list.into_pyarray(py).into_any(),
        IndexList::Wide(list) => list.into_pyarray(py).into_any(),
    }
}

/// Moves the vectors of all ranks into NumPy arrays.
pub fn vectors_of<T: Element + numpy::Element>(
    py: Python<'_>,
    all: Vec<SparseVec<T>>,
) -> PyResult<Vec<Py<Vector>>> {
    all.into_iter().map(|vector| Py::new(py, Vector::of(py, vector))).collect()
}

/// Runs `$body` with the vector as `$x`, of numbers of type `$T`. If an array cannot be converted, fails the group's next call.
macro_rules! with_vector {
    ($py:ident, $comm:ident, $vector:expr, |$T:ident, $x:ident| $body:expr) => {
        with_element!(or_fail($py, $comm, $vector.dtype($py))?, $T => {
            let $x = or_fail($py, $comm, $vector.owned::<$T>($py))?;
            $body
        })
    };
}
pub(crate) use with_vector;
