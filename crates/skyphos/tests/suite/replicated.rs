//! Groups with replicas: as long as one process of each rank lives, the results have the same bits as without replicas, whichever
//! processes crash.

use crate::common::crashing::{Crash, CrashingTransport};
use crate::common::programs::{ALL, N, vector};
use crate::common::{
    MakeGroup, cases, check, local, local_replicated, local_transports, on_all, on_each, random, replicated,
    shared_memory_transports, tcp_replicated, tcp_transports,
};
use proptest::prelude::*;
use skyphos::{
    AllreduceOptions, ArrayMove, Comm, ConfigureOptions, Error, Loss, Order, ReduceOptions, Transport,
};
use skyphos_kernels::stream::{IndexList, SparseVec};
use std::time::{Duration, Instant};

/// Upper bound on the time of a test's calls.
const TIME_LIMIT: Duration = Duration::from_secs(60);

const REPLICATED: [(&str, MakeGroup); 2] = [("local", local_replicated), ("tcp", tcp_replicated)];

type MakeTransports = fn(u32) -> Vec<Box<dyn Transport>>;

const TRANSPORTS: [(&str, MakeTransports); 3] =
    [("local", local_transports), ("tcp", tcp_transports), ("shared memory", shared_memory_transports)];

/// A call on data that depends on a number.
type Salted<'a> = dyn Fn(&Comm, u64) -> Result<(), Error> + Sync + 'a;

/// Each rank's result of a program without replicas.
fn undisturbed(size: u32, program: usize, count: usize) -> Vec<Vec<u64>> {
    let alone = |comm: &Comm| {
        comm.agree_profile(None, false).unwrap();
        ALL[program].1(comm, count).unwrap()
    };
    on_all(local(size), alone)
}

/// Runs a program on ranks of `each` processes, some of which crash at a given frame. Returns the results of the others.
fn disturbed(
    transports: Vec<Box<dyn Transport>>,
    each: u32,
    crashes: &[Option<Crash>],
    program: usize,
    count: usize,
) -> Vec<Option<Result<Vec<u64>, Error>>> {
    on_each(transports, |process, transport| {
        let crash = &crashes[process as usize];
        let transport = match crash {
            Some(crash) => CrashingTransport::boxed(transport, crash.clone()),
            None => transport,
        };
        let comm = replicated(transport, each);
        let result = ALL[program].1(&comm, count);
        // All processes complete before any leaves.
        let end = comm.barrier().run();
        match crash {
            Some(crash) if crash.has_happened() => None,
            _ => Some(result.and_then(|words| end.map(|()| words))),
        }
    })
}

proptest! {
    #![proptest_config(random(60))]

    #[test]
    fn plans_match_the_oracle(mut case in cases(), transport in 0..REPLICATED.len()) {
        case.order = Order::Rank;
        check(&case, REPLICATED[transport].1);
    }

    /// Any program, any replication, with spare processes, and no losses.
    #[test]
    fn the_same_bits_as_without_replicas(
        program in 0..ALL.len(), ranks in 1u32..=5, each in 1u32..=3, spares in 0u32..3, transport in 0..TRANSPORTS.len(),
        count in prop_oneof![0usize..50, 1000usize..30_000],
    ) {
        let processes = ranks * each + spares.min(each - 1);
        let ranks = processes / each;
        let want = undisturbed(ranks, program, count);
        let crashes = vec![None; processes as usize];
        let got = disturbed(TRANSPORTS[transport].1(processes), each, &crashes, program, count);
        for (process, result) in got.into_iter().enumerate() {
            let result = result.expect("no process crashes");
            prop_assert_eq!(&result.unwrap(), &want[process % ranks as usize], "{} {}", ALL[program].0, process);
        }
    }

    /// Processes crash at any frame, except for one process of each rank.
    #[test]
    fn survivors_have_the_right_bits_whichever_processes_crash(
        program in 0..ALL.len(), ranks in 1u32..=4, each in 2u32..=3, transport in 0..TRANSPORTS.len(),
        count in prop_oneof![0usize..50, 1000usize..20_000], frames in prop::collection::vec(prop::option::of(0u64..150), 12),
        spared_replica in prop::collection::vec(0u32..3, 4),
    ) {
        let processes = ranks * each;
        let want = undisturbed(ranks, program, count);
        let crashes: Vec<Option<Crash>> = (0..processes).map(|process| {
            let (rank, replica) = (process % ranks, process / ranks);
            let spared = replica == spared_replica[rank as usize] % each || process == 0;
            frames[process as usize].filter(|_| !spared).map(Crash::after)
        }).collect();
        let got = disturbed(TRANSPORTS[transport].1(processes), each, &crashes, program, count);
        for (process, result) in got.into_iter().enumerate() {
            let Some(result) = result else { continue };
            prop_assert_eq!(&result.unwrap(), &want[process % ranks as usize], "{} {}", ALL[program].0, process);
        }
    }
}

/// In each program, a process crashes at each of its frames, and the others have the right bits.
#[test]
fn a_process_may_crash_at_every_frame() {
    for (program, (name, _)) in ALL.iter().enumerate() {
        let want = undisturbed(3, program, 3000);
        for frame in 0.. {
            let crash = Crash::after(frame);
            let mut crashes = vec![None; 6];
            crashes[4] = Some(crash.clone());
            for (process, result) in
                disturbed(local_transports(6), 2, &crashes, program, 3000).into_iter().enumerate()
            {
                let Some(result) = result else { continue };
                assert_eq!(result.unwrap(), want[process % 3], "{name}, frame {frame}");
            }
            if !crash.has_happened() {
                break;
            }
        }
    }
}

#[test]
fn a_rank_without_processes_is_lost() {
    for (_, make) in TRANSPORTS {
        let errors = on_each(make(6), |process, transport| {
            let comm = replicated(transport, 2);
            comm.barrier().run().unwrap();
            if process % 3 == 1 {
                drop(comm); // both replicas of rank 1
                return None;
            }
            let mine = vector(comm.rank(), 0, 5000);
            let error = loop {
                match comm.allreduce(&mine).run().map(|done| done.sum) {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            Some(error)
        });
        for error in errors.into_iter().flatten() {
            let text = error.to_string();
            assert!(matches!(error, Error::PeerLost { rank: 1, .. }), "{text}");
            assert!(text.contains("process 1") && text.contains("process 4"), "{text}");
        }
    }
}

/// In 40 calls `auto` uses its cache, takes new surveys and makes new choices.
#[test]
fn repeated_calls_give_the_same_bits_on_all_processes() {
    for (name, make) in REPLICATED {
        let sums = on_all(make(2), |comm| {
            (0..40)
                .map(|call| {
                    let options = AllreduceOptions {
                        expected_nnz: (call % 3 == 1).then_some(1000),
                        ..AllreduceOptions::default()
                    };
                    // The data change from time to time, so that a new survey is taken.
                    let mine = vector(comm.rank(), 0, if call % 16 == 9 { 5000 } else { 700 });
                    comm.allreduce(&mine).options(options.clone()).run().unwrap().sum.entries()
                })
                .collect::<Vec<_>>()
        });
        assert!(sums.iter().all(|all| *all == sums[0]), "{name}");
    }
}

#[test]
fn replicas_that_differ_are_found() {
    for (_, make) in TRANSPORTS {
        for count in [20, 20_000] {
            let errors = on_each(make(4), |process, transport| {
                let comm = replicated(transport, 2);
                // Process 3 has different data from process 1.
                let salt = u64::from(process == 3);
                let mine = vector(comm.rank(), salt, count);
                let call = || comm.allreduce(&mine).run().map(|done| done.sum);
                // If copies arrive late, a later call reports the difference, because no rank waits for a slow replica.
                let begun = Instant::now();
                loop {
                    match call() {
                        Err(error) => break error,
                        Ok(_) => assert!(begun.elapsed() < TIME_LIMIT, "the checksums were not compared"),
                    }
                }
            });
            for error in errors {
                // A process may lose a rank that has raised the error and left before.
                assert!(matches!(error, Error::Corrupt { .. } | Error::PeerLost { .. }), "{error}");
                // The replicas of rank 0 have received different copies, and may be compared first.
                let text = error.to_string();
                let phrases = ["sent different bytes", "put different data into call"];
                let found = |pair: &str| {
                    phrases.iter().any(|phrase| text.contains(&format!("processes {pair}, {phrase}")))
                };
                assert!(found("1 and 3") || found("0 and 2"), "{text}");
            }
        }
    }
}

/// Each rank makes one small call, which may not send the bytes that differ. The difference is found when the group closes, at the
/// latest.
#[test]
fn replicas_that_differ_in_their_last_call_are_found() {
    let x = |salt: u64, len: u64| (0..len).map(|k| (k * 7 + salt) as f64).collect::<Vec<f64>>();
    let one = |salt: u64| SparseVec::new(N, 1, IndexList::Wide(vec![salt]), vec![1.0]).unwrap();
    let options = AllreduceOptions::default;
    let calls: [(&str, &Salted<'_>); 8] = [
        ("allreduce", &|comm, salt| comm.allreduce(one(salt)).options(options()).run().map(drop)),
        ("allreduce of dense arrays", &|comm, salt| {
            comm.allreduce_dense(&x(salt, 4), &mut [0.0; 4]).options(options()).run().map(drop)
        }),
        ("reduce_scatter", &|comm, salt| comm.reduce_scatter(one(salt)).options(options()).run().map(drop)),
        ("scatter", &|comm, salt| {
            let own = if comm.rank() == 0 { x(salt, comm.size().into()) } else { Vec::new() };
            comm.move_arrays(ArrayMove::Scatter { root: 0 }, &own, &mut [0.0]).run().map(drop)
        }),
        ("allgather", &|comm, salt| comm.allgather(one(salt)).run().map(drop)),
        ("topk_allreduce", &|comm, salt| comm.topk_allreduce(one(salt), 1).run().map(drop)),
        ("configure", &|comm, salt| comm.configure(&[salt][..], &[salt][..]).run().map(drop)),
        ("configure_reduce", &|comm, salt| {
            let (at, options) = ([3u64], ConfigureOptions::default());
            comm.configure_reduce(&at[..], &at[..], &x(salt, 1), &mut [0.0])
                .options(options.clone())
                .run()
                .map(drop)
        }),
    ];
    for (_, make) in TRANSPORTS {
        for (name, call) in &calls {
            for ranks in [1, 2] {
                let results = on_each(make(2 * ranks), |process, transport| {
                    let comm = replicated(transport, 2);
                    // The replicas of rank 0 differ.
                    let result = call(&comm, u64::from(process == 0));
                    result.and(comm.close())
                });
                let texts: Vec<String> =
                    results.iter().filter_map(|result| result.as_ref().err().map(Error::to_string)).collect();
                let is_named = texts.iter().any(|text| text.contains(&format!("processes 0 and {ranks},")));
                assert!(is_named, "{name} on {ranks}: {results:?}");
                let (one, other) = (&results[0], &results[ranks as usize]);
                assert!(one.is_err() && other.is_err(), "{name} on {ranks}: {one:?} {other:?}");
            }
        }
    }
}

#[test]
fn operations_without_replicas_are_refused() {
    on_all(local_replicated(2), |comm| {
        assert!(comm.shrink().err().unwrap().to_string().contains("replicated"));
        let mut plan = comm.configure(&[1u64], &[1u64]).run().unwrap();
        let mut out = [0.0];
        let error = comm
            .reduce(&mut plan, &[1.0], &mut out)
            .options(ReduceOptions { order: Order::Arrival })
            .run()
            .unwrap_err();
        assert!(error.to_string().contains("order"), "{error}");
        comm.barrier().run().unwrap();
    });
    let refused = on_each(local_transports(4), |_, transport| {
        let replication = skyphos::Replication { each: 2, share_hosts: false };
        Comm::replicated(transport, replication, crate::common::settings(), Ok((None, None)))
            .err()
            .unwrap()
            .to_string()
    });
    assert!(refused[3].contains("replicas of rank 0"), "{}", refused[3]);
}

#[test]
fn health_reports_live_replicas_and_whose_copies_came_first() {
    let all = on_each(local_transports(4), |process, transport| {
        let comm = replicated(transport, 2);
        let mine = vector(comm.rank(), 0, 20_000);
        for _ in 0..3 {
            comm.allreduce(&mine).run().unwrap();
        }
        comm.barrier().run().unwrap();
        if process == 3 {
            return comm.health();
        }
        while comm.health()[3].lost.is_none() {
            std::thread::yield_now(); // the node's thread learns of the loss
        }
        comm.health()
    });
    for (process, health) in all.into_iter().enumerate() {
        let replicas: Vec<(u32, u32)> = health.iter().map(|one| (one.rank, one.replica)).collect();
        assert_eq!(replicas, [(0, 0), (1, 0), (0, 1), (1, 1)]);
        let others = health.iter().filter(|one| one.rank != process as u32 % 2);
        assert!(others.map(|one| one.won).sum::<u64>() > 0);
        let lost = health[3].lost.as_ref().map(|(loss, _)| *loss);
        assert_eq!(lost, (process != 3).then_some(Loss::Left));
    }
}
