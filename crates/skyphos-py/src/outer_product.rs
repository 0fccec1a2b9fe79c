//! `Comm.outer_product_sum`: factors in memory of Python objects, results as arrays or vectors.

use crate::comm::Comm;
use crate::errors::{or_fail, unreported};
use crate::indices::OwnedIndices;
use crate::owned::{Numbers, NumbersMut};
use crate::report::{Stage, Traffic, stages_of};
use crate::vector::Vector;
use crate::work::perform;
use numpy::{IntoPyArray, PyReadwriteArrayDyn};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use skyphos::product::{Destination, Factor, Multiply, Rows, multiply};
use skyphos::{Error, Level, OuterAlgorithm, Result, Schedule, SparseFactors, SparsePairs, bf16, f16};

/// Rows and columns of the product, and the number of this rank's pairs.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct OuterShape(skyphos::OuterShape);

#[pymethods]
impl OuterShape {
    #[new]
    fn new(n: usize, m: usize, pairs: usize) -> OuterShape {
        OuterShape(skyphos::OuterShape { n, m, pairs })
    }
}

/// Settings of a sum of outer products: declared and documented in `skyphos::OuterOptions`.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct OuterOptions(skyphos::OuterOptions);

#[pymethods]
impl OuterOptions {
    #[new]
    #[pyo3(signature = (algorithm="auto", *, exchange=None, owners=None, grid=None, scatter=false, fresh=false))]
    fn new(
        py: Python<'_>,
        algorithm: &str,
        exchange: Option<&str>,
        owners: Option<&str>,
        grid: Option<(u32, u32)>,
        scatter: bool,
        fresh: bool,
    ) -> PyResult<OuterOptions> {
        let checked = || -> Result<skyphos::OuterOptions> {
            let algorithm = OuterAlgorithm::from_name(algorithm)?;
            let exchange = exchange.map(exchange_of).transpose()?;
            let level = owners.map(level_of).transpose()?;
            Ok(skyphos::OuterOptions { algorithm, exchange, level, grid, scatter, fresh })
        };
        checked().map(OuterOptions).map_err(|error| unreported(py, &error))
    }
}

fn exchange_of(name: &str) -> Result<Schedule> {
    Schedule::ALL.into_iter().find(|schedule| schedule.name() == name).ok_or_else(|| {
        let known = Schedule::ALL.map(Schedule::name).join(", ");
        Error::bad_input(format!("unknown exchange {name:?}: use one of auto, {known}"))
    })
}

fn level_of(name: &str) -> Result<Level> {
    Level::ALL.into_iter().find(|level| level.name() == name).ok_or_else(|| {
        let known = Level::ALL.map(Level::name).join(", ");
        Error::bad_input(format!("unknown owners {name:?}: use one of {known}"))
    })
}

/// The explanation of a sum of outer products.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct OuterReport {
    algorithm: &'static str,
    exchange: Option<&'static str>,
    owners: &'static str,
    grid: Option<(u32, u32)>,
    /// Number of pairs on all ranks.
    pairs: usize,
    /// The prediction, if `auto` chose the algorithm and factors are dense.
    stages: Vec<Py<Stage>>,
    predicted_seconds: Option<f64>,
    /// Alternatives that `auto` rejected, with predicted seconds.
    others: Vec<(String, f64)>,
    traffic: Py<Traffic>,
}

fn report(
    py: Python<'_>,
    skyphos::OuterReport { choice, traffic }: skyphos::OuterReport,
) -> PyResult<OuterReport> {
    let stages = choice.predicted.as_ref().map_or(Ok(Vec::new()), |route| stages_of(py, &route.stages))?;
    Ok(OuterReport {
        algorithm: choice.algorithm.name(),
        exchange: choice.exchange.map(Schedule::name),
        owners: choice.level.name(),
        grid: choice.grid,
        pairs: choice.pairs,
        stages,
        predicted_seconds: choice.predicted.map(|route| route.duration.0),
        others: choice.others,
        traffic: Py::new(py, Traffic::from(traffic))?,
    })
}

/// The sum of sparse factors.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct SparseOuterSum {
    sum: Py<Vector>,
    report: Py<OuterReport>,
}

/// Entries of sparse factors: ascending indices of uint64, and values.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct FactorEntries {
    indices: Py<PyAny>,
    values: Py<PyAny>,
}

#[pymethods]
impl FactorEntries {
    #[new]
    fn new(indices: Py<PyAny>, values: Py<PyAny>) -> FactorEntries {
        FactorEntries { indices, values }
    }
}

/// Factors of all ranks: arrays if they are dense, [`FactorEntries`] if they are sparse.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct GatheredFactors {
    a: Py<PyAny>,
    b: Py<PyAny>,
    report: Py<OuterReport>,
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
                "factors must be float16, bfloat16, float32 or float64, not {other}"
            ))),
        }
    }};
}

/// Sums aᵀ b of all ranks into `out`; `factors` are a and b. Returns the report.
#[pyfunction]
pub fn outer_product_sum(
    comm: &Comm,
    factors: (Bound<'_, PyAny>, Bound<'_, PyAny>),
    out: &Bound<'_, PyAny>,
    shape: &OuterShape,
    options: &OuterOptions,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let (py, comm, (a, b)) = (out.py(), comm.shared(), &factors);
    with_factor!(py, a, T => {
        let converted = || -> PyResult<_> {
            let (a, b) = (Numbers::<T>::of(a)?, Numbers::<T>::of(b)?);
            let mut out: PyReadwriteArrayDyn<'_, T> = out.extract()?;
            // SAFETY: the documentation asks Python's callers to leave `out` alone until the call is over.
            #[allow(unsafe_code, reason = "the array outlives this function")]
            let out = unsafe { NumbersMut::new(&mut out) }?;
            Ok(((a, b), out))
        };
        let (factors, out) = or_fail(py, comm, converted())?;
        let call = comm.outer_product_sum(shape.0, factors, out).options(options.0);
        perform(py, comm, call, async_op, |py, done| report(py, done.report)?.into_py_any(py))
    })
}

/// The factors of all ranks.
#[pyfunction]
pub fn outer_factors(
    py: Python<'_>,
    comm: &Comm,
    factors: (Bound<'_, PyAny>, Bound<'_, PyAny>),
    shape: &OuterShape,
    options: &OuterOptions,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let (comm, (a, b)) = (comm.shared(), &factors);
    with_factor!(py, a, T => {
        let converted = || -> PyResult<_> { Ok((Numbers::<T>::of(a)?, Numbers::<T>::of(b)?)) };
        let factors = or_fail(py, comm, converted())?;
        let call = comm.gather_outer_factors(shape.0, factors).options(options.0);
        perform(py, comm, call, async_op, |py, all| {
            let report = Py::new(py, report(py, all.report)?)?;
            let (a, b) = (all.a.into_pyarray(py).into_any(), all.b.into_pyarray(py).into_any());
            GatheredFactors { a: a.unbind(), b: b.unbind(), report }.into_py_any(py)
        })
    })
}

/// Sparse factors in arrays that the call keeps alive.
struct OwnedSparseFactors<T> {
    a: (OwnedIndices, Numbers<T>),
    b: (OwnedIndices, Numbers<T>),
}

impl<T: Factor + numpy::Element> OwnedSparseFactors<T> {
    fn new(py: Python<'_>, (a, b): (&FactorEntries, &FactorEntries)) -> PyResult<OwnedSparseFactors<T>> {
        let entries = |factor: &FactorEntries| match OwnedIndices::new(factor.indices.bind(py))? {
            list @ OwnedIndices::U64(_) => Ok((list, Numbers::of(factor.values.bind(py))?)),
            _ => Err(PyTypeError::new_err("indices of sparse factors must be uint64")),
        };
        Ok(OwnedSparseFactors { a: entries(a)?, b: entries(b)? })
    }
}

fn as_u64(list: &OwnedIndices) -> &[u64] {
    match list {
        OwnedIndices::U64(list) => list.as_ref(),
        _ => unreachable!("`OwnedSparseFactors::new` refuses other types"),
    }
}

impl<T: Factor> SparseFactors<T> for OwnedSparseFactors<T> {
    fn pairs(&self) -> SparsePairs<'_, T> {
        SparsePairs { a: (as_u64(&self.a.0), self.a.1.as_ref()), b: (as_u64(&self.b.0), self.b.1.as_ref()) }
    }
}

/// Sums aᵀ b of all ranks' sparse factors: a vector of n·m numbers.
#[pyfunction]
pub fn sparse_outer_product_sum(
    py: Python<'_>,
    comm: &Comm,
    a: &FactorEntries,
    b: &FactorEntries,
    shape: &OuterShape,
    options: &OuterOptions,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    with_factor!(py, a.values.bind(py), T => {
        let factors = or_fail(py, comm, OwnedSparseFactors::<T>::new(py, (a, b)))?;
        let call = comm.sparse_outer_product_sum(shape.0, factors).options(options.0);
        perform(py, comm, call, async_op, |py, all| {
            let report = Py::new(py, report(py, all.report)?)?;
            SparseOuterSum { sum: Py::new(py, Vector::of(py, all.sum))?, report }.into_py_any(py)
        })
    })
}

/// The sparse factors of all ranks.
#[pyfunction]
pub fn sparse_outer_factors(
    py: Python<'_>,
    comm: &Comm,
    a: &FactorEntries,
    b: &FactorEntries,
    shape: &OuterShape,
    options: &OuterOptions,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    with_factor!(py, a.values.bind(py), T => {
        let factors = or_fail(py, comm, OwnedSparseFactors::<T>::new(py, (a, b)))?;
        let call = comm.gather_sparse_outer_factors(shape.0, factors).options(options.0);
        perform(py, comm, call, async_op, |py, all| {
            let entries = |(indices, values): (Vec<u64>, Vec<T>)| {
                let indices = indices.into_pyarray(py).into_any().unbind();
                FactorEntries { indices, values: values.into_pyarray(py).into_any().unbind() }.into_py_any(py)
            };
            let report = Py::new(py, report(py, all.report)?)?;
            GatheredFactors { a: entries(all.a)?, b: entries(all.b)?, report }.into_py_any(py)
        })
    })
}

fn add<S: Multiply + numpy::Element>(
    py: Python<'_>,
    (a, b): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
    out: &Bound<'_, PyAny>,
    shape: &OuterShape,
    scale: S,
    threads: usize,
) -> PyResult<()> {
    let skyphos::OuterShape { n, m, pairs } = shape.0;
    let (a, b) = (Numbers::<S>::of(a)?, Numbers::<S>::of(b)?);
    let mut out: PyReadwriteArrayDyn<'_, S> = out.extract()?;
    let out = out.as_slice_mut()?;
    py.detach(|| {
        let factors = (Rows { numbers: a.as_ref(), stride: n }, Rows { numbers: b.as_ref(), stride: m });
        multiply((n, m, pairs), factors, (out, m), (Destination::Add, scale), threads);
    });
    Ok(())
}

/// Adds `scale` aᵀ b to `out`, on `threads` threads; row-major arrays of float32 or float64.
#[pyfunction]
pub fn add_product(
    py: Python<'_>,
    a: &Bound<'_, PyAny>,
    b: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    of: &OuterShape,
    scale: f64,
    threads: usize,
) -> PyResult<()> {
    let fits = |array: &Bound<'_, PyAny>, want: usize| -> PyResult<bool> {
        Ok(array.getattr("size")?.extract::<usize>()? == want)
    };
    let skyphos::OuterShape { n, m, pairs } = of.0;
    if !(fits(a, pairs * n)? && fits(b, pairs * m)? && fits(out, n * m)?) {
        return Err(PyTypeError::new_err("the sizes of factors and sum do not match"));
    }
    match a.getattr("dtype")?.getattr("name")?.extract::<String>()?.as_str() {
        "float32" => add::<f32>(py, (a, b), out, of, scale as f32, threads),
        "float64" => add::<f64>(py, (a, b), out, of, scale, threads),
        other => Err(PyTypeError::new_err(format!("factors must be float32 or float64, not {other}"))),
    }
}
