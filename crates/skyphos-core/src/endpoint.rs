//! What a collective sees: send to a rank, receive from a rank, wait for progress.
//!
//! Ranks here are the group's. A message is a stream of chunks on (call, round, peer). An
//! [`Outgoing`] hands chunks over while the peer's window and the transport's backlog allow; an
//! [`Incoming`] yields them as they come. [`Endpoint::progress`] is the one thing a collective
//! awaits. Dropping any of these leaves nothing behind: what still comes is dropped with the call.

use crate::clock::Effort;
use crate::frame::{CallKind, CallSig, FrameKind, Header};
use crate::mailbox::{Absence, Filter, Group, Mailbox, MessageId, Next};
use crate::node::Node;
use crate::point_to_point::Status;
use crate::slab::{Message, MessageMut, Payload, SlabMut};
use crate::topology::Topology;
use crate::transport::Loss;
use skyphos_types::{DType, Error, ReduceOp, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

/// Bytes of one stream that may be on the way and unconsumed. Messages up to this size are eager;
/// larger ones need the receiver's credits, which bounds what a slow receiver must hold.
pub const WINDOW_BYTES: u64 = 8 << 20;

/// Bytes waiting in the transport for one peer above which no more chunks are made.
const BACKLOG_BYTES: usize = 1 << 20;

/// Round that no collective uses; nobody waits for its messages.
const ANNOUNCE_ROUND: u32 = u32::MAX;

/// One call's view of the group.
pub struct Endpoint {
    node: Arc<Node>,
    group: Arc<Group>,
    call: u64,
    sig: CallSig,
    /// Of a point-to-point call: the message, once it is known.
    message: OnceLock<MessageId>,
    seen: AtomicU64,
    sent_bytes: AtomicU64,
    sent_frames: AtomicU64,
    received_bytes: AtomicU64,
}

/// A checksum of what a rank puts into a call.
pub struct Vouch(crc_fast::Digest);

impl Vouch {
    /// More of it, without padding.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}

/// What a call has moved on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent to other ranks, without the heads of frames.
    pub sent_bytes: u64,
    /// Frames sent.
    pub sent_frames: u64,
    /// Bytes received from other ranks.
    pub received_bytes: u64,
}

impl Endpoint {
    pub(crate) fn new(node: Arc<Node>, group: Arc<Group>, call: u64, sig: CallSig) -> Endpoint {
        let (seen, sent_bytes, sent_frames, received_bytes) = Default::default();
        let message = OnceLock::new();
        Endpoint { node, group, call, sig, message, seen, sent_bytes, sent_frames, received_bytes }
    }

    /// The same of a point-to-point call.
    pub(crate) fn of_message(self, id: MessageId) -> Endpoint {
        self.message.get_or_init(|| id);
        self
    }

    /// Whether the call is point-to-point.
    pub(crate) fn is_message(&self) -> bool {
        self.sig.kind == CallKind::PointToPoint
    }

    /// How others know the call: its group and number, or those of the message.
    pub(crate) fn wire(&self) -> Option<(u64, u64)> {
        match self.is_message() {
            true => self.message.get().map(|id| (id.pair, id.count)),
            false => Some((self.group.comm, self.call)),
        }
    }

    /// The other ranks in the call, in the transport. Of a receive there is none before it has a message; a message may be from
    /// this rank, or to it.
    pub(crate) fn others(&self) -> impl Iterator<Item = u32> {
        let (me, is_message) = (self.node.rank(), self.is_message());
        let all = self.group.ranks.iter().copied().filter(move |rank| !is_message && *rank != me);
        all.chain(self.message.get().map(|id| id.peer))
    }

    /// The ranks that the call waits for, in the transport.
    pub(crate) fn awaited(&self) -> Vec<u32> {
        match self.filter().filter(|_| self.message.get().is_none()) {
            Some(Filter { source: Some(source), .. }) => vec![source],
            Some(Filter { source: None, .. }) => {
                self.group.ranks.iter().copied().filter(|rank| *rank != self.node.rank()).collect()
            }
            None => self.others().collect(),
        }
    }

    /// What a receive or probe takes.
    fn filter(&self) -> Option<Filter> {
        let takes = self.is_message() && self.sig.flags != CallSig::SENDS;
        takes.then(|| Filter::of(&self.group, self.sig))
    }

    /// Completes when a receive has a message. `Err`: none can come.
    pub(crate) async fn message_met(&self) -> Result<Status> {
        let filter = self.filter().expect("a receive");
        loop {
            let taken = self.node.mail(|m| match m.take_message(self.group.comm, self.call) {
                Some(envelope) => Ok(Some(envelope)),
                None => m.why_none_comes(&self.group, filter, self.sig).map_or(Ok(None), Err),
            })?;
            if let Some(envelope) = taken {
                self.message.get_or_init(|| envelope.id);
                return Ok(Status::of(&self.group, envelope));
            }
            self.progress().await?;
        }
    }

    /// Completes when there is a message that a receive would take, which stays where it is.
    pub(crate) async fn message_seen(&self) -> Result<Status> {
        let filter = self.filter().expect("a probe");
        loop {
            let seen = self.node.mail(|m| match m.peek(self.group.comm, filter) {
                Some(envelope) => Ok(Some(envelope)),
                None => m.why_none_comes(&self.group, filter, self.sig).map_or(Ok(None), Err),
            })?;
            if let Some(envelope) = seen {
                return Ok(Status::of(&self.group, envelope));
            }
            self.progress().await?;
        }
    }

    /// `Err` if a rank that is sent to takes no more.
    pub(crate) fn check_taken(&self, rank: u32) -> Result<()> {
        let (world, is_replicated) = (self.world_rank(rank), self.node.is_replicated());
        self.node.mail(|m| m.why_not_taken(world, self.sig, is_replicated)).map_or(Ok(()), Err)
    }

    /// A control frame of the call, for whoever is in it too.
    pub(crate) fn control(&self, kind: FrameKind) -> Header {
        let (comm, call) = self.wire().expect("somebody is there");
        let header = Header::control(kind, comm, call);
        match self.is_message() {
            true => {
                Header { sig: CallSig { flags: self.sig.flags & !CallSig::ANY_TAG, ..self.sig }, ..header }
            }
            false => header,
        }
    }

    /// This process's rank in the group.
    pub fn rank(&self) -> u32 {
        self.group.me
    }

    /// Ranks in the group.
    pub fn size(&self) -> u32 {
        self.group.ranks.len() as u32
    }

    /// Where the group's ranks are.
    pub fn topology(&self) -> &Topology {
        &self.group.topology
    }

    /// The node under it.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// A group rank as the transport numbers it.
    pub fn world_rank(&self, rank: u32) -> u32 {
        self.group.ranks[rank as usize]
    }

    /// What came from a rank of the group makes no sense.
    pub fn corrupt(&self, from: u32, what: &str) -> Error {
        Error::Corrupt { rank: self.world_rank(from), message: what.to_owned() }
    }

    pub(crate) fn sig(&self) -> CallSig {
        self.sig
    }

    pub(crate) fn place(&self) -> (&Group, u64) {
        (&self.group, self.call)
    }

    pub(crate) fn has_news(&self, mail: &mut Mailbox) -> bool {
        mail.look(self.group.comm, self.call)
            .map_or(true, |version| version != self.seen.load(Ordering::Relaxed))
    }

    /// The version of what has happened in the call up to which its collective has looked.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    pub(crate) fn set_seen(&self, version: u64) {
        self.seen.store(version, Ordering::Relaxed);
    }

    /// Counts what has happened in the call so far.
    pub(crate) fn version(&self) -> Result<u64> {
        self.node.mail(|m| m.look(self.group.comm, self.call)).map_err(|(e, _)| e)
    }

    /// Takes note of what has happened so far. `Err` if the call failed.
    pub(crate) fn catch_up(&self) -> Result<()> {
        self.seen.store(self.version()?, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the call, whose part is done here, may end: not while a peer is to say what it called instead.
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

    /// What the call has moved so far.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            sent_frames: self.sent_frames.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
        }
    }

    /// The call's number in its group.
    pub fn call_number(&self) -> u64 {
        self.call
    }

    /// Time on this rank's clock.
    pub fn now(&self) -> Duration {
        self.node.now()
    }

    /// A buffer for a chunk; where there is no data, its length alone.
    pub fn chunk(&self, len: usize) -> SlabMut {
        match self.is_sized() {
            true => SlabMut::sized(len),
            false => self.node.pool().take(len),
        }
    }

    /// The same for a chunk that so many ranks get, this one maybe among them.
    pub fn chunk_for(&self, ranks: usize, len: usize) -> SlabMut {
        match ranks > 2 && !self.is_sized() {
            true => self.node.pool().take_for_several(len),
            false => self.chunk(len),
        }
    }

    /// Whether this is a simulation of lengths, without data.
    pub fn is_sized(&self) -> bool {
        self.node.clock().is_sized()
    }

    /// Does work on data: see [`Clock::compute`](crate::clock::Clock::compute).
    pub fn compute<R: Default>(&self, effort: Effort, work: impl FnOnce() -> R) -> R {
        self.node.clock().compute(effort, work)
    }

    /// [`Endpoint::compute`] for work that can fail.
    pub fn try_compute(&self, effort: Effort, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.compute(effort, || Some(work())).unwrap_or(Ok(()))
    }

    /// Accounts for work on data that is done elsewhere.
    pub fn spend(&self, effort: Effort) {
        self.node.clock().spend(effort);
    }

    /// How ranks of the group were lost.
    pub fn losses(&self) -> Vec<Option<Loss>> {
        self.node.mail(|m| m.losses(&self.group))
    }

    /// Counts what [`Endpoint::absences`] would tell.
    pub(crate) fn count_absences(&self) -> usize {
        self.node.mail(|m| m.count_absences(&self.group, self.call))
    }

    /// Who takes no part any more in this call, which outlives losses.
    pub(crate) fn absences(&self) -> Vec<(u32, Absence)> {
        self.node.mail(|m| m.absences(&self.group, self.call))
    }

    /// Whether this call goes on without who is lost.
    pub(crate) fn outlives_losses(&self) -> bool {
        self.sig.outlives_losses()
    }

    /// The error for a rank that is lost, or that others have lost.
    pub(crate) fn lost(&self, rank: u32) -> Error {
        let world = self.world_rank(rank);
        self.node.mail(|m| m.lost(world, Some(self.sig))).unwrap_or_else(|| {
            let cause = format!("other ranks have lost it; this rank was in {}", self.sig);
            Error::PeerLost { rank: world, address: self.node.address(world).to_owned(), cause }
        })
    }

    /// The next word that any rank has said in a round, and who.
    pub(crate) fn word(&self, round: u32) -> Option<(u32, Payload)> {
        self.node.mail(|m| m.word(&self.group, self.call, round))
    }

    /// Others have lost a rank, and this one will not come to it in a later call.
    pub(crate) fn miss(&self, rank: u32) {
        let error = self.lost(rank);
        self.node.mail(|mail| mail.miss(self.world_rank(rank), &error));
    }

    /// Tells all that this rank makes no more calls in the group, if somebody is lost: they may wait for it in one.
    pub(crate) fn leave_calls(&self) {
        let (rank, node) = (self.node.rank(), &self.node);
        let (why, begun) = node.mail(|mail| (mail.why_over(&self.group), mail.begun(self.group.comm)));
        let Some(why) = why else { return };
        let payload = node.pool().copy_of(&why.to_wire());
        let header = Header { total: begun, ..Header::control(FrameKind::Abort, self.group.comm, self.call) };
        for peer in self.group.ranks.iter().filter(|peer| **peer != rank) {
            node.post(*peer, header, payload.clone());
        }
    }

    /// Lets messages move, without waiting for any: between two pieces of work that nobody should wait for.
    pub fn pump(&self) {
        self.node.wait_until(|_| false, Duration::ZERO);
    }

    /// Completes when something has happened in this call since the last completion.
    pub async fn progress(&self) -> Result<()> {
        self.progress_until(Duration::MAX).await
    }

    /// The same, or some time after `deadline`.
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

    /// Ends the call on all ranks, wherever it is here; nothing happens if it is over.
    pub fn fail(&self, error: Error) {
        self.node.mail(|mail| mail.fail(self.group.comm, self.call, error));
        self.node.rouse();
    }

    /// Lets the call look again at what it waits for: something has changed on this rank.
    pub fn look_again(&self) {
        self.node.mail(|mail| mail.touch(self.group.comm, self.call));
        self.node.rouse();
    }

    /// Tells the next rank which call this is. Where not every rank hears from every other, two neighbours that
    /// disagree find out so, and tell all.
    pub fn announce(&self) {
        let next = (self.rank() + 1) % self.size();
        if next != self.rank() {
            Outgoing::new(next, ANNOUNCE_ROUND, 0).push_shared(self, Payload::default());
        }
    }

    /// Tells replicas of this rank what it puts into the call: they must put in the same.
    pub fn vouch(&self, put_in: impl FnOnce(&mut Vouch)) {
        if !self.node.is_replicated() || self.is_sized() {
            return;
        }
        let mut vouch = Vouch(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme));
        vouch.bytes(self.sig.with_hashes().as_bytes());
        put_in(&mut vouch);
        let (comm, call) = self.wire().expect("a call that puts something in");
        self.node.transport().vouch(comm, call, vouch.0.finalize());
    }

    /// Whether the transport has an allreduce of its own for these ranks and such numbers. The same on all ranks.
    pub fn has_allreduce(&self, op: &ReduceOp, dtype: DType) -> bool {
        self.size() == self.node.size() && self.node.transport().has_allreduce(op, dtype)
    }

    /// Begins such an allreduce: what comes of it is chunk `seq` of this rank's message to itself of that round and length.
    pub(crate) fn begin_allreduce(&self, op: &ReduceOp, dtype: DType, place: (u32, u32, u64), part: SlabMut) {
        let (round, seq, total) = place;
        let header = self.header(round, seq, total);
        self.node.transport().begin_allreduce(header, op, dtype, part);
    }

    fn header(&self, round: u32, seq: u32, total: u64) -> Header {
        let ((comm, call), sig) = (self.wire().expect("a call that sends"), self.sig);
        Header { kind: FrameKind::Data, comm, call, origin: 0, round, seq, total, sig }
    }

    /// Room for a message of `len` bytes.
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

    /// Sends a message to each of several ranks and receives one from each of several, all at once.
    ///
    /// Returns the messages in the order of `sources`. A rank may name itself in neither list. A
    /// message of one chunk is neither copied on its way out nor in. Static plans do not use this.
    pub async fn exchange(
        &self,
        round: u32,
        messages: Vec<(u32, MessageMut)>,
        sources: &[u32],
    ) -> Result<Vec<Message>> {
        let mut large = Vec::new();
        for (to, message) in messages {
            match message {
                MessageMut::Chunk(slab) => Outgoing::new(to, round, slab.len() as u64).push(self, slab),
                MessageMut::Large(vec) => {
                    large.push((Outgoing::new(to, round, vec.len() as u64), Some(vec)));
                }
                MessageMut::Sized(len) => large.push((Outgoing::new(to, round, len as u64), None)),
            }
        }
        let mut receives: Vec<Incoming> = sources.iter().map(|from| Incoming::new(*from, round)).collect();
        let mut got: Vec<Option<Message>> = sources.iter().map(|_| None).collect();
        loop {
            let mut moved = false;
            for (send, bytes) in &mut large {
                while let Some(range) = send.next_range(self, 1) {
                    let mut chunk = self.chunk(range.len());
                    if let Some(bytes) = bytes {
                        chunk.as_bytes_mut().copy_from_slice(&bytes.as_bytes()[range]);
                    }
                    send.push(self, chunk);
                    moved = true;
                }
            }
            for (receive, message) in receives.iter_mut().zip(&mut got) {
                while let Some(chunk) = receive.next(self)? {
                    moved = true;
                    match message {
                        None if receive.done() => *message = Some(Message::Chunk(chunk)),
                        None => {
                            // The claimed size is believed only so far; more is found as it comes.
                            let room = if self.is_sized() { 0 } else { receive.total().min(WINDOW_BYTES) };
                            let mut joined = self.node.pool().large(room as usize);
                            joined.resize(0);
                            joined.extend(chunk.as_bytes());
                            *message = Some(Message::Large(joined));
                        }
                        Some(Message::Large(joined)) => joined.extend(chunk.as_bytes()),
                        Some(Message::Chunk(_)) => unreachable!("a message that is done yields no more"),
                    }
                }
            }
            if large.iter().all(|(send, _)| send.done()) && receives.iter().all(Incoming::done) {
                return Ok(got.into_iter().flatten().collect());
            }
            if !moved {
                self.progress().await?;
            }
        }
    }
}

/// A message on its way out.
#[derive(Debug)]
pub struct Outgoing {
    to: u32,
    round: u32,
    total: u64,
    sent: u64,
    seq: u32,
}

impl Outgoing {
    /// A message of `total` bytes; an empty one is still sent, as one empty chunk, since its coming
    /// tells the peer that this rank is in the call.
    pub fn new(to: u32, round: u32, total: u64) -> Outgoing {
        Outgoing { to, round, total, sent: 0, seq: 0 }
    }

    /// A message whose end its own bytes tell, to a receiver that stops there.
    pub fn open(to: u32, round: u32) -> Outgoing {
        Outgoing::new(to, round, u64::MAX)
    }

    /// Bytes that have been handed over.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether all of it has been handed over.
    pub fn done(&self) -> bool {
        self.seq > 0 && self.sent == self.total
    }

    /// The bytes of the next chunk, of whole rows, if it may go now.
    pub fn next_range(&self, ep: &Endpoint, row_bytes: usize) -> Option<std::ops::Range<usize>> {
        if !self.may_send(ep) {
            return None;
        }
        let limit = (ep.node.chunk_bytes() / row_bytes).max(1) * row_bytes;
        let start = self.sent as usize;
        Some(start..start + (self.total - self.sent).min(limit as u64) as usize)
    }

    /// Whether the next chunk may go now.
    pub fn may_send(&self, ep: &Endpoint) -> bool {
        if self.done() {
            return false;
        }
        let peer = ep.world_rank(self.to);
        if self.sent >= WINDOW_BYTES {
            let consumed = ep.node.mail(|m| m.credit(ep.group.comm, ep.call, peer, self.round));
            if self.sent >= consumed.saturating_add(WINDOW_BYTES) {
                return false;
            }
        }
        self.sent == 0 || ep.node.backlog(peer) <= BACKLOG_BYTES
    }

    /// Hands over the chunk that [`Outgoing::next_range`] asked for.
    pub fn push(&mut self, ep: &Endpoint, chunk: SlabMut) {
        self.push_shared(ep, chunk.freeze());
    }

    /// Hands over a chunk that others may be sent too.
    pub fn push_shared(&mut self, ep: &Endpoint, chunk: Payload) {
        let len = chunk.len();
        let header = ep.header(self.round, self.seq, self.total);
        ep.node.post(ep.world_rank(self.to), header, chunk);
        ep.sent_bytes.fetch_add(len as u64, Ordering::Relaxed);
        ep.sent_frames.fetch_add(1, Ordering::Relaxed);
        self.sent += len as u64;
        self.seq += 1;
    }
}

/// A message on its way in.
#[derive(Debug)]
pub struct Incoming {
    from: u32,
    round: u32,
    total: Option<u64>,
    consumed: u64,
    credited: u64,
}

impl Incoming {
    /// The message that `from` sends in `round`.
    pub fn new(from: u32, round: u32) -> Incoming {
        Incoming { from, round, total: None, consumed: 0, credited: 0 }
    }

    /// Its sender.
    pub fn from(&self) -> u32 {
        self.from
    }

    /// Whether all of it has been taken.
    pub fn done(&self) -> bool {
        self.total == Some(self.consumed)
    }

    /// Bytes of the whole message, as its first chunk claims; 0 before.
    pub fn total(&self) -> u64 {
        self.total.unwrap_or(0)
    }

    /// Whether any of it has come.
    pub fn begun(&self) -> bool {
        self.total.is_some()
    }

    /// The next chunk, if it has come. `Err` if the call failed or the peer can send no more.
    pub fn next(&mut self, ep: &Endpoint) -> Result<Option<Payload>> {
        if self.done() {
            return Ok(None);
        }
        let peer = ep.world_rank(self.from);
        let (chunk, total) = match ep.node.mail(|m| m.take(ep.group.comm, ep.call, peer, self.round))? {
            Next::Nothing => return Ok(None),
            Next::Chunk(chunk, total) => (chunk, total),
        };
        self.total = Some(total);
        self.consumed += chunk.len() as u64;
        if self.from != ep.rank() {
            ep.received_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        if self.consumed > total {
            let message = format!("{} bytes in a message of {total}", self.consumed);
            return Err(Error::Corrupt { rank: peer, message });
        }
        // Credits matter only to messages larger than the window, and a quarter of it at a time.
        if total > WINDOW_BYTES && self.consumed - self.credited >= WINDOW_BYTES / 4 && !self.done() {
            self.credited = self.consumed;
            let mut header = ep.control(FrameKind::Credit);
            header.round = self.round;
            header.total = self.consumed;
            ep.node.post(peer, header, Payload::default());
        }
        Ok(Some(chunk))
    }
}
