//! Reports of collectives: traffic, predictions and explanations.

use pyo3::prelude::*;
use skyphos::{Choice, ScheduleChoice, planner};
use std::sync::Arc;

/// Bytes and frames of one call on this rank.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct Traffic {
    sent_bytes: u64,
    sent_frames: u64,
    received_bytes: u64,
}

impl From<skyphos::Traffic> for Traffic {
    fn from(traffic: skyphos::Traffic) -> Traffic {
        let skyphos::Traffic { sent_bytes, sent_frames, received_bytes } = traffic;
        Traffic { sent_bytes, sent_frames, received_bytes }
    }
}

/// The prediction for one stage of an algorithm.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct Stage {
    sent_bytes: f64,
    received_bytes: f64,
    messages: f64,
    rounds: f64,
    compute_s: f64,
    seconds: f64,
}

impl From<[f64; 6]> for Stage {
    fn from([sent_bytes, received_bytes, messages, rounds, compute_s, seconds]: [f64; 6]) -> Stage {
        Stage { sent_bytes, received_bytes, messages, rounds, compute_s, seconds }
    }
}

impl From<&planner::Stage> for Stage {
    fn from(stage: &planner::Stage) -> Stage {
        stage.numbers().into()
    }
}

/// An algorithm with predicted or measured seconds.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct TimedAlgorithm {
    algorithm: &'static str,
    degrees: Vec<u32>,
    seconds: f64,
}

/// Predicted stages of a plan's configuration and of a reduction with it.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct PlanPrediction {
    pub degrees: Vec<u32>,
    pub configure: Vec<Py<Stage>>,
    pub reduce: Vec<Py<Stage>>,
}

/// Predicted stages of an algorithm of an allreduce or a reduce-scatter.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct RoutePrediction {
    pub algorithm: &'static str,
    pub degrees: Vec<u32>,
    pub stages: Vec<Py<Stage>>,
}

/// Stages as Python objects.
pub fn stages_of(py: Python<'_>, stages: &[planner::Stage]) -> PyResult<Vec<Py<Stage>>> {
    stages.iter().map(|stage| Py::new(py, Stage::from(stage))).collect()
}

/// Predictions of `auto`.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct Prediction {
    /// Stages of the chosen algorithm, with seconds corrected by earlier calls.
    stages: Vec<Py<Stage>>,
    /// The next best algorithms, with predicted seconds.
    others: Vec<Py<TimedAlgorithm>>,
    /// Algorithms that were tried, with measured seconds.
    tried: Vec<Py<TimedAlgorithm>>,
}

/// Source of a `Prediction`, which is made only when Python reads it.
enum PredictionSource {
    Reduction(Arc<Choice>),
    Schedule(ScheduleChoice),
}

/// The explanation of a call: algorithm, traffic, and the prediction that led to it.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct Explanation {
    #[pyo3(get)]
    algorithm: &'static str,
    #[pyo3(get)]
    degrees: Vec<u32>,
    /// Entries above which a vector turns dense; 0 if the call has no such threshold.
    #[pyo3(get)]
    dense_threshold: f64,
    traffic: skyphos::Traffic,
    source: Option<PredictionSource>,
}

impl From<skyphos::Explanation> for Explanation {
    fn from(explanation: skyphos::Explanation) -> Explanation {
        let skyphos::Explanation { algorithm, degrees, dense_threshold, traffic, choice } = explanation;
        let source = choice.map(PredictionSource::Reduction);
        Explanation { algorithm: algorithm.name(), degrees, dense_threshold, traffic, source }
    }
}

impl Explanation {
    /// The explanation of a call by this schedule.
    pub fn of_schedule(choice: ScheduleChoice, traffic: skyphos::Traffic) -> Explanation {
        let algorithm = choice.schedule.name();
        let source = choice.predicted.is_some().then_some(PredictionSource::Schedule(choice));
        Explanation { algorithm, degrees: Vec::new(), dense_threshold: 0.0, traffic, source }
    }
}

#[pymethods]
impl Explanation {
    #[getter]
    fn traffic(&self) -> Traffic {
        self.traffic.into()
    }

    /// `None` if the caller named the algorithm.
    #[getter]
    fn prediction(&self, py: Python<'_>) -> PyResult<Option<Prediction>> {
        self.source.as_ref().map(|source| source.prediction(py)).transpose()
    }
}

impl PredictionSource {
    fn prediction(&self, py: Python<'_>) -> PyResult<Prediction> {
        let timed = |algorithm, degrees: &[u32], seconds: f64| {
            Py::new(py, TimedAlgorithm { algorithm, degrees: degrees.to_vec(), seconds })
        };
        match self {
            PredictionSource::Reduction(choice) => {
                let corrected = |stage: &planner::Stage| {
                    let seconds = stage.seconds * choice.bias;
                    Py::new(py, Stage::from(&planner::Stage { seconds, ..*stage }))
                };
                let all = |list: &[skyphos::TimedAlgorithm]| {
                    let convert = |route: &skyphos::TimedAlgorithm| {
                        timed(route.algorithm.name(), &route.degrees, route.duration.0)
                    };
                    list.iter().map(convert).collect::<PyResult<Vec<_>>>()
                };
                let stages = choice.prediction.stages.iter().map(corrected).collect::<PyResult<_>>()?;
                Ok(Prediction { stages, others: all(&choice.others)?, tried: all(&choice.tried)? })
            }
            PredictionSource::Schedule(choice) => {
                let stage = choice.predicted.iter().map(|stage| Py::new(py, Stage::from(stage)));
                let others = choice.others.iter().map(|(schedule, s)| timed(schedule.name(), &[], *s));
                let (stages, others) = (stage.collect::<PyResult<_>>()?, others.collect::<PyResult<_>>()?);
                Ok(Prediction { stages, others, tried: Vec::new() })
            }
        }
    }
}
