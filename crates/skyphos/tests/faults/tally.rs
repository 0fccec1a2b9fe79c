//! Statistics over many plays.

use crate::check::check;
use crate::life::{Life, Lives, play};
use crate::scenario::{Before, Scenario};
use serde::{Deserialize, Serialize};
use skyphos::Error;
use skyphos_sim::{Fault, Outcome};
use std::collections::BTreeMap;

/// Counts that can be saved and added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    pub plays: u64,
    /// Plays by number of processes.
    pub sizes: BTreeMap<u32, u64>,
    /// By kind of fault: the number that struck, and the number of those that struck a frame in flight.
    pub struck: BTreeMap<String, (u64, u64)>,
    /// Events before calls, where programs repeat failed calls.
    pub before: BTreeMap<String, u64>,
    /// Repeated calls, and calls that ended a group because ranks disagreed on the calls that had succeeded.
    pub repeated: u64,
    pub diverged: u64,
    /// Number of processes by kind of end.
    pub ends: BTreeMap<String, u64>,
    /// Calls with the right result.
    pub right: u64,
    /// Processes that continued in a smaller group.
    pub shrunk: u64,
    /// Simulated seconds.
    pub seconds: f64,
    /// Descriptions of violated invariants.
    pub wrong: Vec<String>,
}

impl Tally {
    /// Plays a scenario and checks it.
    pub fn play(scenario: &Scenario) -> Tally {
        let lives = play(scenario, false);
        let mut tally = Tally { plays: 1, seconds: lives.end as f64 / 1e9, ..Tally::default() };
        tally.sizes.insert(scenario.processes, 1);
        tally.count(scenario, &lives);
        if let Err(what) = check(scenario, &lives) {
            let Scenario { seed, processes, each, then, faults, before, .. } = scenario;
            tally.wrong.push(format!(
                "seed {seed}: {what}\n  {processes} processes, {each} per rank, {then:?}: {faults:?} {before:?}"
            ));
        }
        tally
    }

    fn count(&mut self, scenario: &Scenario, lives: &Lives) {
        for struck in &lives.struck {
            let counts = self.struck.entry(name(&scenario.faults[struck.number].1).to_owned()).or_default();
            (counts.0, counts.1) = (counts.0 + 1, counts.1 + u64::from(struck.in_flight));
        }
        for (.., before) in &scenario.before {
            let name = match before {
                Before::Late(_) => "late entry",
                Before::Error => "error before entry",
            };
            *self.before.entry(name.to_owned()).or_default() += 1;
        }
        for outcome in &lives.outcomes {
            if let Outcome::Done(life) = outcome {
                let failed = |which: fn(&Error) -> bool| {
                    life.tries.iter().filter_map(|one| one.error.as_ref()).filter(|e| which(e)).count() as u64
                };
                self.repeated += failed(|error| !matches!(error, Error::Diverged { .. }));
                self.diverged += failed(|error| matches!(error, Error::Diverged { .. }));
            }
            let end = match outcome {
                Outcome::Crashed => "crashed",
                Outcome::Panicked(_) => "panicked",
                Outcome::Done(Life { results, shrunk, .. }) => {
                    self.right += results.iter().filter(|result| result.is_ok()).count() as u64;
                    self.shrunk += u64::from(matches!(shrunk, Some(Ok(_))));
                    let failed = results.iter().any(Result::is_err);
                    if failed { "an error" } else { "all results" }
                }
            };
            *self.ends.entry(end.to_owned()).or_default() += 1;
        }
    }

    pub fn add(&mut self, other: Tally) {
        self.plays += other.plays;
        other.sizes.into_iter().for_each(|(size, count)| *self.sizes.entry(size).or_default() += count);
        for (kind, (all, in_flight)) in other.struck {
            let counts = self.struck.entry(kind).or_default();
            (counts.0, counts.1) = (counts.0 + all, counts.1 + in_flight);
        }
        other.ends.into_iter().for_each(|(end, count)| *self.ends.entry(end).or_default() += count);
        other.before.into_iter().for_each(|(name, count)| *self.before.entry(name).or_default() += count);
        self.repeated += other.repeated;
        self.diverged += other.diverged;
        self.right += other.right;
        self.shrunk += other.shrunk;
        self.seconds += other.seconds;
        self.wrong.extend(other.wrong);
    }

    /// The median number of processes of a play.
    pub fn median_size(&self) -> u32 {
        let mut below = 0;
        for (size, count) in &self.sizes {
            below += count;
            if 2 * below > self.plays {
                return *size;
            }
        }
        0
    }

    /// Faults that struck, and those that struck a frame in flight. Interrupts are excluded: an interrupted rank may wait for a rank
    /// that computes, with no frame in flight.
    pub fn faults(&self) -> (u64, u64) {
        let without_interrupts = self.struck.iter().filter(|(name, _)| *name != "interrupt");
        without_interrupts
            .fold((0, 0), |(all, in_flight), (_, counts)| (all + counts.0, in_flight + counts.1))
    }
}

fn name(fault: &Fault) -> &'static str {
    match fault {
        Fault::Crash { back: None, .. } => "crash",
        Fault::Crash { .. } => "crash and restart",
        Fault::Cut { both: true, heals: None, .. } => "cut link",
        Fault::Cut { both: true, .. } => "delayed link",
        Fault::Cut { heals: None, .. } => "link cut one way",
        Fault::Cut { .. } => "link delayed one way",
        Fault::CutOff { heals: None, .. } => "host cut off",
        Fault::CutOff { .. } => "host delayed",
        Fault::Partition { heals: None, .. } => "partition",
        Fault::Partition { .. } => "partition for a while",
        Fault::Stop { .. } => "stopped process",
        Fault::Slow { .. } => "slow host",
        Fault::Corrupt { .. } => "corrupted frame",
        Fault::Interrupt { .. } => "interrupt",
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (all, in_flight) = self.faults();
        writeln!(
            f,
            "{} plays of {:.0} simulated seconds, half of them with {} processes or more",
            self.plays,
            self.seconds,
            self.median_size()
        )?;
        writeln!(
            f,
            "{all} faults other than interrupts, {:.1} % of them at frames in flight:",
            100.0 * in_flight as f64 / all.max(1) as f64
        )?;
        for (kind, (all, in_flight)) in &self.struck {
            writeln!(f, "  {all:9} {kind} ({in_flight})")?;
        }
        for (name, count) in &self.before {
            writeln!(f, "  {count:9} {name}")?;
        }
        writeln!(
            f,
            "{} calls repeated, {} ended a group whose ranks disagreed",
            self.repeated, self.diverged
        )?;
        writeln!(f, "processes ended with:")?;
        for (end, count) in &self.ends {
            writeln!(f, "  {count:9} {end}")?;
        }
        writeln!(f, "{} right results; {} processes went on in a smaller group", self.right, self.shrunk)?;
        write!(f, "{} plays with something wrong", self.wrong.len())?;
        self.wrong.iter().take(10).try_for_each(|what| write!(f, "\n{what}"))
    }
}
