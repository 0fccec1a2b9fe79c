//! Faults of a simulated cluster: their plan, and the state of processes and links.
//!
//! Connections behave like TCP's. Bytes arrive in order or not at all. Peers see the end of a process after all bytes that it sent.
//! Each end notices a cut link by its silence, and notifies the peer that it gives up, if it can. A cut that heals before then only
//! delays the frames.

use crate::time::nanoseconds;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use skyphos_core::transport::Loss;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// Seconds after the beginning.
    At(f64),
    /// At a frame that a process posts. A [`Fault::Cut`] then cuts the link to that frame's receiver, whatever its `to`.
    Frame {
        /// The process.
        of: u32,
        /// The frame's number among all that the process posts, from 0.
        number: u64,
    },
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A process ends, as by SIGKILL.
    Crash {
        /// The process.
        process: u32,
        /// Whether the system still sends the frames that the process has handed to it.
        sends_rest: bool,
        /// Seconds until it is restarted, if it is.
        back: Option<f64>,
    },
    /// The link from one process to another is cut.
    Cut {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// Whether the opposite direction is cut too.
        both: bool,
        /// Seconds until the link works again, and frames that were sent meanwhile arrive.
        heals: Option<f64>,
    },
    /// All links of a process are cut: its cable is pulled, or its host has no power.
    CutOff {
        /// The process.
        process: u32,
        /// Seconds until the links heal.
        heals: Option<f64>,
    },
    /// A network partition: all links between two sets of processes are cut, because the switch between them has failed.
    Partition {
        /// Processes with numbers below this one are on one side.
        below: u32,
        /// Seconds until the links heal.
        heals: Option<f64>,
    },
    /// A process is stopped; its system still acknowledges what arrives.
    Stop {
        /// The process.
        process: u32,
        /// Duration of the stop.
        seconds: f64,
    },
    /// All work of a process takes longer.
    Slow {
        /// The process.
        process: u32,
        /// The factor by which the work takes longer.
        times: f64,
    },
    /// The user interrupts a process (Ctrl-C): it leaves the call that it waits in, with an error.
    Interrupt {
        /// The process.
        process: u32,
    },
    /// Bits of a frame are flipped on its way: of the frame of [`When::Frame`], or of the first one on its way from the process.
    Corrupt {
        /// The frame's sender.
        process: u32,
    },
}

/// A fault that has struck.
#[derive(Clone, Debug, PartialEq)]
pub struct Struck {
    /// Its index in the plan.
    pub number: usize,
    /// When, in nanoseconds.
    pub at: u64,
    /// Whether a frame that the fault affects was on its way.
    pub in_flight: bool,
    /// Processes that the fault may separate from others for good.
    pub separated: Vec<u32>,
}

/// The effects of faults on a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameState {
    /// A number that is larger for each frame that is posted later.
    pub order: u64,
    /// The group that its sender was in.
    pub generation: u32,
    /// It will not arrive.
    pub lost: bool,
    /// Bits of it are flipped.
    pub corrupt: bool,
    /// It has left its sender's process, and counts as unacknowledged only.
    pub taken: bool,
    /// It waits at a cut link, possibly for ever.
    pub held: bool,
    /// `Some`: not a frame, but the end of the connection.
    pub ends: Option<Loss>,
}

/// An event of a fault, at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum FaultEvent {
    /// A planned fault.
    Strike(u32),
    /// A cut is over.
    Heal(u32, u32),
    /// Process `at` has received nothing from `of` for too long, unless cut number `cut` has healed since.
    Silent { at: u32, of: u32, cut: u64 },
    /// A process restarts.
    Restart(u32),
}

/// The effect of faults on an arriving frame.
pub(crate) enum Arrival {
    /// It is delivered.
    Frame,
    /// Its receiver gets another event in its place.
    OtherEvent,
    /// It is dropped, or waits.
    Nothing,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// In the group.
    Here,
    /// It has closed its end, and may join the next group.
    Left,
    /// It has ended.
    Crashed {
        /// Whether it will be restarted.
        back: bool,
    },
    /// It restarts now.
    Back,
}

pub(crate) struct Cut {
    /// Its number.
    pub(crate) number: u64,
    /// When it heals.
    pub(crate) until: u64,
    /// Frames that wait until then: the senders' systems retransmit them.
    pub(crate) held: Vec<u32>,
    /// Payload bytes of all frames that came to the link while it was cut.
    pub(crate) taken: usize,
}

/// The plan of faults, and their effects so far.
pub(crate) struct Faults {
    pub(crate) heartbeat: u64,
    pub(crate) plan: Vec<(When, Fault)>,
    /// Frames that each process has posted.
    pub(crate) posted: Vec<u64>,
    pub(crate) presence: Vec<Presence>,
    /// Whether each process waits for the next group.
    pub(crate) joining: Vec<bool>,
    pub(crate) generation: u32,
    /// By sender and receiver.
    pub(crate) cuts: BTreeMap<(u32, u32), Cut>,
    pub(crate) cuts_so_far: u64,
    /// Frames that are retransmitted after a cut, by sender, receiver and order: later frames arrive after them.
    pub(crate) retransmitted: BTreeSet<(u32, u32, u64)>,
    /// Connections that have ended: the process that knows it, and its peer.
    pub(crate) down: BTreeSet<(u32, u32)>,
    /// The moment until which each process is stopped.
    pub(crate) stopped: Vec<u64>,
    /// Whether each process was interrupted since it last checked; `None`: it ignores interrupts.
    pub(crate) interrupted: Vec<Option<bool>>,
    /// Draws how many of the arrived events a poll returns.
    pub(crate) polls: Pcg64,
    /// Factors on the time of work, by process.
    pub(crate) slowed: Vec<(u32, f64)>,
    pub(crate) struck: Vec<Struck>,
    pub(crate) trace: DefaultHasher,
    /// The log of events, if it was requested.
    pub(crate) log: Option<Vec<String>>,
}

impl Faults {
    pub(crate) fn new(processes: u32, heartbeat_s: f64, plan: Vec<(When, Fault)>, log: bool) -> Faults {
        let count = processes as usize;
        Faults {
            heartbeat: nanoseconds(heartbeat_s),
            plan,
            posted: vec![0; count],
            presence: vec![Presence::Left; count],
            joining: vec![false; count],
            generation: 0,
            cuts: BTreeMap::new(),
            cuts_so_far: 0,
            retransmitted: BTreeSet::new(),
            down: BTreeSet::new(),
            stopped: vec![0; count],
            interrupted: vec![Some(false); count],
            polls: Pcg64::seed_from_u64(count as u64),
            slowed: Vec::new(),
            struck: Vec::new(),
            trace: DefaultHasher::new(),
            log: log.then(Vec::new),
        }
    }

    pub(crate) fn trace(&mut self, what: &impl Hash) {
        what.hash(&mut self.trace);
    }

    /// A hash of all that has happened so far.
    pub(crate) fn hash(&self) -> u64 {
        self.trace.finish()
    }

    pub(crate) fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(text());
        }
    }

    /// Whether a frame that a process posts is sent.
    pub(crate) fn takes(&self, from: u32, to: u32, generation: u32) -> bool {
        let here = self.presence[from as usize] == Presence::Here && generation == self.generation;
        here && !self.down.contains(&(from, to))
    }

    /// Whether a process knows that its connection to another has ended.
    pub(crate) fn is_closed(&self, at: u32, of: u32) -> bool {
        self.presence[at as usize] != Presence::Here || self.down.contains(&(at, of))
    }

    pub(crate) fn is_crashed(&self, process: u32) -> bool {
        matches!(self.presence[process as usize], Presence::Crashed { .. } | Presence::Back)
    }

    pub(crate) fn all_can_join(&self) -> bool {
        self.cuts.is_empty() && self.joining.iter().all(|joining| *joining)
    }

    /// Whether a process was interrupted since it last checked.
    pub(crate) fn take_interrupt(&mut self, process: u32) -> bool {
        self.interrupted[process as usize].as_mut().is_some_and(std::mem::take)
    }

    /// From now on a process ignores interrupts.
    pub(crate) fn ignore_interrupts(&mut self, process: u32) {
        self.interrupted[process as usize] = None;
    }

    /// How many of the arrived events a poll returns: at least one. MPI returns one message per peer, a socket as much as fits
    /// a buffer.
    pub(crate) fn events_of_a_poll(&mut self, arrived: usize) -> usize {
        match arrived {
            0 | 1 => arrived,
            _ => self.polls.random_range(1..=arrived),
        }
    }

    /// All processes join a new group.
    pub(crate) fn begin_group(&mut self) {
        self.generation += 1;
        self.presence.fill(Presence::Here);
        self.joining.fill(false);
        self.down.clear();
    }
}
