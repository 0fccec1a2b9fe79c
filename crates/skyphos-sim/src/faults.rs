//! What goes wrong in a simulated cluster, and what those who live hear of it.
//!
//! As over TCP: what a connection has taken arrives in order or not at all, an end of a process is told after all that it
//! sent, a link that is cut is noticed by its silence at either end, and who gives another up says so if it can. A cut that
//! heals before that is a delay: what was held comes then.

use crate::world::{Flying, Kind, World, nanoseconds};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use skyphos_core::frame::{Frame, FrameKind, HEADER_BYTES, Header};
use skyphos_core::slab::Payload;
use skyphos_core::transport::{Event, Loss};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Bytes that the systems at both ends of a cut link take before those that are posted wait.
const TAKEN_BYTES: usize = 256 * 1024;

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// So many seconds after the beginning.
    At(f64),
    /// At the frame of this number that a process posts, counted from 0. Where the fault is between two processes, the other one is
    /// who that frame is for.
    Frame {
        /// The process.
        of: u32,
        /// The frame.
        number: u64,
    },
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A process ends, as by SIGKILL.
    Crash {
        /// Which.
        process: u32,
        /// Whether its system still sends what it was handed.
        sends_rest: bool,
        /// Seconds until it is started anew, if it is.
        back: Option<f64>,
    },
    /// Nothing goes from one process to another.
    Cut {
        /// From whom.
        from: u32,
        /// To whom.
        to: u32,
        /// Nor back.
        both: bool,
        /// Seconds until it does again, and what was sent meanwhile comes.
        heals: Option<f64>,
    },
    /// Nothing goes from or to a process: its cable is pulled, or its host is without power.
    CutOff {
        /// Which.
        process: u32,
        /// Seconds until it does again.
        heals: Option<f64>,
    },
    /// Nothing goes between some processes and the others: a switch has failed between them.
    Part {
        /// Those of smaller numbers are on one side.
        below: u32,
        /// Seconds until it does again.
        heals: Option<f64>,
    },
    /// A process stands still; its system answers for it.
    Stop {
        /// Which.
        process: u32,
        /// For so long.
        seconds: f64,
    },
    /// All work of a process takes longer.
    Slow {
        /// Which.
        process: u32,
        /// How many times as long.
        times: f64,
    },
    /// The user interrupts a process (Ctrl-C): it leaves the call that it waits in, with an error.
    Interrupt {
        /// Which.
        process: u32,
    },
    /// Bits of a frame are turned on its way: that of [`When::Frame`], or the first that is on its way from the process.
    Corrupt {
        /// The frame's sender.
        process: u32,
    },
}

/// A fault that has struck.
#[derive(Clone, Debug, PartialEq)]
pub struct Struck {
    /// Which of those planned.
    pub number: usize,
    /// Nanosecond.
    pub at: u64,
    /// Whether a frame that it concerns was on its way.
    pub in_flight: bool,
    /// Processes that it may part from others for good.
    pub parted: Vec<u32>,
}

/// What faults have to do with a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    /// Its place among all that were posted.
    pub order: u64,
    /// Of which group its sender was.
    pub generation: u32,
    /// It will not arrive.
    pub lost: bool,
    /// Bits of it are turned.
    pub corrupt: bool,
    /// Its sender's system has it.
    pub taken: bool,
    /// It waits at a link that is cut, perhaps for ever.
    pub held: bool,
    /// It is no frame: the connection ends here.
    pub ends: Option<Loss>,
}

/// Something of the faults' own that happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Due {
    /// A planned fault.
    Strike(u32),
    /// A cut is over.
    Heal(u32, u32),
    /// Somebody has heard nothing for too long of somebody else, if the cut is still that one.
    Silent { at: u32, of: u32, cut: u64 },
    /// A process is started anew.
    Restart(u32),
}

/// What becomes of a frame that has come.
pub(crate) enum Word {
    /// It is as it was sent.
    Frame,
    /// Its receiver has been told of something else.
    Told,
    /// Nobody hears of it.
    Nothing,
}

/// How a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// In the group.
    Here,
    /// It has closed its end, and may join the next group.
    Left,
    /// It has ended.
    Crashed {
        /// And will be started anew.
        back: bool,
    },
    /// It is to be started anew.
    Back,
}

struct Cut {
    /// Its number.
    number: u64,
    /// When it heals.
    until: u64,
    /// Frames that wait for that: their senders' systems send them again and again.
    held: Vec<u32>,
    /// Bytes of them and of others that the systems have taken.
    taken: usize,
}

/// See the module's text.
pub(crate) struct Faults {
    heartbeat: u64,
    plan: Vec<(When, Fault)>,
    /// Frames that each process has posted.
    pub(crate) posted: Vec<u64>,
    pub(crate) presence: Vec<Presence>,
    /// Who waits for the next group.
    pub(crate) joining: Vec<bool>,
    pub(crate) generation: u32,
    /// By who sends and who receives.
    cuts: BTreeMap<(u32, u32), Cut>,
    cuts_so_far: u64,
    /// Frames that are sent again after a cut, by who sends, who receives, and their order: those after them come after them.
    again: BTreeSet<(u32, u32, u64)>,
    /// Connections that are over, by who knows it and of whom.
    down: BTreeSet<(u32, u32)>,
    stopped: Vec<u64>,
    /// Processes that were interrupted and have not asked since; `None` for those that ignore it.
    interrupted: Vec<Option<bool>>,
    /// What decides how much of what has come a poll hands over.
    polls: Pcg64,
    /// How many times as long work takes, where that is not as planned at first.
    pub(crate) slowed: Vec<(u32, f64)>,
    pub(crate) struck: Vec<Struck>,
    trace: DefaultHasher,
    /// What happened, in words, if asked for.
    pub(crate) log: Option<Vec<String>>,
}

impl Faults {
    pub(crate) fn new(processes: u32, heartbeat_s: f64, plan: Vec<(When, Fault)>, log: bool) -> Faults {
        let each = processes as usize;
        Faults {
            heartbeat: nanoseconds(heartbeat_s),
            plan,
            posted: vec![0; each],
            presence: vec![Presence::Left; each],
            joining: vec![false; each],
            generation: 0,
            cuts: BTreeMap::new(),
            cuts_so_far: 0,
            again: BTreeSet::new(),
            down: BTreeSet::new(),
            stopped: vec![0; each],
            interrupted: vec![Some(false); each],
            polls: Pcg64::seed_from_u64(each as u64),
            slowed: Vec::new(),
            struck: Vec::new(),
            trace: DefaultHasher::new(),
            log: log.then(Vec::new),
        }
    }

    pub(crate) fn trace(&mut self, what: &impl Hash) {
        what.hash(&mut self.trace);
    }

    /// A number that says what has happened so far.
    pub(crate) fn hash(&self) -> u64 {
        self.trace.finish()
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(text());
        }
    }

    /// Whether what a process posts goes anywhere.
    pub(crate) fn takes(&self, from: u32, to: u32, generation: u32) -> bool {
        let here = self.presence[from as usize] == Presence::Here && generation == self.generation;
        here && !self.down.contains(&(from, to))
    }

    /// Whether a process knows that its connection to another is over.
    pub(crate) fn is_closed(&self, at: u32, of: u32) -> bool {
        self.presence[at as usize] != Presence::Here || self.down.contains(&(at, of))
    }

    pub(crate) fn is_crashed(&self, process: u32) -> bool {
        matches!(self.presence[process as usize], Presence::Crashed { .. } | Presence::Back)
    }

    pub(crate) fn all_can_join(&self) -> bool {
        self.cuts.is_empty() && self.joining.iter().all(|joining| *joining)
    }

    /// Whether a process was interrupted since it asked last.
    pub(crate) fn take_interrupt(&mut self, process: u32) -> bool {
        self.interrupted[process as usize].as_mut().is_some_and(std::mem::take)
    }

    /// From now on a process ignores that it is interrupted.
    pub(crate) fn ignore_interrupts(&mut self, process: u32) {
        self.interrupted[process as usize] = None;
    }

    /// How many of the events that have come a poll hands over: at least one. Over MPI it is one message of each peer, over
    /// sockets what fits a buffer.
    pub(crate) fn events_of_a_poll(&mut self, come: usize) -> usize {
        match come {
            0 | 1 => come,
            _ => self.polls.random_range(1..=come),
        }
    }

    /// All processes are in a new group.
    pub(crate) fn begin_group(&mut self) {
        self.generation += 1;
        self.presence.fill(Presence::Here);
        self.joining.fill(false);
        self.down.clear();
    }
}

impl World {
    pub(crate) fn faults(&mut self) -> &mut Faults {
        self.faults.as_mut().expect("asked only where there are some")
    }

    /// Until when a process stands still.
    pub(crate) fn until_thaw(&self, process: u32) -> u64 {
        self.faults.as_ref().map_or(0, |faults| faults.stopped[process as usize])
    }

    /// Whether a process that has crashed will be started anew.
    pub(crate) fn comes_back(&mut self, process: u32) -> bool {
        matches!(self.faults().presence[process as usize], Presence::Crashed { back: true } | Presence::Back)
    }

    /// Whether a process is to be started anew now; it is then as any that has not joined yet.
    pub(crate) fn starts_anew(&mut self, process: u32) -> bool {
        let presence = &mut self.faults().presence[process as usize];
        let anew = *presence == Presence::Back;
        if anew {
            *presence = Presence::Left;
        }
        anew
    }

    /// Plans the faults of a play.
    pub(crate) fn plan_faults(&mut self, faults: Faults) {
        for (number, (when, _)) in faults.plan.iter().enumerate() {
            if let When::At(seconds) = when {
                self.at(nanoseconds(*seconds), Kind::Fault(Due::Strike(number as u32)));
            }
        }
        self.faults = Some(Box::new(faults));
    }

    /// A process has posted a frame: some faults wait for that.
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

    /// Something of the faults' own happens; who is to look.
    pub(crate) fn fault(&mut self, due: Due, time: u64) -> Vec<u32> {
        match due {
            Due::Strike(number) => self.strike(number as usize, None, time),
            Due::Heal(from, to) => {
                let over = |cut: &Cut| cut.until == time;
                if !self.faults().cuts.get(&(from, to)).is_some_and(over) {
                    return vec![]; // another one lasts longer
                }
                let cut = self.faults().cuts.remove(&(from, to)).expect("seen");
                self.faults().note(|| format!("{time} ns: {from} reaches {to} again"));
                let mut held = cut.held;
                held.sort_by_key(|number| self.flying(*number).mark.order);
                held.into_iter().for_each(|number| self.send_again(number, time));
                self.begin_if_all_join(time);
                vec![]
            }
            Due::Silent { at, of, cut } => {
                let thaw = self.until_thaw(at);
                if thaw > time {
                    self.at(thaw, Kind::Fault(due));
                    return vec![];
                }
                let same = self.faults().cuts.get(&(of, at)).is_some_and(|now| now.number == cut);
                match same && !self.faults().is_closed(at, of) {
                    true => {
                        let cause = "nothing was heard of it for too long".to_owned();
                        self.give_up(at, of, cause, time);
                        vec![at]
                    }
                    false => vec![],
                }
            }
            Due::Restart(process) => {
                self.faults().presence[process as usize] = Presence::Back;
                vec![process]
            }
        }
    }

    /// A fault strikes, at a frame or at a moment. Who is to look.
    fn strike(&mut self, number: usize, frame: Option<u32>, time: u64) -> Vec<u32> {
        let (_, fault) = self.faults().plan[number];
        let to_of = frame.map(|frame| self.flying(frame).to);
        let concerns = |a: u32, b: u32| match fault {
            Fault::Crash { process, .. } | Fault::CutOff { process, .. } => a == process || b == process,
            Fault::Stop { process, .. } | Fault::Slow { process, .. } | Fault::Interrupt { process } => {
                a == process || b == process
            }
            Fault::Cut { from, to, both, .. } => {
                let to = to_of.unwrap_or(to);
                (a, b) == (from, to) || both && (b, a) == (from, to)
            }
            Fault::Part { below, .. } => (a < below) != (b < below),
            Fault::Corrupt { process } => a == process,
        };
        let in_flight = self.all_flying().any(|flying| !flying.mark.held && concerns(flying.from, flying.to));
        let beats = self.faults().heartbeat;
        // Whoever is silent for almost that long may be taken for lost.
        let parts = |heals: Option<f64>| heals.is_none_or(|seconds| nanoseconds(seconds) > beats / 2);
        let parted = match fault {
            Fault::Crash { process, .. } => vec![process],
            Fault::CutOff { process, heals } if parts(heals) => vec![process],
            Fault::Part { heals, .. } if parts(heals) => (0..self.network.ranks).collect(),
            Fault::Cut { from, to, heals, .. } if parts(heals) => vec![from, to_of.unwrap_or(to)],
            Fault::Corrupt { process } => {
                to_of.map_or((0..self.network.ranks).collect(), |to| vec![process, to])
            }
            _ => vec![],
        };
        let faults = self.faults();
        faults.struck.push(Struck { number, at: time, in_flight, parted });
        faults.note(|| format!("{time} ns: {fault:?}, at a frame to {to_of:?}"));
        let all = faults.presence.len() as u32;
        match fault {
            Fault::Crash { process, sends_rest, back } => {
                if self.faults().is_crashed(process) {
                    return vec![];
                }
                self.end(process, Loss::Ended, sends_rest, time);
                self.faults().stopped[process as usize] = time;
                self.faults().presence[process as usize] = Presence::Crashed { back: back.is_some() };
                if let Some(seconds) = back {
                    self.at(time + nanoseconds(seconds), Kind::Fault(Due::Restart(process)));
                }
                vec![process]
            }
            Fault::Cut { from, to, both, heals } => {
                let to = to_of.unwrap_or(to);
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
            Fault::Part { below, heals } => {
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
                    .for_each(|asked| *asked = true);
                vec![process]
            }
            Fault::Slow { process, times } => {
                self.faults().slowed.push((process, times));
                vec![process]
            }
            Fault::Corrupt { process } => {
                let chosen = frame.map(|frame| self.flying(frame).mark.order);
                let of_process = |flying: &&mut Flying| match chosen {
                    Some(order) => flying.mark.order == order,
                    None => flying.from == process && flying.mark.ends.is_none() && !flying.mark.held,
                };
                let first = self.all_flying().filter(of_process).min_by_key(|flying| flying.mark.order);
                first.into_iter().for_each(|flying| flying.mark.corrupt = true);
                vec![]
            }
        }
    }

    /// From now on nothing goes from one process to another.
    fn cut(&mut self, from: u32, to: u32, heals: Option<f64>, time: u64) {
        let beats = self.faults().heartbeat;
        // It was heard of last at some moment of a quarter of that.
        let silent =
            time + beats - (beats / 4).min((self.random.random::<f64>() * beats as f64 / 4.0) as u64);
        let until = heals.map_or(u64::MAX, |seconds| time + nanoseconds(seconds));
        let faults = self.faults();
        if let Some(cut) = faults.cuts.get_mut(&(from, to)) {
            cut.until = cut.until.max(until);
        } else {
            faults.cuts_so_far += 1;
            let number = faults.cuts_so_far;
            faults.cuts.insert((from, to), Cut { number, until, held: Vec::new(), taken: 0 });
            self.at(silent, Kind::Fault(Due::Silent { at: to, of: from, cut: number }));
        }
        if until < u64::MAX {
            self.at(until, Kind::Fault(Due::Heal(from, to)));
        }
    }

    /// A process has left its group, or ended: others hear of it after all that was sent.
    pub(crate) fn end(&mut self, process: u32, loss: Loss, sends_rest: bool, time: u64) {
        let faults = self.faults();
        if faults.presence[process as usize] != Presence::Here {
            return;
        }
        faults.presence[process as usize] = Presence::Left;
        let (all, generation) = (faults.presence.len() as u32, faults.generation);
        if !sends_rest {
            let waits = |flying: &&mut Flying| flying.from == process && !flying.mark.taken;
            self.all_flying().filter(waits).for_each(|flying| flying.mark.lost = true);
        }
        for other in (0..all).filter(|other| *other != process) {
            if !self.faults().down.contains(&(process, other)) {
                self.last_word(process, other, loss, generation, time);
            }
        }
    }

    /// The end of a connection, as the one at the other end will hear of it.
    fn last_word(&mut self, from: u32, to: u32, loss: Loss, generation: u32, time: u64) {
        let frame = Frame { header: Header::control(FrameKind::Bye, 0, 0), payload: Payload::default() };
        let order = self.count;
        let mark = Mark { order, generation, ends: Some(loss), ..Mark::default() };
        self.launch(from, to, time, frame, mark);
    }

    /// A process takes another one for lost, and tells it so.
    pub(crate) fn give_up(&mut self, at: u32, of: u32, cause: String, time: u64) {
        let faults = self.faults();
        faults.down.insert((at, of));
        faults.note(|| format!("{time} ns: {at} gives {of} up: {cause}"));
        let generation = faults.generation;
        self.last_word(at, of, Loss::Silent, generation, time);
        self.tell(at, Event::PeerDown { rank: of, cause, loss: Loss::Silent });
    }

    /// Whether a frame whose turn it is goes on its way.
    pub(crate) fn may_leave(&mut self, number: u32, time: u64) -> bool {
        let flying = self.flying(number);
        let (from, to, payload, lost) =
            (flying.from, flying.to, flying.frame.payload.len(), flying.mark.lost);
        if lost {
            let order = self.land(number).mark.order;
            self.faults().again.remove(&(from, to, order));
            return false;
        }
        let Some(cut) = self.faults().cuts.get_mut(&(from, to)) else { return true };
        let fits = cut.taken + payload <= TAKEN_BYTES;
        cut.taken += payload;
        cut.held.push(number);
        self.flying_mut(number).mark.held = true;
        if fits {
            self.gone(number, payload, time);
        }
        false
    }

    fn send_again(&mut self, number: u32, time: u64) {
        let flying = self.flying_mut(number);
        flying.mark.held = false;
        let place = (flying.from, flying.to, flying.mark.order);
        self.faults().again.insert(place);
        self.at(time, Kind::Leave(number));
    }

    /// What becomes of a frame that has come.
    pub(crate) fn may_come(&mut self, number: u32, time: u64) -> Word {
        let flying = self.flying(number);
        let (from, to, mark) = (flying.from, flying.to, flying.mark);
        let header = flying.frame.header.encode(flying.frame.payload.as_bytes());
        let faults = self.faults();
        faults.trace(&(from, to, header));
        if let Some(cut) = faults.cuts.get_mut(&(from, to)) {
            cut.held.push(number);
            self.flying_mut(number).mark.held = true;
            return Word::Nothing;
        }
        let earlier = (from, to, 0)..(from, to, mark.order);
        if faults.again.range(earlier).next().is_some() {
            self.send_again(number, time);
            return Word::Nothing;
        }
        faults.again.remove(&(from, to, mark.order));
        let open = faults.presence[to as usize] == Presence::Here && !faults.down.contains(&(to, from));
        if !open || mark.lost || mark.generation != faults.generation {
            self.land(number);
            return Word::Nothing;
        }
        if let Some(loss) = mark.ends {
            self.land(number);
            let faults = self.faults();
            faults.down.insert((to, from));
            faults.note(|| format!("{time} ns: {to} hears of the end of {from}: {loss:?}"));
            let cause = match loss {
                Loss::Left => "it has left",
                Loss::Ended => "its process has ended",
                Loss::Silent => "it has given this process up",
            };
            self.tell(to, Event::PeerDown { rank: from, cause: cause.to_owned(), loss });
            return Word::Told;
        }
        if mark.corrupt {
            let turned = (1 + self.random.random_range(0..3), self.random.random::<u64>());
            if let Err(what) = read_turned(&self.flying(number).frame, turned) {
                self.land(number);
                self.give_up(to, from, format!("it sent damaged data: {what}"), time);
                return Word::Told;
            }
        }
        Word::Frame
    }
}

/// What the receiver makes of a frame of which so many bits are turned, drawn from a seed.
fn read_turned(frame: &Frame, (bits, seed): (u64, u64)) -> Result<(), String> {
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
        // A length that is wrong makes the receiver take what follows for a part of it.
        false => Err(format!("a frame of {len} bytes has another checksum than {crc:x}")),
    }
}
