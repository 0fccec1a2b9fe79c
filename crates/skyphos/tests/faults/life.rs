//! What each process does in a play, and what must come of it.

use crate::common::programs::{ALL, N};
use crate::scenario::{HEARTBEAT_S, Scenario, Then};
use skyphos::{AllreduceOptions, Comm, Error, IndexList, ReduceOp, Replication, Result, Settings, SparseVec};
use skyphos_sim::{Cluster, Fault, Outcome, Play, Played, Process};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Seconds without progress after which a call has failed to notice what is wrong: a hang.
const HANG_S: f64 = 60.0;

/// Seconds that whoever joins again waits for the others.
const PATIENCE_S: f64 = 120.0;

/// What a process has seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Life {
    /// Results of the calls of its last group, and the first error.
    results: Vec<Result<Vec<u64>>>,
    /// When those were over, in nanoseconds.
    over: u64,
    /// Who went on after a shrink, and the sum that they have.
    left: Option<Result<(Vec<u32>, Result<Vec<u64>>)>>,
}

/// What all processes have seen.
pub type Lives = Played<Life>;

pub fn play(scenario: &Scenario, log: bool) -> Lives {
    let cluster = Cluster::new(scenario.network.clone(), scenario.seed, false).unwrap();
    let play = Play { faults: scenario.faults.clone(), heartbeat_s: HEARTBEAT_S, log };
    let scenario = scenario.clone();
    cluster.play(play, move |process| live(process, &scenario)).unwrap()
}

fn live(process: &mut Process, scenario: &Scenario) -> Life {
    let mut life = in_group(process, scenario);
    while scenario.then == Then::Rejoin && life.results.iter().any(Result::is_err) {
        match in_group(process, scenario) {
            next if next.results.is_empty() => break, // the others do not come
            next => life = next,
        }
    }
    life
}

/// A group from beginning to end.
fn in_group(process: &mut Process, scenario: &Scenario) -> Life {
    let mut life = Life { results: vec![], over: 0, left: None };
    let Some(transport) = process.join(PATIENCE_S) else { return life };
    let settings = Settings { timeout: Duration::from_secs_f64(HANG_S), ..Settings::default() };
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
            (life.results, life.over) = (vec![Err(error)], process.now());
            return life;
        }
    };
    for (program, count) in &scenario.steps {
        life.results.push(ALL[*program].1(&comm, *count));
        if life.results.last().is_some_and(Result::is_err) {
            break;
        }
    }
    life.over = process.now();
    if scenario.then == Then::Shrink && scenario.each == 1 && life.results.iter().any(Result::is_err) {
        life.left = Some(shrink(&comm));
    }
    life
}

/// Goes on with those that are left.
fn shrink(comm: &Comm) -> Result<(Vec<u32>, Result<Vec<u64>>)> {
    let left = loop {
        match comm.shrink() {
            Err(Error::Timeout { .. }) => {}
            other => break other?,
        }
    };
    let members: Vec<u32> = (0..left.size()).map(|rank| left.world_rank(rank)).collect();
    // Everyone counts at the first place, and at one of its own.
    let mine = vec![0, 1 + comm.rank()];
    let mine = SparseVec::new(N, 1, IndexList::Narrow(mine), vec![1.0; 2]).unwrap();
    let sum = left.allreduce(N, 1, mine.view(), &ReduceOp::Sum, &AllreduceOptions::default());
    Ok((
        members,
        sum.map(|sum| {
            sum.entries().0.into_iter().chain(sum.entries().1.into_iter().map(f64::to_bits)).collect()
        }),
    ))
}

/// What every rank has after a call that nothing disturbs.
pub fn oracle(ranks: u32, program: usize, count: usize) -> Arc<Vec<Vec<u64>>> {
    type Known = HashMap<(u32, usize, usize), Arc<Vec<Vec<u64>>>>;
    static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
    let key = (ranks, program, count);
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known().get_or_insert_default().get(&key) {
        return found.clone();
    }
    let played = play(&Scenario::quiet(ranks, 1, program, count), false);
    let of = |outcome: &Outcome<Life>| match outcome {
        Outcome::Done(life) => life.results[0].clone().unwrap(),
        other => panic!("{} alone: {other:?}", ALL[program].0),
    };
    let all = Arc::new(played.outcomes.iter().map(of).collect::<Vec<_>>());
    known().get_or_insert_default().insert(key, all.clone());
    all
}

/// What is wrong with a play; nothing, if all is well.
pub fn check(scenario: &Scenario, lives: &Lives) -> std::result::Result<(), String> {
    let touched = lives.struck.iter().flat_map(|struck| struck.parted.iter().copied()).collect();
    if lives.held > 0 {
        return Err(format!("{} buffers were never given back", lives.held));
    }
    let last_fault = lives.struck.iter().map(|struck| struck.at).max().unwrap_or(0);
    let wait: f64 = scenario.faults.iter().map(|(_, fault)| lasts(fault)).sum();
    let soon = last_fault + ((HEARTBEAT_S + 3.0 + wait) * 1e9) as u64;
    for (process, outcome) in (0..).zip(&lives.outcomes) {
        match outcome {
            Outcome::Crashed => {}
            Outcome::Panicked(text) => return Err(format!("process {process} panicked: {text}")),
            Outcome::Done(life) => {
                check_life(scenario, life, process, &touched)
                    .map_err(|what| format!("process {process}: {what}"))?;
                if life.over > soon && scenario.then != Then::Rejoin {
                    return Err(format!("process {process} was held up until {} ns, not {soon}", life.over));
                }
            }
        }
    }
    check_shrunk(lives)
}

/// Seconds by which a fault holds others up that it does not end.
fn lasts(fault: &Fault) -> f64 {
    match fault {
        Fault::Stop { seconds, .. } => *seconds,
        Fault::Cut { heals: Some(heals), .. } | Fault::CutOff { heals: Some(heals), .. } => {
            heals.min(HEARTBEAT_S)
        }
        Fault::Slow { times, .. } => times / 100.0,
        _ => 0.0,
    }
}

fn check_life(
    scenario: &Scenario,
    life: &Life,
    process: u32,
    touched: &BTreeSet<u32>,
) -> std::result::Result<(), String> {
    let ranks = scenario.ranks();
    for ((program, count), result) in scenario.steps.iter().zip(&life.results) {
        if let Ok(got) = result {
            let want = &oracle(ranks, *program, *count)[(process % ranks) as usize];
            if got != want {
                return Err(format!("{} has a wrong result", ALL[*program].0));
            }
        }
    }
    let Some(error) = life.results.iter().find_map(|result| result.as_ref().err()) else {
        return match life.results.len() == scenario.steps.len() || scenario.then == Then::Rejoin {
            true => Ok(()),
            false => Err("it did not join".to_owned()),
        };
    };
    let rank_of = |process: &u32| process % ranks;
    let lives_on = |rank: u32| (0..scenario.processes).any(|p| rank_of(&p) == rank && !touched.contains(&p));
    if !touched.contains(&process) && (0..ranks).all(lives_on) {
        return Err(format!("each rank has a process that lives, and yet: {error}"));
    }
    match error {
        Error::PeerLost { rank, .. } if touched.iter().any(|process| rank_of(process) == *rank) => Ok(()),
        _ => Err(format!("an error that should not be: {error}")),
    }
}

/// Those who go on after a shrink agree on who they are, and have the same sum.
fn check_shrunk(lives: &Lives) -> std::result::Result<(), String> {
    let shrunk = |outcome: &Outcome<Life>| match outcome {
        Outcome::Done(Life { left: Some(Ok(left)), .. }) => Some(left.clone()),
        _ => None,
    };
    let groups: Vec<_> =
        (0..).zip(lives.outcomes.iter().map(shrunk)).filter_map(|(p, g)| g.map(|g| (p, g))).collect();
    for (process, (members, sum)) in &groups {
        if *members != groups[0].1.0 || !members.contains(process) {
            return Err(format!("groups after a shrink: {groups:?}"));
        }
        if let Ok(sum) = sum {
            let places = [0].into_iter().chain(members.iter().map(|member| 1 + u64::from(*member)));
            let counts = [members.len() as f64].into_iter().chain(members.iter().map(|_| 1.0));
            let want: Vec<u64> = places.chain(counts.map(f64::to_bits)).collect();
            if *sum != want {
                return Err(format!("process {process} has a wrong sum of {members:?}: {sum:?}"));
            }
        }
    }
    Ok(())
}
