//! Sparse vectors in and out of NumPy, and the collectives that take them.

use crate::arrays::{IndexArray, ValueArrays, with_values};
use crate::comm::Comm;
use crate::errors::{or_fail, to_py};
use crate::op::reduce_op;
use numpy::{IntoPyArray, PyReadonlyArray1, PyReadonlyArrayDyn};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use skyphos::{
    Algorithm, AllreduceOptions, DType, DenseThreshold, Error, Form, IndexList, Result, SparseVec, Split,
    View, with_element,
};

/// The parts of a vector: indices, values and bitmap; indices are None for a dense one.
type Parts<'py> = (Option<Bound<'py, PyAny>>, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// Settings that all ranks share: algorithm, degrees, split, dense threshold (-1: automatic, -2: the paper's).
type Settings = (String, Option<Vec<u32>>, String, i64);

fn options((algorithm, degrees, split, threshold): Settings) -> Result<AllreduceOptions> {
    let split = match split.as_str() {
        "even" => Split::Even,
        "quantiles" => Split::Quantiles,
        other => {
            return Err(Error::bad_input(format!("split must be \"even\" or \"quantiles\", not {other:?}")));
        }
    };
    let dense_threshold = match threshold {
        -1 => DenseThreshold::Auto,
        -2 => DenseThreshold::Paper,
        entries => DenseThreshold::Entries(entries.max(0) as u64),
    };
    Ok(AllreduceOptions { algorithm: Algorithm::from_name(&algorithm)?, degrees, split, dense_threshold })
}

/// The type of an array's numbers.
fn dtype_of(array: &Bound<'_, PyAny>) -> PyResult<DType> {
    let name: String = array.getattr("dtype")?.getattr("name")?.extract()?;
    DType::ALL
        .into_iter()
        .find(|d| d.name() == name)
        .ok_or_else(|| PyTypeError::new_err(format!("values of {name} cannot be reduced")))
}

fn index_list(py: Python<'_>, list: IndexList) -> Bound<'_, PyAny> {
    match list {
        IndexList::Narrow(list) => list.into_pyarray(py).into_any(),
        IndexList::Wide(list) => list.into_pyarray(py).into_any(),
    }
}

fn parts<T: skyphos::Element + numpy::Element>(py: Python<'_>, vector: SparseVec<T>) -> Parts<'_> {
    match vector.form {
        Form::Sparse { indices, values } => {
            (Some(index_list(py, indices)), values.into_pyarray(py).into_any(), None)
        }
        Form::Dense { values, present } => {
            let present = present.map(|bits| bits.into_pyarray(py).into_any());
            (None, values.into_pyarray(py).into_any(), present)
        }
    }
}

/// A vector that came in, held while a call uses it.
struct Held<'py> {
    indices: Option<IndexArray<'py>>,
    present: Option<PyReadonlyArray1<'py, u64>>,
}

impl<'py> Held<'py> {
    fn new(indices: &Bound<'py, PyAny>, present: &Bound<'py, PyAny>) -> PyResult<Held<'py>> {
        let indices = (!indices.is_none()).then(|| IndexArray::new(indices)).transpose()?;
        let present = (!present.is_none()).then(|| present.extract()).transpose()?;
        Ok(Held { indices, present })
    }

    fn view<'a, T>(&'a self, values: &'a [T]) -> PyResult<View<'a, T>> {
        Ok(match &self.indices {
            Some(indices) => View::Sparse { indices: indices.slice()?, values },
            None => View::Dense { values, present: self.present.as_ref().map(|p| p.as_slice()).transpose()? },
        })
    }
}

/// `Comm.allreduce` of a sparse vector, or of one that is dense.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
pub fn allreduce<'py>(
    py: Python<'py>,
    comm: &Comm,
    n: u64,
    width: usize,
    indices: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    present: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    identity: &Bound<'py, PyAny>,
    settings: Settings,
) -> PyResult<Parts<'py>> {
    let comm = comm.shared();
    let op = or_fail(py, comm, reduce_op(op, identity))?;
    let options = or_fail(py, comm, options(settings).map_err(|e| to_py(py, e)))?;
    let held = or_fail(py, comm, Held::new(indices, present))?;
    let dtype = or_fail(py, comm, dtype_of(values))?;
    with_element!(dtype, T => {
        let numbers: PyReadonlyArrayDyn<'_, T> = or_fail(py, comm, values.extract().map_err(PyErr::from))?;
        let view = held.view(numbers.as_slice()?)?;
        let reduced = py.detach(|| comm.allreduce(n, width, view, &op, &options));
        reduced.map(|vector| parts::<T>(py, vector)).map_err(|e| to_py(py, e))
    })
}

/// `Comm.allreduce` of a dense array into `out`.
#[pyfunction]
pub fn allreduce_dense(
    py: Python<'_>,
    comm: &Comm,
    values: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    op: &Bound<'_, PyAny>,
    identity: &Bound<'_, PyAny>,
    algorithm: &str,
) -> PyResult<()> {
    let comm = comm.shared();
    let op = or_fail(py, comm, reduce_op(op, identity))?;
    let algorithm = or_fail(py, comm, Algorithm::from_name(algorithm).map_err(|e| to_py(py, e)))?;
    let options = AllreduceOptions { algorithm, ..AllreduceOptions::default() };
    let mut arrays = or_fail(py, comm, ValueArrays::new(values, out))?;
    with_values!(&mut arrays, |values, out| py.detach(|| comm.allreduce_dense(values, out, &op, &options)))
        .map_err(|e| to_py(py, e))
}
