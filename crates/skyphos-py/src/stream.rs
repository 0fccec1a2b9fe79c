//! Sparse vectors in and out of NumPy, and the collectives that take them.

use crate::arrays::{ValueArrays, with_values};
use crate::comm::Comm;
use crate::errors::{or_fail, to_py};
use crate::op::reduce_op;
use crate::owned::{Arrays, Numbers, NumbersMut, Vector};
use crate::planner::{StageNumbers, stage_numbers};
use crate::quantize::{Quantised, quantize};
use crate::work::perform;
use numpy::IntoPyArray;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use skyphos::planner::Stage;
use skyphos::{
    Algorithm, AllgatherOptions, AllreduceOptions, Allreduced, ArrayMove, ArrayOptions, DType,
    DenseThreshold, Error, Explanation, Form, Gathered, IndexList, ReduceOp, Result, Scattered, Schedule,
    ScheduleChoice, SparseVec, Split, Traffic, shape_of, with_element,
};

/// The parts of a vector: indices, values and bitmap; indices are None for a dense one.
pub(crate) type Parts<'py> = (Option<Bound<'py, PyAny>>, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// Settings that all ranks share: algorithm, degrees, split, dense threshold (-1: automatic, -2: the paper's), what
/// is quantised, entries that the result should have, the shape of what the vector was made of.
type Settings = (String, Option<Vec<u32>>, String, i64, Option<Quantised>, Option<u64>, Option<Vec<usize>>);

fn options(
    (algorithm, degrees, split, threshold, quantised, expected_nnz, shape): Settings,
) -> Result<AllreduceOptions> {
    let split = match split.as_str() {
        "even" => Split::Even,
        "quantiles" => Split::Quantiles,
        "hash" => Split::Hash,
        other => {
            return Err(Error::bad_input(format!(
                "split must be \"even\", \"quantiles\" or \"hash\", not {other:?}"
            )));
        }
    };
    let dense_threshold = match threshold {
        -1 => DenseThreshold::Auto,
        -2 => DenseThreshold::Paper,
        entries => DenseThreshold::Entries(entries.max(0) as u64),
    };
    let (algorithm, quantize) = (Algorithm::from_name(&algorithm)?, quantised.map(quantize).transpose()?);
    Ok(AllreduceOptions {
        algorithm,
        degrees,
        split,
        dense_threshold,
        quantize,
        tell_sent: false,
        expected_nnz,
        shape: shape.and_then(|shape| shape_of(&shape)),
    })
}

/// An operation and settings from Python; what makes no sense fails the group's next call.
fn op_and_options(
    py: Python<'_>,
    comm: &skyphos::Comm,
    op: &Bound<'_, PyAny>,
    identity: &Bound<'_, PyAny>,
    settings: Settings,
) -> PyResult<(ReduceOp, AllreduceOptions)> {
    let op = or_fail(py, comm, reduce_op(op, identity))?;
    let options = or_fail(py, comm, options(settings).map_err(|e| to_py(py, e)))?;
    Ok((op, options))
}

/// The type of an array's numbers.
pub(crate) fn dtype_of(array: &Bound<'_, PyAny>) -> PyResult<DType> {
    let name: String = array.getattr("dtype")?.getattr("name")?.extract()?;
    DType::ALL
        .into_iter()
        .find(|d| d.name() == name)
        .ok_or_else(|| PyTypeError::new_err(format!("values of {name} cannot be reduced")))
}

pub fn index_list(py: Python<'_>, list: IndexList) -> Bound<'_, PyAny> {
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

/// Algorithm, degrees, dense threshold in entries, bytes sent, frames sent, bytes received, what was predicted.
type Told = (&'static str, Vec<u32>, f64, u64, u64, u64, Option<Predicted>);

/// Names, degrees and seconds of algorithms.
type Timed = Vec<(&'static str, Vec<u32>, f64)>;

/// Stages of the algorithm that `auto` chose, with times as they have been; the next best; those that were tried.
type Predicted = (Vec<StageNumbers>, Timed, Timed);

fn told(how: Explanation, explain: bool) -> Told {
    let Traffic { sent_bytes, sent_frames, received_bytes } = how.traffic;
    let predicted = how.choice.filter(|_| explain).map(|choice| {
        let seen = |stage: &Stage| Stage { seconds: stage.seconds * choice.bias, ..*stage };
        let stages = choice.prediction.stages.iter().map(|stage| stage_numbers(&seen(stage))).collect();
        let timed = |all: &[(Algorithm, Vec<u32>, f64)]| {
            all.iter().map(|(a, degrees, s)| (a.name(), degrees.clone(), *s)).collect::<Timed>()
        };
        (stages, timed(&choice.others), timed(&choice.tried))
    });
    let (name, threshold) = (how.algorithm.name(), how.dense_threshold);
    (name, how.degrees, threshold, sent_bytes, sent_frames, received_bytes, predicted)
}

/// Makes a call from a vector's arrays, for the type of its numbers, and performs it.
macro_rules! with_vector {
    ($py:ident, $comm:ident, ($n:expr, $width:expr, $vector:expr), $async_op:ident, |$T:ident, $x:ident| $call:expr, $convert:expr) => {{
        let dtype = or_fail($py, $comm, dtype_of(&$vector.1))?;
        with_element!(dtype, $T => {
            let $x = or_fail($py, $comm, Vector::<$T>::new($n, $width, &$vector))?;
            perform($py, $comm, $call, $async_op, $convert)
        })
    }};
}

/// `Comm.allreduce` of a sparse vector, or of one that is dense: the sum, how, and with `tell_sent` what quantisation
/// made of this rank's values.
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
    tell_sent: bool,
    explain: bool,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let (op, options) = op_and_options(py, comm, op, identity, settings)?;
    let options = AllreduceOptions { tell_sent, ..options };
    with_vector!(
        py,
        comm,
        (n, width, vector),
        async_op,
        |T, x| comm.allreduce(x).op(op).options(options),
        move |py: Python<'_>, done: Allreduced<T>| {
            let sent = tell_sent.then(|| done.sent.into_pyarray(py));
            (parts(py, done.sum), told(done.explanation, explain), sent).into_py_any(py)
        }
    )
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
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let settings = (algorithm, None, "quantiles".to_owned(), -1, quantised, None, None);
    let (op, options) = op_and_options(py, comm, op, identity, settings)?;
    let mut arrays = or_fail(py, comm, ValueArrays::new(values, out))?;
    let options = AllreduceOptions { shape: arrays.shape(), ..options };
    with_values!(&mut arrays, |numbers, result| {
        let (numbers, result) = (Numbers::new(numbers, values), NumbersMut::new(result, out));
        let call = comm.allreduce_dense(numbers, result).op(op).options(options);
        perform(py, comm, call, async_op, |py, done| told(done.explanation, false).into_py_any(py))
    })
}

/// `Comm.allreduce` of an array that needs nothing looked at, into one like it, at once; `false` and nothing done if it is not so.
#[pyfunction]
pub fn allreduce_plain(
    py: Python<'_>,
    comm: &Comm,
    values: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    op: &str,
) -> PyResult<bool> {
    let Ok(op) = ReduceOp::from_name(op) else { return Ok(false) };
    let Ok(mut arrays) = ValueArrays::plain(values, out) else { return Ok(false) };
    let (comm, shape) = (comm.shared(), arrays.shape());
    let options = AllreduceOptions { shape, ..AllreduceOptions::default() };
    with_values!(&mut arrays, |numbers, result| {
        let call = comm.allreduce_dense(numbers, result).op(op).options(options);
        py.detach(|| call.run().map(drop)).map_err(|e| to_py(py, e))?;
    });
    Ok(true)
}

/// `Comm.reduce_scatter`: this rank's entries, its range, and how.
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
    degrees: Option<Vec<u32>>,
    expected_nnz: Option<u64>,
    explain: bool,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let settings = ("auto".to_owned(), degrees, "even".to_owned(), -1, None, expected_nnz, None);
    let (op, options) = op_and_options(py, comm, op, identity, settings)?;
    with_vector!(
        py,
        comm,
        (n, width, vector),
        async_op,
        |T, x| comm.reduce_scatter(x).op(op).options(options),
        move |py: Python<'_>, done: Scattered<T>| {
            let owned = (done.owned.start, done.owned.end);
            (parts(py, done.part), owned, told(done.explanation, explain)).into_py_any(py)
        }
    )
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
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let op = or_fail(py, comm, reduce_op(op, identity))?;
    with_vector!(
        py,
        comm,
        (n, width, vector),
        async_op,
        |T, x| comm.reduce_to_root(x, root).op(op),
        |py, result| result.map(|vector| parts::<T>(py, vector)).into_py_any(py)
    )
}

/// The schedule of a name; None for "auto".
fn schedule_of(name: &str) -> PyResult<Option<Schedule>> {
    if name == "auto" {
        return Ok(None);
    }
    Schedule::ALL.into_iter().find(|s| s.name() == name).map(Some).ok_or_else(|| {
        let known: Vec<_> = ["auto"].into_iter().chain(Schedule::ALL.iter().map(|s| s.name())).collect();
        PyTypeError::new_err(format!("unknown algorithm {name:?}: use one of {}", known.join(", ")))
    })
}

/// How an allgather of one kind is told as an allreduce is.
fn told_of_schedule(choice: &ScheduleChoice, traffic: Traffic) -> Told {
    let predicted = choice.predicted.as_ref().map(|stage| {
        let others = choice.others.iter().map(|(schedule, s)| (schedule.name(), Vec::new(), *s));
        (vec![stage_numbers(stage)], others.collect(), Vec::new())
    });
    let Traffic { sent_bytes, sent_frames, received_bytes } = traffic;
    (choice.schedule.name(), Vec::new(), 0.0, sent_bytes, sent_frames, received_bytes, predicted)
}

/// `Comm.allgather` by a schedule: the vectors of all ranks, and how.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
pub fn allgather<'py>(
    py: Python<'py>,
    comm: &Comm,
    n: u64,
    width: usize,
    vector: Arrays<'py>,
    schedule: &str,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let schedule = or_fail(py, comm, schedule_of(schedule))?;
    with_vector!(
        py,
        comm,
        (n, width, vector),
        async_op,
        |T, x| comm.allgather(x).options(AllgatherOptions { schedule }),
        |py: Python<'_>, done: Gathered<T>| {
            let told = told_of_schedule(&done.choice, done.traffic);
            (all_parts::<T>(py, done.vectors), told).into_py_any(py)
        }
    )
}

/// `Comm.gather`: the vectors of all ranks on `root`.
#[pyfunction]
pub fn gather<'py>(
    py: Python<'py>,
    comm: &Comm,
    n: u64,
    width: usize,
    vector: Arrays<'py>,
    root: u32,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    with_vector!(py, comm, (n, width, vector), async_op, |T, x| comm.gather(x, root), |py, all| {
        all_parts::<T>(py, all).into_py_any(py)
    })
}

/// `Comm.alltoall` (`root` is None), or `Comm.scatter`, of one vector a rank. `like` has the dtype.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
pub fn alltoall<'py>(
    py: Python<'py>,
    comm: &Comm,
    n: u64,
    width: usize,
    vectors: Vec<Arrays<'py>>,
    root: Option<u32>,
    like: &Bound<'py, PyAny>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let dtype = or_fail(py, comm, dtype_of(like))?;
    with_element!(dtype, T => {
        let owned = |vector: &Arrays<'_>| Vector::new(n, width, vector);
        let xs: Vec<Vector<T>> = or_fail(py, comm, vectors.iter().map(owned).collect())?;
        match root {
            None => perform(py, comm, comm.alltoall(n, width, xs), async_op, |py, all| {
                all_parts::<T>(py, all).into_py_any(py)
            }),
            Some(root) => perform(py, comm, comm.scatter(n, width, xs, root), async_op, |py, share| {
                all_parts::<T>(py, vec![share]).into_py_any(py)
            }),
        }
    })
}

/// `Comm.allgather`, `gather`, `alltoall` or `scatter` of arrays, or a message in a group of two, into `out`, and how; `root` counts where there is one.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
pub fn move_arrays(
    py: Python<'_>,
    comm: &Comm,
    what: &str,
    values: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    root: u32,
    schedule: &str,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let bytes = || values.getattr("nbytes").and_then(|bytes| bytes.extract());
    let choice = match (what, or_fail(py, comm, schedule_of(schedule))?) {
        ("allgather", None) => comm.schedule_of_arrays(or_fail(py, comm, bytes())?),
        (_, named) => ScheduleChoice::named(named.unwrap_or(Schedule::Direct)),
    };
    let what = match what {
        "allgather" => ArrayMove::Allgather(choice.schedule),
        "gather" => ArrayMove::Gather { root },
        "alltoall" => ArrayMove::Alltoall,
        "message" => ArrayMove::Message,
        _ => ArrayMove::Scatter { root },
    };
    let mut arrays = or_fail(py, comm, ValueArrays::new(values, out))?;
    // Of a scatter each rank has the shape of what comes.
    let shape =
        if matches!(what, ArrayMove::Scatter { .. }) { arrays.shape_of_out() } else { arrays.shape() };
    with_values!(&mut arrays, |numbers, result| {
        let (numbers, result) = (Numbers::new(numbers, values), NumbersMut::new(result, out));
        let call = comm.move_arrays(what, numbers, result).options(ArrayOptions { shape });
        perform(py, comm, call, async_op, move |py, done| {
            told_of_schedule(&choice, done.traffic).into_py_any(py)
        })
    })
}

/// Blocks of an array of bytes to each rank, and of each into `out`: lengths by rank.
#[pyfunction]
pub fn alltoall_uneven(
    py: Python<'_>,
    comm: &Comm,
    values: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    sends: Vec<usize>,
    receives: Vec<usize>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let ValueArrays::U8(bytes, mut result) = or_fail(py, comm, ValueArrays::new(values, out))? else {
        let error = PyTypeError::new_err("arrays of bytes are uint8");
        return or_fail(py, comm, Err(error));
    };
    let bytes = Numbers::new(bytes.as_slice()?, values);
    let room = NumbersMut::new(result.as_slice_mut()?, out);
    let call = comm.alltoall_uneven(bytes, room, sends, receives);
    perform(py, comm, call, async_op, |py, _| ().into_py_any(py))
}

/// `Comm.reduce_scatter` (`root` is None) or `reduce` of an array, into `out`.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
pub fn reduce_arrays(
    py: Python<'_>,
    comm: &Comm,
    values: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    op: &Bound<'_, PyAny>,
    identity: &Bound<'_, PyAny>,
    root: Option<u32>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let op = or_fail(py, comm, reduce_op(op, identity))?;
    let mut arrays = or_fail(py, comm, ValueArrays::new(values, out))?;
    let shape = arrays.shape();
    with_values!(&mut arrays, |numbers, result| {
        let (numbers, result) = (Numbers::new(numbers, values), NumbersMut::new(result, out));
        let call = comm.reduce_arrays(root, numbers, result).op(op).options(ArrayOptions { shape });
        perform(py, comm, call, async_op, |py, _| ().into_py_any(py))
    })
}

fn all_parts<T: skyphos::Element + numpy::Element>(py: Python<'_>, all: Vec<SparseVec<T>>) -> Vec<Parts<'_>> {
    all.into_iter().map(|vector| parts(py, vector)).collect()
}
