//! A group of ranks and its collectives.

use crate::group_start::{decode_profile, decode_topology, encode_profile, encode_topology};
use crate::shrink::Shrunk;
use skyphos_core::collectives::allgather::{allgather_bytes, allgather_numbers};
use skyphos_core::collectives::gather::scatter_arrays;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::local::local_group;
use skyphos_core::transport::Transport;
use skyphos_core::{Asked, Call, Endpoint, Group, Node, Settings, Topology};
use skyphos_plan::Profile;
use skyphos_tune::{Observations, Tuner, TuningParameters};
use skyphos_types::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Round from which ranks tell each other their places.
const PLACES: u32 = 0x1000;

/// A group of ranks. All its methods but the getters are collective: every rank must call the same
/// ones in the same order, or all of them get [`Error::Mismatch`].
///
/// Each collective returns a [`CallBuilder`](crate::CallBuilder), which runs it on this thread or starts it, to go on while this
/// thread does something else. Ranks make calls in one order; calls complete in any.
///
/// Dropping a `Comm` leaves its group; dropping the last one of a process says goodbye to the peers.
pub struct Comm {
    node: Arc<Node>,
    group: Arc<Group>,
    closed: AtomicBool,
    pub(crate) tuner: Mutex<Tuner<CallSig>>,
    pub(crate) shrunk: Mutex<Shrunk>,
}

/// The ranks of an in-process group.
pub struct LocalRanks(pub(crate) Vec<Comm>);

impl LocalRanks {
    /// The Comms, by rank.
    pub fn into_vec(self) -> Vec<Comm> {
        self.0
    }

    /// Runs `body` for every rank, each in a thread of its own; results by rank.
    pub fn map_ranks<R: Send>(self, body: impl Fn(Comm) -> R + Sync) -> Vec<R> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = self.0.into_iter().map(|comm| scope.spawn(|| body(comm))).collect();
            threads
                .into_iter()
                .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }
}

impl Comm {
    /// The group of all ranks of a connected transport.
    pub fn over(transport: Box<dyn Transport>, settings: Settings) -> Result<Comm> {
        Comm::over_placed(transport, settings, |_| Ok(None))
    }

    /// The same with ranks in places that somebody else knows, told which there are.
    pub(crate) fn over_placed(
        transport: Box<dyn Transport>,
        settings: Settings,
        placed: impl FnOnce(&[u32]) -> Result<Option<Topology>>,
    ) -> Result<Comm> {
        let node = Node::new(transport, settings)?;
        let ranks: Vec<u32> = (0..node.size()).collect();
        let topology = placed(&ranks)?.unwrap_or_else(|| node.topology().clone());
        let group = Group { comm: 0, ranks, me: node.rank(), topology, named_by: None };
        Ok(Comm::of_group(node, group, Observations::default()))
    }

    /// Groups for `size` ranks of this process.
    pub fn local(size: u32, settings: &Settings) -> Result<LocalRanks> {
        if size == 0 {
            return Err(Error::bad_input("a group has at least one rank"));
        }
        let comms = local_group(size).into_iter().map(|t| Comm::over(Box::new(t), settings.clone()));
        Ok(LocalRanks(comms.collect::<Result<_>>()?))
    }

    fn of_group(node: Arc<Node>, group: Group, parent: Observations) -> Comm {
        let group = Arc::new(group);
        node.open_group(group.clone());
        Comm {
            node,
            group,
            closed: AtomicBool::new(false),
            shrunk: Mutex::default(),
            tuner: Mutex::new(Tuner::new(TuningParameters::DEFAULT, Observations::of_child(parent))),
        }
    }

    /// What a probe measured, as all ranks agreed ([`Comm::agree_profile`]); `None`: `auto` begins with defaults.
    pub fn profile(&self) -> Option<Profile> {
        self.observed().base
    }

    /// Lets `auto` begin with these numbers. Not collective: all ranks must pass the same.
    pub fn set_profile(&self, profile: Option<Profile>) {
        self.observed().base = profile;
    }

    /// Whether what other ranks send may be taken for this program's own words: they have proved that they know the token or
    /// have a certificate, or all are on this host, or MPI has started them.
    pub fn is_trusted(&self) -> bool {
        self.node().is_trusted()
    }

    /// Whether `auto` learns from calls: tries what is predicted to take about as long, and keeps what took least. If not,
    /// it goes by data and profile alone, so that each run of a program does the same.
    pub fn adapts(&self) -> bool {
        !self.observed().fixed
    }

    /// Gives all ranks the profile of rank 0, and whether calls are learned from ([`Comm::adapts`]), whatever the others
    /// would have had. Collective; ⌈log2 P⌉ α.
    pub fn agree_profile(&self, mine: Option<Profile>, adapt: bool) -> Result<Option<Profile>> {
        self.agree(mine, adapt, false).map(|(profile, _)| profile)
    }

    /// [`Comm::agree_profile`], and where rank 0 passes a topology, a group of the same ranks that goes by it; then this one
    /// is closed. Collective.
    pub fn begin_with(
        &self,
        mine: Option<Profile>,
        adapt: bool,
        topology: Option<&Topology>,
    ) -> Result<Option<Comm>> {
        let (_, placed) = self.agree(mine, adapt, topology.is_some())?;
        if !placed {
            return Ok(None);
        }
        let comm = self.with_topology(topology)?;
        self.close()?;
        Ok(Some(comm))
    }

    fn agree(&self, mine: Option<Profile>, adapt: bool, more: bool) -> Result<(Option<Profile>, bool)> {
        let mut block = encode_profile(mine);
        block.extend([u8::from(adapt), u8::from(more)]);
        let all =
            self.call(CallSig::plain(CallKind::Profile), async |ep| allgather_bytes(ep, 0, &block).await)?;
        let (profile, cores) = decode_profile(&all[0]);
        self.set_profile(profile);
        let mut observed = self.observed();
        let [.., adapts, more] = all[0][..] else { unreachable!("as many bytes as here") };
        (observed.host_cores, observed.fixed) = (Some(cores), adapts == 0);
        drop(observed);
        Ok((profile, more == 1))
    }

    /// The same ranks as another group, which goes by rank 0's topology. Collective; a message from rank 0 to each, and
    /// ⌈log2 P⌉ α.
    pub fn with_topology(&self, mine: Option<&Topology>) -> Result<Comm> {
        let mine = mine.filter(|_| self.rank() == 0).map_or_else(Vec::new, encode_topology);
        let (all, call) = self.call(CallSig::plain(CallKind::Split), async |ep| {
            if self.rank() == 0 && mine.len() != 8 * ep.size() as usize {
                let ranks = mine.len() / 8;
                let message = format!("rank 0 has a topology of {ranks} ranks, of {}", ep.size());
                return Err(Error::bad_input(message));
            }
            let mut own = [0; 8];
            scatter_arrays(ep, 0, &mine, &mut own).await?;
            Ok((allgather_numbers(ep, PLACES, &[u64::from_le_bytes(own)]).await?, ep.call_number()))
        })?;
        let bytes: Vec<u8> = all.into_iter().flatten().flat_map(u64::to_le_bytes).collect();
        let topology = decode_topology(&bytes)?;
        let everyone: Vec<u32> = (0..self.size()).collect();
        Ok(self.regroup(Group::number_after(self.group.comm, call), &everyone, topology))
    }

    /// A group of some ranks of this one, in this order. Not collective: each of them makes it by itself, of the same ranks
    /// and name. Two groups of the same ranks that are open at once have different names.
    pub fn group_of(&self, ranks: &[u32], name: u64) -> Result<Comm> {
        self.check_usable()?;
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let known = sorted.last().is_some_and(|last| *last < self.size());
        if !known || sorted.len() != ranks.len() || !sorted.contains(&self.rank()) {
            let (me, size) = (self.rank(), self.size());
            let message = format!(
                "a group of ranks {ranks:?} of {size}, made by rank {me}: each once, and it among them"
            );
            return Err(Error::bad_input(message));
        }
        // No call of this group has the number that is first.
        let named = Group::number_after(Group::number_after(self.group.comm, u64::MAX), name);
        let number = ranks.iter().fold(named, |number, rank| Group::number_after(number, u64::from(*rank)));
        Ok(self.regroup(number, ranks, self.group.topology.of_group(ranks)))
    }

    /// A group of these ranks and this number, which a call of this one agreed on.
    pub(crate) fn regroup(&self, comm: u64, members: &[u32], topology: Topology) -> Comm {
        self.group_named_by(self.group.named_by.clone(), comm, members, topology)
    }

    fn group_named_by(
        &self,
        named_by: Option<Arc<Group>>,
        comm: u64,
        members: &[u32],
        topology: Topology,
    ) -> Comm {
        let me = members.iter().position(|r| *r == self.rank()).expect("this rank is a member") as u32;
        let ranks = members.iter().map(|r| self.group.ranks[*r as usize]).collect();
        let observed = *self.observed();
        Comm::of_group(self.node.clone(), Group { comm, ranks, me, topology, named_by }, observed)
    }

    /// The number by which its frames are known.
    pub(crate) fn number(&self) -> u64 {
        self.group.comm
    }

    /// The rank's number in the transport.
    pub fn world_rank(&self, rank: u32) -> u32 {
        self.group.ranks[rank as usize]
    }

    /// Calls that ended here since ranks had called different things.
    pub(crate) fn mismatches(&self) -> u64 {
        self.node.mismatches(&self.group)
    }

    /// Where the group's ranks are.
    pub fn topology(&self) -> &Topology {
        &self.group.topology
    }

    /// This process's rank in the group.
    pub fn rank(&self) -> u32 {
        self.group.me
    }

    /// Ranks in the group.
    pub fn size(&self) -> u32 {
        self.group.ranks.len() as u32
    }

    /// The name of the transport.
    pub fn transport(&self) -> &'static str {
        self.node.transport_name()
    }

    /// Host and address of a rank of the group.
    pub fn address(&self, rank: u32) -> &str {
        self.node.address(self.group.ranks[rank as usize])
    }

    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The node under the group.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Refuses a Comm that is closed, or that a fork copied: the sockets are the parent's.
    pub(crate) fn check_usable(&self) -> Result<()> {
        if self.is_closed() {
            return Err(Error::bad_input(format!("rank {}: this Comm is closed", self.rank())));
        }
        if !self.node.is_ours() {
            return Err(Error::bad_input(
                "this Comm was made before a fork and belongs to the parent process: make groups after forking",
            ));
        }
        Ok(())
    }

    /// Runs one collective.
    pub(crate) fn call<R>(
        &self,
        asked: impl Into<Asked>,
        body: impl AsyncFnOnce(&Endpoint) -> Result<R>,
    ) -> Result<R> {
        self.check_usable()?;
        self.node.call(&self.group, asked, body)
    }

    /// Makes a collective call that can go on by itself. `is_custom`: it runs code of the caller's, which only threads that
    /// wait may run.
    pub(crate) fn prepare<R: Send + 'static, F: Future<Output = Result<R>> + Send + 'static>(
        &self,
        asked: impl Into<Asked>,
        is_custom: bool,
        body: impl FnOnce(Arc<Endpoint>) -> F,
    ) -> Result<Call<R>> {
        self.check_usable()?;
        Ok(self.node.prepare(&self.group, asked, is_custom, body))
    }

    /// From now on non-blocking calls wait for [`Comm::release`] (or until somebody waits for one), so that the
    /// messages of each of their rounds travel together. Nests.
    pub fn hold(&self) {
        self.node.hold();
    }

    /// Starts the calls that were held.
    pub fn release(&self) {
        self.node.release();
    }

    /// Calls that this rank has begun in the group.
    pub fn calls_begun(&self) -> u64 {
        self.node.calls_begun(&self.group)
    }

    /// Notes that a collective has failed in the eyes of this rank's program, which consists of all calls since so many had
    /// begun ([`Comm::calls_begun`]). Ranks whose programs take it for completed then end the next call with
    /// [`Error::Diverged`].
    pub fn note_failure_since(&self, first: u64) {
        self.node.report_failure_since(&self.group, first);
    }

    /// Leaves the next call with an error that this rank found before it could enter: the others, who
    /// are in the call or will come to it, raise it too.
    pub fn fail_call(&self, error: Error) -> Error {
        self.fail(error, false)
    }

    /// The same for a program that makes the same calls afterwards as ranks that have not heard of it yet, because theirs is
    /// under way.
    pub fn fail_call_and_go_on(&self, error: Error) -> Error {
        self.fail(error, true)
    }

    fn fail(&self, error: Error, goes_on: bool) -> Error {
        match self.check_usable() {
            Ok(()) => self.node.fail_call(&self.group, error, goes_on),
            Err(_) => error, // there is no group to tell
        }
    }

    /// Groups of the ranks that name the same `color`, ordered by `key`, then by rank here. A rank
    /// that names no color gets none.
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Comm>> {
        self.split_named_by(None, color, key)
    }

    /// [`Comm::split`] for a group of which no user knows: its errors name ranks as those of this group do.
    pub fn split_within(&self, color: Option<u64>, key: i64) -> Result<Option<Comm>> {
        let named_by = self.group.named_by.clone().unwrap_or_else(|| self.group.clone());
        self.split_named_by(Some(named_by), color, key)
    }

    fn split_named_by(
        &self,
        named_by: Option<Arc<Group>>,
        color: Option<u64>,
        key: i64,
    ) -> Result<Option<Comm>> {
        let mut block = [0u8; 17];
        block[0] = u8::from(color.is_some());
        block[1..9].copy_from_slice(&color.unwrap_or(0).to_le_bytes());
        block[9..].copy_from_slice(&key.to_le_bytes());
        let sig = CallSig::plain(CallKind::Split);
        let (all, call) = self.call(sig, async |ep| {
            ep.checksum_input(|checksum| checksum.add(&block));
            Ok((allgather_bytes(ep, 0, &block).await?, ep.call_number()))
        })?;
        let Some(color) = color else { return Ok(None) };
        let mut members: Vec<(i64, u32)> = Vec::new();
        for (rank, block) in all.iter().enumerate() {
            let theirs = u64::from_le_bytes(block[1..9].try_into().expect("17 bytes"));
            if block[0] == 1 && theirs == color {
                members.push((i64::from_le_bytes(block[9..].try_into().expect("17 bytes")), rank as u32));
            }
        }
        members.sort_unstable();
        let places: Vec<u32> = members.iter().map(|(_, rank)| *rank).collect();
        let topology = self.group.topology.of_group(&places);
        let number = Group::number_after(self.group.comm, call);
        Ok(Some(self.group_named_by(named_by, number, &places, topology)))
    }

    /// Leaves the group; later calls are refused. The last Comm of a process also closes the
    /// transport: its peers are told, and everything sent is handed over first.
    ///
    /// `Err`: in replicated groups it may come out only now that a replica had put other data into the last calls.
    pub fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.node.close_group(self.group.comm);
        match self.node.open_groups() {
            0 => self.node.close(),
            _ => Ok(()),
        }
    }

    /// [`Comm::close`] at the end of a program: what is under way may end before, for so long at most, for other ranks wait
    /// for it. `why`: the program has failed, and this is what peers are told.
    pub fn close_at_exit(&self, most: Duration, why: Option<&str>) -> Result<()> {
        if self.is_closed() || !self.node.is_ours() {
            return Ok(());
        }
        if why.is_none() {
            self.node.finish_calls(&self.group, most);
        }
        // Other groups of this process may go on.
        if let Some(why) = why.filter(|_| self.node.open_groups() == 1) {
            self.node.set_failure_reason(why);
        }
        self.close()
    }

    /// Whether [`Comm::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            log::warn!("{error}");
        }
    }
}
