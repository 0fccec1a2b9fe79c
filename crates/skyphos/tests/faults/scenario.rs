//! Scenarios: the calls of each process, and the faults. A scenario follows from a seed.

use crate::common::programs::ALL;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use skyphos_sim::{Distribution, Fault, Network, When};

/// Seconds of silence after which a link counts as cut.
pub const HEARTBEAT_S: f64 = 10.0;

/// The behaviour of processes after a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// They leave.
    Leave,
    /// The survivors shrink the group and continue.
    Shrink,
    /// All, restarted or not, join again and begin from the start.
    Rejoin,
    /// They repeat the failed call, like a program that survives Ctrl-C. If ranks disagree on the calls that have
    /// succeeded, they continue in a new group.
    Repeat,
}

/// An event on a process before it enters a step for the first time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Before {
    /// It computes for some seconds: the others are in the call already, or have left it.
    Late(f64),
    /// It finds an error, and makes the call fail on all ranks.
    Error,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub processes: u32,
    /// Replicas of each rank.
    pub each: u32,
    pub network: Network,
    /// For each step its program, an index into `ALL`, and the amount of data of each rank.
    pub steps: Vec<(usize, usize)>,
    pub faults: Vec<(When, Fault)>,
    pub then: Then,
    /// Events, each with its process and its step: `(process, step, event)`.
    pub before: Vec<(u32, usize, Before)>,
}

impl Scenario {
    /// A scenario of some calls without faults.
    pub fn quiet(ranks: u32, each: u32, steps: Vec<(usize, usize)>) -> Scenario {
        let network = Network::new(ranks * each, 1e9, 20e-6);
        let (faults, then, before) = (vec![], Then::Leave, vec![]);
        Scenario { seed: 0, processes: ranks * each, each, network, steps, faults, then, before }
    }

    pub fn ranks(&self) -> u32 {
        self.processes / self.each
    }

    pub fn from_seed(seed: u64) -> Scenario {
        let mut random = Pcg64::seed_from_u64(seed);
        let processes = random.random_range(2..=15);
        let each = *[1, 1, 2, 2, 2, 3].choose(&mut random).expect("not empty");
        let each = if each > processes { 1 } else { each };
        let rate = 10f64.powf(random.random_range(7.5..9.5));
        let mut network = Network::new(processes, rate, 10f64.powf(random.random_range(-5.0..-3.0)));
        if random.random() {
            network.jitter = Distribution::Exponential(network.latency_s * 2.0);
        }
        if random.random() {
            network.start = Distribution::Exponential(1e-3);
        }
        let mut steps: Vec<(usize, usize)> = (0..random.random_range(1..=4))
            .map(|_| {
                let count = *[0, 3, 40, 40, 700, 700, 700, 6000].choose(&mut random).expect("not empty");
                (random.random_range(0..ALL.len()), count)
            })
            .collect();
        // A second generator: its draws do not change those of `random`.
        let mut second = Pcg64::seed_from_u64(!seed);
        // Some programs repeat the same call many times, so that the tuner takes new surveys.
        if second.random_bool(0.1) {
            let (program, count) = steps[0];
            steps = vec![(program, count.min(700)); second.random_range(6..=16)];
        }
        let then = *[Then::Leave, Then::Shrink, Then::Rejoin].choose(&mut random).expect("not empty");
        let mut faults: Vec<_> = (0..*[0, 1, 1, 1, 2, 2, 3, 5].choose(&mut random).expect("not empty"))
            .map(|_| fault(&mut random, processes, then))
            .collect();
        // One slow process is enough: the delays of several may exceed the time-out of a call.
        let mut slow = 0;
        faults.retain(|(_, fault)| {
            slow += u32::from(matches!(fault, Fault::Slow { .. }));
            slow <= 1 || !matches!(fault, Fault::Slow { .. })
        });
        let scenario = Scenario { seed, processes, each, network, steps, faults, then, before: vec![] };
        // Interrupts need programs in which the same call fails on all ranks. In sub-groups, and at the two ends of a message,
        // different calls may fail.
        let is_group_wide = !["split", "messages"].contains(&ALL[scenario.steps[0].0].0);
        if second.random_bool(0.25) && is_group_wide { scenario.interrupted(&mut second) } else { scenario }
    }

    /// A scenario without losses. Ranks are late, find errors before they enter, and are interrupted before, while and after others
    /// enter. All steps run the same program with different sizes, so that results of different steps differ.
    fn interrupted(self, random: &mut Pcg64) -> Scenario {
        let (program, count) = self.steps[0];
        let steps: Vec<_> = (0..random.random_range(2..=4)).map(|k| (program, count.min(700) + k)).collect();
        let process = |random: &mut Pcg64| random.random_range(0..self.processes);
        let mut before: Vec<_> = (0..random.random_range(1..=4))
            .map(|_| {
                // At about the same time as others, or long after all messages of the others have arrived.
                let seconds = match random.random_bool(0.4) {
                    true => random.random_range(0.6..3.0),
                    false => 10f64.powf(random.random_range(-5.0..0.0)),
                };
                (process(random), random.random_range(0..steps.len()), Before::Late(seconds))
            })
            .collect();
        // Interrupts may strike at about the time at which a late rank enters, so that either is first.
        let total_late_s: f64 =
            before.iter().map(|(.., late)| if let Before::Late(s) = late { *s } else { 0.0 }).sum();
        if random.random_bool(0.3) {
            before.push((process(random), random.random_range(0..steps.len()), Before::Error));
        }
        let mut faults: Vec<_> = (0..random.random_range(1..=4))
            .map(|_| {
                let interrupted = process(random);
                let when = match random.random_range(0..3) {
                    0 => When::Frame {
                        of: process(random),
                        number: 2f64.powf(random.random_range(0.0..8.0)) as u64 - 1,
                    },
                    1 => When::At(total_late_s * random.random_range(0.0..1.2)),
                    _ => When::At(10f64.powf(random.random_range(-4.0..0.0))),
                };
                (when, Fault::Interrupt { process: interrupted })
            })
            .collect();
        if random.random_bool(0.2) {
            let when = When::Frame { of: process(random), number: random.random_range(0..60) };
            faults.push((
                when,
                Fault::Stop { process: process(random), seconds: random.random_range(0.0..2.0) },
            ));
        }
        Scenario { each: 1, steps, faults, then: Then::Repeat, before, ..self }
    }
}

fn fault(random: &mut Pcg64, processes: u32, then: Then) -> (When, Fault) {
    let process = random.random_range(0..processes);
    let other = (process + random.random_range(1..processes)) % processes;
    let when = match random.random_range(0..8) {
        0 => When::At(10f64.powf(random.random_range(-5.0..-1.5))),
        _ => When::Frame { of: process, number: 2f64.powf(random.random_range(0.0..8.0)) as u64 - 1 },
    };
    // Some stops and cuts are long enough to count as a loss, and some are not; some cuts never heal.
    let seconds = 10f64.powf(random.random_range(-4.0..1.5));
    let heals = random.random_bool(0.6).then_some(seconds);
    let fault = match random.random_range(0..13) {
        0..4 => {
            let back = (then == Then::Rejoin).then(|| 10f64.powf(random.random_range(-4.0..0.5)));
            Fault::Crash { process, sends_rest: random.random(), back }
        }
        4..6 => Fault::Cut { from: process, to: other, both: true, heals },
        6 => Fault::Cut { from: process, to: other, both: false, heals },
        7..9 => Fault::CutOff { process, heals },
        9 => Fault::Stop { process, seconds: seconds.min(20.0) },
        10 => Fault::Slow { process, times: 10f64.powf(random.random_range(0.5..4.0)) },
        11 => Fault::Partition { below: random.random_range(1..processes), heals },
        _ => Fault::Corrupt { process },
    };
    (when, fault)
}
