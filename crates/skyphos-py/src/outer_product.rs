//! `Comm.outer_product_sum`: factors that Python objects hold, to arrays or vectors.

use crate::comm::Comm;
use crate::errors::{or_fail, to_py};
use crate::owned::{Numbers, NumbersMut, OwnedIndices};
use crate::planner::{StageNumbers, stage_numbers};
use crate::stream::parts;
use crate::work::perform;
use numpy::{IntoPyArray, PyReadonlyArrayDyn, PyReadwriteArrayDyn};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use skyphos::product::{Before, Factor, Multiply, Rows, multiply};
use skyphos::{
    Error, Level, OuterAlgorithm, OuterOptions, OuterShape, OuterSum, Result, Schedule, SparseFactors,
    SparsePairs, bf16, f16,
};

/// Algorithm, exchange, owners, grid, whether each rank keeps its rows, whether the result's memory is new.
type Settings = (String, Option<String>, Option<String>, Option<(u32, u32)>, bool, bool);

/// Rows, columns, this rank's pairs.
type Shape = (usize, usize, usize);

fn options((algorithm, exchange, owners, grid, scatter, fresh): Settings) -> Result<OuterOptions> {
    let algorithm = OuterAlgorithm::from_name(&algorithm)?;
    let exchange = exchange
        .map(|name| {
            let known = || Schedule::ALL.map(Schedule::name).join(", ");
            let found = Schedule::ALL.into_iter().find(|one| one.name() == name);
            found.ok_or_else(|| {
                Error::bad_input(format!("unknown exchange {name:?}: use one of auto, {}", known()))
            })
        })
        .transpose()?;
    let level = owners
        .map(|name| {
            let known = || Level::ALL.map(Level::name).join(", ");
            let found = Level::ALL.into_iter().find(|one| one.name() == name);
            found.ok_or_else(|| Error::bad_input(format!("unknown owners {name:?}: use one of {}", known())))
        })
        .transpose()?;
    Ok(OuterOptions { algorithm, exchange, level, grid, scatter, fresh })
}

fn shape((n, m, pairs): Shape) -> OuterShape {
    OuterShape { n, m, pairs }
}

/// What was predicted: stages and seconds.
type Predicted = (Vec<StageNumbers>, f64);

/// Algorithm, exchange, owners, grid, pairs of all ranks, prediction, what was passed over, bytes and frames sent, bytes received.
type Told = (
    (&'static str, Option<&'static str>, &'static str, Option<(u32, u32)>, usize),
    Option<Predicted>,
    Vec<(String, f64)>,
    (u64, u64, u64),
);

fn told(OuterSum { told, traffic }: OuterSum) -> Told {
    let how =
        (told.algorithm.name(), told.exchange.map(Schedule::name), told.level.name(), told.grid, told.pairs);
    let predicted = told.predicted.map(|one| (one.stages.iter().map(stage_numbers).collect(), one.seconds));
    (how, predicted, told.others, (traffic.sent_bytes, traffic.sent_frames, traffic.received_bytes))
}

/// Runs `$body` with `$T` the type of an array's numbers.
macro_rules! with_factor {
    ($py:expr, $array:expr, $T:ident => $body:expr) => {{
        let array: &Bound<'_, PyAny> = $array;
        let name = array.getattr("dtype")?.getattr("name")?.extract::<String>()?;
        match name.as_str() {
            "float32" => {
                type $T = f32;
                $body
            }
            "float64" => {
                type $T = f64;
                $body
            }
            "bfloat16" => {
                type $T = bf16;
                $body
            }
            "float16" => {
                type $T = f16;
                $body
            }
            other => Err(PyTypeError::new_err(format!(
                "factors are of float16, bfloat16, float32 or float64, not {other}"
            ))),
        }
    }};
}

fn numbers<T: numpy::Element>(array: &Bound<'_, PyAny>) -> PyResult<Numbers<T>> {
    let held: PyReadonlyArrayDyn<'_, T> = array.extract()?;
    Ok(Numbers::new(held.as_slice()?, array))
}

/// Sums aᵀ b of all ranks into `out`.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
pub fn outer_product_sum(
    py: Python<'_>,
    comm: &Comm,
    a: &Bound<'_, PyAny>,
    b: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    of: Shape,
    settings: Settings,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let options = or_fail(py, comm, options(settings).map_err(|error| to_py(py, error)))?;
    with_factor!(py, a, T => {
        let converted = || -> PyResult<_> {
            let (a, b) = (numbers::<T>(a)?, numbers::<T>(b)?);
            let mut held: PyReadwriteArrayDyn<'_, T> = out.extract()?;
            let out = NumbersMut::new(held.as_slice_mut()?, out);
            Ok(((a, b), out))
        };
        let (factors, out) = or_fail(py, comm, converted())?;
        let call = comm.outer_product_sum(shape(of), factors, out).options(options);
        perform(py, comm, call, async_op, |py, done| told(done.report).into_py_any(py))
    })
}

/// The factors of all ranks: a and b as arrays, and how they came.
#[pyfunction]
pub fn outer_factors(
    py: Python<'_>,
    comm: &Comm,
    a: &Bound<'_, PyAny>,
    b: &Bound<'_, PyAny>,
    of: Shape,
    settings: Settings,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let options = or_fail(py, comm, options(settings).map_err(|error| to_py(py, error)))?;
    with_factor!(py, a, T => {
        let converted = || -> PyResult<_> { Ok((numbers::<T>(a)?, numbers::<T>(b)?)) };
        let factors = or_fail(py, comm, converted())?;
        let call = comm.gather_outer_factors(shape(of), factors).options(options);
        perform(py, comm, call, async_op, |py, all| {
            (all.a.into_pyarray(py), all.b.into_pyarray(py), told(all.sum)).into_py_any(py)
        })
    })
}

/// Sparse factors that arrays hold.
struct Held<T> {
    a: (OwnedIndices, Numbers<T>),
    b: (OwnedIndices, Numbers<T>),
}

/// Indices and values.
type Entries<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

impl<T: Factor + numpy::Element> Held<T> {
    fn new((a_at, a): &Entries<'_>, (b_at, b): &Entries<'_>) -> PyResult<Held<T>> {
        let list = |array: &Bound<'_, PyAny>| -> PyResult<OwnedIndices> {
            match OwnedIndices::new(array)? {
                list @ OwnedIndices::U64(_) => Ok(list),
                _ => Err(PyTypeError::new_err("indices of sparse factors are of uint64")),
            }
        };
        Ok(Held { a: (list(a_at)?, numbers(a)?), b: (list(b_at)?, numbers(b)?) })
    }
}

fn wide(list: &OwnedIndices) -> &[u64] {
    match list {
        OwnedIndices::U64(list) => list.as_ref(),
        _ => unreachable!("checked as it was made"),
    }
}

impl<T: Factor> SparseFactors<T> for Held<T> {
    fn pairs(&self) -> SparsePairs<'_, T> {
        SparsePairs { a: (wide(&self.a.0), self.a.1.as_ref()), b: (wide(&self.b.0), self.b.1.as_ref()) }
    }
}

/// Sums aᵀ b of all ranks' sparse factors: a vector of N M numbers, and how it came about.
#[pyfunction]
pub fn sparse_outer_product_sum(
    py: Python<'_>,
    comm: &Comm,
    a: Entries<'_>,
    b: Entries<'_>,
    of: Shape,
    settings: Settings,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let options = or_fail(py, comm, options(settings).map_err(|error| to_py(py, error)))?;
    with_factor!(py, &a.1, T => {
        let own = or_fail(py, comm, Held::<T>::new(&a, &b))?;
        let call = comm.sparse_outer_product_sum(shape(of), own).options(options);
        perform(py, comm, call, async_op, |py, all| (parts(py, all.sum), told(all.done)).into_py_any(py))
    })
}

/// The sparse factors of all ranks: indices and values of a and of b, and how they came.
#[pyfunction]
pub fn sparse_outer_factors(
    py: Python<'_>,
    comm: &Comm,
    a: Entries<'_>,
    b: Entries<'_>,
    of: Shape,
    settings: Settings,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let options = or_fail(py, comm, options(settings).map_err(|error| to_py(py, error)))?;
    with_factor!(py, &a.1, T => {
        let own = or_fail(py, comm, Held::<T>::new(&a, &b))?;
        let call = comm.gather_sparse_outer_factors(shape(of), own).options(options);
        perform(py, comm, call, async_op, |py, all| {
            let a = (all.a.0.into_pyarray(py), all.a.1.into_pyarray(py));
            let b = (all.b.0.into_pyarray(py), all.b.1.into_pyarray(py));
            (a, b, told(all.done)).into_py_any(py)
        })
    })
}

fn add<S: Multiply + numpy::Element>(
    py: Python<'_>,
    (a, b): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
    out: &Bound<'_, PyAny>,
    (n, m, pairs): Shape,
    scale: S,
    threads: usize,
) -> PyResult<()> {
    let (a, b) = (numbers::<S>(a)?, numbers::<S>(b)?);
    let mut held: PyReadwriteArrayDyn<'_, S> = out.extract()?;
    let mut out = NumbersMut::new(held.as_slice_mut()?, out);
    py.detach(|| {
        let of = (Rows { numbers: a.as_ref(), stride: n }, Rows { numbers: b.as_ref(), stride: m });
        multiply((n, m, pairs), of, (out.as_mut(), m), (Before::Sum, scale), threads);
    });
    Ok(())
}

/// Adds `scale` aᵀ b to `out`, on so many threads; arrays of float32 or float64, in rows.
#[pyfunction]
pub fn add_product(
    py: Python<'_>,
    a: &Bound<'_, PyAny>,
    b: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    of: Shape,
    scale: f64,
    threads: usize,
) -> PyResult<()> {
    let fits = |array: &Bound<'_, PyAny>, want: usize| -> PyResult<bool> {
        Ok(array.getattr("size")?.extract::<usize>()? == want)
    };
    let (n, m, pairs) = of;
    if !(fits(a, pairs * n)? && fits(b, pairs * m)? && fits(out, n * m)?) {
        return Err(PyTypeError::new_err("factors and sum do not fit"));
    }
    match a.getattr("dtype")?.getattr("name")?.extract::<String>()?.as_str() {
        "float32" => add::<f32>(py, (a, b), out, of, scale as f32, threads),
        "float64" => add::<f64>(py, (a, b), out, of, scale, threads),
        other => Err(PyTypeError::new_err(format!("a product of float32 or float64, not of {other}"))),
    }
}
