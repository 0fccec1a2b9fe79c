//! A group of ranks and its collectives.

use crate::group_start::{decode_profile, decode_topology, encode_profile, encode_topology};
use crate::shrink_state::ShrinkState;
use skyphos_core::collectives::allgather::{allgather_bytes, allgather_numbers};
use skyphos_core::collectives::gather::scatter_arrays;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::local::local_group;
use skyphos_core::transport::Transport;
use skyphos_core::{Call, CallRequest, Endpoint, Group, Node, Settings, Topology};
use skyphos_plan::Profile;
use skyphos_tune::{Observations, Tuner, TuningParameters};
use skyphos_types::{CallNumber, CommId, Error, GroupRank, Result, Round, WorldRank};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// First round in which ranks exchange their hosts and racks.
const TOPOLOGY_ROUND: Round = Round(0x1000);

/// A group of ranks. All methods except the getters are collective: every rank must call the same methods in the same order, or
/// all ranks get [`Error::Mismatch`].
///
/// Each collective returns a [`CallBuilder`](crate::CallBuilder), which runs the call on this thread, or starts it and returns.
/// All ranks make calls in the same order; calls complete in any order.
///
/// Dropping a `Comm` leaves its group. Dropping the last one of a process closes the transport.
pub struct Comm {
    node: Arc<Node>,
    group: Arc<Group>,
    closed: AtomicBool,
    pub(crate) tuner: Mutex<Tuner<CallSig>>,
    pub(crate) shrink_state: Mutex<ShrinkState>,
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
        Comm::over_with_topology(transport, settings, |_| Ok(None))
    }

    /// Like [`Comm::over`], with the topology that `topology_of` returns for the ranks. `None`: the transport's topology.
    pub(crate) fn over_with_topology(
        transport: Box<dyn Transport>,
        settings: Settings,
        topology_of: impl FnOnce(&[u32]) -> Result<Option<Topology>>,
    ) -> Result<Comm> {
        let node = Node::new(transport, settings)?;
        let ranks: Vec<u32> = (0..node.size()).collect();
        let topology = topology_of(&ranks)?.unwrap_or_else(|| node.topology().clone());
        // The first group has all ranks of the transport, in their order.
        let (ranks, me) = (ranks.into_iter().map(WorldRank).collect(), GroupRank(node.rank().0));
        let group = Group { comm: CommId(0), ranks, me, topology, named_by: None };
        Ok(Comm::of_group(node, group, Observations::default()))
    }

    /// A group of `size` ranks in this process.
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
            shrink_state: Mutex::default(),
            tuner: Mutex::new(Tuner::new(TuningParameters::DEFAULT, Observations::of_child(parent))),
        }
    }

    /// The profile that `auto` starts with, which is the same on all ranks ([`Comm::agree_profile`]); `None`: the defaults.
    pub fn profile(&self) -> Option<Profile> {
        self.tuner().observations.base
    }

    /// Sets the profile that `auto` starts with. Not collective, but all ranks must pass the same.
    pub fn set_profile(&self, profile: Option<Profile>) {
        self.tuner().observations.base = profile;
    }

    /// Whether messages of other ranks may be trusted like this program's own data: the ranks have proved that they know the
    /// token or have a certificate, or all are on this host, or MPI has started them.
    pub fn is_trusted(&self) -> bool {
        self.node().is_trusted()
    }

    /// Whether `auto` learns from calls: it tries the algorithms with about the same predicted time, and keeps the fastest. If
    /// not, choices depend only on data and profile, so each run of a program makes the same ones.
    pub fn adapts(&self) -> bool {
        !self.tuner().observations.fixed
    }

    /// Gives all ranks rank 0's profile and its value of `adapt` ([`Comm::adapts`]); the values of other ranks are ignored.
    /// Collective; ⌈log2 P⌉ α.
    pub fn agree_profile(&self, mine: Option<Profile>, adapt: bool) -> Result<Option<Profile>> {
        self.agree(mine, adapt, false).map(|(profile, _)| profile)
    }

    /// Like [`Comm::agree_profile`]. If rank 0 passes a topology, also returns a group of the same ranks with that topology, and
    /// closes this one. Collective.
    pub fn begin_with(
        &self,
        mine: Option<Profile>,
        adapt: bool,
        topology: Option<&Topology>,
    ) -> Result<Option<Comm>> {
        let (_, has_topology) = self.agree(mine, adapt, topology.is_some())?;
        if !has_topology {
            return Ok(None);
        }
        let comm = self.with_topology(topology)?;
        self.close()?;
        Ok(Some(comm))
    }

    /// Rank 0's profile, and whether it has a topology.
    fn agree(
        &self,
        mine: Option<Profile>,
        adapt: bool,
        has_topology: bool,
    ) -> Result<(Option<Profile>, bool)> {
        let mut block = encode_profile(mine);
        block.extend([u8::from(adapt), u8::from(has_topology)]);
        let all = self.call(CallSig::plain(CallKind::Profile), async |ep| {
            allgather_bytes(ep, Round(0), &block).await
        })?;
        let (profile, cores) = decode_profile(&all[0]);
        self.set_profile(profile);
        let [.., adapts, has_topology] = all[0][..] else { unreachable!("all blocks have the same length") };
        let mut tuner = self.tuner();
        (tuner.observations.host_cores, tuner.observations.fixed) = (Some(cores), adapts == 0);
        drop(tuner);
        Ok((profile, has_topology == 1))
    }

    /// Another group of the same ranks, with rank 0's topology. Collective; a message from rank 0 to each rank, and ⌈log2 P⌉ α.
    pub fn with_topology(&self, mine: Option<&Topology>) -> Result<Comm> {
        let mine = mine.filter(|_| self.rank() == 0).map_or_else(Vec::new, encode_topology);
        let (all, call) = self.call(CallSig::plain(CallKind::Split), async |ep| {
            if self.rank() == 0 && mine.len() != 8 * ep.size() as usize {
                let ranks = mine.len() / 8;
                let message =
                    format!("rank 0 has a topology of {ranks} ranks, and the group has {}", ep.size());
                return Err(Error::bad_input(message));
            }
            let mut own = [0; 8];
            scatter_arrays(ep, 0, &mine, &mut own).await?;
            Ok((allgather_numbers(ep, TOPOLOGY_ROUND, &[u64::from_le_bytes(own)]).await?, ep.call_number()))
        })?;
        let bytes: Vec<u8> = all.into_iter().flatten().flat_map(u64::to_le_bytes).collect();
        let topology = decode_topology(&bytes)?;
        let everyone: Vec<u32> = (0..self.size()).collect();
        Ok(self.regroup(Group::number_after(self.group.comm, call), &everyone, topology))
    }

    /// A group of some ranks of this one, in this order. Not collective: each member calls it with the same ranks and name. Two
    /// groups of the same ranks that are open at the same time must have different names.
    pub fn group_of(&self, ranks: &[u32], name: u64) -> Result<Comm> {
        self.check_usable()?;
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let known = sorted.last().is_some_and(|last| *last < self.size());
        if !known || sorted.len() != ranks.len() || !sorted.contains(&self.rank()) {
            let (me, size) = (self.rank(), self.size());
            let message = format!(
                "rank {me} cannot make a group of ranks {ranks:?} of {size}: list distinct ranks, with rank {me} among them"
            );
            return Err(Error::bad_input(message));
        }
        // No call has the number u64::MAX, so this number differs from those of groups that a call agreed on.
        let named =
            Group::number_after(Group::number_after(self.group.comm, CallNumber(u64::MAX)), CallNumber(name));
        let number = ranks
            .iter()
            .fold(named, |number, rank| Group::number_after(number, CallNumber(u64::from(*rank))));
        Ok(self.regroup(number, ranks, self.group.topology.of_group(ranks)))
    }

    /// A group of `members`. A call of this group has agreed on its number, `comm`.
    pub(crate) fn regroup(&self, comm: CommId, members: &[u32], topology: Topology) -> Comm {
        self.group_named_by(self.group.named_by.clone(), comm, members, topology)
    }

    fn group_named_by(
        &self,
        named_by: Option<Arc<Group>>,
        comm: CommId,
        members: &[u32],
        topology: Topology,
    ) -> Comm {
        let me = members.iter().position(|r| *r == self.rank()).expect("this rank is a member") as u32;
        let ranks = members.iter().map(|r| self.group.ranks[*r as usize]).collect();
        let observations = self.tuner().observations;
        Comm::of_group(
            self.node.clone(),
            Group { comm, ranks, me: GroupRank(me), topology, named_by },
            observations,
        )
    }

    /// The group's number, which its frames carry.
    pub(crate) fn number(&self) -> CommId {
        self.group.comm
    }

    /// The rank's number in the transport.
    pub fn world_rank(&self, rank: u32) -> u32 {
        self.group.ranks[rank as usize].0
    }

    /// Number of calls that ended on this rank with a mismatch.
    pub(crate) fn mismatches(&self) -> u64 {
        self.node.mismatches(&self.group)
    }

    /// Hosts and racks of the group's ranks.
    pub fn topology(&self) -> &Topology {
        &self.group.topology
    }

    /// This process's rank in the group.
    pub fn rank(&self) -> u32 {
        self.group.me.0
    }

    /// Number of ranks in the group.
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

    /// Refuses a Comm that is closed, or that was copied by a fork, whose sockets belong to the parent.
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
        request: impl Into<CallRequest>,
        body: impl AsyncFnOnce(&Endpoint) -> Result<R>,
    ) -> Result<R> {
        self.check_usable()?;
        self.node.call(&self.group, request, body)
    }

    /// Makes a non-blocking call. `is_custom`: the call runs code of the caller, so only threads that wait may poll it.
    pub(crate) fn prepare<R: Send + 'static, F: Future<Output = Result<R>> + Send + 'static>(
        &self,
        request: impl Into<CallRequest>,
        is_custom: bool,
        body: impl FnOnce(Arc<Endpoint>) -> F,
    ) -> Result<Call<R>> {
        self.check_usable()?;
        Ok(self.node.prepare(&self.group, request, is_custom, body))
    }

    /// Holds non-blocking calls back until [`Comm::release`], or until a thread waits for one, so that messages of the same round
    /// travel together. Calls of it may be nested.
    pub fn hold(&self) {
        self.node.hold();
    }

    /// Starts the calls that [`Comm::hold`] has held back.
    pub fn release(&self) {
        self.node.release();
    }

    /// How many calls this rank has begun in the group.
    pub fn calls_begun(&self) -> u64 {
        self.node.calls_begun(&self.group).0
    }

    /// Records that a function of this rank's program has failed. Its calls are the group's calls from number `first` on
    /// ([`Comm::calls_begun`]). If the function has succeeded on other ranks, the next call ends with [`Error::Diverged`].
    pub fn note_failure_since(&self, first: u64) {
        self.node.report_failure_since(&self.group, CallNumber(first));
    }

    /// Fails the next call on all ranks, with an error that this rank found before entering it. Returns the error.
    pub fn fail_call(&self, error: Error) -> Error {
        self.fail(error, false)
    }

    /// [`Comm::fail_call`] for a program that still makes its later calls, like a rank that has not received the error yet.
    pub fn fail_call_and_go_on(&self, error: Error) -> Error {
        self.fail(error, true)
    }

    fn fail(&self, error: Error, goes_on: bool) -> Error {
        match self.check_usable() {
            Ok(()) => self.node.fail_call(&self.group, error, goes_on),
            Err(_) => error, // the group is closed, so no rank waits
        }
    }

    /// A group of the ranks with the same `color`, ordered by `key`, then by rank in this group. A rank without a color gets no
    /// group.
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Comm>> {
        self.split_named_by(None, color, key)
    }

    /// [`Comm::split`] for a group that is hidden from users: its errors name ranks by their numbers in this group.
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
            Ok((allgather_bytes(ep, Round(0), &block).await?, ep.call_number()))
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
        let ranks: Vec<u32> = members.iter().map(|(_, rank)| *rank).collect();
        let topology = self.group.topology.of_group(&ranks);
        let number = Group::number_after(self.group.comm, call);
        Ok(Some(self.group_named_by(named_by, number, &ranks, topology)))
    }

    /// Leaves the group; later calls are refused. The last Comm of a process also closes the transport: it delivers all sent
    /// frames, then a goodbye to each peer.
    ///
    /// # Errors
    /// `Corrupt` in a replicated group if replicas had different inputs in the last calls, which no call has reported.
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

    /// [`Comm::close`] at the end of a program. Waits up to `limit` for calls under way, because other ranks wait for them. A
    /// program that has failed does not wait: it passes `failure`, the reason that its peers get.
    pub fn close_at_exit(&self, limit: Duration, failure: Option<&str>) -> Result<()> {
        if self.is_closed() || !self.node.is_ours() {
            return Ok(());
        }
        if failure.is_none() {
            self.node.finish_calls(&self.group, limit);
        }
        // Other groups of this process may go on.
        if let Some(failure) = failure.filter(|_| self.node.open_groups() == 1) {
            self.node.set_failure_reason(failure);
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
