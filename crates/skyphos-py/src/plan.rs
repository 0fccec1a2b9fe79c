//! Plans of configured reductions, for Python.

use crate::arrays::{ValueArrays, with_owned};
use crate::errors::{or_fail, to_py};
use crate::op::Operation;
use crate::report::{PlanPrediction, Stage};
use crate::work::perform;
use pyo3::prelude::*;
use skyphos::{Considered, Order, ReduceOptions, SharedPlan};
use std::ops::Deref;
use std::sync::Arc;

/// Traffic of one layer of a plan on this rank.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct LayerVolume {
    layer: usize,
    degree: usize,
    up: bool,
    messages: usize,
    rows: usize,
    own_rows: usize,
    config_bytes: u64,
    predicted_rows: f64,
}

/// Seconds of a plan's last call.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct PlanStats {
    total_s: f64,
    wait_s: f64,
    transfer_s: f64,
}

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

    /// The degrees of the plan, then the next best ones, with their predictions.
    #[getter]
    fn considered(&self, py: Python<'_>) -> PyResult<Vec<PlanPrediction>> {
        let stages = |layers: &[[f64; 6]]| {
            let stage = |layer: &[f64; 6]| Py::new(py, Stage::from(*layer));
            layers.iter().map(stage).collect::<PyResult<Vec<_>>>()
        };
        let prediction = |c: &Considered| {
            let (configure, reduce) = (stages(&c.configure)?, stages(&c.reduce)?);
            Ok(PlanPrediction { degrees: c.degrees.clone(), configure, reduce })
        };
        self.considered.iter().map(prediction).collect()
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
        op: &Operation,
        arrival: bool,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = ReduceOptions { order: if arrival { Order::Arrival } else { Order::Rank } };
        let mut arrays = or_fail(py, &self.comm, ValueArrays::new(values, out))?;
        with_owned!(arrays, |numbers, result| {
            let call = self.comm.reduce(self.plan.clone(), numbers, result).op(op.0.clone());
            perform(py, &self.comm, call.options(options), async_op, |py, _| Ok(py.None()))
        })
    }

    /// Traffic of each layer, first on the way down, then on the way up.
    fn volume(&self, py: Python<'_>) -> PyResult<Vec<LayerVolume>> {
        let plan = self.plan(py)?;
        let predicted = skyphos::predicted_rows(&plan);
        let volumes = plan
            .volume()
            .into_iter()
            .map(|v| {
                let (down, up) = predicted[v.layer - 1];
                LayerVolume {
                    layer: v.layer,
                    degree: v.degree,
                    up: v.up,
                    messages: v.messages,
                    rows: v.rows,
                    own_rows: v.own_rows,
                    config_bytes: v.config_bytes,
                    predicted_rows: if v.up { up } else { down },
                }
            })
            .collect();
        Ok(volumes)
    }

    /// Seconds of the last call.
    fn stats(&self, py: Python<'_>) -> PyResult<PlanStats> {
        let stats = self.plan(py)?.stats;
        Ok(PlanStats { total_s: stats.total_s, wait_s: stats.wait_s, transfer_s: stats.transfer_s })
    }
}
