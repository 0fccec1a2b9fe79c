//! [`Tcp`], the transport over the mesh's connections. The thread that polls it moves the bytes.
//!
//! It has one `epoll` instance, non-blocking sockets and no thread of its own, which is why it is built on mio and not on an
//! executor such as tokio: passing a frame to another thread costs more than a small allreduce.
//!
//! - A post writes at once if nothing is queued: a small message costs its sender one system call, its receiver two (wait, read).
//! - Connections are registered once, edge-triggered, for reading and writing. The kernel reports "writable" only after a write
//!   found the buffer full, so an idle queue costs nothing, and a full one no `epoll_ctl`.
//! - One poll reads at most 1 MB from a peer before it reads from the others; the next poll reads the rest.
//! - A steady exchange allocates nothing (`tests/allocation.rs`).
//!
//! Measured on 2 cores (`examples/pingpong.rs`): 8 bytes one way take 4.9 µs over the loopback. A stream of 128 KB frames takes 1.0
//! reads, 0.5 writes and 0.2 waits per frame, at 0.75 to 1 times the rate of blocking sockets with 128 KB writes; the difference is
//! the two checksums (4.7 µs each of some 50 µs per frame). Between hosts on shaped links of 100 Mbit/s to 1 Gbit/s it uses 94 to
//! 96 % of the link in both directions at once; the rest is TCP's own overhead.
//!
//! The kernel chooses the sizes of socket buffers unless they are set. It buffers up to 4 MB for a slow link, so data moves while the
//! caller computes. Control frames overtake only frames that are still queued here.
//!
//! While a thread polls, the transport detects a peer whose process ends by the end of its connection, and a peer whose host or link
//! is down by its silence (`silence`).

use crate::connections::Connections;
use crate::lobby::system_error;
use crate::options::FOR_EVER;
use crate::peer::{Peer, last_frame};
use crate::receive::{Inbox, LONG_READ_AHEAD, ReadContext, Stop, discard};
use crate::send::Outbox;
use crate::silence::{self, SilenceDetector};
use crate::sockets;
use crate::wire::{DetachedWire, Wire};
use mio::{Events, Interest, Poll, Token};
use skyphos_core::Topology;
use skyphos_core::extensions::{NativeCollectives, Replication, UnderReplicas};
use skyphos_core::frame::{Frame, FrameKind};
use skyphos_core::slab::Pool;
use skyphos_core::transport::{Event, Facts, Loss, Transport, Waker, goodbye_cause};
use skyphos_types::{Result, WorldRank};
use std::io::ErrorKind;
use std::net::Shutdown;
use std::ops::Not;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Events taken from the kernel per call; the next call takes the rest. A group of 1,000 ranks on a host
/// needs one call, and the array takes 12 KB.
const MAX_EVENTS: usize = 1024;

/// Largest number of polls in a row that skip the sockets: see [`Tcp::may_skip_sockets`]. One `epoll_wait` in 17 polls costs each of
/// them little, and a death is reported at most 16 polls late.
const MAX_SKIPPED: u32 = 16;

/// How often a closing rank checks whether its last bytes are acknowledged, which no event reports.
const ACK_CHECK_EVERY: Duration = Duration::from_millis(1);

/// Frames between ranks over TCP; see [`crate::connect`].
pub struct Tcp {
    rank: u32,
    addresses: Arc<[String]>,
    topology: Topology,
    ranks_on_host: usize,
    poll: Poll,
    ready: Events,
    waker: Arc<mio::Waker>,
    peers: Vec<Peer>,
    /// Peers that may be read from without waiting for an event.
    unread: Vec<u32>,
    /// Peers that this rank shares memory with.
    memory_peers: Vec<u32>,
    /// Polls in a row that have skipped the sockets.
    skipped: u32,
    /// Posted frames are queued, and written when the cork is removed.
    corked: bool,
    /// Peers with frames that were queued since the cork was set.
    corked_peers: Vec<u32>,
    /// Peers whose backlog shrank when corked frames were written. The next poll reports them as writable.
    writable: Vec<u32>,
    /// Losses of peers that the caller gave up. The next poll reports them.
    given_up: Vec<Event>,
    /// Buffers of incoming frames.
    pool: Pool,
    /// Buffers of outgoing frames; peers on this host may borrow them.
    lending: Pool,
    /// Read-ahead for small frames, shared by all connections.
    buffer: Box<[u8]>,
    silence: SilenceDetector,
    /// The reason why this rank's program has failed; else empty.
    failure_reason: String,
    /// All peers have proved that they know the group's token or have a certificate.
    pub(crate) proven: bool,
    /// Ranks of a host may share memory.
    pub(crate) shares_memory: bool,
}

impl Tcp {
    pub(crate) fn new(rank: u32, connections: Connections, heartbeat: Duration) -> Result<Tcp> {
        let failed = |e| system_error("cannot take over the connections", &e);
        let Connections { locations, wires, arena } = connections;
        let size = wires.len();
        let poll = Poll::new().map_err(failed)?;
        let waker = mio::Waker::new(poll.registry(), Token(size)).map_err(failed)?;
        let mut peers = Vec::with_capacity(size);
        let (mut unread, mut memory_peers) = (Vec::with_capacity(size), Vec::new());
        for (peer, wire) in wires.into_iter().enumerate() {
            let mut wire = wire.map(DetachedWire::attach);
            if let Some(Wire { stream, .. }) = &mut wire {
                // This fails only on a broken connection, which the next use reports.
                let _ = silence::set_keep_alive(&*stream, heartbeat);
                let interest = Interest::READABLE | Interest::WRITABLE;
                poll.registry().register(stream, Token(peer), interest).map_err(failed)?;
            }
            // Frames may have arrived with the last message of the bring-up, and be decrypted already: no event reports them.
            let encrypted = wire.as_ref().is_some_and(Wire::is_encrypted);
            if encrypted {
                unread.push(peer as u32);
            }
            let shared = wire.as_ref().is_some_and(Wire::is_shared);
            if shared {
                memory_peers.push(peer as u32);
            }
            let mut rings = wire.as_mut().and_then(Wire::rings);
            let lender = rings.as_mut().and_then(|rings| rings.lender.take());
            let borrower = rings.and_then(|rings| rings.borrower.take());
            let (outbox, inbox) = (Outbox::new(shared, lender), Inbox::new(shared, borrower));
            peers.push(Peer { unread: encrypted, ..Peer::new(wire, outbox, inbox) });
        }
        let machine = locations[rank as usize].machine;
        Ok(Tcp {
            rank,
            addresses: locations.iter().map(|s| s.describe()).collect(),
            topology: {
                let machines: Vec<u32> = locations.iter().map(|s| s.machine).collect();
                Topology::new(&machines, &vec![0; size]).expect("one rack")
            },
            ranks_on_host: locations.iter().filter(|s| s.machine == machine).count(),
            poll,
            ready: Events::with_capacity(MAX_EVENTS.min(size + 1)),
            waker: Arc::new(waker),
            peers,
            unread,
            memory_peers,
            skipped: 0,
            corked: false,
            corked_peers: Vec::new(),
            writable: Vec::new(),
            given_up: Vec::new(),
            pool: Pool::default(),
            lending: arena.map_or_else(Pool::default, Pool::lending),
            buffer: vec![0; LONG_READ_AHEAD].into(),
            silence: SilenceDetector::new(heartbeat, size),
            failure_reason: String::new(),
            proven: false,
            shares_memory: true,
        })
    }

    #[cfg(test)]
    pub(crate) fn peers_mut(&mut self) -> &mut [Peer] {
        &mut self.peers
    }

    /// Writes to a peer as much as possible, outside of a wait. The next poll reports a failure.
    fn write(&mut self, to: u32) {
        let peer = &mut self.peers[to as usize];
        peer.write();
        if peer.broken.is_some() && !peer.unread {
            peer.unread = true;
            self.unread.push(to);
        }
    }

    /// Checks the shared memory: while this rank is awake, no event reports bytes that arrive there.
    fn check_shared_memory(&mut self, events: &mut Vec<Event>) {
        let Tcp { memory_peers, peers, unread, .. } = self;
        for &rank in memory_peers.iter() {
            let peer = &mut peers[rank as usize];
            let Some(rings) = peer.wire.as_mut().and_then(Wire::rings) else { continue };
            peer.outbox.collect();
            if rings.is_readable() && !peer.unread && !peer.given_up {
                peer.unread = true;
                unread.push(rank);
            }
            if !peer.outbox.is_empty() && rings.has_room() {
                peer.write();
                if peer.outbox.relieved() && !peer.given_up {
                    events.push(Event::Writable { rank: WorldRank(rank) });
                }
            }
        }
    }

    /// Tells the peers that share memory whether this rank needs a wake-up byte. Returns `false` if bytes have arrived already.
    fn set_sleeping(&mut self, sleeps: bool) -> bool {
        let mut quiet = true;
        for rank in &self.memory_peers {
            let Some(rings) = self.peers[*rank as usize].wire.as_mut().and_then(Wire::rings) else {
                continue;
            };
            match sleeps {
                true => quiet &= rings.begin_sleep(),
                false => rings.end_sleep(),
            }
        }
        quiet
    }

    /// Whether a poll that does not wait can skip the sockets. If all peers share memory with this rank, the sockets report only
    /// that a peer has died, which a later poll may find.
    fn may_skip_sockets(&mut self, pause: Duration) -> bool {
        let may =
            pause.is_zero() && self.memory_peers.len() + 1 == self.peers.len() && self.skipped < MAX_SKIPPED;
        self.skipped = if may { self.skipped + 1 } else { 0 };
        may
    }

    /// Waits for events, and writes to the peers that are writable. Returns whether a waker ended the wait; `Err` if a signal or a
    /// failure did.
    fn wait(&mut self, wait: Duration, events: &mut Vec<Event>) -> std::result::Result<bool, ()> {
        let sleeps = !wait.is_zero() && !self.memory_peers.is_empty();
        let wait = if sleeps && !self.set_sleeping(true) { Duration::ZERO } else { wait };
        let polled = self.poll.poll(&mut self.ready, Some(wait));
        if sleeps {
            self.set_sleeping(false);
        }
        match polled {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::Interrupted => return Err(()),
            Err(e) => {
                let cause = format!("this rank cannot wait for the network any more: {e}");
                let all = self.peers.iter_mut().enumerate();
                all.for_each(|(rank, peer)| peer.lose(rank as u32, &cause, Loss::Silent, events));
                return Err(());
            }
        }
        let mut woken = false;
        for event in &self.ready {
            let Token(rank) = event.token();
            let Some(peer) = self.peers.get_mut(rank) else {
                woken = true;
                continue;
            };
            if event.is_writable() && peer.has_unsent_bytes() {
                peer.write();
                if peer.outbox.relieved() && !peer.given_up {
                    events.push(Event::Writable { rank: WorldRank(rank as u32) });
                }
            }
            peer.ending |= event.is_read_closed() || event.is_error();
            let readable = event.is_readable() || peer.ending || peer.broken.is_some();
            if readable && !peer.unread && !peer.given_up && peer.wire.is_some() {
                peer.unread = true;
                self.unread.push(rank as u32);
            }
        }
        Ok(woken)
    }

    /// Reads from every peer that has bytes, at most one turn each.
    fn read(&mut self, events: &mut Vec<Event>) {
        let Tcp { unread, peers, pool, buffer, .. } = self;
        unread.retain(|&from| {
            let peer = &mut peers[from as usize];
            peer.unread = false;
            let Some(wire) = &mut peer.wire else { return false };
            let mut context = ReadContext { from, pool, buffer, events };
            let ending = peer.ending || peer.broken.is_some();
            let stop = peer.inbox.read(wire, ending, &mut context);
            match (stop, peer.broken.take()) {
                (Stop::More, broken) => {
                    peer.broken = broken;
                    peer.unread = true;
                }
                (Stop::Drained, None) => {
                    if peer.inbox.in_bulk() && !wire.is_shared() {
                        sockets::acknowledge_at_once(&wire.stream);
                    }
                }
                (Stop::Drained | Stop::Broken(..), Some((loss, cause)))
                | (Stop::Broken(loss, cause), None) => peer.lose(from, &cause, loss, events),
                (Stop::Bye(why), _) => peer.lose(from, goodbye_cause(&why), Loss::Left, events),
            }
            peer.unread
        });
    }

    /// Reports peers whose hosts have been silent for too long.
    fn report_silent_peers(&mut self, events: &mut Vec<Event>) {
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            let open = peer.wire.as_ref().filter(|_| !peer.given_up);
            let silent = open.and_then(|wire| self.silence.lost(rank, &wire.stream));
            if let Some(silent) = silent {
                peer.lose(rank as u32, &SilenceDetector::cause(silent), Loss::Silent, events);
            }
        }
    }

    /// Continues to close a connection. Returns whether it is done: all bytes are written and acknowledged by the peer's system.
    fn continue_closing(&mut self, rank: usize) -> bool {
        let peer = &mut self.peers[rank];
        if !peer.outbox.is_empty() {
            peer.write();
        }
        let Some(wire) = &mut peer.wire else { return true };
        // After the peer's own end, a reset shows only as the socket's error.
        let reset = |s: &mio::net::TcpStream| !matches!(s.take_error(), Ok(None));
        let shared = wire.is_shared();
        // Two ranks that close at once would wait for each other if neither read the other's last bytes.
        let discarded = match shared {
            true => discard(&mut *wire, &mut self.buffer),
            false => discard(&wire.stream, &mut self.buffer),
        };
        let stream = &wire.stream;
        if peer.broken.is_some() || discarded.is_err() || reset(stream) {
            return true;
        }
        if !peer.outbox.is_empty() {
            return false;
        }
        if !peer.ending {
            peer.ending = true;
            // This fails only if the peer is gone, and then nothing is left to do.
            let _ = stream.shutdown(Shutdown::Write);
        }
        shared || sockets::unacknowledged(stream).is_ok_and(|bytes| bytes > 0).not()
    }
}

impl NativeCollectives for Tcp {}

impl Replication for Tcp {}

impl UnderReplicas for Tcp {
    fn unacknowledged(&self, to: WorldRank) -> Option<usize> {
        let peer = &self.peers[to.index()];
        let open = peer.wire.as_ref().filter(|_| !peer.given_up);
        let bytes = open.map_or(0, |wire| match wire.is_shared() {
            // Bytes written to shared memory count as acknowledged.
            true => self.backlog(to),
            false => self.backlog(to) + sockets::unacknowledged(&wire.stream).unwrap_or(0),
        });
        Some(bytes)
    }

    fn limit_ahead(&mut self, bytes: usize) {
        for peer in &mut self.peers {
            peer.outbox.limit_loans(bytes);
            if let Some(wire) = &mut peer.wire {
                wire.limit_unsent(bytes);
            }
        }
    }

    fn give_up(&mut self, peer: WorldRank, cause: &str) {
        self.peers[peer.index()].lose(peer.0, cause, Loss::Silent, &mut self.given_up);
    }
}

impl Transport for Tcp {
    fn rank(&self) -> WorldRank {
        WorldRank(self.rank)
    }

    fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    fn facts(&self) -> Facts {
        Facts {
            topology: self.topology.clone(),
            pool: self.lending.clone(),
            is_authenticated: self.proven,
            shares_memory: self.shares_memory,
            ..Facts::new("tcp", self.addresses.clone(), self.ranks_on_host)
        }
    }

    fn post(&mut self, to: WorldRank, frame: Frame) {
        let peer = &mut self.peers[to.index()];
        if peer.wire.is_none() || peer.broken.is_some() || peer.given_up {
            return;
        }
        let idle = peer.outbox.is_empty();
        // A probe and its answer are not corked: writing them later would look like progress, and no call would time out.
        let corked = self.corked && !matches!(frame.header.kind, FrameKind::Probe | FrameKind::Present);
        peer.outbox.push(&frame);
        if idle && corked {
            self.corked_peers.push(to.0);
        } else if idle {
            self.write(to.0);
        }
        self.peers[to.index()].outbox.note_peak();
    }

    fn cork(&mut self, corked: bool) {
        self.corked = corked;
        if corked {
            return;
        }
        for to in std::mem::take(&mut self.corked_peers) {
            self.write(to);
            if self.peers[to as usize].outbox.relieved() {
                self.writable.push(to);
            }
        }
    }

    fn backlog(&self, to: WorldRank) -> usize {
        let peer = &self.peers[to.index()];
        if peer.given_up { 0 } else { peer.outbox.backlog() }
    }

    fn set_failure_reason(&mut self, reason: &str) {
        reason.clone_into(&mut self.failure_reason);
    }

    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>) {
        let before = events.len();
        events.extend(self.writable.drain(..).map(|rank| Event::Writable { rank: WorldRank(rank) }));
        events.append(&mut self.given_up);
        let until = (!wait.is_zero()).then(|| Instant::now() + wait.min(FOR_EVER));
        let mut left = wait;
        loop {
            self.check_shared_memory(events);
            let at_once = !self.unread.is_empty() || events.len() > before;
            let pause = if at_once { Duration::ZERO } else { left };
            let skips = self.may_skip_sockets(pause);
            let Ok(woken) = (if skips { Ok(false) } else { self.wait(pause, events) }) else { return };
            self.read(events);
            let Some(until) = until else { return };
            if self.silence.due() {
                self.report_silent_peers(events);
            }
            left = until.saturating_duration_since(Instant::now());
            if woken || events.len() > before || left.is_zero() {
                return;
            }
        }
    }

    fn waker(&self) -> Waker {
        let waker = self.waker.clone();
        // This fails only if the wake-up counter is full, and then a wake-up is pending anyway.
        Arc::new(move || drop(waker.wake()))
    }

    /// Returns once the peers' systems have acknowledged all bytes, or `wait` has passed. Closing earlier would lose bytes: with unread
    /// input the kernel resets the connection and drops the bytes under way. Input is discarded meanwhile.
    fn close(&mut self, wait: Duration) -> Result<()> {
        let until = Instant::now() + wait.min(FOR_EVER);
        let payload = self.pool.copy_of(self.failure_reason.as_bytes());
        let bye = Frame { payload, ..last_frame(FrameKind::Bye) };
        let mut open = Vec::new();
        for rank in 0..self.peers.len() {
            if self.peers[rank].wire.is_some() && !self.peers[rank].given_up {
                self.post(WorldRank(rank as u32), bye.clone());
                self.peers[rank].ending = false;
                open.push(rank);
            }
        }
        loop {
            open.retain(|rank| !self.continue_closing(*rank));
            let left = until.saturating_duration_since(Instant::now());
            if open.is_empty() || left.is_zero() {
                break;
            }
            // The events do not matter: the loop checks every open connection.
            let _ = self.poll.poll(&mut self.ready, Some(left.min(ACK_CHECK_EVERY)));
        }
        for peer in &mut self.peers {
            peer.outbox.clear();
            peer.wire = None;
        }
        self.unread.clear();
        Ok(())
    }
}
