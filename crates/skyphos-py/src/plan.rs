//! `Plan`.

use crate::arrays::{ValueArrays, with_values};
use crate::errors::{or_fail, to_py};
use crate::op::reduce_op;
use crate::owned::{Numbers, NumbersMut};
use crate::planner::PlanNumbers;
use crate::work::perform;
use pyo3::prelude::*;
use skyphos::{Considered, Order, ReduceOptions, SharedPlan};
use std::ops::Deref;
use std::sync::Arc;

/// A configured reduction.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct Plan {
    comm: Arc<skyphos::Comm>,
    plan: SharedPlan,
    width: usize,
    n: u64,
    degrees: Vec<u32>,
    considered: Vec<Considered>,
    contribute_len: usize,
    want_len: usize,
}

impl Plan {
    pub fn new(comm: Arc<skyphos::Comm>, plan: skyphos::Plan) -> Plan {
        Plan {
            comm,
            width: plan.width,
            n: plan.n,
            degrees: plan.degrees.clone(),
            considered: plan.considered.clone(),
            contribute_len: plan.contribute_len,
            want_len: plan.want_len,
            plan: SharedPlan::new(plan),
        }
    }

    fn plan(&self, py: Python<'_>) -> PyResult<impl Deref<Target = skyphos::Plan> + '_> {
        self.plan.try_lock().map_err(|e| to_py(py, e))
    }
}

#[pymethods]
impl Plan {
    #[getter]
    fn n(&self) -> u64 {
        self.n
    }

    #[getter]
    fn width(&self) -> usize {
        self.width
    }

    #[getter]
    fn degrees(&self) -> Vec<u32> {
        self.degrees.clone()
    }

    /// Degrees, and layers of the configuration and of a reduction: the ones it has first, then the next best.
    #[getter]
    fn considered(&self) -> Vec<PlanNumbers> {
        let numbers = |layers: &[[f64; 6]]| layers.iter().map(|layer| (*layer).into()).collect();
        let all = self.considered.iter();
        all.map(|c| (c.degrees.clone(), numbers(&c.configure), numbers(&c.reduce))).collect()
    }

    #[getter]
    fn contribute_len(&self) -> usize {
        self.contribute_len
    }

    #[getter]
    fn want_len(&self) -> usize {
        self.want_len
    }

    /// Reduces `values` into `out`; both contiguous and of one dtype.
    #[allow(clippy::too_many_arguments, reason = "arguments of one Python function")]
    fn reduce(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        op: &Bound<'_, PyAny>,
        identity: &Bound<'_, PyAny>,
        arrival: bool,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let op = or_fail(py, &self.comm, reduce_op(op, identity))?;
        let options = ReduceOptions { order: if arrival { Order::Arrival } else { Order::Rank } };
        let mut arrays = or_fail(py, &self.comm, ValueArrays::new(values, out))?;
        with_values!(&mut arrays, |numbers, result| {
            let (numbers, result) = (Numbers::new(numbers, values), NumbersMut::new(result, out));
            let call = self.comm.reduce(self.plan.clone(), numbers, result).op(op);
            perform(py, &self.comm, call.options(options), async_op, |py, _| Ok(py.None()))
        })
    }

    /// (layer, degree, up, messages, rows, own rows, configuration bytes, predicted rows) of each
    /// layer, down then up.
    #[allow(clippy::type_complexity, reason = "a row of a table")]
    fn volume(&self, py: Python<'_>) -> PyResult<Vec<(usize, usize, bool, usize, usize, usize, u64, f64)>> {
        let plan = self.plan(py)?;
        let predicted = skyphos::predicted_rows(&plan);
        let rows = plan
            .volume()
            .into_iter()
            .map(|v| {
                let (down, up) = predicted[v.layer - 1];
                let expected = if v.up { up } else { down };
                (v.layer, v.degree, v.up, v.messages, v.rows, v.own_rows, v.config_bytes, expected)
            })
            .collect();
        Ok(rows)
    }

    /// (total, wait, transfer) seconds of the last call.
    fn stats(&self, py: Python<'_>) -> PyResult<(f64, f64, f64)> {
        let stats = self.plan(py)?.stats;
        Ok((stats.total_s, stats.wait_s, stats.transfer_s))
    }
}
