//! `Comm`, and the functions that form groups.

use crate::arrays::{ValueArrays, with_owned};
use crate::configure::{ConfigureOptions, IndexSets};
use crate::errors::{exceptions_module, interrupted, or_fail, to_py};
use crate::health::Health;
use crate::indices::IndexArray;
use crate::op::Operation;
use crate::plan::Plan;
use crate::planner::ProfileFields;
use crate::work::perform;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use skyphos::{Error, Settings, Topology, Transport, cores};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

fn duration(py: Python<'_>, name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|t| !t.is_zero()).ok_or_else(|| {
        to_py(py, Error::bad_input(format!("{name} must be a positive number of seconds, not {seconds}")))
    })
}

fn settings(py: Python<'_>, timeout: f64, threads: usize) -> PyResult<Settings> {
    let timeout = duration(py, "timeout", timeout)?;
    exceptions_module(py)?; // loads the exceptions while modules can still be imported
    Ok(Settings { timeout, threads, interrupted: Some(interrupted) })
}

/// The Comms of a group inside this process.
#[pyfunction]
pub fn local(
    py: Python<'_>,
    size: u32,
    timeout: f64,
    threads: usize,
    replication: u32,
) -> PyResult<Vec<Comm>> {
    let settings = settings(py, timeout, threads)?;
    let ranks = match replication {
        1 => skyphos::Comm::local(size, &settings),
        each => skyphos::Comm::local_replicated(size, each, &settings),
    };
    let ranks = ranks.map_err(|e| to_py(py, e))?;
    Ok(ranks.into_vec().into_iter().map(Comm::new).collect())
}

/// A `skyphos.launch.tcp_options.TcpOptions`, read by the names of its fields.
#[derive(FromPyObject)]
pub struct TcpOptions {
    rank: u32,
    world_size: u32,
    rendezvous: String,
    token: Option<String>,
    timeout: f64,
    threads: usize,
    listen_fd: Option<i32>,
    socket_buffer: Option<usize>,
    congestion_control: Option<String>,
    heartbeat: f64,
    tls: Option<TlsFiles>,
    replication: u32,
    share_hosts: bool,
    shared_memory: bool,
}

/// Files of a `TlsFiles`, read by the names of its fields.
#[derive(FromPyObject)]
pub struct TlsFiles {
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

/// Joins a group over TCP.
#[pyfunction]
pub fn connect_tcp(py: Python<'_>, given: TcpOptions) -> PyResult<Connected> {
    let settings = settings(py, given.timeout, given.threads)?;
    let mut options = skyphos::tcp::Options::new(given.rank, given.world_size, &given.rendezvous);
    options.token = given.token;
    options.timeout = settings.timeout;
    options.listen_fd = given.listen_fd;
    options.socket_buffer = given.socket_buffer;
    options.congestion_control = given.congestion_control;
    options.heartbeat = duration(py, "heartbeat", given.heartbeat)?;
    options.replication = (given.replication, given.share_hosts);
    options.shared_memory = given.shared_memory;
    options.interrupted = Some(interrupted);
    options.tls = given.tls.map(|TlsFiles { authority, certificate, key }| skyphos::tcp::TlsFiles {
        authority,
        certificate,
        key,
    });
    let transport = py.detach(|| skyphos::tcp::connect(options)).map_err(|e| to_py(py, e))?;
    Ok(Connected::new(transport, settings))
}

/// Joins a group of an MPI communicator's processes. `comm`: its handle, or `None` for the world communicator. `launched`: the
/// number of processes according to the launcher. `places`: paths of libraries to try.
#[pyfunction]
pub fn connect_mpi(
    py: Python<'_>,
    comm: Option<usize>,
    launched: Option<u32>,
    places: Vec<PathBuf>,
    timeout: f64,
    threads: Option<usize>,
) -> PyResult<Connected> {
    let mut settings = settings(py, timeout, threads.unwrap_or(1))?;
    let options = skyphos::mpi::Options {
        comm,
        places,
        launched,
        timeout: settings.timeout,
        interrupted: Some(interrupted),
    };
    let transport = py.detach(|| skyphos::mpi::connect(&options)).map_err(|e| to_py(py, e))?;
    if threads.is_none() {
        settings.threads = (cores() / transport.facts().ranks_on_host).max(1);
    }
    Ok(Connected::new(transport, settings))
}

/// Whether there is a usable MPI library.
#[pyfunction]
pub fn mpi_is_there(places: Vec<PathBuf>) -> bool {
    skyphos::mpi::is_there(&places)
}

/// Finalises MPI if this process initialised it. MPI is not used afterwards.
#[pyfunction]
pub fn mpi_end(py: Python<'_>) {
    py.detach(skyphos::mpi::Library::end);
}

/// Stops all use of MPI, before other code finalises it.
#[pyfunction]
pub fn mpi_prepare_end(py: Python<'_>) {
    py.detach(skyphos::mpi::Library::prepare_end);
}

/// This process's connections to others, with which it has not formed a group yet.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct Connected {
    rank: u32,
    size: u32,
    addresses: Vec<String>,
    settings: Settings,
    transport: Mutex<Option<Box<dyn Transport>>>,
}

impl Connected {
    fn new(transport: impl Transport + 'static, settings: Settings) -> Connected {
        let (rank, size) = (transport.rank().0, transport.size());
        let addresses = transport.facts().addresses.to_vec();
        let transport = Mutex::new(Some(Box::new(transport) as Box<dyn Transport>));
        Connected { rank, size, addresses, settings, transport }
    }

    fn take(&self, py: Python<'_>) -> PyResult<Box<dyn Transport>> {
        let taken = self.transport.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or_else(|| to_py(py, Error::bad_input("these connections already belong to a group")))
    }
}

#[pymethods]
impl Connected {
    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    #[getter]
    fn size(&self) -> u32 {
        self.size
    }

    /// Host and address of a process.
    fn address(&self, rank: usize) -> String {
        self.addresses[rank].clone()
    }

    /// The group of the processes.
    fn group(&self, py: Python<'_>) -> PyResult<Comm> {
        let (transport, settings) = (self.take(py)?, self.settings.clone());
        let comm = py.detach(|| skyphos::Comm::over(transport, settings));
        comm.map(Comm::new).map_err(|e| to_py(py, e))
    }

    /// The replicated group of the processes. All of them start with process 0's profile and topology, or raise its error.
    fn replicated(
        &self,
        py: Python<'_>,
        each: u32,
        share_hosts: bool,
        profile: Option<ProfileFields>,
        topology: Option<(Vec<u32>, Vec<u32>)>,
        error: Option<String>,
    ) -> PyResult<Comm> {
        let (transport, settings) = (self.take(py)?, self.settings.clone());
        let own = match (error, topology) {
            (Some(message), _) => Err(Error::bad_input(message)),
            (None, Some((hosts, racks))) => Topology::new(&hosts, &racks).map(Some),
            (None, None) => Ok(None),
        };
        let own = own.map(|topology| (profile.map(|ProfileFields(profile)| profile), topology));
        let replication = skyphos::Replication { each, share_hosts };
        let comm = py.detach(|| skyphos::Comm::replicated(transport, replication, settings, own));
        comm.map(Comm::new).map_err(|e| to_py(py, e))
    }
}

/// A group of ranks.
#[pyclass(module = "skyphos._skyphos", frozen)]
pub struct Comm {
    comm: Arc<skyphos::Comm>,
}

impl Comm {
    pub(crate) fn new(comm: skyphos::Comm) -> Comm {
        Comm { comm: Arc::new(comm) }
    }

    pub(crate) fn shared(&self) -> &Arc<skyphos::Comm> {
        &self.comm
    }
}

#[pymethods]
impl Comm {
    #[getter]
    fn rank(&self) -> u32 {
        self.comm.rank()
    }

    #[getter]
    fn size(&self) -> u32 {
        self.comm.size()
    }

    /// This process's number, and how many there are.
    #[getter]
    fn process(&self) -> (u32, u32) {
        self.comm.process()
    }

    #[getter]
    fn replication(&self) -> u32 {
        self.comm.replication()
    }

    #[getter]
    fn replica(&self) -> u32 {
        self.comm.replica()
    }

    /// All processes, by number.
    fn health(&self, py: Python<'_>) -> Vec<Health> {
        py.detach(|| self.comm.health()).into_iter().map(Health::from).collect()
    }

    #[getter]
    fn adapts(&self) -> bool {
        self.comm.adapts()
    }

    /// Numbers of each rank's host and rack.
    #[getter]
    fn topology(&self) -> (Vec<u32>, Vec<u32>) {
        let topology = self.comm.topology();
        (topology.hosts().to_vec(), topology.racks().to_vec())
    }

    #[getter]
    fn transport(&self) -> &'static str {
        self.comm.transport()
    }

    #[getter]
    fn trusted(&self) -> bool {
        self.comm.is_trusted()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.comm.is_closed()
    }

    /// Host and address of a rank.
    fn address(&self, py: Python<'_>, rank: u32) -> PyResult<String> {
        if rank >= self.comm.size() {
            let message = format!("there is no rank {rank} in a group of {}", self.comm.size());
            return Err(to_py(py, Error::bad_input(message)));
        }
        Ok(self.comm.address(rank).to_owned())
    }

    fn barrier(&self, py: Python<'_>, async_op: bool) -> PyResult<Py<PyAny>> {
        perform(py, &self.comm, self.comm.barrier(), async_op, |py, ()| Ok(py.None()))
    }

    /// Non-blocking calls made from now on wait for `release`.
    fn hold(&self) {
        self.comm.hold();
    }

    /// Starts the calls that were held.
    fn release(&self, py: Python<'_>) {
        py.detach(|| self.comm.release());
    }

    /// The group of the ranks with the same color; `None` if `color` is `None`.
    #[pyo3(signature = (color, key, within=false))]
    fn split(&self, py: Python<'_>, color: Option<u64>, key: i64, within: bool) -> PyResult<Option<Comm>> {
        let group = py.detach(|| match within {
            true => self.comm.split_within(color, key),
            false => self.comm.split(color, key),
        });
        let group = group.map_err(|e| to_py(py, e))?;
        Ok(group.map(Comm::new))
    }

    /// The group of `ranks`, each of which makes it without communication.
    fn group_of(&self, py: Python<'_>, ranks: Vec<u32>, name: u64) -> PyResult<Comm> {
        self.comm.group_of(&ranks, name).map(Comm::new).map_err(|e| to_py(py, e))
    }

    /// The group of the ranks that are not lost.
    fn shrink(&self, py: Python<'_>) -> PyResult<Comm> {
        py.detach(|| self.comm.shrink()).map(Comm::new).map_err(|e| to_py(py, e))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.comm.close()).map_err(|e| to_py(py, e))
    }

    /// Closes the group at the end of a program. `why`: the reason if the program has failed. Calls under way get `seconds` seconds.
    #[pyo3(signature = (seconds, why=None))]
    fn close_at_exit(&self, py: Python<'_>, seconds: f64, why: Option<&str>) -> PyResult<()> {
        let limit = duration(py, "seconds", seconds)?;
        let closed = py.detach(|| {
            let closed = self.comm.close_at_exit(limit, why);
            log::logger().flush();
            closed
        });
        closed.map_err(|e| to_py(py, e))
    }

    /// Number of calls that this rank has begun in the group.
    fn calls_begun(&self) -> u64 {
        self.comm.calls_begun()
    }

    /// Records that a collective has failed on this rank. Its calls are those from number `first` on.
    fn note_failure_since(&self, first: u64) {
        self.comm.note_failure_since(first);
    }

    /// Fails the group's next call on all ranks, with an error found on this one: the encoded error of one of our exceptions
    /// (`wire`), or a message. `goes_on`: this rank still makes its later calls, like one that has not received the error yet.
    #[pyo3(signature = (message, wire=None, goes_on=false))]
    fn fail_call(&self, py: Python<'_>, message: &str, wire: Option<&[u8]>, goes_on: bool) -> PyErr {
        let error = wire.and_then(Error::from_wire).unwrap_or_else(|| Error::bad_input(message));
        let error = py.detach(|| match goes_on {
            true => self.comm.fail_call_and_go_on(error),
            false => self.comm.fail_call(error),
        });
        to_py(py, error)
    }

    /// Raises on all ranks if they do not pass the same function and arguments, and names the differences.
    fn agree_arguments(
        &self,
        py: Python<'_>,
        function: &str,
        arguments: Vec<(String, String)>,
    ) -> PyResult<()> {
        py.detach(|| self.comm.agree_arguments(function, arguments)).map_err(|e| to_py(py, e))
    }

    fn configure(
        &self,
        py: Python<'_>,
        sets: &IndexSets,
        options: &ConfigureOptions,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let (contribute, want) = or_fail(py, &self.comm, sets.owned(py))?;
        let comm = self.comm.clone();
        let call = self.comm.configure(contribute, want).options(options.0.clone());
        perform(py, &self.comm, call, async_op, |py, plan| Plan::new(comm, plan).into_py_any(py))
    }

    /// `configure` and the reduction of `values` into `out` at once.
    fn configure_reduce(
        &self,
        sets: &IndexSets,
        values: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        op: &Operation,
        options: &ConfigureOptions,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let py = values.py();
        let (contribute, want) = or_fail(py, &self.comm, sets.owned(py))?;
        // Borrowed while the other arrays are checked, so that an `out` which shares memory with them is refused.
        let _lists = (IndexArray::new(sets.contribute.bind(py))?, IndexArray::new(sets.want.bind(py))?);
        let mut arrays = or_fail(py, &self.comm, ValueArrays::new(values, out))?;
        with_owned!(arrays, |numbers, result| {
            let call = self.comm.configure_reduce(contribute, want, numbers, result);
            let call = call.op(op.0.clone()).options(options.0.clone());
            let comm = self.comm.clone();
            perform(py, &self.comm, call, async_op, |py, done| Plan::new(comm, done.plan).into_py_any(py))
        })
    }
}
