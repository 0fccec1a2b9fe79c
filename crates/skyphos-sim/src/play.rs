//! Whole programs on a simulated cluster, with faults.
//!
//! A program is the code of a process of a real group: it joins, makes blocking calls, and leaves. Processes take turns on one
//! thread. The virtual clock determines the turns, and the seed determines everything.

use crate::cluster::{Cluster, too_late};
use crate::coroutine::{SimProcess, park};
use crate::faults::{Fault, Faults, Struck, When};
use crate::time::{MAX_NS, nanoseconds};
use crate::transport::{Crashed, Shared, Sim, Slowness};
use crate::world::World;
use skyphos_core::clock::VirtualClock;
use skyphos_core::transport::{Loss, Transport};
use skyphos_types::{Error, Result};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

/// The scenario of a play.
#[derive(Clone, Debug, Default)]
pub struct Play {
    /// The faults, with their times.
    pub faults: Vec<(When, Fault)>,
    /// Seconds of silence after which a link counts as cut.
    pub heartbeat_s: f64,
    /// Whether to keep a log of events.
    pub log: bool,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<R> {
    /// Its program returned.
    Done(R),
    /// A fault ended it.
    Crashed,
    /// Its program panicked, with this message.
    Panicked(String),
}

/// The outcome of a play.
#[derive(Clone, Debug)]
pub struct Played<R> {
    /// The end of each process; for a restarted one, its last end.
    pub outcomes: Vec<Outcome<R>>,
    /// Faults that struck, in order.
    pub struck: Vec<Struck>,
    /// Frames that each process has posted.
    pub posted: Vec<u64>,
    /// The time of the end, in nanoseconds.
    pub end: u64,
    /// A hash of all events and their times.
    pub trace: u64,
    /// Buffers that were still in use after the end.
    pub buffers_in_use: usize,
    /// The log of events, if it was requested.
    pub log: Vec<String>,
}

thread_local! {
    /// The process whose turn it is on this thread.
    static CURRENT: RefCell<Option<(Arc<Shared>, u32)>> = const { RefCell::new(None) };
}

/// Whether the process whose turn it is has been interrupted since the last call. Its node's settings name this function.
pub fn interrupted() -> bool {
    let current = CURRENT.with(|current| current.borrow().clone());
    current.is_some_and(|(shared, process)| shared.world().faults().take_interrupt(process))
}

/// A process, for its program.
pub struct Process {
    number: u32,
    shared: Arc<Shared>,
    clock: Arc<VirtualClock>,
    slowness: Arc<Slowness>,
}

impl Process {
    /// The process's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Nanoseconds since the play began.
    pub fn now(&self) -> u64 {
        self.clock.at()
    }

    /// Computes for `seconds` seconds, or longer if the process is slow. Frames that arrive meanwhile wait for the next poll.
    pub fn work(&mut self, seconds: f64) {
        self.clock.advance_by(nanoseconds(seconds * self.slowness.get()));
        let until = self.clock.at();
        while self.shared.world().has_more_before(until) {
            self.shared.world().wake(self.number, until);
            park();
        }
    }

    /// From now on the process continues when it is interrupted.
    pub fn ignore_interrupts(&mut self) {
        self.shared.world().faults().ignore_interrupts(self.number);
    }

    /// Joins the next group once all processes wait for it; `None` if they do not within `timeout_s` seconds. Frames of
    /// earlier groups are dropped.
    pub fn join(&mut self, timeout_s: f64) -> Option<Box<dyn Transport>> {
        let until = self.clock.at() + nanoseconds(timeout_s);
        let last_generation = self.shared.world().join(self.number, self.clock.at());
        loop {
            let generation = self.shared.world().generation();
            if generation != last_generation {
                let (shared, clock) = (self.shared.clone(), self.clock.clone());
                let slowness = self.slowness.clone();
                let sim = Sim { rank: self.number, shared, clock, slowness, generation, waits: true };
                return Some(Box::new(sim));
            }
            if self.clock.at() >= until || self.shared.is_crashed(self.number) {
                self.shared.world().join_no_more(self.number);
                return None;
            }
            self.shared.world().wake(self.number, until);
            park();
        }
    }
}

impl World {
    fn generation(&self) -> u32 {
        self.faults.as_ref().map_or(0, |faults| faults.generation)
    }

    /// A process waits for the next group, which begins once all processes wait. Returns the number of the last group.
    fn join(&mut self, process: u32, time: u64) -> u32 {
        self.close(process, time, self.generation());
        let faults = self.faults();
        let last_generation = faults.generation;
        faults.joining[process as usize] = true;
        self.begin_if_all_join(time);
        last_generation
    }

    /// A group begins once all wait for it and can reach each other.
    pub(crate) fn begin_if_all_join(&mut self, time: u64) {
        if self.faults().all_can_join() {
            self.faults().begin_group();
            self.forget_pairs();
            (0..self.network.ranks).for_each(|process| self.wake(process, time));
        }
    }

    fn join_no_more(&mut self, process: u32) {
        self.faults().joining[process as usize] = false;
    }

    /// A process leaves its group in order.
    pub(crate) fn close(&mut self, process: u32, time: u64, generation: u32) {
        if generation == self.generation() {
            self.end(process, Loss::Left, true, time);
        }
    }
}

impl Cluster {
    /// Runs a program on all processes until each has ended. Returns an error if the simulation cannot continue.
    pub fn play<R: 'static>(
        self,
        play: Play,
        program: impl Fn(&mut Process) -> R + 'static,
    ) -> Result<Played<R>> {
        let all = self.clocks.len();
        let program: Rc<dyn Fn(&mut Process) -> R> = Rc::new(program);
        {
            let mut world = self.shared.world();
            world.plan_faults(Faults::new(all as u32, play.heartbeat_s, play.faults, play.log));
            (0..all as u32).for_each(|process| world.wake(process, 0));
        }
        let start = |number: usize| {
            let (shared, clock) = (self.shared.clone(), self.clocks[number].clone());
            let mut process =
                Process { number: number as u32, shared, clock, slowness: self.slowness[number].clone() };
            let program = program.clone();
            Some(SimProcess::new(move || catch_unwind(AssertUnwindSafe(|| program(&mut process)))))
        };
        let mut turns: Vec<_> = (0..all).map(start).collect();
        let mut outcomes: Vec<Option<Outcome<R>>> = (0..all).map(|_| None).collect();
        while outcomes.iter().any(Option::is_none) {
            let next = self.shared.world().run(|process| self.clocks[process as usize].at());
            let Some((process, time)) = next else {
                let waiting: Vec<usize> = (0..all).filter(|process| outcomes[*process].is_none()).collect();
                return Err(Error::bad_input(format!(
                    "the play cannot end: processes {waiting:?} wait, and no event is left"
                )));
            };
            let number = process as usize;
            self.clocks[number].advance_to(time);
            if time > MAX_NS {
                return Err(too_late());
            }
            for (process, times) in std::mem::take(&mut self.shared.world().faults().slowed) {
                self.slowness[process as usize].multiply(times);
            }
            if turns[number].is_none() && self.shared.world().take_restart(process) {
                (turns[number], outcomes[number]) = (start(number), None);
            }
            CURRENT.set(Some((self.shared.clone(), process)));
            let result = turns[number].as_mut().and_then(SimProcess::resume);
            CURRENT.set(None);
            let Some(result) = result else { continue };
            turns[number] = None;
            let crashed = self.shared.is_crashed(process);
            // The end of a process closes its open connections.
            self.shared.world().end(process, Loss::Ended, true, self.clocks[number].at());
            outcomes[number] = Some(match result {
                _ if crashed => Outcome::Crashed,
                Ok(result) => Outcome::Done(result),
                Err(cause) if cause.is::<Crashed>() => Outcome::Crashed,
                Err(cause) => Outcome::Panicked(panic_message(&*cause)),
            });
            if crashed && self.shared.world().will_restart(process) {
                outcomes[number] = None;
                self.shared.world().wake(process, self.clocks[number].at());
            }
        }
        let end = self.clocks.iter().map(|clock| clock.at()).max().unwrap_or(0);
        let mut world = self.shared.world();
        world.drop_frames();
        let buffers_in_use = self.shared.pool.in_use();
        let faults = world.faults();
        let (struck, posted) = (std::mem::take(&mut faults.struck), std::mem::take(&mut faults.posted));
        let trace = faults.hash();
        let log = faults.log.take().unwrap_or_default();
        drop(world);
        let outcomes = outcomes.into_iter().map(|outcome| outcome.expect("all have ended")).collect();
        Ok(Played { outcomes, struck, posted, end, trace, buffers_in_use, log })
    }
}

/// The message of a panic.
fn panic_message(cause: &(dyn std::any::Any + Send)) -> String {
    let text = cause.downcast_ref::<String>().cloned();
    text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
