//! A process's end of the network: one transport, one mailbox, and the thread that drives both.
//!
//! A caller that must wait becomes the *driver*: it polls the transport, files the frames that arrive, and wakes the callers that
//! wait for them. A second caller waits on a condition variable until the driver leaves. A hand-off between threads would cost
//! more than a small allreduce, so the node has a thread of its own only for calls that go on while no caller waits
//! ([`crate::background`]).

use crate::clock::Clock;
use crate::frame::{Frame, Header};
use crate::group::Group;
use crate::host::cores;
use crate::mailbox::Mailbox;
use crate::process::Process;
use crate::shared_memory::host_region::Regions;
use crate::slab::{Payload, Pool};
use crate::tasks::Tasks;
use crate::topology::Topology;
use crate::transport::{Event, Facts, Health, Transport, Waker};
use skyphos_types::{CommId, Error, ProcessId, Result, WorldRank};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The longest sleep between two checks for Ctrl-C.
pub(crate) const INTERRUPT_CHECK: Duration = Duration::from_millis(100);

/// Time for which a waiting thread polls before it sleeps, if the host has a core for every rank. A wake-up from sleep costs 5 to
/// 50 µs; most waits inside a collective are shorter.
const SPIN: Duration = Duration::from_micros(30);

/// Longest reason for a program's failure that peers receive, in bytes.
const FAILURE_REASON_BYTES: usize = 900;

/// Longest wait for peers to acknowledge the last bytes when a node closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of a node.
#[derive(Clone)]
pub struct Settings {
    /// Longest wait without any progress before a call fails.
    pub timeout: Duration,
    /// Threads that merge large messages, the caller included.
    pub threads: usize,
    /// Called about every 100 ms while a call waits. Returns true once the user has interrupted the program.
    pub interrupted: Option<fn() -> bool>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { timeout: Duration::from_secs(300), threads: 1, interrupted: None }
    }
}

/// The mailbox, and the threads that wait for it.
pub(crate) struct SharedMailbox {
    pub(crate) mail: Mailbox,
    /// Whether a thread polls the transport.
    pub(crate) driving: bool,
    /// Threads that wait for the driver to leave.
    pub(crate) waiters: usize,
}

/// A transport and a mailbox, shared by the threads of a process.
pub struct Node {
    rank: WorldRank,
    size: u32,
    pub(crate) facts: Facts,
    pub(crate) transport: Mutex<Box<dyn Transport>>,
    /// Threads that wait for the transport while the driver may sleep in it.
    pub(crate) transport_waiters: AtomicUsize,
    pub(crate) waker: Waker,
    pub(crate) state: Mutex<SharedMailbox>,
    pub(crate) driver_left: Condvar,
    pub(crate) events: Mutex<Vec<Event>>,
    settings: Settings,
    merge_pool: Option<rayon::ThreadPool>,
    pub(crate) spin: Duration,
    /// Shared memory that broadcasts to this host reuse.
    pub(crate) regions: Regions,
    /// This process's number and the number of processes, if ranks are replicated.
    replica: Option<(ProcessId, u32)>,
    /// Whether a call uses the transport's native collectives, which serve one call at a time.
    native_in_use: AtomicBool,
    /// Calls under way in the background.
    pub(crate) tasks: Arc<Tasks>,
    /// The process that made the node. A forked child shares its sockets and must leave them alone.
    process: Process,
}

impl Node {
    /// A node over a connected transport.
    pub fn new(transport: Box<dyn Transport>, settings: Settings) -> Result<Arc<Node>> {
        let facts = transport.facts();
        let (rank, size) = (transport.rank(), transport.size());
        let virtual_time = matches!(facts.clock, Clock::Virtual(_));
        let process = transport.process();
        let merge_pool = match settings.threads {
            0 => return Err(Error::bad_input("threads must be at least 1")),
            1 => None,
            threads => Some(
                rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .thread_name(|k| format!("skyphos-merge-{k}"))
                    .build()
                    .map_err(|e| Error::bad_input(format!("cannot start {threads} merge threads: {e}")))?,
            ),
        };
        let mail = Mailbox::new(rank, facts.addresses.clone());
        let node = Arc::new(Node {
            rank,
            size,
            waker: transport.waker(),
            transport_waiters: AtomicUsize::new(0),
            state: Mutex::new(SharedMailbox { mail, driving: false, waiters: 0 }),
            transport: Mutex::new(transport),
            driver_left: Condvar::new(),
            events: Mutex::new(Vec::new()),
            settings,
            merge_pool,
            tasks: Arc::default(),
            process: Process::this(),
            spin: if facts.ranks_on_host <= cores() && !virtual_time { SPIN } else { Duration::ZERO },
            regions: Regions::default(),
            replica: process,
            native_in_use: AtomicBool::new(false),
            facts,
        });
        if virtual_time || node.facts.is_for_callers_only {
            // A simulated rank has no threads, and some transports may be used only by the caller's threads.
            node.tasks.forbid_thread();
        } else if process.is_some() {
            Node::start_background_work(&node)?;
        }
        Ok(node)
    }

    /// This process's rank on the transport.
    pub fn rank(&self) -> WorldRank {
        self.rank
    }

    /// Number of ranks of the transport.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The transport's name.
    pub fn transport_name(&self) -> &'static str {
        self.facts.name
    }

    /// Host and address of a rank.
    pub fn address(&self, rank: WorldRank) -> &str {
        &self.facts.addresses[rank.index()]
    }

    /// Hosts and racks of the transport's ranks.
    pub fn topology(&self) -> &Topology {
        &self.facts.topology
    }

    /// Number of ranks on this host.
    pub fn ranks_on_host(&self) -> usize {
        self.facts.ranks_on_host
    }

    /// The most bytes of a message that go in one frame, unless a row takes more.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.facts.chunk_bytes
    }

    /// The clock of this rank.
    pub fn clock(&self) -> &Clock {
        &self.facts.clock
    }

    /// Time on this rank's clock.
    pub fn now(&self) -> Duration {
        self.facts.clock.now()
    }

    /// The pool of the buffers of frames.
    pub fn pool(&self) -> &Pool {
        &self.facts.pool
    }

    /// Threads for large merges; `None` when the caller merges alone.
    pub fn merge_pool(&self) -> Option<&rayon::ThreadPool> {
        self.merge_pool.as_ref()
    }

    /// The node's settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sends a frame, which may go to this rank itself.
    pub(crate) fn post(&self, to: WorldRank, header: Header, payload: Payload) {
        let frame = Frame { header, payload };
        if to == self.rank {
            self.mail(|m| m.deliver(Event::Frame { from: to, frame }));
            return self.wake_waiters();
        }
        self.transport().post(to, frame);
    }

    pub(crate) fn backlog(&self, to: WorldRank) -> usize {
        self.transport().backlog(to)
    }

    /// Reserves the transport's native collectives for one call. `false` if another call uses them, or has failed in one.
    pub(crate) fn take_native_collectives(&self) -> bool {
        !self.native_in_use.swap(true, Ordering::AcqRel)
    }

    /// Ends the reservation, once the call's native collectives have ended on all ranks.
    pub(crate) fn release_native_collectives(&self) {
        self.native_in_use.store(false, Ordering::Release);
    }

    /// Registers a group. Frames of it may have arrived before.
    pub fn open_group(&self, group: Arc<Group>) {
        self.mail(|m| m.open_comm(group));
    }

    /// Forgets a group. Calls of it that are under way on other threads fail.
    pub fn close_group(self: &Arc<Node>, comm: CommId) {
        self.mail(|m| m.close_comm(comm));
        (self.waker)();
        self.driver_left.notify_all();
        self.end_calls(comm);
    }

    /// Number of calls of a group that failed here because ranks made different calls.
    pub fn mismatches(&self, group: &Group) -> u64 {
        self.mail(|m| m.mismatches(group.comm))
    }

    /// Number of groups that are open on this node.
    pub fn open_groups(&self) -> usize {
        self.mail(|m| m.open_comms())
    }

    /// Whether this process made the node itself, and did not inherit it by a fork.
    pub fn is_ours(&self) -> bool {
        self.process.is_this()
    }

    /// Stores the reason why this rank's program has failed. Peers receive it when the node closes or is dropped.
    pub fn set_failure_reason(&self, why: &str) {
        if self.is_ours() {
            let mut end = why.len().min(FAILURE_REASON_BYTES);
            while !why.is_char_boundary(end) {
                end -= 1;
            }
            self.transport().set_failure_reason(&format!("rank {} failed: {}", self.rank, &why[..end]));
        }
    }

    /// Sends queued frames and a goodbye to all ranks. `Err` if a transport with replicas finds that results of earlier calls
    /// were wrong.
    pub fn close(&self) -> Result<()> {
        if !self.is_ours() {
            return Ok(());
        }
        self.tasks.end_background_work();
        self.transport().close(CLOSE_TIMEOUT)
    }

    /// Whether all ranks are on one host.
    pub fn on_one_host(&self) -> bool {
        self.facts.on_one_host
    }

    /// Whether other ranks' messages are trusted like this program's own data: all ranks are authenticated, or on this host.
    pub fn is_trusted(&self) -> bool {
        self.facts.on_one_host || self.facts.is_authenticated
    }

    /// Whether each rank is one process or thread on a real host: neither simulated nor replicated.
    pub fn knows_hosts(&self) -> bool {
        matches!(self.facts.clock, Clock::Real(_)) && !self.is_replicated()
    }

    /// Whether this rank may share memory with ranks of its host. Other ranks' settings may forbid it.
    pub fn shares_memory(&self) -> bool {
        self.facts.shares_memory && matches!(self.facts.clock, Clock::Real(_))
    }

    /// This process's number, and the number of processes: more than ranks, if ranks are replicated.
    pub fn process(&self) -> (ProcessId, u32) {
        self.replica.unwrap_or((ProcessId(self.rank.0), self.size))
    }

    /// Whether the transport has work while no call is under way.
    pub(crate) fn has_background_work(&self) -> bool {
        self.replica.is_some()
    }

    /// Whether each rank is several processes.
    pub fn is_replicated(&self) -> bool {
        self.process().1 > self.size
    }

    /// The health of all processes.
    pub fn health(&self) -> Vec<Health> {
        let reported = self.transport().health();
        reported.unwrap_or_else(|| self.mail(|mail| mail.health()))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tasks.stop();
        // After a panic peers must see a lost rank, not one that closed.
        if std::thread::panicking() || !self.is_ours() {
            return;
        }
        if let Ok(mut transport) = self.transport.lock()
            && let Err(error) = transport.close(CLOSE_TIMEOUT)
        {
            log::warn!("{error}");
        }
    }
}
