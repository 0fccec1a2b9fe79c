//! The links of a simulated cluster, and the frames under way.
//!
//! A frame that is posted passes the sender's link, perhaps the uplinks of two racks, and the receiver's link. Each carries
//! one frame after the other, in the order in which their heads arrive; a frame's head goes on before its tail has
//! arrived (cut-through), so an idle path of equal links takes one frame's time, not one per link. A link's state is the
//! moment at which it is free again, so a frame costs only a few events.
//!
//! At each step of a frame, faults may affect it ([`crate::faults`], [`crate::strikes`]).

use crate::faults::{Arrival, FaultEvent, Faults, FrameState};
use crate::network::Network;
use crate::record::{Flight, Record};
use crate::time::nanoseconds;
use rand::SeedableRng;
use rand_pcg::Pcg64;
use skyphos_core::frame::{Frame, HEADER_BYTES};
use skyphos_core::transport::Event;
use skyphos_types::WorldRank;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// Frames of fewer bytes leave the backlog at once when their turn comes, unless the sender watches it: that saves an event.
const WATCHED_BYTES: usize = 16 * 1024;

/// An event. A frame is identified by its index in `flying`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// A frame comes to its sender's link.
    Leave(u32),
    /// A frame of `bytes` bytes has left its sender.
    Depart { from: u32, to: u32, bytes: u32 },
    /// A frame's head comes to the uplink of its rack.
    Up(u32),
    /// A frame's head comes to the downlink of its receiver's rack.
    Down(u32),
    /// A frame's head comes to the receiver's link.
    Enter(u32),
    /// A frame has arrived completely.
    Arrive(u32),
    /// A rank polls.
    Wake(u32),
    /// An event of a fault.
    Fault(FaultEvent),
}

/// A frame under way.
pub(crate) struct Flying {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Bytes that links carry.
    bytes: f64,
    /// Time at which it was posted, and at which it left its sender.
    posted: u64,
    pub(crate) left: u64,
    /// The time at which its last byte has passed the links so far.
    tail: u64,
    pub(crate) frame: Frame,
    /// Effects of faults on it.
    pub(crate) state: FrameState,
}

/// The state between two ranks.
#[derive(Default)]
struct Pair {
    /// Bytes posted and not yet on the link, and their maximum since the sender last got `Writable`.
    queued: usize,
    peak: usize,
    /// Whether the sender has seen the backlog, and may wait until it shrinks.
    watched: bool,
    /// Arrival of the last frame's head and tail: frames of one sender stay in order.
    head: u64,
    tail: u64,
}

/// A link. It carries one frame after the other.
#[derive(Clone, Copy)]
struct Link {
    /// Nanoseconds per byte.
    byte_ns: f64,
    free: u64,
}

impl Link {
    fn new(rate: f64) -> Link {
        Link { byte_ns: 1e9 / rate, free: 0 }
    }

    /// The times at which the link begins and ends to carry a frame whose head arrives at `head`.
    fn carry(&mut self, head: u64, bytes: f64) -> (u64, u64) {
        let start = head.max(self.free);
        self.free = start.saturating_add((bytes * self.byte_ns).round() as u64);
        (start, self.free)
    }
}

/// Links, frames under way, and future events.
pub(crate) struct World {
    pub(crate) network: Network,
    /// The host of each rank.
    hosts: Vec<u32>,
    pub(crate) record: Record,
    pub(crate) random: Pcg64,
    events: BinaryHeap<Reverse<(u64, u64, Kind)>>,
    /// Number of events so far. Events of one time happen in the order in which they were made.
    pub(crate) count: u64,
    flying: Vec<Option<Flying>>,
    /// Free indices of `flying`.
    free_slots: Vec<u32>,
    out_links: Vec<Link>,
    in_links: Vec<Link>,
    up_links: Vec<Link>,
    down_links: Vec<Link>,
    /// Links between ranks of one host.
    host_links: Vec<Link>,
    /// Frames under way by pair of hosts, and the number of hosts that send to each host; only with incast.
    incoming: HashMap<(u32, u32), u32>,
    senders: Vec<u32>,
    pairs: HashMap<(u32, u32), Pair>,
    inboxes: Vec<VecDeque<Event>>,
    /// The next time at which each rank polls.
    wakes: Vec<Option<u64>>,
    /// Faults, in a play.
    pub(crate) faults: Option<Box<Faults>>,
}

impl World {
    pub(crate) fn new(network: Network, seed: u64) -> World {
        let (ranks, hosts, racks) =
            (network.ranks as usize, network.hosts() as usize, network.racks() as usize);
        // A rack's uplink has the rate of one host times the hosts of the rack.
        let uplink = Link::new(network.uplink_rate * f64::from(network.hosts_per_rack.max(1)));
        World {
            hosts: network.hosts_of_ranks(),
            record: Record::new(network.ranks, Vec::new()),
            random: Pcg64::seed_from_u64(seed),
            events: BinaryHeap::new(),
            count: 0,
            flying: Vec::new(),
            free_slots: Vec::new(),
            out_links: vec![Link::new(network.rate_out); hosts],
            in_links: vec![Link::new(network.rate_in); hosts],
            up_links: vec![uplink; racks],
            down_links: vec![uplink; racks],
            host_links: vec![Link::new(network.host_rate); hosts],
            incoming: HashMap::new(),
            senders: vec![0; hosts],
            pairs: HashMap::new(),
            inboxes: (0..ranks).map(|_| VecDeque::new()).collect(),
            wakes: vec![None; ranks],
            faults: None,
            network,
        }
    }

    /// The host of a rank.
    fn host(&self, rank: u32) -> u32 {
        self.hosts[rank as usize]
    }

    pub(crate) fn schedule(&mut self, time: u64, kind: Kind) {
        self.count += 1;
        self.events.push(Reverse((time, self.count, kind)));
    }

    /// Lets a rank poll at a time, unless it polls earlier.
    pub(crate) fn wake(&mut self, rank: u32, time: u64) {
        let due = &mut self.wakes[rank as usize];
        if due.is_none_or(|due| time < due) {
            *due = Some(time);
            self.schedule(time, Kind::Wake(rank));
        }
    }

    /// Posts a frame of a rank, in its `generation`th group.
    pub(crate) fn post(&mut self, from: u32, to: u32, time: u64, frame: Frame, generation: u32) {
        if let Some(faults) = &self.faults
            && !faults.takes(from, to, generation)
        {
            return;
        }
        let (header, payload) = (&frame.header, frame.payload.len());
        if header.kind.is_data() {
            self.record.sent(from, header.round, time, header.seq == 0, payload);
        }
        let state = FrameState { order: self.count, generation, ..FrameState::default() };
        let number = self.launch(from, to, time, frame, state);
        self.posted(from, number, time);
    }

    /// Launches a frame. Returns its index.
    pub(crate) fn launch(&mut self, from: u32, to: u32, time: u64, frame: Frame, state: FrameState) -> u32 {
        let payload = frame.payload.len();
        let bytes = ((payload + HEADER_BYTES) as f64).max(self.network.packet_floor);
        let packet = self.network.packet();
        let bytes = bytes + (bytes / packet.1).ceil() * packet.0;
        let pair = self.pairs.entry((from, to)).or_default();
        pair.queued += payload;
        pair.peak = pair.peak.max(pair.queued);
        let flying = Some(Flying { from, to, bytes, posted: time, left: time, tail: time, frame, state });
        let number = self.free_slots.pop().unwrap_or(self.flying.len() as u32);
        match self.flying.get_mut(number as usize) {
            Some(place) => *place = flying,
            None => self.flying.push(flying),
        }
        self.schedule(time, Kind::Leave(number));
        number
    }

    /// Bytes posted and not yet on the link: the sender's backlog.
    pub(crate) fn backlog(&mut self, from: u32, to: u32) -> usize {
        let bytes = self.queued(from, to);
        if bytes > 0 {
            self.pairs.entry((from, to)).or_default().watched = true;
        }
        bytes
    }

    fn queued(&self, from: u32, to: u32) -> usize {
        match &self.faults {
            Some(faults) if faults.is_closed(from, to) => 0,
            _ => self.pairs.get(&(from, to)).map_or(0, |pair| pair.queued),
        }
    }

    /// Bytes posted that have not arrived yet.
    pub(crate) fn unacknowledged(&self, from: u32, to: u32) -> usize {
        let of_pair = |flying: &&Flying| (flying.from, flying.to) == (from, to);
        let length = |flying: &Flying| HEADER_BYTES + flying.frame.payload.len();
        let bytes = self.flying.iter().flatten().filter(of_pair).map(length).sum();
        match &self.faults {
            Some(faults) if faults.is_closed(from, to) => 0,
            Some(_) => bytes,
            None => self.queued(from, to),
        }
    }

    /// Takes the events of a rank; in a play with faults only some of them, in order.
    pub(crate) fn take(&mut self, rank: u32) -> impl Iterator<Item = Event> + '_ {
        let inbox = &mut self.inboxes[rank as usize];
        let count = self.faults.as_mut().map_or(inbox.len(), |faults| faults.events_of_a_poll(inbox.len()));
        inbox.drain(..count)
    }

    /// Whether an event is due before a time.
    pub(crate) fn has_more_before(&self, time: u64) -> bool {
        self.events.peek().is_some_and(|Reverse((next, ..))| *next < time)
    }

    /// Advances time until a rank is due to poll. Returns the rank and the time; `None` if no event is left. `clock` is a rank's own
    /// time: a rank that works does not poll.
    pub(crate) fn run(&mut self, clock: impl Fn(u32) -> u64) -> Option<(u32, u64)> {
        while let Some(Reverse((time, count, kind))) = self.events.pop() {
            if let Some(faults) = &mut self.faults {
                faults.trace(&(time, count, kind));
            }
            match kind {
                // A stopped rank polls once it continues.
                Kind::Wake(rank)
                    if self.wakes[rank as usize] == Some(time) && self.stopped_until(rank) > time =>
                {
                    self.wakes[rank as usize] = None;
                    self.wake(rank, self.stopped_until(rank));
                }
                // An earlier poll may have been scheduled since.
                Kind::Wake(rank) if self.wakes[rank as usize] == Some(time) => {
                    self.wakes[rank as usize] = None;
                    return Some((rank, time));
                }
                Kind::Wake(_) => {}
                Kind::Leave(number) => self.leave(number, time),
                Kind::Depart { from, to, bytes } => {
                    if self.shrink(from, to, bytes as usize) {
                        self.inboxes[from as usize].push_back(Event::Writable { rank: WorldRank(to) });
                        self.wake(from, time.max(clock(from)));
                    }
                }
                Kind::Up(number) => {
                    let rack = self.network.rack(self.host(self.flying(number).from));
                    let head =
                        pass(&mut self.up_links[rack as usize], &mut self.flying[number as usize], time);
                    self.schedule(head, Kind::Down(number));
                }
                Kind::Down(number) => {
                    let rack = self.network.rack(self.host(self.flying(number).to));
                    let head =
                        pass(&mut self.down_links[rack as usize], &mut self.flying[number as usize], time);
                    self.schedule(head, Kind::Enter(number));
                }
                Kind::Enter(number) => self.enter(number, time),
                Kind::Arrive(number) => {
                    if let Some(to) = self.deliver(number, time) {
                        self.wake(to, time.max(clock(to)));
                    }
                }
                Kind::Fault(due) => {
                    for process in self.fault(due, time) {
                        self.wake(process, time.max(clock(process)));
                    }
                }
            }
        }
        None
    }

    pub(crate) fn flying(&self, number: u32) -> &Flying {
        self.flying[number as usize].as_ref().expect("a frame on its way")
    }

    pub(crate) fn flying_mut(&mut self, number: u32) -> &mut Flying {
        self.flying[number as usize].as_mut().expect("a frame on its way")
    }

    /// All frames under way.
    pub(crate) fn all_flying(&mut self) -> impl Iterator<Item = &mut Flying> {
        self.flying.iter_mut().flatten()
    }

    /// Removes a frame under way.
    pub(crate) fn remove(&mut self, number: u32) -> Flying {
        self.free_slots.push(number);
        self.flying[number as usize].take().expect("a frame on its way")
    }

    /// Adds an event for a rank.
    pub(crate) fn push_event(&mut self, rank: u32, event: Event) {
        self.inboxes[rank as usize].push_back(event);
    }

    /// Drops all frames under way and all events.
    pub(crate) fn drop_frames(&mut self) {
        self.flying.clear();
        self.inboxes.iter_mut().for_each(VecDeque::clear);
    }

    /// Forgets the state between ranks, for a new group.
    pub(crate) fn forget_pairs(&mut self) {
        self.pairs.clear();
        self.inboxes.iter_mut().for_each(VecDeque::clear);
    }

    /// A frame reaches its sender's link.
    fn leave(&mut self, number: u32, time: u64) {
        if self.faults.is_some() && !self.may_leave(number, time) {
            return;
        }
        let Flying { from, to, bytes, ref frame, .. } = *self.flying(number);
        let (payload, header) = (frame.payload.len(), &frame.header);
        let first = header.kind.is_data() && header.seq == 0;
        let (network, here, there) = (&self.network, self.host(from), self.host(to));
        if here == there {
            let latency = nanoseconds(network.host_latency_s);
            let (start, end) = self.host_links[here as usize].carry(time, bytes);
            self.depart(number, payload, end);
            self.flying_mut(number).left = start;
            return self.schedule(end.saturating_add(latency), Kind::Arrive(number));
        }
        let message_ns = if first { nanoseconds(network.message_s) } else { 0 };
        let late = if network.jitter.is_zero() { 0.0 } else { network.jitter.draw(&mut self.random) };
        let latency = nanoseconds(network.latency_s + late);
        let other_rack = network.rack(here) != network.rack(there);
        let link = &mut self.out_links[here as usize];
        let start = time.max(link.free).saturating_add(message_ns);
        let (start, end) = link.carry(start, bytes);
        let (mut head, mut tail) = (start.saturating_add(latency), end.saturating_add(latency));
        if self.faults.is_some() || !network.jitter.is_zero() {
            let pair = self.pairs.entry((from, to)).or_default();
            (head, tail) = (head.max(pair.head), tail.max(pair.tail));
            (pair.head, pair.tail) = (head, tail);
        }
        self.depart(number, payload, end);
        let flying = self.flying_mut(number);
        (flying.left, flying.tail) = (start, tail);
        self.schedule(head, if other_rack { Kind::Up(number) } else { Kind::Enter(number) });
    }

    /// Records that frame `number`, of `bytes` bytes, leaves its sender at `end`.
    pub(crate) fn depart(&mut self, number: u32, bytes: usize, end: u64) {
        let flying = self.flying_mut(number);
        let (from, to) = (flying.from, flying.to);
        if std::mem::replace(&mut flying.state.taken, true) {
            return; // retransmitted after a cut
        }
        match bytes >= WATCHED_BYTES || self.pairs.get(&(from, to)).is_some_and(|pair| pair.watched) {
            true => self.schedule(end, Kind::Depart { from, to, bytes: bytes as u32 }),
            false => {
                self.shrink(from, to, bytes);
            }
        }
    }

    /// Reduces a backlog. Returns whether it is now at most half of its maximum.
    fn shrink(&mut self, from: u32, to: u32, bytes: usize) -> bool {
        // The backlog is 0 if only frames without payload are left.
        let Some(pair) = self.pairs.get_mut(&(from, to)) else { return false };
        // A new group may have begun meanwhile.
        pair.queued = pair.queued.saturating_sub(bytes);
        let halved = pair.queued <= pair.peak / 2;
        if halved {
            (pair.peak, pair.watched) = (pair.queued, false);
        }
        if pair.queued == 0 && self.faults.is_none() && self.network.jitter.is_zero() {
            self.pairs.remove(&(from, to));
        }
        halved
    }

    /// A frame's head comes to the receiver's link.
    fn enter(&mut self, number: u32, time: u64) {
        let Flying { from, to, bytes, tail, .. } = *self.flying(number);
        let (here, there) = (self.host(from), self.host(to));
        let mut carried = bytes;
        if self.network.incast > 0.0 {
            let incoming = self.incoming.entry((here, there)).or_default();
            self.senders[there as usize] += u32::from(*incoming == 0);
            *incoming += 1;
            carried *= 1.0 + self.network.incast * f64::from(self.senders[there as usize] - 1);
        }
        let (_, end) = self.in_links[there as usize].carry(time, carried);
        self.schedule(end.max(tail), Kind::Arrive(number));
    }

    /// Delivers a frame that has arrived. Returns the rank to wake.
    fn deliver(&mut self, number: u32, time: u64) -> Option<u32> {
        let Flying { from, to, .. } = *self.flying(number);
        let (here, there) = (self.host(from), self.host(to));
        if self.network.incast > 0.0 && here != there {
            let incoming = self.incoming.get_mut(&(here, there)).expect("it has reached the link");
            *incoming -= 1;
            if *incoming == 0 {
                self.incoming.remove(&(here, there));
                self.senders[there as usize] -= 1;
            }
        }
        if self.faults.is_some() {
            match self.check_arrival(number, time) {
                Arrival::Frame => {}
                Arrival::OtherEvent => return Some(to),
                Arrival::Nothing => return None,
            }
        }
        let Flying { posted, left, frame, .. } = self.remove(number);
        let (round, bytes) = (frame.header.round, frame.payload.len());
        if frame.header.kind.is_data() {
            self.record.received(to, round, time, bytes);
            if self.record.is_watched(from) {
                let bytes = bytes as u32;
                self.record.flights.push(Flight { from, to, round, bytes, posted, left, arrived: time });
            }
        }
        self.push_event(to, Event::Frame { from: WorldRank(from), frame });
        Some(to)
    }
}

/// A frame's head passes a link. Returns the time at which it reaches the next one.
fn pass(link: &mut Link, flying: &mut Option<Flying>, head: u64) -> u64 {
    let flying = flying.as_mut().expect("a frame on its way");
    let (start, end) = link.carry(head, flying.bytes);
    flying.tail = flying.tail.max(end);
    start
}
