//! The effect of each fault on the processes and links of a simulated world.

use crate::faults::{Arrival, Cut, Fault, FaultEvent, Faults, FrameState, Presence, Struck, When};
use crate::time::nanoseconds;
use crate::world::{Flying, Kind, World};
use rand::RngExt;
use skyphos_core::frame::{Frame, FrameKind, HEADER_BYTES, Header};
use skyphos_core::slab::Payload;
use skyphos_core::transport::{Event, Loss};
use skyphos_types::{CallNumber, CommId, WorldRank};

/// Bytes that the kernels at both ends of a cut link buffer; frames posted beyond them wait in the process.
const KERNEL_BYTES: usize = 256 * 1024;

impl Fault {
    /// Whether the fault affects frames from `a` to `b`; `frame_to` is the receiver of the frame at which it strikes.
    fn concerns(self, (a, b): (u32, u32), frame_to: Option<u32>) -> bool {
        match self {
            Fault::Crash { process, .. } | Fault::CutOff { process, .. } => a == process || b == process,
            Fault::Stop { process, .. } | Fault::Slow { process, .. } | Fault::Interrupt { process } => {
                a == process || b == process
            }
            Fault::Cut { from, to, both, .. } => {
                let to = frame_to.unwrap_or(to);
                (a, b) == (from, to) || both && (b, a) == (from, to)
            }
            Fault::Partition { below, .. } => (a < below) != (b < below),
            Fault::Corrupt { process } => a == process,
        }
    }
}

impl World {
    pub(crate) fn faults(&mut self) -> &mut Faults {
        self.faults.as_mut().expect("a play has faults")
    }

    /// The moment until which a process is stopped.
    pub(crate) fn stopped_until(&self, process: u32) -> u64 {
        self.faults.as_ref().map_or(0, |faults| faults.stopped[process as usize])
    }

    /// Whether a process that has crashed will restart.
    pub(crate) fn will_restart(&mut self, process: u32) -> bool {
        matches!(self.faults().presence[process as usize], Presence::Crashed { back: true } | Presence::Back)
    }

    /// Whether a process restarts now. After that it is in the state of a process that has not joined yet.
    pub(crate) fn take_restart(&mut self, process: u32) -> bool {
        let presence = &mut self.faults().presence[process as usize];
        let restarts = *presence == Presence::Back;
        if restarts {
            *presence = Presence::Left;
        }
        restarts
    }

    /// Plans the faults of a play.
    pub(crate) fn plan_faults(&mut self, faults: Faults) {
        for (number, (when, _)) in faults.plan.iter().enumerate() {
            if let When::At(seconds) = when {
                self.schedule(nanoseconds(*seconds), Kind::Fault(FaultEvent::Strike(number as u32)));
            }
        }
        self.faults = Some(Box::new(faults));
    }

    /// A process has posted a frame: faults that wait for it strike.
    pub(crate) fn posted(&mut self, from: u32, number: u32, time: u64) {
        let Some(faults) = &mut self.faults else { return };
        let count = faults.posted[from as usize];
        faults.posted[from as usize] += 1;
        let strikes = |when: &When| *when == When::Frame { of: from, number: count };
        let all: Vec<usize> = (0..faults.plan.len()).filter(|k| strikes(&faults.plan[*k].0)).collect();
        for fault in all {
            for process in self.strike(fault, Some(number), time) {
                self.wake(process, time);
            }
        }
    }

    /// Handles an event of a fault. Returns the processes to wake.
    pub(crate) fn fault(&mut self, due: FaultEvent, time: u64) -> Vec<u32> {
        match due {
            FaultEvent::Strike(number) => self.strike(number as usize, None, time),
            FaultEvent::Heal(from, to) => {
                let over = |cut: &Cut| cut.until == time;
                if !self.faults().cuts.get(&(from, to)).is_some_and(over) {
                    return vec![]; // another cut lasts longer
                }
                let cut = self.faults().cuts.remove(&(from, to)).expect("seen");
                self.faults().note(|| format!("{time} ns: {from} reaches {to} again"));
                let mut held = cut.held;
                held.sort_by_key(|number| self.flying(*number).state.order);
                held.into_iter().for_each(|number| self.retransmit(number, time));
                self.begin_if_all_join(time);
                vec![]
            }
            FaultEvent::Silent { at, of, cut } => {
                let thaw = self.stopped_until(at);
                if thaw > time {
                    self.schedule(thaw, Kind::Fault(due));
                    return vec![];
                }
                let same = self.faults().cuts.get(&(of, at)).is_some_and(|now| now.number == cut);
                match same && !self.faults().is_closed(at, of) {
                    true => {
                        let cause = "it was silent for longer than the heartbeat".to_owned();
                        self.give_up(at, of, cause, time);
                        vec![at]
                    }
                    false => vec![],
                }
            }
            FaultEvent::Restart(process) => {
                self.faults().presence[process as usize] = Presence::Back;
                vec![process]
            }
        }
    }

    /// A fault strikes, at a frame or at a moment. Returns the processes to wake.
    fn strike(&mut self, number: usize, frame: Option<u32>, time: u64) -> Vec<u32> {
        let (_, fault) = self.faults().plan[number];
        let frame_to = frame.map(|frame| self.flying(frame).to);
        let in_flight = self
            .all_flying()
            .any(|flying| !flying.state.held && fault.concerns((flying.from, flying.to), frame_to));
        let separated = self.separated_by(fault, frame_to);
        let faults = self.faults();
        faults.struck.push(Struck { number, at: time, in_flight, separated });
        faults.note(|| format!("{time} ns: {fault:?}, at a frame to {frame_to:?}"));
        self.apply(fault, frame, frame_to, time)
    }

    /// Processes that a fault may separate from others for good.
    fn separated_by(&mut self, fault: Fault, frame_to: Option<u32>) -> Vec<u32> {
        let heartbeat = self.faults().heartbeat;
        // The silence may have begun before the cut, so a cut shorter than the heartbeat may suffice.
        let is_noticed =
            |heals: Option<f64>| heals.is_none_or(|seconds| nanoseconds(seconds) > heartbeat / 2);
        match fault {
            Fault::Crash { process, .. } => vec![process],
            Fault::CutOff { process, heals } if is_noticed(heals) => vec![process],
            Fault::Partition { heals, .. } if is_noticed(heals) => (0..self.network.ranks).collect(),
            Fault::Cut { from, to, heals, .. } if is_noticed(heals) => vec![from, frame_to.unwrap_or(to)],
            Fault::Corrupt { process } => {
                frame_to.map_or((0..self.network.ranks).collect(), |to| vec![process, to])
            }
            _ => vec![],
        }
    }

    /// Applies a fault. Returns the processes to wake.
    fn apply(&mut self, fault: Fault, frame: Option<u32>, frame_to: Option<u32>, time: u64) -> Vec<u32> {
        let all = self.faults().presence.len() as u32;
        match fault {
            Fault::Crash { process, sends_rest, back } => {
                if self.faults().is_crashed(process) {
                    return vec![];
                }
                self.end(process, Loss::Ended, sends_rest, time);
                self.faults().stopped[process as usize] = time;
                self.faults().presence[process as usize] = Presence::Crashed { back: back.is_some() };
                if let Some(seconds) = back {
                    self.schedule(time + nanoseconds(seconds), Kind::Fault(FaultEvent::Restart(process)));
                }
                vec![process]
            }
            Fault::Cut { from, to, both, heals } => {
                let to = frame_to.unwrap_or(to);
                self.cut(from, to, heals, time);
                if both {
                    self.cut(to, from, heals, time);
                }
                vec![]
            }
            Fault::CutOff { process, heals } => {
                for other in (0..all).filter(|other| *other != process) {
                    self.cut(process, other, heals, time);
                    self.cut(other, process, heals, time);
                }
                vec![]
            }
            Fault::Partition { below, heals } => {
                for from in 0..all {
                    (0..all)
                        .filter(|to| (from < below) != (*to < below))
                        .for_each(|to| self.cut(from, to, heals, time));
                }
                vec![]
            }
            Fault::Stop { process, seconds } => {
                self.faults().stopped[process as usize] = time + nanoseconds(seconds);
                vec![]
            }
            Fault::Interrupt { process } => {
                self.faults().interrupted[process as usize]
                    .as_mut()
                    .into_iter()
                    .for_each(|interrupted| *interrupted = true);
                vec![process]
            }
            Fault::Slow { process, times } => {
                self.faults().slowed.push((process, times));
                vec![process]
            }
            Fault::Corrupt { process } => {
                let chosen = frame.map(|frame| self.flying(frame).state.order);
                let of_process = |flying: &&mut Flying| match chosen {
                    Some(order) => flying.state.order == order,
                    None => flying.from == process && flying.state.ends.is_none() && !flying.state.held,
                };
                let first = self.all_flying().filter(of_process).min_by_key(|flying| flying.state.order);
                first.into_iter().for_each(|flying| flying.state.corrupt = true);
                vec![]
            }
        }
    }

    /// Cuts the link from one process to another.
    fn cut(&mut self, from: u32, to: u32, heals: Option<f64>, time: u64) {
        let heartbeat = self.faults().heartbeat;
        // The last heartbeat arrived up to a quarter of the interval ago.
        let silent = time + heartbeat
            - (heartbeat / 4).min((self.random.random::<f64>() * heartbeat as f64 / 4.0) as u64);
        let until = heals.map_or(u64::MAX, |seconds| time + nanoseconds(seconds));
        let faults = self.faults();
        if let Some(cut) = faults.cuts.get_mut(&(from, to)) {
            cut.until = cut.until.max(until);
        } else {
            faults.cuts_so_far += 1;
            let number = faults.cuts_so_far;
            faults.cuts.insert((from, to), Cut { number, until, held: Vec::new(), taken: 0 });
            self.schedule(silent, Kind::Fault(FaultEvent::Silent { at: to, of: from, cut: number }));
        }
        if until < u64::MAX {
            self.schedule(until, Kind::Fault(FaultEvent::Heal(from, to)));
        }
    }

    /// A process leaves its group, or ends: its peers see it after all that it has sent.
    pub(crate) fn end(&mut self, process: u32, loss: Loss, sends_rest: bool, time: u64) {
        let faults = self.faults();
        if faults.presence[process as usize] != Presence::Here {
            return;
        }
        faults.presence[process as usize] = Presence::Left;
        let (all, generation) = (faults.presence.len() as u32, faults.generation);
        if !sends_rest {
            let waits = |flying: &&mut Flying| flying.from == process && !flying.state.taken;
            self.all_flying().filter(waits).for_each(|flying| flying.state.lost = true);
        }
        for other in (0..all).filter(|other| *other != process) {
            if !self.faults().down.contains(&(process, other)) {
                self.send_end(process, other, loss, generation, time);
            }
        }
    }

    /// Sends the end of a connection, after all frames on their way.
    fn send_end(&mut self, from: u32, to: u32, loss: Loss, generation: u32, time: u64) {
        let frame = Frame {
            header: Header::control(FrameKind::Bye, CommId(0), CallNumber(0)),
            payload: Payload::default(),
        };
        let order = self.count;
        let state = FrameState { order, generation, ends: Some(loss), ..FrameState::default() };
        self.launch(from, to, time, frame, state);
    }

    /// A process counts another one as lost, and notifies it.
    pub(crate) fn give_up(&mut self, at: u32, of: u32, cause: String, time: u64) {
        let faults = self.faults();
        faults.down.insert((at, of));
        faults.note(|| format!("{time} ns: {at} gives {of} up: {cause}"));
        let generation = faults.generation;
        self.send_end(at, of, Loss::Silent, generation, time);
        self.push_event(at, Event::PeerDown { rank: WorldRank(of), cause, loss: Loss::Silent });
    }

    /// Whether a frame may leave its sender, whose link is free. Drops a lost frame, and holds a frame at a cut link.
    pub(crate) fn may_leave(&mut self, number: u32, time: u64) -> bool {
        let flying = self.flying(number);
        let (from, to, payload, lost) =
            (flying.from, flying.to, flying.frame.payload.len(), flying.state.lost);
        if lost {
            let order = self.remove(number).state.order;
            self.faults().retransmitted.remove(&(from, to, order));
            return false;
        }
        let Some(cut) = self.faults().cuts.get_mut(&(from, to)) else { return true };
        let fits = cut.taken + payload <= KERNEL_BYTES;
        cut.taken += payload;
        cut.held.push(number);
        self.flying_mut(number).state.held = true;
        if fits {
            self.depart(number, payload, time);
        }
        false
    }

    fn retransmit(&mut self, number: u32, time: u64) {
        let flying = self.flying_mut(number);
        flying.state.held = false;
        let place = (flying.from, flying.to, flying.state.order);
        self.faults().retransmitted.insert(place);
        self.schedule(time, Kind::Leave(number));
    }

    /// The effect of faults on an arriving frame.
    pub(crate) fn check_arrival(&mut self, number: u32, time: u64) -> Arrival {
        let flying = self.flying(number);
        let (from, to, state) = (flying.from, flying.to, flying.state);
        let header = flying.frame.header.encode(flying.frame.payload.as_bytes());
        let faults = self.faults();
        faults.trace(&(from, to, header));
        if let Some(cut) = faults.cuts.get_mut(&(from, to)) {
            cut.held.push(number);
            self.flying_mut(number).state.held = true;
            return Arrival::Nothing;
        }
        let earlier = (from, to, 0)..(from, to, state.order);
        if faults.retransmitted.range(earlier).next().is_some() {
            self.retransmit(number, time);
            return Arrival::Nothing;
        }
        faults.retransmitted.remove(&(from, to, state.order));
        let open = faults.presence[to as usize] == Presence::Here && !faults.down.contains(&(to, from));
        if !open || state.lost || state.generation != faults.generation {
            self.remove(number);
            return Arrival::Nothing;
        }
        if let Some(loss) = state.ends {
            self.remove(number);
            let faults = self.faults();
            faults.down.insert((to, from));
            faults.note(|| format!("{time} ns: {to} is notified of the end of {from}: {loss:?}"));
            let cause = match loss {
                Loss::Left => "it has left",
                Loss::Ended => "its process has ended",
                Loss::Silent => "it has given this process up",
            };
            self.push_event(to, Event::PeerDown { rank: WorldRank(from), cause: cause.to_owned(), loss });
            return Arrival::OtherEvent;
        }
        if state.corrupt {
            let flips = (1 + self.random.random_range(0..3), self.random.random::<u64>());
            if let Err(what) = decode_flipped(&self.flying(number).frame, flips) {
                self.remove(number);
                self.give_up(to, from, format!("it sent damaged data: {what}"), time);
                return Arrival::OtherEvent;
            }
        }
        Arrival::Frame
    }
}

/// Decodes a frame with `bits` flipped bits, drawn from a seed.
fn decode_flipped(frame: &Frame, (bits, seed): (u64, u64)) -> Result<(), String> {
    let payload = frame.payload.as_bytes();
    let mut bytes = [&frame.header.encode(payload)[..], payload].concat();
    for k in 0..bits {
        let at =
            seed.rotate_left(17 * k as u32).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (8 * bytes.len() as u64);
        bytes[at as usize / 8] ^= 1 << (at % 8);
    }
    let (head, rest) = bytes.split_first_chunk::<HEADER_BYTES>().expect("a header");
    let (_, len, crc) = Header::decode(head)?;
    match len == rest.len() && Header::check(head, rest) {
        true => Ok(()),
        // With a wrong length the receiver would read the next frames as a part of this one.
        false => Err(format!("a frame of {len} bytes has another checksum than {crc:x}")),
    }
}
