//! Failed calls beside other non-blocking calls. Ranks learn of a failure at different times, and their programs continue together.
//! If they cannot, no rank gets the sum of two different calls.

use crate::common::programs::{N, vector};
use crate::common::{MakeGroup, local, on_all, shared_memory, tcp};
use skyphos::{Comm, Error, Result, Work};

const TRANSPORTS: [(&str, MakeGroup); 3] = [("local", local), ("tcp", tcp), ("shared memory", shared_memory)];

/// A small random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

type Sum = Work<Vec<f64>>;

/// Starts a sum whose result identifies the call: entry 0 is `number` times the ranks.
fn start_sum(comm: &Comm, number: u64) -> Result<Sum> {
    let mut mine = vector(comm.rank(), number, 40).to_dense(0.0);
    mine[0] = number as f64;
    let out = vec![0.0; mine.len()];
    let call = comm.allreduce_dense(mine, out).prepare()?;
    Ok(call.map(|done| done.out).start())
}

fn is_sum_of(comm: &Comm, number: u64, sum: &[f64]) -> bool {
    sum.len() as u64 == N && sum[0] == (number * u64::from(comm.size())) as f64
}

/// Each rank begins the same calls, and takes their results in its own order and at its own times. Some calls fail on one rank
/// before they begin there; the rank continues with the next call.
fn pipeline(comm: &Comm, seed: u64) {
    let (mut shared, mut own) = (Random(seed), Random(seed << 8 | (u64::from(comm.rank()) + 1)));
    let mut under_way: Vec<(u64, bool, Sum)> = Vec::new();
    let take = |(number, fails, work): (u64, bool, Sum)| match (work.wait(), fails) {
        (Ok(sum), false) => assert!(is_sum_of(comm, number, &sum), "call {number}: {}", sum[0]),
        (Err(Error::BadInput { message }), true) => {
            assert!(message.contains(&format!("call {number} ")), "{message}")
        }
        (other, _) => {
            panic!("seed {seed}, rank {}: call {number} should fail: {fails}; {other:?}", comm.rank())
        }
    };
    for number in 0..40 {
        let failing_rank = shared.below(3 * u64::from(comm.size()));
        if failing_rank == u64::from(comm.rank()) {
            comm.fail_call_and_go_on(Error::bad_input(format!("call {number} has a NaN")));
        } else {
            let fails = failing_rank < u64::from(comm.size());
            under_way.push((number, fails, start_sum(comm, number).unwrap()));
        }
        while !under_way.is_empty() && own.below(3) == 0 {
            let index = own.below(under_way.len() as u64) as usize;
            take(under_way.remove(index));
        }
        if own.below(8) == 0 && under_way.len() > 2 {
            // The rank drops a call without waiting for it.
            let index = under_way.iter().position(|(_, fails, _)| !fails);
            index.into_iter().for_each(|index| drop(under_way.remove(index)));
        }
    }
    under_way.into_iter().for_each(take);
    comm.barrier().run().unwrap();
}

#[test]
fn a_pipeline_continues_after_calls_that_failed_on_one_rank() {
    for (name, make) in TRANSPORTS {
        for size in [2, 3, 5] {
            for seed in 0..8 {
                println!("{name}, {size} ranks, seed {seed}");
                on_all(make(size), |comm| pipeline(comm, seed));
            }
        }
    }
}

/// One rank fails before it begins the first of two calls, raises, and repeats both. The others have begun the first call and are in
/// the second, which must not be paired with the repeated first call.
fn repeat_two_calls(comm: &Comm) -> Vec<(u64, Result<Vec<f64>>)> {
    let mut ended = Vec::new();
    for _ in 0..2 {
        if comm.rank() == 1 && ended.is_empty() {
            let error = comm.fail_call(Error::bad_input("no such file"));
            ended.push((0, Err(error)));
            continue;
        }
        let first = start_sum(comm, 1).unwrap();
        let second = start_sum(comm, 2).and_then(Work::wait);
        let second_failed = second.is_err();
        ended.push((2, second));
        ended.push((1, first.wait()));
        if !second_failed && ended.iter().all(|(_, end)| end.is_ok()) {
            break;
        }
    }
    ended
}

#[test]
fn a_program_that_raised_early_is_not_paired_with_later_calls_of_others() {
    for (name, make) in TRANSPORTS {
        for size in [2, 3] {
            let ended = on_all(make(size), |comm| {
                let ended = repeat_two_calls(comm);
                for (number, end) in &ended {
                    if let Ok(sum) = end {
                        assert!(is_sum_of(comm, *number, sum), "{name}: call {number} gave {}", sum[0]);
                    }
                }
                ended
            });
            let diverged = |ends: &Vec<(u64, Result<Vec<f64>>)>| {
                ends.iter().any(|(_, end)| matches!(end, Err(Error::Diverged { .. })))
            };
            assert!(ended.iter().all(diverged), "{name}, {size} ranks: {ended:?}");
        }
    }
}

/// With blocking calls, all ranks learn of the failure before they continue, and repeat the calls together.
#[test]
fn blocking_calls_are_repeated_together() {
    for (name, make) in TRANSPORTS {
        on_all(make(3), |comm| {
            for number in 0..50 {
                match number % 3 == u64::from(comm.rank()) {
                    true => drop(comm.fail_call(Error::bad_input("no such file"))),
                    false => drop(start_sum(comm, number).and_then(Work::wait).unwrap_err()),
                }
                let sum = start_sum(comm, number).and_then(Work::wait).unwrap();
                assert!(is_sum_of(comm, number, &sum), "{name}: call {number}");
            }
        });
    }
}
