//! The transport over MPI: frames as MPI messages.
//!
//! ```text
//! small    header and payload, one message
//! large    the header, one message; the payload, a second one, without a copy at either end
//! ```
//!
//! Headers and small frames arrive in buffers that are posted ahead, one per sender ([`Inbox`]). A large payload is received once its
//! header has arrived. Frames of a peer are delivered in order.
//!
//! A waiting rank tests its requests again and again. Between two tests it yields, and later sleeps ([`crate::waiting`]), so ranks
//! that share a core do not starve each other, and a long wait costs little.

use crate::abi::Handle;
use crate::hosts::ProcessHosts;
use crate::inbox::{HEAD_TAG, Inbox, small_bytes};
use crate::library::Library;
use crate::waiting::Idle;
use skyphos_core::extensions::{NativeCollectives, Replication, UnderReplicas};
use skyphos_core::frame::{Frame, FrameKind, HEADER_BYTES, Header};
use skyphos_core::slab::{CHUNK_BYTES, Payload, PayloadMut, Pool};
use skyphos_core::topology::Topology;
use skyphos_core::transport::{Event, Facts, Loss, Transport, Waker, goodbye_cause, reason_in};
use skyphos_types::{CallNumber, CommId, DType, Error, ReduceOp, Result, WorldRank};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLockReadGuard};
use std::time::{Duration, Instant};

/// The tag of payloads that follow a header.
const BODY_TAG: c_int = 1;

/// Messages to a peer that are with MPI at once, at most. More wait here.
const MAX_SENDS: usize = 16;

/// The call number of a goodbye from a process that ends without having closed its group.
const ENDED_CALL: CallNumber = CallNumber(1);

/// Tests of the requests between two checks of the clock.
const TESTS_PER_CLOCK_CHECK: u32 = 8;

/// Time for which a process that ends without closing tries to send its goodbye.
const GOODBYE_TIME: Duration = Duration::from_secs(1);

/// The memory of a message under way.
struct Sending {
    request: Box<Handle>,
    bytes: usize,
    /// Read only by MPI.
    _held: Payload,
}

/// A frame whose header has arrived.
struct Arriving {
    header: Header,
    body: Body,
}

enum Body {
    Received(Payload),
    Receiving { request: Box<Handle>, slab: PayloadMut },
}

/// An allreduce by MPI, in place.
struct Reducing {
    request: Box<Handle>,
    header: Header,
    slab: PayloadMut,
}

#[derive(Default)]
struct Peer {
    sending: VecDeque<Sending>,
    queue: VecDeque<Frame>,
    /// Bytes in both queues.
    backlog: usize,
    /// The largest backlog since the last `Writable`; the next `Writable` follows once half of it has gone.
    peak: usize,
    arriving: VecDeque<Arriving>,
    /// The peer sends no more frames.
    gone: bool,
}

/// One process of a group over MPI.
pub struct Mpi {
    library: &'static Library,
    comm: Handle,
    rank: u32,
    addresses: Arc<[String]>,
    topology: Topology,
    ranks_on_host: usize,
    pool: Pool,
    inbox: Inbox,
    /// Frames up to this size are one message.
    small_bytes: usize,
    peers: Vec<Peer>,
    /// Allreduces by MPI that are under way, in order.
    reducing: VecDeque<Reducing>,
    /// Peers with messages under way or frames due, whose requests are tested.
    busy: Vec<u32>,
    /// The reason why MPI can no longer be used.
    broken: Option<String>,
    is_reported: bool,
    woken: Arc<AtomicBool>,
    closed: bool,
    /// The reason why this rank's program has failed.
    failure_reason: String,
}

impl Mpi {
    pub(crate) fn new(
        library: &'static Library,
        comm: Handle,
        rank: u32,
        hosts: ProcessHosts,
    ) -> Result<Mpi> {
        let ProcessHosts { addresses, topology } = hosts;
        let ranks_on_host =
            topology.hosts().iter().filter(|host| **host == topology.hosts()[rank as usize]).count();
        let size = addresses.len() as u32;
        let mut mpi = Mpi {
            library,
            comm,
            rank,
            peers: addresses.iter().map(|_| Peer::default()).collect(),
            addresses: addresses.into(),
            topology,
            ranks_on_host,
            pool: Pool::default(),
            inbox: Inbox::new(library, comm, rank, size),
            small_bytes: small_bytes(size as usize),
            reducing: VecDeque::new(),
            busy: Vec::new(),
            broken: None,
            is_reported: false,
            woken: Arc::default(),
            closed: false,
            failure_reason: String::new(),
        };
        library.enter();
        for slot in 0..mpi.inbox.slots() {
            mpi.inbox.post_receive(slot).map_err(Error::bad_input)?;
        }
        Ok(mpi)
    }

    /// Whether an MPI function has succeeded. If not, the transport is broken.
    fn succeeded(&mut self, code: c_int, what: &str) -> bool {
        match self.library.check(code, what) {
            Ok(()) => true,
            Err(why) => {
                self.broken.get_or_insert(why);
                false
            }
        }
    }

    /// Starts to send a message.
    fn send(&mut self, to: u32, tag: c_int, payload: Payload) {
        let mut request = Box::<Handle>::default();
        let bytes = payload.as_bytes();
        // SAFETY: the bytes are kept, unchanged, until the request is complete, or are leaked.
        let code = unsafe {
            (self.library.call.isend)(
                bytes.as_ptr().cast::<c_void>(),
                bytes.len() as c_int,
                self.library.constants.byte,
                to as c_int,
                tag,
                self.comm,
                &mut *request,
            )
        };
        if self.succeeded(code, "MPI_Isend") {
            let bytes = payload.len();
            self.peers[to as usize].backlog += bytes;
            self.peers[to as usize].sending.push_back(Sending { request, bytes, _held: payload });
        }
    }

    /// Starts to send a frame.
    fn start(&mut self, to: u32, frame: Frame) {
        let Frame { header, payload } = frame;
        let head = header.encode_without_payload_checksum(payload.len());
        let whole = HEADER_BYTES + payload.len();
        let first_bytes = if whole <= self.small_bytes { whole } else { HEADER_BYTES };
        let mut slab = self.pool.take(first_bytes);
        slab.as_bytes_mut()[..HEADER_BYTES].copy_from_slice(&head);
        if first_bytes == whole {
            slab.as_bytes_mut()[HEADER_BYTES..].copy_from_slice(payload.as_bytes());
        }
        self.send(to, HEAD_TAG, slab.freeze());
        if first_bytes != whole {
            self.send(to, BODY_TAG, payload);
        }
    }

    /// Whether a request is complete.
    fn is_complete(&mut self, request: &mut Handle) -> bool {
        let mut flag: c_int = 0;
        // SAFETY: a request that this transport has made.
        let code =
            unsafe { (self.library.call.test)(request, &mut flag, self.library.constants.status_ignore) };
        self.succeeded(code, "MPI_Test") && flag != 0
    }

    /// Tests all requests once, and handles the complete ones.
    fn test_requests(&mut self, events: &mut Vec<Event>) {
        if self.broken.is_none() {
            self.take_all();
        }
        let mut busy = std::mem::take(&mut self.busy);
        for peer in &busy {
            self.advance(*peer, events);
        }
        busy.retain(|peer| self.is_busy(*peer));
        self.busy = busy;
        while self.broken.is_none()
            && let Some(mut first) = self.reducing.pop_front()
        {
            if !self.is_complete(&mut first.request) {
                self.reducing.push_front(first);
                break;
            }
            let Reducing { header, slab, .. } = first;
            let frame = Frame { header, payload: slab.freeze() };
            events.push(Event::Frame { from: WorldRank(self.rank), frame });
        }
    }

    fn is_busy(&self, peer: u32) -> bool {
        let Peer { sending, queue, arriving, .. } = &self.peers[peer as usize];
        !(sending.is_empty() && queue.is_empty() && arriving.is_empty())
    }

    fn set_busy(&mut self, peer: u32) {
        if !self.busy.contains(&peer) {
            self.busy.push(peer);
        }
    }

    /// Takes the headers and small frames that have arrived.
    fn take_all(&mut self) {
        let count = match self.inbox.test() {
            Ok(count) => count,
            Err(why) => {
                self.broken = Some(why);
                return;
            }
        };
        for k in 0..count {
            let (slot, goes_on) = self.take(k);
            if self.broken.is_none()
                && goes_on
                && let Err(why) = self.inbox.post_receive(slot)
            {
                self.broken = Some(why);
            }
        }
    }

    /// Takes message `k` of those that have arrived. Returns its slot, and whether the sender sends more.
    fn take(&mut self, k: usize) -> (usize, bool) {
        let (slot, from, bytes) = self.inbox.arrived(k);
        let head: &[u8; HEADER_BYTES] = bytes[..HEADER_BYTES].try_into().expect("a header");
        let decoded = match Header::decode(head) {
            Ok(_) if !Header::check(head, &[]) => Err("a damaged header".to_owned()),
            decoded => decoded,
        };
        let (header, len, _) = match decoded {
            Ok(decoded) => decoded,
            Err(what) => {
                self.broken.get_or_insert(format!("rank {from} sent bytes that are no frame: {what}"));
                return (slot, false);
            }
        };
        let body = match HEADER_BYTES + len <= self.small_bytes {
            true => Body::Received(self.pool.copy_of(&bytes[HEADER_BYTES..][..len])),
            false => {
                let (mut slab, mut request) = (self.pool.take(len), Box::<Handle>::default());
                // SAFETY: the slab is kept until the request is complete, or is leaked.
                let code = unsafe {
                    (self.library.call.irecv)(
                        slab.as_bytes_mut().as_mut_ptr().cast(),
                        len as c_int,
                        self.library.constants.byte,
                        from as c_int,
                        BODY_TAG,
                        self.comm,
                        &mut *request,
                    )
                };
                if !self.succeeded(code, "MPI_Irecv") {
                    return (slot, false);
                }
                Body::Receiving { request, slab }
            }
        };
        self.peers[from as usize].arriving.push_back(Arriving { header, body });
        self.set_busy(from);
        (slot, header.kind != FrameKind::Bye)
    }

    /// Tests the requests of a peer's messages.
    fn advance(&mut self, peer: u32, events: &mut Vec<Event>) {
        while let Some(mut first) = self.peers[peer as usize].sending.pop_front() {
            if self.broken.is_some() || !self.is_complete(&mut first.request) {
                self.peers[peer as usize].sending.push_front(first);
                break;
            }
            self.peers[peer as usize].backlog -= first.bytes;
        }
        while self.peers[peer as usize].sending.len() < MAX_SENDS
            && self.broken.is_none()
            && let Some(frame) = self.peers[peer as usize].queue.pop_front()
        {
            self.peers[peer as usize].backlog -= HEADER_BYTES + frame.payload.len();
            self.start(peer, frame);
        }
        let Peer { backlog, peak, .. } = &mut self.peers[peer as usize];
        if *backlog <= *peak / 2 && *peak > 0 {
            *peak = *backlog;
            events.push(Event::Writable { rank: WorldRank(peer) });
        }
        while let Some(Arriving { header, body }) = self.peers[peer as usize].arriving.pop_front() {
            let payload = match body {
                Body::Received(payload) => payload,
                Body::Receiving { mut request, slab } => {
                    if self.broken.is_some() || !self.is_complete(&mut request) {
                        let body = Body::Receiving { request, slab };
                        self.peers[peer as usize].arriving.push_front(Arriving { header, body });
                        break;
                    }
                    slab.freeze()
                }
            };
            self.deliver(peer, Frame { header, payload }, events);
        }
    }

    fn deliver(&mut self, from: u32, frame: Frame, events: &mut Vec<Event>) {
        if self.peers[from as usize].gone {
            return;
        }
        if frame.header.kind != FrameKind::Bye {
            return events.push(Event::Frame { from: WorldRank(from), frame });
        }
        self.peers[from as usize].gone = true;
        let why = reason_in(&frame.payload);
        let (loss, cause) = match frame.header.call {
            ENDED_CALL => (Loss::Ended, "its process ended without closing its Comm"),
            _ => (Loss::Left, goodbye_cause(&why)),
        };
        events.push(Event::PeerDown { rank: WorldRank(from), cause: cause.to_owned(), loss });
    }

    /// A guard for calls of MPI; `None` if the transport is broken, or MPI has been finalised and would end a process that calls it.
    fn pass(&mut self) -> Option<RwLockReadGuard<'static, bool>> {
        let pass = self.library.pass();
        if pass.is_none() {
            self.broken.get_or_insert_with(|| {
                "MPI was finalised while this Comm was open: close it before MPI_Finalize".to_owned()
            });
        }
        pass.filter(|_| self.broken.is_none())
    }

    /// Reports once that the transport is broken.
    fn report_if_broken(&mut self, events: &mut Vec<Event>) {
        let Some(why) = self.broken.clone().filter(|_| !std::mem::replace(&mut self.is_reported, true))
        else {
            return;
        };
        let cause = format!(
            "{why}; MPI does not survive a lost process, so the remaining processes should end too. With transport=\"tcp\" a group \
             survives, and goes on with shrink() or replicas"
        );
        for rank in (0..self.peers.len() as u32).filter(|rank| *rank != self.rank) {
            if !std::mem::replace(&mut self.peers[rank as usize].gone, true) {
                events.push(Event::PeerDown {
                    rank: WorldRank(rank),
                    cause: cause.clone(),
                    loss: Loss::Ended,
                });
            }
        }
    }

    /// Sends a goodbye to all peers, and waits until it is sent and all peers have sent theirs.
    fn leave(&mut self, wait: Duration, call: CallNumber) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        if self.peers.len() == 1 || !self.library.is_usable() {
            return self.forget();
        }
        let others: Vec<u32> = (0..self.peers.len() as u32).filter(|rank| *rank != self.rank).collect();
        for peer in &others {
            let header = Header::control(FrameKind::Bye, CommId(0), call);
            let payload = self.pool.copy_of(self.failure_reason.as_bytes());
            self.post(WorldRank(*peer), Frame { header, payload });
        }
        let (end, mut idle, mut events) = (Instant::now() + wait, Idle::new(), Vec::new());
        let left = |mpi: &Mpi, peer: u32| {
            let Peer { gone, backlog, .. } = mpi.peers[peer as usize];
            !gone || backlog > 0
        };
        while self.broken.is_none() && others.iter().any(|peer| left(self, *peer)) && Instant::now() < end {
            let pass = self.pass();
            self.test_requests(&mut events);
            drop(pass);
            match events.is_empty() {
                true => idle.pause(Duration::MAX),
                false => idle = Idle::new(),
            }
            events.clear();
        }
        let pass = self.library.pass();
        let complete = self.broken.is_none() && !others.iter().any(|peer| left(self, *peer));
        let complete = complete && self.reducing.is_empty();
        if pass.is_some() {
            self.inbox.close();
        }
        if complete && pass.is_some() {
            // SAFETY: no request of the communicator is under way.
            unsafe { (self.library.call.comm_free)(&mut self.comm) };
        }
        drop(pass);
        self.forget();
    }

    /// Leaks the memory that MPI may still read or write. MPI is not called from here on, since it may have been finalised.
    fn forget(&mut self) {
        self.broken.get_or_insert_with(|| "this rank has closed its Comm".to_owned());
        self.is_reported = true;
        if !self.reducing.is_empty() {
            self.library.set_stuck();
        }
        std::mem::forget(std::mem::take(&mut self.reducing));
        self.inbox.leak();
        for peer in &mut self.peers {
            std::mem::forget(std::mem::take(&mut peer.sending));
            std::mem::forget(std::mem::take(&mut peer.arriving));
            *peer = Peer { gone: true, ..Peer::default() };
        }
        self.library.leave();
    }
}

impl NativeCollectives for Mpi {
    fn has_allreduce(&self, op: &ReduceOp, dtype: DType) -> bool {
        self.library.reduction(op, dtype).is_some()
    }

    fn begin_allreduce(&mut self, header: Header, op: &ReduceOp, dtype: DType, mut part: PayloadMut) {
        let (number, op) = self.library.reduction(op, dtype).expect("the caller has checked has_allreduce");
        let Some(_pass) = self.pass() else { return };
        let (mut request, count) = (Box::<Handle>::default(), part.len() / dtype.size());
        // SAFETY: the buffer lives until the request is complete, or is leaked; it has `count` numbers.
        let code = unsafe {
            (self.library.call.iallreduce)(
                self.library.constants.in_place,
                part.as_bytes_mut().as_mut_ptr().cast(),
                count as c_int,
                number,
                op,
                self.comm,
                &mut *request,
            )
        };
        if self.succeeded(code, "MPI_Iallreduce") {
            self.reducing.push_back(Reducing { request, header, slab: part });
        }
    }
}

impl Replication for Mpi {}

impl UnderReplicas for Mpi {}

impl Transport for Mpi {
    fn rank(&self) -> WorldRank {
        WorldRank(self.rank)
    }

    fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    fn facts(&self) -> Facts {
        Facts {
            topology: self.topology.clone(),
            pool: self.pool.clone(),
            is_for_callers_only: !self.library.is_for_all_threads(),
            quiet_polls: 2,
            ..Facts::new("mpi", self.addresses.clone(), self.ranks_on_host)
        }
    }

    fn post(&mut self, to: WorldRank, frame: Frame) {
        debug_assert!(frame.payload.len() <= CHUNK_BYTES);
        let Some(_pass) = self.pass() else { return };
        let bytes = HEADER_BYTES + frame.payload.len();
        let peer = &self.peers[to.index()];
        if peer.queue.is_empty() && peer.sending.len() < MAX_SENDS {
            self.start(to.0, frame);
        } else {
            let peer = &mut self.peers[to.index()];
            peer.backlog += bytes;
            peer.queue.push_back(frame);
        }
        let Peer { backlog, peak, .. } = &mut self.peers[to.index()];
        *peak = (*peak).max(*backlog);
        self.set_busy(to.0);
    }

    fn backlog(&self, to: WorldRank) -> usize {
        self.peers[to.index()].backlog
    }

    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>) {
        let before = events.len();
        let start = Instant::now();
        let mut idle = Idle::new();
        loop {
            for _ in 0..if wait.is_zero() { 1 } else { TESTS_PER_CLOCK_CHECK } {
                let pass = self.pass();
                self.test_requests(events);
                drop(pass);
                self.report_if_broken(events);
                if events.len() > before || self.woken.swap(false, Ordering::AcqRel) {
                    return;
                }
            }
            let left = wait.saturating_sub(start.elapsed());
            if left.is_zero() {
                return;
            }
            idle.pause(left);
        }
    }

    fn set_failure_reason(&mut self, reason: &str) {
        reason.clone_into(&mut self.failure_reason);
    }

    fn waker(&self) -> Waker {
        let woken = self.woken.clone();
        Arc::new(move || woken.store(true, Ordering::Release))
    }

    fn close(&mut self, wait: Duration) -> Result<()> {
        self.leave(wait, CallNumber(0));
        Ok(())
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        self.leave(GOODBYE_TIME, ENDED_CALL);
    }
}
