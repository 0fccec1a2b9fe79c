//! A collective's view of the network: its group, its call, and waiting for progress.
//!
//! Ranks here are the group's. A collective awaits only [`Endpoint::progress`]; messages are in [`crate::message_stream`] and
//! [`crate::exchange`]. Dropping any of these futures leaves nothing behind: frames that arrive later are dropped with the call.

use crate::clock::Effort;
use crate::frame::{CallKind, CallSig, FrameKind, Header};
use crate::group::Group;
use crate::mailbox::{Absence, Filter, Mailbox, MessageId};
use crate::node::Node;
use crate::slab::{MessageMut, Payload, PayloadMut};
use crate::topology::Topology;
use crate::transport::Loss;
use skyphos_types::{CallNumber, CommId, DType, Error, GroupRank, ReduceOp, Result, Round, WorldRank};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

/// One call on this rank: its group, its number, and its node.
pub struct Endpoint {
    node: Arc<Node>,
    group: Arc<Group>,
    call: CallNumber,
    sig: CallSig,
    /// The message of a point-to-point call, once it is known.
    pub(crate) message: OnceLock<MessageId>,
    /// The version of the call's box in the mailbox when the collective last looked. Each event of the call increases it.
    seen: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) sent_frames: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
}

/// Bytes and frames that a call has moved on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent to other ranks, without the headers of frames.
    pub sent_bytes: u64,
    /// Frames sent.
    pub sent_frames: u64,
    /// Bytes received from other ranks.
    pub received_bytes: u64,
}

impl Endpoint {
    pub(crate) fn new(node: Arc<Node>, group: Arc<Group>, call: CallNumber, sig: CallSig) -> Endpoint {
        let (seen, sent_bytes, sent_frames, received_bytes) = Default::default();
        let message = OnceLock::new();
        Endpoint { node, group, call, sig, message, seen, sent_bytes, sent_frames, received_bytes }
    }

    /// The endpoint of a call that sends this message.
    pub(crate) fn of_message(self, id: MessageId) -> Endpoint {
        self.message.get_or_init(|| id);
        self
    }

    /// Whether the call is point-to-point.
    pub(crate) fn is_message(&self) -> bool {
        self.sig.kind == CallKind::PointToPoint
    }

    /// The group and the call number in this call's frames; if the call is point-to-point, the pair of ranks and the message's
    /// number. `None` for a receive that has no message yet.
    pub(crate) fn frame_id(&self) -> Option<(CommId, CallNumber)> {
        match self.is_message() {
            true => self.message.get().map(|id| (id.pair, id.count)),
            false => Some((self.group.comm, self.call)),
        }
    }

    /// The other ranks in the call. A receive has none before it has a message. The peer of a message may be this rank itself.
    pub(crate) fn others(&self) -> impl Iterator<Item = WorldRank> {
        let (me, is_message) = (self.node.rank(), self.is_message());
        let all = self.group.ranks.iter().copied().filter(move |rank| !is_message && *rank != me);
        all.chain(self.message.get().map(|id| id.peer))
    }

    /// The ranks that the call waits for.
    pub(crate) fn awaited(&self) -> Vec<WorldRank> {
        match self.filter().filter(|_| self.message.get().is_none()) {
            Some(Filter { source: Some(source), .. }) => vec![source],
            Some(Filter { source: None, .. }) => {
                self.group.ranks.iter().copied().filter(|rank| *rank != self.node.rank()).collect()
            }
            None => self.others().collect(),
        }
    }

    /// The messages that a receive or probe accepts.
    pub(crate) fn filter(&self) -> Option<Filter> {
        let takes = self.is_message() && self.sig.flags != CallSig::SENDS;
        takes.then(|| Filter::of(&self.group, self.sig))
    }

    /// The header of a control frame of the call.
    pub(crate) fn control(&self, kind: FrameKind) -> Header {
        let (comm, call) = self.frame_id().expect("the call has a peer");
        let header = Header::control(kind, comm, call);
        match self.is_message() {
            true => {
                Header { sig: CallSig { flags: self.sig.flags & !CallSig::ANY_TAG, ..self.sig }, ..header }
            }
            false => header,
        }
    }

    /// This process's rank in the group.
    pub fn rank(&self) -> GroupRank {
        self.group.me
    }

    /// Number of ranks in the group.
    pub fn size(&self) -> u32 {
        self.group.ranks.len() as u32
    }

    /// Hosts and racks of the group's ranks.
    pub fn topology(&self) -> &Topology {
        &self.group.topology
    }

    /// This process's node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// A rank of the group as the transport numbers it.
    pub fn world_rank(&self, rank: GroupRank) -> WorldRank {
        self.group.world_rank(rank)
    }

    /// The error of malformed data from a rank of the group.
    pub fn corrupt(&self, from: GroupRank, what: &str) -> Error {
        Error::Corrupt { rank: self.world_rank(from).0, message: what.to_owned() }
    }

    pub(crate) fn sig(&self) -> CallSig {
        self.sig
    }

    pub(crate) fn group_and_call(&self) -> (&Group, CallNumber) {
        (&self.group, self.call)
    }

    /// Whether anything has happened in the call since the collective last looked.
    pub(crate) fn has_news(&self, mail: &mut Mailbox) -> bool {
        mail.look(self.group.comm, self.call)
            .map_or(true, |version| version != self.seen.load(Ordering::Relaxed))
    }

    /// The version of the call's box when the collective last looked.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    pub(crate) fn set_seen(&self, version: u64) {
        self.seen.store(version, Ordering::Relaxed);
    }

    /// The version of the call's box. `Err` if the call failed.
    pub(crate) fn version(&self) -> Result<u64> {
        self.node.mail(|m| m.look(self.group.comm, self.call)).map_err(|(e, _)| e)
    }

    /// Marks all events of the call so far as seen. `Err` if the call failed.
    pub(crate) fn catch_up(&self) -> Result<()> {
        self.seen.store(self.version()?, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a call that is complete on this rank may end. It may not while a peer in another call has yet to send its arguments.
    pub(crate) fn may_end(&self) -> Result<bool> {
        self.node.mail(|m| m.may_end(self.group.comm, self.call))
    }

    /// Completes when the call may end.
    pub(crate) async fn wait_to_end(&self) -> Result<()> {
        std::future::poll_fn(|_| match self.may_end() {
            Err(error) => Poll::Ready(Err(error)),
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
        })
        .await
    }

    /// Bytes and frames that the call has moved so far.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            sent_frames: self.sent_frames.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
        }
    }

    /// The call's number in its group.
    pub fn call_number(&self) -> CallNumber {
        self.call
    }

    /// Time on this rank's clock.
    pub fn now(&self) -> Duration {
        self.node.now()
    }

    /// A buffer for a chunk. In a simulation without data it has only a length.
    pub fn chunk(&self, len: usize) -> PayloadMut {
        match self.is_sized() {
            true => PayloadMut::sized(len),
            false => self.node.pool().take(len),
        }
    }

    /// A buffer for a chunk that goes to `ranks` ranks, which may include this one.
    pub fn chunk_for(&self, ranks: usize, len: usize) -> PayloadMut {
        match ranks > 2 && !self.is_sized() {
            true => self.node.pool().take_for_several(len),
            false => self.chunk(len),
        }
    }

    /// Whether this is a simulation without data.
    pub fn is_sized(&self) -> bool {
        self.node.clock().is_sized()
    }

    /// Runs a piece of work and charges its cost to the clock: see [`Clock::compute`](crate::clock::Clock::compute).
    pub fn compute<R: Default>(&self, effort: Effort, work: impl FnOnce() -> R) -> R {
        self.node.clock().compute(effort, work)
    }

    /// [`Endpoint::compute`] for work that can fail.
    pub fn try_compute(&self, effort: Effort, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.compute(effort, || Some(work())).unwrap_or(Ok(()))
    }

    /// Charges the cost of work that is done elsewhere to the clock.
    pub fn spend(&self, effort: Effort) {
        self.node.clock().spend(effort);
    }

    /// The loss of each rank of the group; `None` if the rank is not lost.
    pub fn losses(&self) -> Vec<Option<Loss>> {
        self.node.mail(|m| m.losses(&self.group))
    }

    /// A number that grows whenever [`Endpoint::absences`] gets longer.
    pub(crate) fn count_absences(&self) -> usize {
        self.node.mail(|m| m.count_absences(&self.group, self.call))
    }

    /// Ranks that have left this call, which goes on without them.
    pub(crate) fn absences(&self) -> Vec<(GroupRank, Absence)> {
        self.node.mail(|m| m.absences(&self.group, self.call))
    }

    /// Whether this call goes on without ranks that are lost.
    pub(crate) fn outlives_losses(&self) -> bool {
        self.sig.outlives_losses()
    }

    /// The error for a rank that is lost, or that others have lost.
    pub(crate) fn loss_error(&self, rank: GroupRank) -> Error {
        let world = self.world_rank(rank);
        self.node.mail(|m| m.loss_error(world, Some(self.sig))).unwrap_or_else(|| {
            let cause = format!("other ranks have lost it; this rank was in {}", self.sig);
            Error::PeerLost { rank: world.0, address: self.node.address(world).to_owned(), cause }
        })
    }

    /// The next message that any rank has sent in a round, and its sender.
    pub(crate) fn take_from_any(&self, round: Round) -> Option<(GroupRank, Payload)> {
        self.node.mail(|m| m.take_from_any(&self.group, self.call, round))
    }

    /// Records that other ranks have lost a rank: calls that need it fail from now on.
    pub(crate) fn note_lost_elsewhere(&self, rank: GroupRank) {
        let error = self.loss_error(rank);
        self.node.mail(|mail| mail.note_lost_elsewhere(self.world_rank(rank), &error));
    }

    /// If a rank is lost, reports to all ranks that this rank makes no more calls in the group: they may be waiting for it in a call.
    pub(crate) fn leave_calls(&self) {
        let (rank, node) = (self.node.rank(), &self.node);
        let (error, begun) =
            node.mail(|mail| (mail.reason_to_stop(&self.group), mail.begun(self.group.comm)));
        let Some(error) = error else { return };
        let payload = node.pool().copy_of(&error.to_wire());
        let header =
            Header { total: begun.0, ..Header::control(FrameKind::Abort, self.group.comm, self.call) };
        for peer in self.group.ranks.iter().filter(|peer| **peer != rank) {
            node.post(*peer, header, payload.clone());
        }
    }

    /// Moves messages without waiting for any, between two pieces of work.
    pub fn pump(&self) {
        self.node.wait_until(|_| false, Duration::ZERO);
    }

    /// Completes once anything has happened in this call since the last completion.
    pub async fn progress(&self) -> Result<()> {
        self.progress_until(Duration::MAX).await
    }

    /// Like [`Endpoint::progress`], but also completes some time after `deadline`.
    pub(crate) async fn progress_until(&self, deadline: Duration) -> Result<()> {
        std::future::poll_fn(|_| match self.node.mail(|m| m.look(self.group.comm, self.call)) {
            Err((error, _)) => Poll::Ready(Err(error)),
            Ok(version) if version != self.seen.load(Ordering::Relaxed) => {
                self.seen.store(version, Ordering::Relaxed);
                Poll::Ready(Ok(()))
            }
            Ok(_) if deadline < Duration::MAX && self.now() >= deadline => Poll::Ready(Ok(())),
            Ok(_) => Poll::Pending,
        })
        .await
    }

    /// Ends the call on all ranks with an error. Does nothing if the call is over.
    pub fn fail(&self, error: Error) {
        self.node.mail(|mail| mail.fail(self.group.comm, self.call, error));
        self.node.wake_waiters();
    }

    /// Lets the call check its condition again, after a change on this rank.
    pub fn look_again(&self) {
        self.node.mail(|mail| mail.touch(self.group.comm, self.call));
        self.node.wake_waiters();
    }

    /// Whether the transport has a native allreduce for this group, operation and type. The same on all ranks.
    pub fn has_allreduce(&self, op: &ReduceOp, dtype: DType) -> bool {
        self.size() == self.node.size() && self.node.transport().has_allreduce(op, dtype)
    }

    /// Begins a native allreduce. Its result arrives as the chunk with this header in this rank's message to itself.
    pub(crate) fn begin_allreduce(&self, header: Header, op: &ReduceOp, dtype: DType, part: PayloadMut) {
        self.node.transport().begin_allreduce(header, op, dtype, part);
    }

    /// The header of chunk `seq` of a message of `total` bytes.
    pub(crate) fn header(&self, round: Round, seq: u32, total: u64) -> Header {
        let ((comm, call), sig) = (self.frame_id().expect("a call that sends"), self.sig);
        Header { kind: FrameKind::Data, comm, call, origin: 0, round, seq, total, sig }
    }

    /// A buffer for a message of `len` bytes.
    pub fn message(&self, len: usize) -> MessageMut {
        match self.is_sized() {
            true => MessageMut::Sized(len),
            false => self.node.pool().message(len),
        }
    }

    /// A message with a copy of `bytes`.
    pub fn message_of(&self, bytes: &[u8]) -> MessageMut {
        let mut message = self.message(bytes.len());
        message.as_bytes_mut().copy_from_slice(bytes);
        message
    }
}
