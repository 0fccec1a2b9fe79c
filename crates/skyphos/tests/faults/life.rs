//! The program of each process in a play, and its results.

use crate::common::programs::{ALL, N, NON_BLOCKING, in_first_group, non_blocking_after_failure};
use crate::scenario::{Before, HEARTBEAT_S, Scenario, Then};
use skyphos::{Comm, Error, IndexList, Replication, Result, Settings, SparseVec};
use skyphos_sim::{Cluster, Outcome, Play, Played, Process};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time-out of calls, in seconds: a call that takes longer hangs.
const HANG_S: f64 = 60.0;

/// Seconds for which a process waits for the others to join.
const JOIN_TIMEOUT_S: f64 = 120.0;

/// The record of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Life {
    /// Whether it had a group at all.
    pub began: bool,
    /// Results of the calls of its last group, and the first error.
    pub results: Vec<Result<Vec<u64>>>,
    /// The result of a shrink, if there was one.
    pub shrunk: Option<Result<Shrunk>>,
    /// When it was done, in nanoseconds.
    pub done_at: u64,
    /// Nanoseconds that it took to leave the group.
    pub leave_ns: u64,
    /// Every attempt of a step, where programs repeat failed calls.
    pub tries: Vec<Try>,
}

/// One attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Try {
    pub step: usize,
    /// When it began and ended, in nanoseconds.
    pub entered: u64,
    pub left: u64,
    pub error: Option<Error>,
}

/// Upper bound on the attempts of a step: more than interrupts and errors can cause.
const MAX_TRIES: usize = 20;

/// The members after a shrink, and their sum.
pub type Shrunk = (Vec<u32>, Result<Vec<u64>>);

/// The records of all processes.
pub type Lives = Played<Life>;

pub fn play(scenario: &Scenario, log: bool) -> Lives {
    let cluster = Cluster::new(scenario.network.clone(), scenario.seed, false).unwrap();
    let play = Play { faults: scenario.faults.clone(), heartbeat_s: HEARTBEAT_S, log };
    let scenario = scenario.clone();
    let seed = scenario.seed;
    let played = cluster.play(play, move |process| live(process, &scenario));
    played.unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

fn live(process: &mut Process, scenario: &Scenario) -> Life {
    let mut life = in_group(process, scenario);
    while scenario.then == Then::Rejoin && life.results.iter().any(Result::is_err) {
        match in_group(process, scenario) {
            next if next.results.is_empty() => break, // the others do not join
            next => life = next,
        }
    }
    life
}

/// Runs a program in one group.
fn in_group(process: &mut Process, scenario: &Scenario) -> Life {
    let mut life =
        Life { began: true, results: vec![], shrunk: None, done_at: 0, leave_ns: 0, tries: vec![] };
    let Some(transport) = process.join(JOIN_TIMEOUT_S) else { return life };
    let timeout = Duration::from_secs_f64(HANG_S);
    let repeats = scenario.then == Then::Repeat;
    let interrupted: Option<fn() -> bool> = if repeats { Some(skyphos_sim::interrupted) } else { None };
    let settings = Settings { timeout, interrupted, ..Settings::default() };
    let comm = match scenario.each {
        1 => Comm::over(transport, settings),
        each => {
            Comm::replicated(transport, Replication { each, share_hosts: false }, settings, Ok((None, None)))
        }
    };
    let comm = comm.and_then(|comm| match scenario.each {
        1 => comm.agree_profile(None, false).map(|_| comm),
        _ => Ok(comm),
    });
    let comm = match comm {
        Ok(comm) => comm,
        Err(error) => {
            (life.results, life.done_at, life.began) = (vec![Err(error)], process.now(), false);
            return life;
        }
    };
    if repeats {
        repeat(process, scenario, &comm, &mut life);
        process.ignore_interrupts();
    }
    for (program, count) in scenario.steps.iter().filter(|_| !repeats) {
        life.results.push(ALL[*program].1(&comm, *count));
        if life.results.last().is_some_and(Result::is_err) {
            break;
        }
    }
    let shrinks = scenario.then == Then::Shrink && scenario.each == 1 || repeats;
    if shrinks && life.results.iter().any(Result::is_err) {
        life.shrunk = Some(shrink(&comm));
    }
    life.done_at = process.now();
    drop(comm);
    life.leave_ns = process.now() - life.done_at;
    life
}

/// Repeats each step until it succeeds, or the group has failed.
fn repeat(process: &mut Process, scenario: &Scenario, comm: &Comm, life: &mut Life) {
    for (step, (program, count)) in scenario.steps.iter().enumerate() {
        let me = process.number();
        let mut before = scenario.before.iter().filter(|(process, at, _)| (*process, *at) == (me, step));
        for number in 0.. {
            let mut fails = false;
            match before.next().map(|(.., before)| before) {
                Some(Before::Late(seconds)) => process.work(*seconds),
                Some(Before::Error) => fails = true,
                None => {}
            }
            // Drops an interrupt between two calls, which does not concern the library.
            skyphos_sim::interrupted();
            let entered = process.now();
            let result = match fails {
                // Some programs continue with the next call after a failed one.
                true if ALL[*program].0 == NON_BLOCKING && me % 2 == 1 => {
                    non_blocking_after_failure(comm, *count, Error::bad_input("no such file"))
                }
                true => Err(comm.fail_call(Error::bad_input("no such file"))),
                false => ALL[*program].1(comm, *count),
            };
            let error = result.as_ref().err().cloned();
            let is_last = match &error {
                None => true,
                Some(Error::Diverged { .. } | Error::PeerLost { .. } | Error::Timeout { .. }) => true,
                Some(_) => number == MAX_TRIES,
            };
            life.tries.push(Try { step, entered, left: process.now(), error });
            if is_last {
                life.results.push(result);
                break;
            }
        }
        if life.results.last().is_some_and(Result::is_err) {
            return;
        }
    }
}

/// Shrinks the group and makes a sum in the new one.
fn shrink(comm: &Comm) -> Result<Shrunk> {
    let mut tries = 0;
    let smaller = loop {
        match comm.shrink() {
            Err(Error::Timeout { .. }) if tries < 3 => tries += 1,
            other => break other?,
        }
    };
    let members: Vec<u32> = (0..smaller.size()).map(|rank| smaller.world_rank(rank)).collect();
    // Each rank adds 1 to entry 0, and to an entry of its own.
    let mine = vec![0, 1 + comm.rank()];
    let mine = SparseVec::new(N, 1, IndexList::Narrow(mine), vec![1.0; 2]).unwrap();
    let sum = smaller.allreduce(&mine).run().map(|done| done.sum);
    Ok((
        members,
        sum.map(|sum| {
            sum.entries().0.into_iter().chain(sum.entries().1.into_iter().map(f64::to_bits)).collect()
        })
        .map_err(|error| in_first_group(comm, &smaller, error)),
    ))
}

/// Each rank's result of each step, by the number of ranks and the steps.
type Known = HashMap<(u32, Vec<(usize, usize)>), Arc<Vec<Vec<Vec<u64>>>>>;

/// Each rank's results of undisturbed calls without replicas. A call's result may depend on earlier calls.
pub fn oracle(scenario: &Scenario) -> Arc<Vec<Vec<Vec<u64>>>> {
    static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
    let key = (scenario.ranks(), scenario.steps.clone());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    // Random scenarios do not repeat, so their results are not stored.
    let keep = scenario.steps.len() == 1;
    if let Some(found) = known().get_or_insert_default().get(&key).filter(|_| keep) {
        return found.clone();
    }
    let played = play(&Scenario::quiet(scenario.ranks(), 1, scenario.steps.clone()), false);
    let results = |outcome: &Outcome<Life>| match outcome {
        Outcome::Done(life) => life.results.iter().map(|result| result.clone().unwrap()).collect(),
        other => panic!("undisturbed: {other:?} of {:?}", scenario.steps),
    };
    let all = Arc::new(played.outcomes.iter().map(results).collect::<Vec<_>>());
    if keep {
        known().get_or_insert_default().insert(key, all.clone());
    }
    all
}
