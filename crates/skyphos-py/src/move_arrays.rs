//! `allgather`, `gather`, `alltoall` and `scatter` of arrays, and a message in a group of two.

use crate::allgather::schedule_of;
use crate::arrays::{ValueArrays, with_owned};
use crate::comm::Comm;
use crate::errors::or_fail;
use crate::owned::{Numbers, NumbersMut};
use crate::report::Explanation;
use crate::work::perform;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use skyphos::{ArrayOptions, Schedule, ScheduleChoice};

/// A collective that moves arrays.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct ArrayMove(Move);

#[derive(Clone, Copy)]
enum Move {
    /// An allgather by the schedule with the least predicted time.
    AllgatherAuto,
    Fixed(skyphos::ArrayMove),
}

#[pymethods]
impl ArrayMove {
    /// Each rank's array to all ranks.
    #[staticmethod]
    #[pyo3(signature = (schedule="auto"))]
    fn allgather(schedule: &str) -> PyResult<ArrayMove> {
        let fixed = |schedule| Move::Fixed(skyphos::ArrayMove::Allgather(schedule));
        Ok(ArrayMove(schedule_of(schedule)?.map_or(Move::AllgatherAuto, fixed)))
    }

    /// Each rank's array to one rank.
    #[staticmethod]
    fn gather(root: u32) -> ArrayMove {
        ArrayMove(Move::Fixed(skyphos::ArrayMove::Gather { root }))
    }

    /// Block j of each rank's array to rank j.
    #[staticmethod]
    fn alltoall() -> ArrayMove {
        ArrayMove(Move::Fixed(skyphos::ArrayMove::Alltoall))
    }

    /// Block j of one rank's array to rank j.
    #[staticmethod]
    fn scatter(root: u32) -> ArrayMove {
        ArrayMove(Move::Fixed(skyphos::ArrayMove::Scatter { root }))
    }

    /// Rank 0's array to rank 1, in a group of two.
    #[staticmethod]
    fn message() -> ArrayMove {
        ArrayMove(Move::Fixed(skyphos::ArrayMove::Message))
    }
}

/// Moves blocks of an array between ranks into `out`; returns the explanation.
#[pyfunction]
pub fn move_arrays(
    py: Python<'_>,
    comm: &Comm,
    what: &ArrayMove,
    values: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    async_op: bool,
) -> PyResult<Py<PyAny>> {
    let comm = comm.shared();
    let bytes = || values.getattr("nbytes").and_then(|bytes| bytes.extract());
    let (choice, what) = match what.0 {
        Move::AllgatherAuto => {
            let choice = comm.schedule_of_arrays(or_fail(py, comm, bytes())?);
            let what = skyphos::ArrayMove::Allgather(choice.schedule);
            (choice, what)
        }
        Move::Fixed(what @ skyphos::ArrayMove::Allgather(schedule)) => {
            (ScheduleChoice::named(schedule), what)
        }
        Move::Fixed(what) => (ScheduleChoice::named(Schedule::Direct), what),
    };
    let mut arrays = or_fail(py, comm, ValueArrays::new(values, out))?;
    // Only the root of a scatter has an array to send, so ranks agree on the shape of `out`.
    let is_scatter = matches!(what, skyphos::ArrayMove::Scatter { .. });
    let shape = if is_scatter { arrays.shape_of_out() } else { arrays.shape() };
    with_owned!(arrays, |numbers, result| {
        let call = comm.move_arrays(what, numbers, result).options(ArrayOptions { shape });
        perform(py, comm, call, async_op, move |py, done| {
            Explanation::of_schedule(choice, done.traffic).into_py_any(py)
        })
    })
}

/// Sends a block of bytes to each rank and receives one from each into `out`. `sends` and `receives` are lengths by rank.
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
        return or_fail(py, comm, Err(PyTypeError::new_err("arrays of bytes must be uint8")));
    };
    let bytes = Numbers::new(&bytes)?;
    // SAFETY: as in `with_owned`.
    #[allow(unsafe_code, reason = "the array outlives this function")]
    let result = unsafe { NumbersMut::new(&mut result) }?;
    let call = comm.alltoall_uneven(bytes, result, sends, receives);
    perform(py, comm, call, async_op, |py, _| ().into_py_any(py))
}
