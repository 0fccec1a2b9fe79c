//! Faults in simulated groups. Whatever fails, each live process soon has the right result or an error, and frees all buffers.

mod campaign;
mod check;
#[path = "../common/mod.rs"]
mod common;
mod life;
mod scenario;
mod tally;

use check::check;
use common::programs::{ALL, HAS_MESSAGE, root_of};
use life::play;
use scenario::{Scenario, Then};
use skyphos::Error;
use skyphos_sim::{Fault, Outcome, When};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tally::Tally;

/// Adds up the tallies of the numbers below `count`, on all cores.
fn on_all_cores(count: usize, body: impl Fn(usize) -> Tally + Sync) -> Tally {
    let (next, sum) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    let work = || {
        let mut mine = Tally::default();
        loop {
            match next.fetch_add(1, Ordering::Relaxed) {
                number if number < count => mine.add(body(number)),
                _ => return sum.lock().unwrap().add(mine),
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| {
        (0..cores).for_each(|_| drop(scope.spawn(work)));
    });
    sum.into_inner().unwrap()
}

/// Scenarios of each single collective, on ranks of one process and of two.
fn single_collectives() -> Vec<Scenario> {
    let groups = [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2)];
    let each = |(ranks, each)| {
        (0..ALL.len()).flat_map(move |program| {
            [40, 1500].map(|count| Scenario::quiet(ranks, each, vec![(program, count)]))
        })
    };
    groups.into_iter().flat_map(each).collect()
}

#[test]
fn plays_without_faults() {
    for quiet in single_collectives() {
        check(&quiet, &play(&quiet, false)).unwrap();
    }
}

#[test]
fn every_frame_of_every_collective_is_lost_once() {
    let mut tries = Vec::new();
    for quiet in single_collectives() {
        let played = play(&quiet, false);
        for process in 0..quiet.processes {
            for number in 0..played.posted[process as usize] {
                tries.push((quiet.clone(), process, number));
            }
        }
    }
    let tally = on_all_cores(tries.len(), |k| {
        let (quiet, process, number) = &tries[k];
        let (process, number) = (*process, *number);
        let faults = [
            Fault::Crash { process, sends_rest: true, back: None },
            Fault::Crash { process, sends_rest: false, back: None },
            Fault::Cut { from: process, to: process, both: false, heals: None },
            Fault::Corrupt { process },
        ];
        let mut sum = Tally::default();
        for fault in faults {
            let faults = vec![(When::Frame { of: process, number }, fault)];
            sum.add(Tally::play(&Scenario { faults, then: Then::Shrink, ..quiet.clone() }));
        }
        sum
    });
    println!("{tally}");
    assert!(tally.wrong.is_empty(), "{tally}");
    assert_eq!(tally.faults(), (tally.plays, tally.plays), "each fault strikes, at a frame in flight");
}

/// One or two ranks other than the root are lost at any moment.
#[test]
fn every_surviving_rank_has_a_broadcast() {
    let names = (0..).zip(ALL).filter(|(_, (name, _))| name.starts_with("broadcast"));
    let programs: Vec<usize> = names.map(|(program, _)| program).collect();
    let mut tries = Vec::new();
    for size in [2, 3, 5, 8] {
        // A group begins with a call in which all ranks must take part.
        let started = play(&Scenario::quiet(size, 1, vec![]), false);
        for program in &programs {
            for count in [40, 1500] {
                let quiet = Scenario::quiet(size, 1, vec![(*program, count)]);
                let played = play(&quiet, false);
                for process in (0..size).filter(|process| *process != root_of(size)) {
                    let frames = started.posted[process as usize]..played.posted[process as usize];
                    tries.extend(frames.map(|number| (quiet.clone(), process, number)));
                }
            }
        }
    }
    let tally = on_all_cores(tries.len(), |k| {
        let (quiet, process, number) = &tries[k];
        let (size, when) = (quiet.processes, When::Frame { of: *process, number: *number });
        let crash = |process, sends_rest| Fault::Crash { process, sends_rest, back: None };
        // A second rank, other than the root, is lost at about the same time.
        let other = (1..size).map(|far| (process + far) % size).find(|other| *other != root_of(size));
        let mut plays = vec![
            vec![(when, crash(*process, true))],
            vec![(when, crash(*process, false))],
            vec![(when, Fault::CutOff { process: *process, heals: None })],
        ];
        plays.extend(other.map(|other| vec![(when, crash(*process, false)), (when, crash(other, false))]));
        let (count, mut with_error) = (plays.len() as u64, 0);
        for faults in plays {
            let scenario = Scenario { faults: faults.clone(), then: Then::Shrink, ..quiet.clone() };
            let lives = play(&scenario, false);
            let lost: Vec<u32> =
                lives.struck.iter().flat_map(|struck| struck.separated.iter().copied()).collect();
            for (rank, outcome) in (0..).zip(&lives.outcomes).filter(|(rank, _)| !lost.contains(rank)) {
                let Outcome::Done(life) = outcome else { panic!("{outcome:?}") };
                if !life.began {
                    continue;
                }
                let has_both = matches!(&life.results[0], Err(Error::PeerLost { cause, .. }) if cause.starts_with(HAS_MESSAGE));
                with_error += u64::from(has_both);
                let has_it = has_both || life.results[0].is_ok();
                assert!(has_it, "rank {rank} of {:?}, {faults:?}: {:?}", scenario.steps, life.results[0]);
            }
        }
        Tally { plays: count, right: with_error, ..Tally::default() }
    });
    // In most plays most ranks learn of the loss.
    assert!(tally.right > tally.plays, "{tally}");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..200 {
        let scenario = Scenario::from_seed(seed);
        let (one, two) = (play(&scenario, false), play(&scenario, true));
        assert_eq!((one.trace, &one.outcomes, one.end), (two.trace, &two.outcomes, two.end), "seed {seed}");
    }
}

#[test]
fn ten_thousand_seeds() {
    let tally = on_all_cores(10_000, |seed| Tally::play(&Scenario::from_seed(seed as u64)));
    println!("{tally}");
    assert!(tally.wrong.is_empty(), "{tally}");
    let (struck, in_flight) = tally.faults();
    assert!(tally.median_size() >= 8 && in_flight * 10 >= struck * 8, "{tally}");
}

/// `make faults`: runs SKYPHOS_FAULT_SEEDS seeds, with the state saved in SKYPHOS_FAULT_FILE; stops at the first error if
/// SKYPHOS_FAULT_UNTIL_WRONG is set.
#[test]
#[ignore = "takes about a minute for 20,000 seeds"]
fn campaign() {
    let seeds = std::env::var("SKYPHOS_FAULT_SEEDS").map_or(500_000, |text| text.parse().unwrap());
    let file = std::env::var("SKYPHOS_FAULT_FILE").expect("SKYPHOS_FAULT_FILE: where to save the state");
    let until_wrong = std::env::var("SKYPHOS_FAULT_UNTIL_WRONG").is_ok();
    let tally = campaign::run(seeds, file.into(), until_wrong);
    println!("{tally}");
    assert!(tally.wrong.is_empty(), "{} seeds found an error", tally.wrong.len());
}

/// `SKYPHOS_FAULT_SEED=7 cargo test --test faults one_seed -- --ignored --nocapture`
#[test]
#[ignore = "for a seed that failed: prints all events"]
fn one_seed() {
    let seed = std::env::var("SKYPHOS_FAULT_SEED").unwrap().parse().unwrap();
    let scenario = Scenario::from_seed(seed);
    println!("{scenario:#?}");
    let lives = play(&scenario, true);
    println!("{}\n{:#?}", lives.log.join("\n"), lives.outcomes);
    check(&scenario, &lives).unwrap();
}
