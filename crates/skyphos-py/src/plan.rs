//! `Plan`.

use crate::arrays::{ValueArrays, with_values};
use crate::errors::{or_fail, to_py};
use crate::op::reduce_op;
use pyo3::prelude::*;
use skyphos::Order;
use std::sync::{Arc, Mutex};

/// A configured reduction.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct Plan {
    comm: Arc<skyphos::Comm>,
    plan: Mutex<skyphos::Plan>,
    width: usize,
    n: u64,
    degrees: Vec<u32>,
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
            contribute_len: plan.contribute_len,
            want_len: plan.want_len,
            plan: Mutex::new(plan),
        }
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, skyphos::Plan> {
        // A panic while the plan was in use leaves only scratch memory behind.
        self.plan.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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

    #[getter]
    fn contribute_len(&self) -> usize {
        self.contribute_len
    }

    #[getter]
    fn want_len(&self) -> usize {
        self.want_len
    }

    /// Reduces `values` into `out`; both contiguous and of one dtype.
    fn reduce(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        op: &Bound<'_, PyAny>,
        identity: &Bound<'_, PyAny>,
        arrival: bool,
    ) -> PyResult<()> {
        let op = or_fail(py, &self.comm, reduce_op(op, identity))?;
        let order = if arrival { Order::Arrival } else { Order::Rank };
        let mut arrays = or_fail(py, &self.comm, ValueArrays::new(values, out))?;
        let result = with_values!(&mut arrays, |values, out| {
            py.detach(|| self.comm.reduce(&mut self.plan(), values, out, &op, order))
        });
        result.map_err(|e| to_py(py, e))
    }

    /// (layer, degree, up, messages, rows, own rows, configuration bytes, predicted rows) of each
    /// layer, down then up.
    #[allow(clippy::type_complexity, reason = "a row of a table")]
    fn volume(&self) -> Vec<(usize, usize, bool, usize, usize, usize, u64, f64)> {
        let plan = self.plan();
        let predicted = skyphos::predicted_rows(&plan);
        plan.volume()
            .into_iter()
            .map(|v| {
                let (down, up) = predicted[v.layer - 1];
                let expected = if v.up { up } else { down };
                (v.layer, v.degree, v.up, v.messages, v.rows, v.own_rows, v.config_bytes, expected)
            })
            .collect()
    }

    /// (total, wait, transfer) seconds of the last call.
    fn stats(&self) -> (f64, f64, f64) {
        let stats = self.plan().stats;
        (stats.total_s, stats.wait_s, stats.transfer_s)
    }
}
