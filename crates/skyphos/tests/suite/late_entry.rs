//! Late entry: a rank that enters a call after a peer has left it with an error raises an error, too. Afterwards all ranks agree on
//! the number of the next call.

use crate::common::programs::{ALL, NON_BLOCKING, Program, vector};
use crate::common::{
    local_transports, on_each, settings, shared_memory_transports, tcp_transports, tls_transports,
};
use skyphos::{Comm, Error, Result, Settings, Transport};
use std::cell::Cell;
use std::sync::Barrier;
use std::time::{Duration, Instant};

thread_local! {
    /// The time at which the user interrupts the rank of this thread; `None`: never.
    static INTERRUPT_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn interrupted() -> bool {
    let due = INTERRUPT_AT.get().is_some_and(|at| Instant::now() >= at);
    if due {
        INTERRUPT_AT.set(None);
    }
    due
}

type Connect = fn(u32) -> Vec<Box<dyn Transport>>;
const TRANSPORTS: [(&str, Connect); 4] = [
    ("local", local_transports),
    ("tcp", tcp_transports),
    ("shared memory", shared_memory_transports),
    ("tls", tls_transports),
];

fn interruptible_settings() -> Settings {
    Settings { interrupted: Some(interrupted), ..settings() }
}

/// Rank 0 waits in a call and is interrupted. The last rank enters once rank 0 has left. Then all ranks repeat the call.
fn interrupt_then_repeat(comm: &Comm, program: &Program, rank_0_left: &Barrier) -> Vec<u64> {
    let late = comm.rank() == comm.size() - 1;
    if late {
        rank_0_left.wait();
    } else if comm.rank() == 0 {
        INTERRUPT_AT.set(Some(Instant::now() + Duration::from_millis(5)));
    }
    let name = program.0;
    let error = program.1(comm, 300).expect_err(name);
    match comm.rank() {
        0 => assert_eq!(error, Error::Interrupted, "{name}"),
        rank => {
            let want = Error::Aborted { rank: 0, cause: "interrupted".to_owned() };
            assert_eq!(error, want, "{name}, rank {rank}");
        }
    }
    if comm.rank() == 0 {
        rank_0_left.wait();
    }
    program.1(comm, 300).unwrap_or_else(|error| panic!("{name}, rank {}: {error}", comm.rank()))
}

#[test]
fn interrupted_collectives_are_repeated_after_a_late_entry() {
    for (transport, connect) in TRANSPORTS {
        for size in [2, 3, 5] {
            for program in ALL.iter().filter(|(program, _)| *program != "messages") {
                let undisturbed = on_each(connect(size), |_, transport| {
                    let comm = Comm::over(transport, interruptible_settings()).unwrap();
                    program.1(&comm, 300).unwrap()
                });
                let rank_0_left = Barrier::new(2);
                let repeated = on_each(connect(size), |_, transport| {
                    let comm = Comm::over(transport, interruptible_settings()).unwrap();
                    interrupt_then_repeat(&comm, program, &rank_0_left)
                });
                assert!(undisturbed == repeated, "{} of {size} over {transport}", program.0);
            }
        }
    }
}

fn non_blocking_sum(comm: &Comm) -> Result<Vec<u64>> {
    let mine = vector(comm.rank(), 0, 300);
    let call = comm.allreduce(mine).prepare()?;
    Ok(call.start().wait()?.sum.entries().0)
}

/// Rank 0 is interrupted while it waits for a non-blocking call.
#[test]
fn an_interrupted_non_blocking_call_is_repeated_after_a_late_entry() {
    for (transport, connect) in TRANSPORTS {
        let rank_0_left = Barrier::new(2);
        let sums = on_each(connect(3), |_, transport| {
            let comm = Comm::over(transport, interruptible_settings()).unwrap();
            interrupt_then_repeat(
                &comm,
                &("non-blocking allreduce", |comm, _| non_blocking_sum(comm)),
                &rank_0_left,
            )
        });
        assert!(sums[0] == sums[1] && sums[1] == sums[2] && !sums[0].is_empty(), "{transport}");
    }
}

/// A rank fails before it enters a call that the others enter later.
#[test]
fn an_error_before_a_call_is_raised_on_all_ranks() {
    // The failed call counts as one call, so programs of several calls are left out.
    let single = ALL.iter().filter(|(program, _)| ![NON_BLOCKING, "messages"].contains(program));
    for (name, connect) in TRANSPORTS {
        for program in single.clone() {
            let rank_0_left = Barrier::new(3);
            on_each(connect(3), |rank, transport| {
                let comm = Comm::over(transport, interruptible_settings()).unwrap();
                let error = match rank {
                    0 => {
                        let error = comm.fail_call(Error::bad_input("no such file"));
                        rank_0_left.wait();
                        error
                    }
                    _ => {
                        rank_0_left.wait();
                        program.1(&comm, 300).unwrap_err()
                    }
                };
                let want = Error::bad_input("no such file");
                assert_eq!(
                    error,
                    if rank == 0 { want } else { want.as_seen_by_others(0) },
                    "{name}, {}",
                    program.0
                );
                program.1(&comm, 300).unwrap();
            });
        }
    }
}
