//! Sparse vectors in and out of NumPy, and the collectives that take them.

use crate::arrays::{IndexArray, ValueArrays, with_values};
use crate::comm::Comm;
use crate::errors::{or_fail, to_py};
use crate::op::reduce_op;
use crate::quantize::{Quantised, quantize};
use numpy::{IntoPyArray, PyReadonlyArray1, PyReadonlyArrayDyn};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use skyphos::{
    Algorithm, AllreduceOptions, DType, DenseThreshold, Error, Form, IndexList, Result, Schedule, SparseVec,
    Split, View, with_element,
};

/// The parts of a vector: indices, values and bitmap; indices are None for a dense one.
pub(crate) type Parts<'py> = (Option<Bound<'py, PyAny>>, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// The same as they come in.
pub(crate) type Arrays<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Settings that all ranks share: algorithm, degrees, split, dense threshold (-1: automatic, -2: the paper's), what
/// is quantised.
pub(crate) type Settings = (String, Option<Vec<u32>>, String, i64, Option<Quantised>);

pub(crate) fn options(
    (algorithm, degrees, split, threshold, quantised): Settings,
) -> Result<AllreduceOptions> {
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
    let (algorithm, quantize) = (Algorithm::from_name(&algorithm)?, quantised.map(quantize).transpose()?);
    Ok(AllreduceOptions { algorithm, degrees, split, dense_threshold, quantize })
}

/// The type of an array's numbers.
pub(crate) fn dtype_of(array: &Bound<'_, PyAny>) -> PyResult<DType> {
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

pub(crate) fn parts<T: skyphos::Element + numpy::Element>(py: Python<'_>, vector: SparseVec<T>) -> Parts<'_> {
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
pub(crate) struct Held<'py> {
    indices: Option<IndexArray<'py>>,
    present: Option<PyReadonlyArray1<'py, u64>>,
}

impl<'py> Held<'py> {
    pub(crate) fn of(arrays: &Arrays<'py>) -> PyResult<Held<'py>> {
        Held::new(&arrays.0, &arrays.2)
    }

    fn new(indices: &Bound<'py, PyAny>, present: &Bound<'py, PyAny>) -> PyResult<Held<'py>> {
        let indices = (!indices.is_none()).then(|| IndexArray::new(indices)).transpose()?;
        let present = (!present.is_none()).then(|| present.extract()).transpose()?;
        Ok(Held { indices, present })
    }

    pub(crate) fn view<'a, T>(&'a self, values: &'a [T]) -> PyResult<View<'a, T>> {
        Ok(match &self.indices {
            Some(indices) => View::Sparse { indices: indices.slice()?, values },
            None => View::Dense { values, present: self.present.as_ref().map(|p| p.as_slice()).transpose()? },
        })
    }
}

/// Runs the body with a view of a vector's arrays, for the type of its numbers.
macro_rules! with_vector {
    ($py:ident, $comm:ident, $vector:ident, $T:ident, $view:ident => $body:block) => {{
        let dtype = or_fail($py, $comm, dtype_of(&$vector.1))?;
        let held = or_fail($py, $comm, Held::of(&$vector))?;
        with_element!(dtype, $T => {
            let numbers: PyReadonlyArrayDyn<'_, $T> = or_fail($py, $comm, $vector.1.extract())?;
            let $view = or_fail($py, $comm, numbers.as_slice().map_err(PyErr::from).and_then(|n| held.view(n)))?;
            $body
        })
    }};
}

/// `Comm.allreduce` of a sparse vector, or of one that is dense.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
pub fn allreduce<'py>(
    py: Python<'py>,
    comm: &Comm,
    n: u64,
    width: usize,
    vector: Arrays<'py>,
    op: &Bound<'py, PyAny>,
    identity: &Bound<'py, PyAny>,
    settings: Settings,
) -> PyResult<Parts<'py>> {
    let comm = comm.shared();
    let op = or_fail(py, comm, reduce_op(op, identity))?;
    let options = or_fail(py, comm, options(settings).map_err(|e| to_py(py, e)))?;
    with_vector!(py, comm, vector, T, view => {
        let reduced = py.detach(|| comm.allreduce(n, width, view, &op, &options));
        reduced.map(|vector| parts::<T>(py, vector)).map_err(|e| to_py(py, e))
    })
}

/// `Comm.allreduce` of a dense array into `out`.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
pub fn allreduce_dense(
    py: Python<'_>,
    comm: &Comm,
    values: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    op: &Bound<'_, PyAny>,
    identity: &Bound<'_, PyAny>,
    algorithm: String,
    quantised: Option<Quantised>,
) -> PyResult<()> {
    let comm = comm.shared();
    let op = or_fail(py, comm, reduce_op(op, identity))?;
    let settings = (algorithm, None, "quantiles".to_owned(), -1, quantised);
    let options = or_fail(py, comm, options(settings).map_err(|e| to_py(py, e)))?;
    let mut arrays = or_fail(py, comm, ValueArrays::new(values, out))?;
    with_values!(&mut arrays, |values, out| py.detach(|| comm.allreduce_dense(values, out, &op, &options)))
        .map_err(|e| to_py(py, e))
}

/// `Comm.reduce_scatter`: this rank's entries, and its range.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
pub fn reduce_scatter<'py>(
    py: Python<'py>,
    comm: &Comm,
    n: u64,
    width: usize,
    vector: Arrays<'py>,
    op: &Bound<'py, PyAny>,
    identity: &Bound<'py, PyAny>,
    split: String,
) -> PyResult<(Parts<'py>, (u64, u64))> {
    let comm = comm.shared();
    let op = or_fail(py, comm, reduce_op(op, identity))?;
    let settings = ("auto".to_owned(), None, split, -1, None);
    let options = or_fail(py, comm, options(settings).map_err(|e| to_py(py, e)))?;
    with_vector!(py, comm, vector, T, view => {
        let (part, owned) = py
            .detach(|| comm.reduce_scatter(n, width, view, &op, &options))
            .map_err(|e| to_py(py, e))?;
        Ok((parts::<T>(py, part), (owned.start, owned.end)))
    })
}

/// `Comm.reduce`: the result on `root`, None elsewhere.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
pub fn reduce<'py>(
    py: Python<'py>,
    comm: &Comm,
    n: u64,
    width: usize,
    vector: Arrays<'py>,
    op: &Bound<'py, PyAny>,
    identity: &Bound<'py, PyAny>,
    root: u32,
) -> PyResult<Option<Parts<'py>>> {
    let comm = comm.shared();
    let op = or_fail(py, comm, reduce_op(op, identity))?;
    with_vector!(py, comm, vector, T, view => {
        let result = py
            .detach(|| comm.reduce_to_root(n, width, view, &op, root, &AllreduceOptions::default()))
            .map_err(|e| to_py(py, e))?;
        Ok(result.map(|vector| parts::<T>(py, vector)))
    })
}

/// `Comm.allgather` (`root` is None) by a schedule, or `Comm.gather`: the vectors of all ranks.
#[pyfunction]
pub fn gather<'py>(
    py: Python<'py>,
    comm: &Comm,
    n: u64,
    width: usize,
    vector: Arrays<'py>,
    root: Option<u32>,
    schedule: &str,
) -> PyResult<Vec<Parts<'py>>> {
    let comm = comm.shared();
    let schedule = Schedule::ALL.into_iter().find(|s| s.name() == schedule).ok_or_else(|| {
        let known: Vec<_> = Schedule::ALL.iter().map(|s| s.name()).collect();
        PyTypeError::new_err(format!("unknown algorithm {schedule:?}: use one of {}", known.join(", ")))
    });
    let schedule = or_fail(py, comm, schedule)?;
    with_vector!(py, comm, vector, T, view => {
        let all = py.detach(|| match root {
            None => comm.allgather(n, width, view, schedule),
            Some(root) => comm.gather(n, width, view, root),
        });
        Ok(all.map_err(|e| to_py(py, e))?.into_iter().map(|vector| parts::<T>(py, vector)).collect())
    })
}

/// `Comm.alltoall` (`root` is None), or `Comm.scatter`, of one vector a rank. `like` has the dtype.
#[pyfunction]
pub fn alltoall<'py>(
    py: Python<'py>,
    comm: &Comm,
    n: u64,
    width: usize,
    vectors: Vec<Arrays<'py>>,
    root: Option<u32>,
    like: &Bound<'py, PyAny>,
) -> PyResult<Vec<Parts<'py>>> {
    let comm = comm.shared();
    let dtype = or_fail(py, comm, dtype_of(like))?;
    let held: Vec<Held<'py>> = or_fail(py, comm, vectors.iter().map(Held::of).collect())?;
    with_element!(dtype, T => {
        let numbers: PyResult<Vec<PyReadonlyArrayDyn<'_, T>>> =
            vectors.iter().map(|v| v.1.extract()).collect();
        let numbers = or_fail(py, comm, numbers)?;
        let views: PyResult<Vec<View<'_, T>>> =
            held.iter().zip(&numbers).map(|(held, numbers)| held.view(numbers.as_slice()?)).collect();
        let views = or_fail(py, comm, views)?;
        let all = py.detach(|| match root {
            None => comm.alltoall(n, width, &views),
            Some(root) => comm.scatter(n, width, &views, root).map(|share| vec![share]),
        });
        Ok(all.map_err(|e| to_py(py, e))?.into_iter().map(|vector| parts::<T>(py, vector)).collect())
    })
}
