//! Measurements for `skyphos.probe`.

use crate::comm::Comm;
use crate::errors::{or_fail, to_py};
use crate::planner::{ProfileFields, numbers_by_name};
use pyo3::prelude::*;
use skyphos::planner::Profile;
use skyphos::{Error, KernelTimes, Topology};
use std::time::Duration;

fn seconds(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    let bad = || Error::bad_input(format!("a measurement takes at least 0 seconds, not {seconds}"));
    Duration::try_from_secs_f64(seconds).map_err(|_| to_py(py, bad()))
}

/// Halves of round-trip times in seconds, measured on the first rank of each pair, in at most `most` rounds and `limit` seconds.
#[pyfunction]
pub fn ping(
    py: Python<'_>,
    comm: &Comm,
    pairs: Vec<(u32, u32)>,
    size: usize,
    most: u32,
    limit: f64,
) -> PyResult<Vec<f64>> {
    let limit = seconds(py, limit)?;
    py.detach(|| comm.shared().ping(&pairs, size, most, limit)).map_err(|e| to_py(py, e))
}

/// Processor seconds of each of `times` messages: those of sending on the first rank of each pair, and those of receiving on the
/// second, which first waits `gap` seconds, so that the message has arrived.
#[pyfunction]
pub fn overhead(
    py: Python<'_>,
    comm: &Comm,
    pairs: Vec<(u32, u32)>,
    size: usize,
    times: u32,
    gap: f64,
) -> PyResult<Vec<f64>> {
    let gap = seconds(py, gap)?;
    py.detach(|| comm.shared().overhead(&pairs, size, times, gap)).map_err(|e| to_py(py, e))
}

/// A flow, measured by its receiver.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct ReceivedFlow {
    sender: u32,
    bytes: u64,
    messages: u64,
    seconds: f64,
}

/// Streams of messages on this rank.
#[pyclass(module = "skyphos._skyphos", frozen, get_all)]
pub struct StreamReport {
    received: Vec<Py<ReceivedFlow>>,
    sent_bytes: u64,
    seconds: f64,
    /// Processor seconds.
    cpu_s: f64,
}

/// Sends messages along each flow (sender, receiver) for `limit` seconds, at most `most` each; the first `settle` seconds do not
/// count.
#[pyfunction]
pub fn stream(
    py: Python<'_>,
    comm: &Comm,
    flows: Vec<(u32, u32)>,
    size: usize,
    most: u32,
    limit: f64,
    settle: f64,
) -> PyResult<StreamReport> {
    let (limit, settle) = (seconds(py, limit)?, seconds(py, settle)?);
    let done = py.detach(|| comm.shared().stream(&flows, size, most, limit, settle));
    let done = done.map_err(|e| to_py(py, e))?;
    let flow = |flow: &skyphos::Received| {
        let skyphos::Received { from, bytes, messages, seconds } = *flow;
        Py::new(py, ReceivedFlow { sender: from, bytes, messages, seconds })
    };
    let received = done.received.iter().map(flow).collect::<PyResult<_>>()?;
    Ok(StreamReport { received, sent_bytes: done.sent_bytes, seconds: done.seconds, cpu_s: done.cpu_s })
}

/// Seconds of each of `times` exchanges in which each rank sends the next `k` ranks a message.
#[pyfunction]
pub fn fan(py: Python<'_>, comm: &Comm, k: u32, bytes: usize, times: u32) -> PyResult<Vec<f64>> {
    py.detach(|| comm.shared().fan(k, bytes, times)?.run()).map_err(|e| to_py(py, e))
}

/// The kernels' processor times by name, and the share of a core that this rank had meanwhile.
#[pyfunction]
pub fn kernel_times(py: Python<'_>, comm: &Comm) -> PyResult<(Vec<(&'static str, f64)>, f64)> {
    let times = py.detach(|| comm.shared().kernel_times()).map_err(|e| to_py(py, e))?;
    let KernelTimes { kernels, rows, product_s, cores } = times;
    let is_kernel = |(name, _): &(&'static str, f64)| KernelTimes::NAMES.contains(name);
    let all = numbers_by_name(Profile { kernels, rows, product_s, ..Profile::network(1.0) });
    Ok((all.into_iter().filter(is_kernel).collect(), cores))
}

/// Gives all ranks rank 0's profile, its choice of whether the tuner learns from calls, and its topology (host and rack of each
/// rank). Returns the group to use.
#[pyfunction]
pub fn begin_with(
    py: Python<'_>,
    comm: Py<Comm>,
    profile: Option<ProfileFields>,
    adapt: bool,
    topology: Option<(Vec<u32>, Vec<u32>)>,
) -> PyResult<Py<Comm>> {
    let shared = comm.get().shared().clone();
    let own = profile.map(|ProfileFields(profile)| profile);
    let topology = topology.map(|(hosts, racks)| Topology::new(&hosts, &racks)).transpose();
    let topology = or_fail(py, &shared, topology.map_err(|error| to_py(py, error)))?;
    let begun = py.detach(|| shared.begin_with(own, adapt, topology.as_ref()));
    match begun.map_err(|error| to_py(py, error))? {
        Some(group) => Py::new(py, Comm::new(group)),
        None => Ok(comm),
    }
}

/// Sets the profile of one rank, for a group whose ranks are threads of this process.
#[pyfunction]
pub fn set_profile(comm: &Comm, profile: Option<ProfileFields>) {
    comm.shared().set_profile(profile.map(|ProfileFields(profile)| profile));
}

/// The fields of the profile that `auto` begins with, each with its name.
#[pyfunction]
pub fn get_profile(comm: &Comm) -> Option<Vec<(&'static str, f64)>> {
    comm.shared().profile().map(numbers_by_name)
}
