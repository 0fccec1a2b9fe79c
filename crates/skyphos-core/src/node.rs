//! A process's end of the network: one transport, one mailbox, and whoever waits drives both.
//!
//! A caller that must wait becomes the *driver*: it polls the transport, files what comes, and wakes
//! other callers whose frames were among it. A second caller waits on a condition variable until the
//! driver leaves. A hand-off between threads would cost more than a small allreduce, so there is a
//! thread of the node's own only for calls that go on while nobody waits ([`crate::work`]).

use crate::arguments::Arguments;
use crate::clock::Clock;
use crate::endpoint::Endpoint;
use crate::frame::{CallKind, CallSig, Frame, FrameKind, Header};
use crate::host_region::Regions;
use crate::mailbox::{Filter, Group, Mailbox, Reply, UNSEEN};
use crate::point_to_point::Status;
use crate::process::Process;
use crate::slab::{Payload, Pool};
use crate::topology::Topology;
use crate::transport::{Event, Health, Transport, Waker};
use crate::work::{Call, Tasks};
use skyphos_types::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Longest sleep without looking whether the user pressed Ctrl-C.
const LOOK_UP: Duration = Duration::from_millis(100);

/// How long a waiter polls before it sleeps, when the host has a core for every rank. A wake-up
/// from sleep costs 5 to 50 µs; most waits inside a collective are shorter.
const SPIN: Duration = Duration::from_micros(30);

/// The longest wait for peers to take the abort of a failed call.
const HAND_OVER: Duration = Duration::from_millis(50);

/// Bytes of the reason for which a program failed that peers are told.
const MOST_WHY: usize = 900;

/// Polls after which a completed call returns although more is arriving: what comes by then was not there when it completed.
const MOST_POLLS: u32 = 64;

/// The longest wait for peers to take what was sent when a node closes.
const FAREWELL: Duration = Duration::from_secs(5);

/// Settings of a node.
#[derive(Clone)]
pub struct Settings {
    /// Longest wait without any progress before a call fails.
    pub timeout: Duration,
    /// Threads that merge large messages, the caller included.
    pub threads: usize,
    /// Asked now and then while a call waits: has the user interrupted?
    pub interrupted: Option<fn() -> bool>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { timeout: Duration::from_secs(300), threads: 1, interrupted: None }
    }
}

struct Drive {
    mail: Mailbox,
    driving: bool,
    waiters: usize,
}

/// A call, and its arguments.
pub struct Asked(pub CallSig, pub Arguments);

impl From<CallSig> for Asked {
    fn from(sig: CallSig) -> Asked {
        Asked(sig, Arguments::None)
    }
}

impl From<(CallSig, Arguments)> for Asked {
    fn from((sig, arguments): (CallSig, Arguments)) -> Asked {
        Asked(sig, arguments)
    }
}

/// See the module's text.
pub struct Node {
    rank: u32,
    size: u32,
    name: &'static str,
    addresses: Arc<[String]>,
    topology: Topology,
    chunk_bytes: usize,
    ranks_on_host: usize,
    transport: Mutex<Box<dyn Transport>>,
    /// Threads that want the transport while a driver may be asleep in it.
    knocking: AtomicUsize,
    waker: Waker,
    state: Mutex<Drive>,
    turn: Condvar,
    events: Mutex<Vec<Event>>,
    pool: Pool,
    settings: Settings,
    merge_pool: Option<rayon::ThreadPool>,
    spin: Duration,
    clock: Clock,
    on_one_host: bool,
    is_trusted: bool,
    shares_memory: bool,
    /// Memory of broadcasts to this host.
    pub(crate) regions: Regions,
    /// The transport has work when no call is under way.
    goes_on: bool,
    place: (u32, u32),
    /// Whether a call has the transport's own collectives for itself.
    own_collectives: AtomicBool,
    quiet_polls: u32,
    /// Calls under way that nobody may be waiting for.
    pub(crate) tasks: Arc<Tasks>,
    /// The process that made the node. A forked child shares its sockets and must leave them alone.
    process: Process,
}

impl Node {
    /// A node over a connected transport.
    pub fn new(transport: Box<dyn Transport>, settings: Settings) -> Result<Arc<Node>> {
        let size = transport.size();
        let addresses = transport.addresses();
        let clock = transport.clock();
        let virtual_time = matches!(clock, Clock::Virtual(_));
        let ranks_on_host = transport.ranks_on_host();
        let (on_one_host, goes_on) = (transport.on_one_host(), transport.goes_on());
        let is_trusted = on_one_host || transport.is_proven();
        let shares_memory = transport.shares_memory() && !virtual_time;
        let place = transport.place();
        let callers_only = transport.is_for_callers_only();
        let quiet_polls = transport.quiet_polls();
        let cores = std::thread::available_parallelism().map_or(1, |c| c.get());
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
        let mail = Mailbox::new(transport.rank(), addresses.clone());
        let node = Arc::new(Node {
            rank: transport.rank(),
            size,
            name: transport.name(),
            ranks_on_host,
            waker: transport.waker(),
            knocking: AtomicUsize::new(0),
            state: Mutex::new(Drive { mail, driving: false, waiters: 0 }),
            addresses,
            topology: transport.topology(),
            chunk_bytes: transport.chunk_bytes(),
            clock,
            pool: transport.pool(),
            transport: Mutex::new(transport),
            turn: Condvar::new(),
            events: Mutex::new(Vec::new()),
            settings,
            merge_pool,
            tasks: Arc::default(),
            process: Process::this(),
            spin: if ranks_on_host <= cores && !virtual_time { SPIN } else { Duration::ZERO },
            on_one_host,
            is_trusted,
            shares_memory,
            regions: Regions::default(),
            goes_on,
            place,
            own_collectives: AtomicBool::new(false),
            quiet_polls,
        });
        if virtual_time || callers_only {
            // A simulated process has one thread; and a thread of ours may not use a transport that is for callers.
            node.tasks.needs_no_thread();
        } else if goes_on {
            Node::keep_going(&node)?;
        }
        Ok(node)
    }

    /// This process's rank in the transport.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks in the transport.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The transport's name.
    pub fn transport_name(&self) -> &'static str {
        self.name
    }

    /// Host and address of a rank.
    pub fn address(&self, rank: u32) -> &str {
        &self.addresses[rank as usize]
    }

    /// Where the ranks are, as the transport knows it.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Ranks that share this host.
    pub fn ranks_on_host(&self) -> usize {
        self.ranks_on_host
    }

    /// The most bytes of a message that go in one frame, unless a row takes more.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// What time goes by here.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Time since the node was made.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Where buffers come from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Threads for large merges; `None` when the caller merges alone.
    pub fn merge_pool(&self) -> Option<&rayon::ThreadPool> {
        self.merge_pool.as_ref()
    }

    /// The node's settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn state(&self) -> MutexGuard<'_, Drive> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mail<R>(&self, f: impl FnOnce(&mut Mailbox) -> R) -> R {
        f(&mut self.state().mail)
    }

    /// The transport, woken first if a driver sleeps in it.
    pub(crate) fn transport(&self) -> MutexGuard<'_, Box<dyn Transport>> {
        if let Ok(guard) = self.transport.try_lock() {
            return guard;
        }
        self.knocking.fetch_add(1, Ordering::AcqRel);
        (self.waker)();
        let guard = self.transport.lock().unwrap_or_else(PoisonError::into_inner);
        self.knocking.fetch_sub(1, Ordering::AcqRel);
        guard
    }

    pub(crate) fn post(&self, to: u32, header: Header, payload: Payload) {
        let frame = Frame { header, payload };
        if to == self.rank {
            self.mail(|m| m.deliver(Event::Frame { from: to, frame }));
            return self.rouse();
        }
        self.transport().post(to, frame);
    }

    pub(crate) fn backlog(&self, to: u32) -> usize {
        self.transport().backlog(to)
    }

    /// Takes the transport's own collectives for one call; `false` if another has them, or had them when it failed.
    pub(crate) fn take_own_collectives(&self) -> bool {
        !self.own_collectives.swap(true, Ordering::AcqRel)
    }

    /// Gives them back, if nothing of the call is under way anywhere.
    pub(crate) fn give_own_collectives_back(&self) {
        self.own_collectives.store(false, Ordering::Release);
    }

    /// Makes a group known; frames for it may have come before.
    pub fn open_group(&self, group: Arc<Group>) {
        self.mail(|m| m.open_comm(group));
    }

    /// Forgets a group. A call that is still in it on another thread fails.
    pub fn close_group(self: &Arc<Node>, comm: u64) {
        self.mail(|m| m.close_comm(comm));
        (self.waker)();
        self.turn.notify_all();
        self.end_calls(comm);
    }

    /// Ends the waits of all threads, to look again.
    pub(crate) fn rouse(&self) {
        let state = self.state();
        if state.driving {
            (self.waker)();
        }
        if state.waiters > 0 {
            self.turn.notify_all();
        }
    }

    /// Calls of a group that ended here since ranks had called different things.
    pub fn mismatches(&self, group: &Group) -> u64 {
        self.mail(|m| m.mismatches(group.comm))
    }

    /// Groups that are open on this node.
    pub fn open_groups(&self) -> usize {
        self.mail(|m| m.open_comms())
    }

    /// Whether this process made the node, rather than inherit it by a fork.
    pub fn is_ours(&self) -> bool {
        self.process.is_this()
    }

    /// Why this rank leaves, if its program has failed: peers are told when it closes, or goes away.
    pub fn say_why(&self, why: &str) {
        if self.is_ours() {
            let mut end = why.len().min(MOST_WHY);
            while !why.is_char_boundary(end) {
                end -= 1;
            }
            self.transport().say_why(&format!("rank {} failed: {}", self.rank, &why[..end]));
        }
    }

    /// Sends goodbye to all and hands over what is queued. `Err`: what was found wrong with calls that had ended.
    pub fn close(&self) -> Result<()> {
        if !self.is_ours() {
            return Ok(());
        }
        self.tasks.stop_going();
        self.transport().close(FAREWELL)
    }

    /// Runs one collective call to its end on this thread.
    ///
    /// The body gets an endpoint of the call. Whatever it returns, the call is over afterwards; an
    /// error is told to all, so that everyone raises.
    pub fn call<R>(
        self: &Arc<Node>,
        group: &Arc<Group>,
        asked: impl Into<Asked>,
        body: impl AsyncFnOnce(&Endpoint) -> Result<R>,
    ) -> Result<R> {
        let ep = self.begin(group, asked.into());
        self.run(&ep, body(&ep))
    }

    /// A call that can go on while its caller does something else. `waiters_only`: it runs code that only threads
    /// of the caller's may run.
    pub fn prepare<R: Send + 'static, F: Future<Output = Result<R>> + Send + 'static>(
        self: &Arc<Node>,
        group: &Arc<Group>,
        asked: impl Into<Asked>,
        waiters_only: bool,
        body: impl FnOnce(Arc<Endpoint>) -> F,
    ) -> Call<R> {
        let ep = Arc::new(self.begin(group, asked.into()));
        let (body, call) = (body(ep.clone()), ep.clone());
        let whole = async move {
            let result = body.await?;
            ep.wait_to_end().await?;
            Ok(result)
        };
        Call::new(call, Box::pin(whole), waiters_only)
    }

    /// A message to a rank of the group, or a receive or probe ([`CallSig::of_message`]).
    pub fn prepare_message<R: Send + 'static, F: Future<Output = Result<R>> + Send + 'static>(
        self: &Arc<Node>,
        group: &Arc<Group>,
        sig: CallSig,
        body: impl FnOnce(Arc<Endpoint>) -> F,
    ) -> Call<R> {
        let ep = Arc::new(self.begin_message(group, sig));
        Call::new(ep.clone(), Box::pin(body(ep)), false)
    }

    /// The first message that a probe would find now.
    pub fn look_for_message(&self, group: &Group, sig: CallSig) -> Result<Option<Status>> {
        self.file_arrivals();
        let filter = Filter::of(group, sig);
        self.mail(|m| match m.peek(group.comm, filter) {
            Some(envelope) => Ok(Some(Status::of(group, envelope))),
            None if m.may_be_lost(group, filter) => m
                .why_none_comes(group, filter, sig)
                .map_or(Ok(None), |error| Err(group.with_group_ranks(error))),
            None => Ok(None),
        })
    }

    fn begin_message(self: &Arc<Node>, group: &Arc<Group>, sig: CallSig) -> Endpoint {
        let of = |call| Endpoint::new(self.clone(), group.clone(), call, sig);
        if sig.flags == CallSig::SENDS {
            self.file_arrivals(); // its receiver may have left, of which no call has heard yet
            let to = group.ranks[sig.width as usize];
            let (call, id) = self.mail(|m| m.begin_send(group, to, sig));
            return of(call).of_message(id);
        }
        of(self.mail(|m| match sig.flags & CallSig::PROBES {
            0 => m.begin_receive(group, sig),
            _ => m.begin_probe(group, sig),
        }))
    }

    /// In place of a message to a rank: it receives this error.
    pub fn fail_message(self: &Arc<Node>, group: &Arc<Group>, to: u32, tag: u32, error: Error) -> Error {
        let sig = CallSig::of_message(group.comm, CallSig::SENDS, Some(to), Some(tag));
        let ep = self.begin_message(group, sig);
        drop(Leave {
            ep: &ep,
            outcome: Outcome::Failed(group.with_transport_ranks(error.clone())),
            is_told: true,
        });
        Node::hand_over_abort(&ep);
        error
    }

    fn begin(self: &Arc<Node>, group: &Arc<Group>, Asked(sig, arguments): Asked) -> Endpoint {
        // Replicas that disagree are found by checksums of what they put in.
        let arguments = if self.is_replicated() { Arguments::None } else { arguments };
        let begin = |m: &mut Mailbox| (m.begin(group, sig, arguments), std::mem::take(&mut m.replies));
        let ((call, sig), replies) = self.mail(begin);
        self.send_replies(replies);
        Endpoint::new(self.clone(), group.clone(), call, sig)
    }

    /// Whether all ranks are on one host.
    pub fn on_one_host(&self) -> bool {
        self.on_one_host
    }

    /// Whether what other ranks send may be taken for this program's own words: they have proved who they are, or are here.
    pub fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// Whether ranks are processes or threads of real hosts, one each.
    pub fn knows_hosts(&self) -> bool {
        matches!(self.clock, Clock::Real(_)) && !self.is_replicated()
    }

    /// Whether ranks of this host may have memory in common, as far as this one is asked.
    pub fn shares_memory(&self) -> bool {
        self.shares_memory
    }

    /// This process's number, and how many there are: more than ranks, where those are replicated.
    pub fn place(&self) -> (u32, u32) {
        self.place
    }

    /// Whether ranks are several processes.
    pub fn is_replicated(&self) -> bool {
        self.place.1 > self.size
    }

    /// How all processes are.
    pub fn health(&self) -> Vec<Health> {
        let of_replicas = self.transport().health();
        of_replicas.unwrap_or_else(|| self.mail(|mail| mail.health()))
    }

    /// Runs a call to its end on this thread.
    pub(crate) fn run<R>(&self, ep: &Endpoint, body: impl Future<Output = Result<R>>) -> Result<R> {
        // Another rank may wait for one of those, and come to this call only then.
        ep.node().release_held();
        let _waiting = self.goes_on.then(|| self.step_in());
        // Even if the body panics the others must not wait for this rank.
        let mut leave = Leave { ep, outcome: Outcome::Panicked, is_told: false };
        let result = self.block_on(ep, async {
            let result = body.await?;
            self.handed_over(ep).await?;
            Ok(result)
        });
        let result = result.and_then(|done| self.heed_aborts(ep).map(|()| done));
        leave.outcome = Outcome::of(&result);
        leave.is_told = true;
        let failed = matches!(leave.outcome, Outcome::Failed(_));
        drop(leave);
        if failed {
            Node::hand_over_abort(ep);
        }
        if let Err(error) = &result {
            self.see_failure(ep, error, false);
        }
        result.map_err(|error| ep.place().0.with_group_ranks(error))
    }

    /// This rank's program is told that a call has failed, `at_once` if before it was under way. A replica that fails alone is
    /// left behind by its siblings, which go on in the call: that is for checksums of what they put in to tell.
    pub(crate) fn see_failure(&self, ep: &Endpoint, error: &Error, at_once: bool) {
        let (group, call) = ep.place();
        match ep.is_message() {
            true => {}
            false if self.is_replicated() => self.see_nothing(ep),
            false => self.mail(|m| m.see_failure(group.comm, call, error, at_once)),
        }
    }

    /// Calls of a group that this rank has begun.
    pub fn calls_begun(&self, group: &Group) -> u64 {
        self.mail(|m| m.begun(group.comm))
    }

    /// This rank's program is told that a collective has failed that consists of all calls from `first` on
    /// ([`Node::calls_begun`]), however they ended.
    pub fn see_failure_since(&self, group: &Group, first: u64) {
        if !self.is_replicated() {
            self.mail(|m| m.see_failure_since(group.comm, first));
        }
    }

    /// This rank's program is told that a call went well.
    pub(crate) fn see_success(&self, ep: &Endpoint) {
        let (group, call) = ep.place();
        if !ep.is_message() {
            self.mail(|m| m.see_success(group.comm, call));
        }
    }

    /// Nobody asks how a call ends.
    pub(crate) fn see_nothing(&self, ep: &Endpoint) {
        let (group, call) = ep.place();
        if !ep.is_message() {
            self.mail(|m| m.see_nothing(group.comm, call));
        }
    }

    /// Looks at everything that has arrived before a completed call returns. A peer that has left the call with an error may
    /// have sent all its data before, and its abort comes after that data: without this a rank that enters late would
    /// complete a call that has failed.
    pub(crate) fn heed_aborts(&self, ep: &Endpoint) -> Result<()> {
        if ep.is_message() {
            return Ok(()); // what is received is all there; what is sent may be received or not
        }
        self.file_arrivals();
        let (group, call) = ep.place();
        match self.mail(|m| m.look(group.comm, call)) {
            Err((error, true)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Files all that has arrived so far.
    fn file_arrivals(&self) {
        let (mut quiet, mut turns_of_others) = (0, 0);
        for _ in 0..MOST_POLLS {
            let mut state = self.state();
            if !state.driving {
                state.driving = true;
                drop(state);
                quiet = if self.drive(Duration::ZERO) { quiet + 1 } else { 0 };
                if quiet == self.quiet_polls {
                    return;
                }
                continue;
            }
            // Another thread polls: two of its turns, of which the second begins after this one has asked.
            if turns_of_others == 2 {
                return;
            }
            turns_of_others += 1;
            (self.waker)();
            state.waiters += 1;
            state = self.turn.wait_timeout(state, self.nap()).unwrap_or_else(PoisonError::into_inner).0;
            state.waiters -= 1;
        }
    }

    /// Sends the abort of a call that has failed here, after which nobody may drive the transport for long. What a peer does
    /// not take at once is left to the node's thread.
    fn hand_over_abort(ep: &Endpoint) {
        let node = ep.node();
        let until = node.now() + HAND_OVER;
        while !node.is_handed_over(ep) {
            if node.now() >= until {
                return Node::send_in_background(node);
            }
            node.wait_until(|_| false, HAND_OVER / 10);
        }
    }

    /// Whether the system has all that was queued for the ranks of the call.
    fn is_handed_over(&self, ep: &Endpoint) -> bool {
        let transport = self.transport();
        ep.others().all(|rank| rank == self.rank || transport.backlog(rank) == 0)
    }

    /// Completes when the system has all that was queued for the group. After the call nobody may drive the
    /// transport for long, and the peers must not wait for what is still here.
    async fn handed_over(&self, ep: &Endpoint) -> Result<()> {
        if ep.is_message() && ep.sig().flags != CallSig::SENDS {
            return Ok(()); // it has sent nothing, and its sender may be busy with something else
        }
        std::future::poll_fn(|_| {
            // News that nobody reads would keep this thread from driving.
            match ep.catch_up().and_then(|()| ep.may_end()) {
                Err(error) => Poll::Ready(Err(error)),
                Ok(may_end) if may_end && self.is_handed_over(ep) => Poll::Ready(Ok(())),
                Ok(_) => Poll::Pending,
            }
        })
        .await
    }

    /// Takes part in the group's next call only to say that it failed on this rank before it began. The others, whatever they
    /// called, get the error too. `goes_on`: this rank makes the same calls after it as those who have not heard of it yet.
    pub fn fail_call(self: &Arc<Node>, group: &Arc<Group>, error: Error, goes_on: bool) -> Error {
        let sig = CallSig::plain(CallKind::Failed);
        let ep = self.begin(group, sig.into());
        drop(Leave {
            ep: &ep,
            outcome: Outcome::Failed(group.with_transport_ranks(error.clone())),
            is_told: true,
        });
        Node::hand_over_abort(&ep);
        self.see_failure(&ep, &error, !goes_on);
        error
    }

    fn block_on<R>(&self, ep: &Endpoint, future: impl Future<Output = Result<R>>) -> Result<R> {
        let mut future = std::pin::pin!(future);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let (mut watch, mut asked) = (Watch::new(self), self.now());
        watch.look(ep)?;
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                return result;
            }
            let quiet = self.wait_until(|mail| ep.has_news(mail), self.nap());
            if quiet || self.now().saturating_sub(asked) > LOOK_UP {
                asked = self.now();
                if self.interrupted() {
                    return Err(Error::Interrupted);
                }
            }
            // In a replicated group the node's thread has stepped back for this one.
            if self.goes_on || self.tasks.any_for_waiters() {
                self.poll_calls(false);
            }
            watch.look(ep)?;
        }
    }

    /// Whether the user has interrupted; runs signal handlers.
    pub(crate) fn interrupted(&self) -> bool {
        self.settings.interrupted.is_some_and(|f| f())
    }

    /// Ends a call on all ranks because the user interrupted.
    pub(crate) fn interrupt(&self, ep: &Endpoint) {
        let (group, call) = ep.place();
        self.mail(|m| m.fail(group.comm, call, Error::Interrupted));
    }

    /// What a call that panicked on this rank ends with.
    pub(crate) fn panicked(&self) -> Error {
        Error::Aborted { rank: self.rank, cause: "it panicked".to_owned() }
    }

    /// The longest wait without looking at the clock.
    pub(crate) fn nap(&self) -> Duration {
        LOOK_UP.min(self.grace() / 2)
    }

    /// Time for the answers of ranks that are asked whether they are in a call.
    fn grace(&self) -> Duration {
        (self.settings.timeout / 4).min(Duration::from_secs(2))
    }

    /// Waits until there is news, a moment at most; whether the network was quiet all the while.
    pub(crate) fn wait_until(&self, news: impl Fn(&mut Mailbox) -> bool, most: Duration) -> bool {
        let mut state = self.state();
        if news(&mut state.mail) {
            return false;
        }
        if state.driving {
            state.waiters += 1;
            state = self.turn.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0;
            state.waiters -= 1;
            return false;
        }
        state.driving = true;
        drop(state);
        self.drive(most)
    }

    /// Polls the transport once and files what came; whether nothing did.
    fn drive(&self, most: Duration) -> bool {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut transport = self.transport.lock().unwrap_or_else(PoisonError::into_inner);
            transport.poll(Duration::ZERO, &mut events);
            if events.is_empty() && !self.spin.is_zero() && !most.is_zero() {
                let until = Instant::now() + self.spin;
                while events.is_empty() && Instant::now() < until {
                    std::hint::spin_loop();
                    transport.poll(Duration::ZERO, &mut events);
                }
            }
            if events.is_empty() && !most.is_zero() && self.knocking.load(Ordering::Acquire) == 0 {
                transport.poll(most, &mut events);
            }
        }
        if self.knocking.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        let quiet = events.is_empty();
        let mut state = self.state();
        for event in events.drain(..) {
            state.mail.deliver(event);
        }
        state.driving = false;
        if state.waiters > 0 {
            self.turn.notify_all();
        }
        let replies = std::mem::take(&mut state.mail.replies);
        drop(state);
        self.send_replies(replies);
        quiet
    }

    /// Sends what the mailbox owes peers.
    fn send_replies(&self, replies: Vec<Reply>) {
        for Reply { to, header, payload } in replies {
            let payload = if payload.is_empty() { Payload::default() } else { self.pool.copy_of(&payload) };
            self.post(to, header, payload);
        }
    }

    /// Asks every rank whether it is in the call. One that is inside answers at once, since it drives.
    fn ask_who_is_here(&self, ep: &Endpoint) {
        for peer in ep.others() {
            self.post(peer, ep.control(FrameKind::Probe), Payload::default());
        }
    }

    /// Nothing has moved for the whole time-out: names those that have not answered.
    fn timed_out(&self, ep: &Endpoint) -> Error {
        let (group, call) = ep.place();
        if let Some(error) = self.mail(|m| m.disputed(group.comm, call)) {
            return error;
        }
        let (present, losses) = self.mail(|m| (m.present(group.comm, call), m.losses(group)));
        // Of one that is lost nobody expects anything: a shrink goes on without.
        let awaited = ep.awaited();
        let absent = |rank: u32| awaited.contains(&rank) && !present.contains(&rank);
        let each = group.ranks.iter().zip(&losses);
        let missing =
            each.filter(|(rank, loss)| loss.is_none() && absent(**rank)).map(|(rank, _)| *rank).collect();
        Error::Timeout { missing, call: ep.sig().to_string(), after: self.settings.timeout }
    }
}

/// Watches that a call moves.
pub(crate) struct Watch {
    /// How much had happened in the call when it was looked at.
    version: Option<u64>,
    moved: Duration,
    timeout: Duration,
    grace: Duration,
    /// Whether the other ranks were asked if they are in it.
    asked: bool,
}

impl Watch {
    pub(crate) fn new(node: &Node) -> Watch {
        let (timeout, grace) = (node.settings.timeout, node.grace());
        Watch { version: None, moved: node.now(), timeout, grace, asked: false }
    }

    /// Takes note of how much has happened. `Err` if the call has failed, or not moved for too long.
    pub(crate) fn look(&mut self, ep: &Endpoint) -> Result<()> {
        let now = ep.version()?;
        if self.version != Some(now) {
            (self.version, self.moved, self.asked) = (Some(now), ep.now(), false);
        } else if self.quiet(ep) >= self.timeout {
            return Err(ep.node().timed_out(ep));
        } else if !self.asked && self.overdue(ep) {
            self.asked = true;
            ep.node().ask_who_is_here(ep);
        }
        Ok(())
    }

    /// How long nothing has moved.
    fn quiet(&self, ep: &Endpoint) -> Duration {
        ep.now().saturating_sub(self.moved)
    }

    fn overdue(&self, ep: &Endpoint) -> bool {
        self.quiet(ep) >= if self.asked { self.timeout } else { self.timeout - self.grace }
    }

    /// Whether [`Watch::look`] would find anything.
    pub(crate) fn has_news(&self, ep: &Endpoint, mail: &mut Mailbox) -> bool {
        let (group, call) = ep.place();
        mail.version(group.comm, call) != self.version || self.overdue(ep)
    }

    pub(crate) fn version(&self) -> Option<u64> {
        self.version
    }
}

/// How a call ended on this rank.
pub(crate) enum Outcome {
    Done,
    /// With an error that every rank comes to by itself.
    Agreed,
    Failed(Error),
    Panicked,
}

impl Outcome {
    pub(crate) fn of<R>(result: &Result<R>) -> Outcome {
        match result {
            Err(error) if error.is_agreed() => Outcome::Agreed,
            Err(error) => Outcome::Failed(error.clone()),
            Ok(_) => Outcome::Done,
        }
    }
}

/// Ends a call, telling the others why if it failed.
pub(crate) struct Leave<'a> {
    pub(crate) ep: &'a Endpoint,
    pub(crate) outcome: Outcome,
    /// Whether the program is told by this, as by a blocking call.
    pub(crate) is_told: bool,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let (node, (group, call)) = (self.ep.node(), self.ep.place());
        let said = node.mail(|m| m.look(group.comm, call)).err().filter(|(_, remote)| *remote);
        let outcome = std::mem::replace(&mut self.outcome, Outcome::Done);
        let failure = match &outcome {
            Outcome::Failed(error) if self.ep.is_message() => Some(error.clone()),
            _ => None,
        };
        let completed = matches!(outcome, Outcome::Done);
        let error = match outcome {
            Outcome::Done | Outcome::Agreed => None,
            // Told on: should this rank go away next, others may see that before they hear from who said it.
            Outcome::Failed(_) | Outcome::Panicked if said.is_some() => said.map(|(error, _)| error),
            // A text is for the group's callers; numbers on the way are the transport's.
            Outcome::Failed(error @ Error::BadInput { .. }) => {
                Some(error.as_seen_by_others(group.named().me))
            }
            Outcome::Failed(error) => Some(error.as_seen_by_others(node.rank)),
            Outcome::Panicked => Some(node.panicked()),
        };
        let failed = error.is_some();
        if let Some(error) = error {
            let payload = node.pool.copy_of(&error.to_wire());
            let is_unseen = node.mail(|m| m.is_unseen(group.comm, call));
            for peer in self.ep.others() {
                let header = self.ep.control(FrameKind::Abort);
                let round = if is_unseen { UNSEEN } else { header.round };
                node.post(peer, Header { round, ..header }, payload.clone());
            }
        }
        node.mail(|m| {
            m.end(group.comm, call, completed);
            if let Some(error) = failure {
                m.fail_beside(group.comm, call, &error);
            }
            if completed && self.is_told {
                m.see_success(group.comm, call);
            }
        });
        if node.goes_on
            && let Some((comm, call)) = self.ep.wire()
        {
            node.transport().end(comm, call, failed);
        }
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
            && let Err(error) = transport.close(FAREWELL)
        {
            eprintln!("skyphos: {error}");
        }
    }
}
