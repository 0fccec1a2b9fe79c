//! Invariants of a play, whatever faults it has.

use crate::common::programs::ALL;
use crate::life::{Life, Lives, Shrunk, Try, oracle};
use crate::scenario::{Before, HEARTBEAT_S, Scenario, Then};
use skyphos::Error;
use skyphos_sim::{Fault, Outcome};
use std::collections::BTreeSet;

/// Seconds after the last fault, and after the delays of the faults, within which all live processes are done.
const RECOVERY_S: f64 = HEARTBEAT_S + 3.0;

/// Nanoseconds within which a process leaves a group, if every lost process has crashed.
const LEAVING_NS: u64 = 1_000_000_000;

/// Facts about a play that its processes do not know.
struct Facts<'a> {
    scenario: &'a Scenario,
    /// Processes that a fault may have separated from others.
    separated: BTreeSet<u32>,
    /// Processes that have no result.
    failed: BTreeSet<u32>,
    /// Whether every process that returned had a group.
    all_began: bool,
    /// The results of each rank in each step of an undisturbed run.
    undisturbed: &'a [Vec<Vec<u64>>],
}

/// Checks a play. The error describes a violated invariant.
pub fn check(scenario: &Scenario, lives: &Lives) -> Result<(), String> {
    if lives.buffers_in_use > 0 {
        return Err(format!("{} buffers are still in use", lives.buffers_in_use));
    }
    let has_results = |outcome: &Outcome<Life>| matches!(outcome, Outcome::Done(life) if life.results.iter().all(Result::is_ok));
    let began = |outcome: &Outcome<Life>| !matches!(outcome, Outcome::Done(life) if !life.began);
    let facts = Facts {
        scenario,
        separated: lives.struck.iter().flat_map(|struck| struck.separated.iter().copied()).collect(),
        failed: (0..)
            .zip(&lives.outcomes)
            .filter(|(_, outcome)| !has_results(outcome))
            .map(|(p, _)| p)
            .collect(),
        all_began: lives.outcomes.iter().all(began),
        undisturbed: &oracle(scenario),
    };
    let last_fault = lives.struck.iter().map(|struck| struck.at).max().unwrap_or(0);
    let deadline = last_fault + ((RECOVERY_S + delay_s(scenario)) * 1e9) as u64;
    for (process, outcome) in (0..).zip(&lives.outcomes) {
        let checked = match outcome {
            Outcome::Crashed => Ok(()),
            Outcome::Panicked(text) => Err(format!("it panicked: {text}")),
            Outcome::Done(life) if life.done_at > deadline && scenario.then != Then::Rejoin => {
                Err(format!("it was done at {} ns, later than {deadline} ns", life.done_at))
            }
            Outcome::Done(life) if life.leave_ns > LEAVING_NS && all_crashes(scenario) => {
                Err(format!("it took {} ns to leave", life.leave_ns))
            }
            Outcome::Done(life) => check_life(&facts, life, process),
        };
        checked.map_err(|what| format!("process {process}: {what}"))?;
    }
    if scenario.then == Then::Repeat {
        check_repeated(scenario, lives)?;
    }
    check_shrunk(&facts, lives)
}

/// Nanoseconds within which a message arrives and a stopped rank continues, if nothing is lost.
fn delivery_ns(scenario: &Scenario) -> u64 {
    ((0.5 + fault_delay_s(scenario)) * 1e9) as u64
}

/// Checks programs that repeat failed calls: a process that enters a call after another has left it with an error raises an error;
/// in the end all processes have all results, or all know that they disagree.
fn check_repeated(scenario: &Scenario, lives: &Lives) -> Result<(), String> {
    let done = lives.outcomes.iter().map(|outcome| match outcome {
        Outcome::Done(life) => Ok(life),
        other => Err(format!("no rank was lost, but {other:?}")),
    });
    let all: Vec<&Life> = done.collect::<Result<_, _>>()?;
    if all.iter().any(|life| !life.began) {
        return Ok(()); // an interrupt ended the start of the group
    }
    let max_tries = all.iter().map(|life| life.tries.len()).max().unwrap_or(0);
    for k in 0..max_tries {
        let tries = || (0..).zip(&all).filter_map(|(process, life)| Some((process, life.tries.get(k)?)));
        for (first, left) in tries().filter(|(_, one)| one.error.is_some()) {
            let late = |other: &Try| other.entered > left.left + delivery_ns(scenario);
            if let Some((process, _)) =
                tries().find(|(_, other): &(u32, &Try)| late(other) && other.error.is_none())
            {
                let error = &left.error;
                return Err(format!(
                    "process {process} has a result of try {k}, which process {first} had left before: {error:?}"
                ));
            }
        }
    }
    // A process may complete the program and leave before another one, interrupted in the last call, repeats that call.
    let has_all =
        |life: &Life| life.results.len() == scenario.steps.len() && life.results.iter().all(Result::is_ok);
    let some_completed = all.iter().any(|life| has_all(life));
    let ended = |life: &Life| match life.results.last() {
        Some(Err(Error::PeerLost { .. })) => some_completed,
        last => matches!(last, Some(Err(Error::Diverged { .. }))),
    };
    if all.iter().any(|life| ended(life)) {
        return match all.iter().position(|life| !ended(life) && !has_all(life)) {
            None => Ok(()),
            Some(process) => Err(format!("process {process} does not know that ranks disagree")),
        };
    }
    let steps = |life: &Life| life.tries.iter().map(|one| one.step).collect::<Vec<_>>();
    match all.iter().position(|life| steps(life) != steps(all[0])) {
        None => Ok(()),
        Some(process) => {
            let (first, other) = (steps(all[0]), steps(all[process]));
            Err(format!(
                "processes 0 and {process} made different calls without an error: {first:?} and {other:?}"
            ))
        }
    }
}

/// Whether every fault is a crash, so that a silent process has ended.
fn all_crashes(scenario: &Scenario) -> bool {
    scenario.faults.iter().all(|(_, fault)| matches!(fault, Fault::Crash { .. }))
}

/// Seconds by which faults delay processes that they do not end.
fn delay_s(scenario: &Scenario) -> f64 {
    let late = scenario.before.iter().map(|(.., before)| match before {
        Before::Late(seconds) => *seconds,
        Before::Error => 0.0,
    });
    fault_delay_s(scenario) + late.sum::<f64>()
}

/// [`delay_s`] without computations before calls, which delay no message.
fn fault_delay_s(scenario: &Scenario) -> f64 {
    let (mut waits, mut slow) = (0.0, 1.0);
    for (_, fault) in &scenario.faults {
        match fault {
            Fault::Stop { seconds, .. } => waits += seconds,
            Fault::Cut { heals: Some(heals), .. }
            | Fault::CutOff { heals: Some(heals), .. }
            | Fault::Partition { heals: Some(heals), .. } => {
                waits += heals.min(HEARTBEAT_S);
            }
            Fault::Slow { times, .. } => slow *= times,
            _ => {}
        }
    }
    // The work of a process in a play: messages to all others in each call (one to each sibling among them), and up to 1 KB per
    // entry (the program "messages"), at 2 ns per byte.
    let messages = (scenario.steps.len() * scenario.processes as usize) as f64;
    let entries: usize = scenario.steps.iter().map(|(_, count)| count).sum();
    waits + slow * (0.006 + 90e-6 * messages + 2e-6 * entries as f64)
}

fn check_life(facts: &Facts, life: &Life, process: u32) -> Result<(), String> {
    let (scenario, ranks) = (facts.scenario, facts.scenario.ranks());
    for (k, result) in life.results.iter().enumerate() {
        let Ok(got) = result else { continue };
        let want = &facts.undisturbed[(process % ranks) as usize][k];
        if got != want {
            let (program, count) = scenario.steps[k];
            let at = got.iter().zip(want).position(|(a, b)| a != b);
            let lens = (got.len(), want.len());
            let name = ALL[program].0;
            return Err(format!("{name} of {count} has a wrong result: {lens:?} words, the first at {at:?}"));
        }
    }
    let Some(error) = life.results.iter().find_map(|result| result.as_ref().err()) else {
        return match life.results.len() == scenario.steps.len() || scenario.then == Then::Rejoin {
            true => Ok(()),
            false => Err("it did not join".to_owned()),
        };
    };
    let any_of_rank =
        |processes: &BTreeSet<u32>, rank: u32| processes.iter().any(|process| process % ranks == rank);
    let lives_on = |rank: u32| {
        (0..scenario.processes).any(|process| process % ranks == rank && !facts.separated.contains(&process))
    };
    let is_separated = facts.separated.contains(&process);
    if facts.all_began && scenario.then != Then::Repeat && !is_separated && (0..ranks).all(lives_on) {
        return Err(format!("an error although each rank has a live process: {error}"));
    }
    match error {
        Error::Interrupted | Error::Aborted { .. } if scenario.then == Then::Repeat && !life.began => Ok(()),
        // `check_repeated` compares these with the outcomes of the other processes.
        Error::Diverged { .. } | Error::PeerLost { .. } if scenario.then == Then::Repeat => Ok(()),
        // A separated process names the ranks that it misses, because it cannot know that it is the separated one.
        Error::PeerLost { .. } if is_separated => Ok(()),
        // A failed process has left the group, so other processes lose it.
        Error::PeerLost { rank, .. }
            if any_of_rank(&facts.separated, *rank) || any_of_rank(&facts.failed, *rank) =>
        {
            Ok(())
        }
        // Errors at the start of a group name processes, not ranks.
        Error::PeerLost { rank, .. } if !life.began && facts.separated.contains(rank) => Ok(()),
        _ => Err(format!("an unexpected error: {error}")),
    }
}

/// Checks shrinks: the members of a new group agree on it and have the same sum; other processes know why they left.
fn check_shrunk(facts: &Facts, lives: &Lives) -> Result<(), String> {
    let shrunk = |outcome: &Outcome<Life>| match outcome {
        Outcome::Done(Life { shrunk: Some(Ok(shrunk)), .. }) => Some(shrunk.clone()),
        _ => None,
    };
    let all = (0..).zip(lives.outcomes.iter().map(shrunk));
    // A separated process may be the last to learn of it, and fail in the group that it still has.
    let goes_on = |(process, (_, sum)): &(u32, Shrunk)| sum.is_ok() || !facts.separated.contains(process);
    let groups = all.filter_map(|(process, group)| Some((process, group?))).filter(goes_on);
    let groups: Vec<(u32, Shrunk)> = groups.collect();
    // Processes that no fault has separated reach each other. If they are more than half of all, they must continue, unless a
    // separated process continues with some of them.
    let unseparated = |(process, outcome): &(u32, &Outcome<Life>)| {
        matches!(outcome, Outcome::Done(Life { shrunk: Some(_), .. })) && !facts.separated.contains(process)
    };
    let majority_must = 2 * (0..).zip(&lives.outcomes).filter(unseparated).count() > lives.outcomes.len();
    let with_separated =
        groups.iter().any(|(_, (members, _))| members.iter().any(|one| facts.separated.contains(one)));
    for (process, outcome) in (0..).zip(&lives.outcomes) {
        let Outcome::Done(Life { shrunk: Some(Err(error)), .. }) = outcome else { continue };
        let agreed = groups.iter().any(|(_, (members, _))| members.contains(&process));
        let can = !facts.separated.contains(&process) && (agreed || majority_must && !with_separated);
        if can || !matches!(error, Error::PeerLost { .. }) {
            return Err(format!("process {process} does not go on: {error}"));
        }
    }
    // A member may have left the new group again, because of a loss there. A process that shrinks later continues without it.
    let fewer = |(_, (members, sum)): &(u32, Shrunk), (_, (others, _)): &(u32, Shrunk)| {
        let lost_some = sum.is_err() && members.iter().any(|one| facts.separated.contains(one));
        lost_some && others.iter().all(|other| members.contains(other))
    };
    for (k, one) in groups.iter().enumerate() {
        let agrees = |other: &&(u32, Shrunk)| one.1.0 == other.1.0 || fewer(one, other) || fewer(other, one);
        if let Some(other) = groups[..k].iter().find(|other| !agrees(other)) {
            let ((first, (theirs, _)), (process, (members, _))) = (other, one);
            return Err(format!(
                "process {first} goes on with {theirs:?}, process {process} with {members:?}"
            ));
        }
    }
    for (process, (members, sum)) in &groups {
        if !members.contains(process) {
            return Err(format!("process {process} goes on with {members:?}, without itself"));
        }
        if let Err(error) = sum
            && !members.iter().any(|member| facts.separated.contains(member))
        {
            return Err(format!("process {process} has no sum of {members:?}: {error}"));
        }
        if let Ok(sum) = sum {
            let indices = [0].into_iter().chain(members.iter().map(|member| 1 + u64::from(*member)));
            let counts = [members.len() as f64].into_iter().chain(members.iter().map(|_| 1.0));
            let want: Vec<u64> = indices.chain(counts.map(f64::to_bits)).collect();
            if *sum != want {
                return Err(format!("process {process} has a wrong sum of {members:?}: {sum:?}"));
            }
        }
    }
    Ok(())
}
