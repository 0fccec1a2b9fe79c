//! One suite for all transports: every result against a plain oracle.

use crate::common::{Case, MakeGroup, cases, check, factorisations, local, on_all, shared_memory, tcp, tls};
use proptest::prelude::*;
use skyphos::{Comm, ConfigureOptions, DType, Error, Missing, Order, ReduceOp, ReduceOptions};

const TRANSPORTS: [(&str, MakeGroup); 4] =
    [("local", local), ("tcp", tcp), ("tcp with TLS", tls), ("shared memory", shared_memory)];

proptest! {
    #![proptest_config(crate::common::random(150))]

    #[test]
    fn configure_and_reduce_match_the_oracle(case in cases(), transport in 0..TRANSPORTS.len()) {
        check(&case, TRANSPORTS[transport].1);
    }
}

/// A case with given sets and defaults for the rest.
fn case(degrees: &[u32], contribute: Vec<Vec<u64>>, want: Vec<Vec<u64>>) -> Case {
    Case {
        size: degrees.iter().product(),
        degrees: degrees.to_vec(),
        n: 1 << 20,
        width: 1,
        dtype: DType::F64,
        op: ReduceOp::Sum,
        missing: Missing::Error,
        order: Order::Rank,
        contribute,
        want,
    }
}

/// The sets that each rank contributes and wants.
type Sets = (Vec<Vec<u64>>, Vec<Vec<u64>>);

#[test]
fn in_and_out_sets_of_every_relation_at_every_factorisation() {
    for size in [1u32, 6, 7, 8, 12, 13] {
        let ranks = 0..u64::from(size);
        let all: Vec<u64> = (0..3000).map(|k| k * 17).collect();
        let part = |r: u64, step: u64| {
            all.iter().copied().skip(r as usize).step_by(step as usize).collect::<Vec<_>>()
        };
        // in ≠ out; in ⊂ out; in ∩ out = ∅ on each rank, which wants the indices that its successor contributes.
        let different: Sets =
            (ranks.clone().map(|r| part(r, 3)).collect(), ranks.clone().map(|r| part(r % 3, 5)).collect());
        let inside: Sets =
            (ranks.clone().map(|_| all.clone()).collect(), ranks.clone().map(|r| part(r, 7)).collect());
        let disjoint: Sets = (
            ranks.clone().map(|r| part(r, u64::from(size))).collect(),
            ranks.clone().map(|r| part((r + 1) % u64::from(size), u64::from(size))).collect(),
        );
        for degrees in factorisations(size) {
            for (contribute, want) in [&inside, &disjoint, &different] {
                for missing in [Missing::Error, Missing::Identity] {
                    let case = Case { missing, ..case(&degrees, contribute.clone(), want.clone()) };
                    for (_, make) in TRANSPORTS {
                        check(&case, make);
                    }
                }
            }
        }
    }
}

#[test]
fn large_messages_in_chunks_with_merge_threads() {
    // 300,000 indices per rank: several chunks per message, several fold blocks per chunk.
    let settings = skyphos::Settings { threads: 2, ..Default::default() };
    let comms = Comm::local(4, &settings).unwrap().into_vec();
    let bits = |order: Order, comms: Vec<Comm>| {
        on_all(comms, |comm| {
            let rank = u64::from(comm.rank());
            let mine: Vec<u64> = (0..300_000).map(|k| k * 3 + rank % 2).collect();
            let options = ConfigureOptions { degrees: Some(vec![2, 2]), ..ConfigureOptions::with_n(1 << 20) };
            let mut plan = comm.configure(&mine, &mine).options(options.clone()).run().unwrap();
            let values: Vec<f64> = mine.iter().map(|i| (*i as f64).sin() * 10f64.powi(rank as i32)).collect();
            let mut out = vec![0.0; mine.len()];
            comm.reduce(&mut plan, &values, &mut out).options(ReduceOptions { order }).run().unwrap();
            let want = |i: u64| (i as f64).sin() * if i.is_multiple_of(3) { 101.0 } else { 1010.0 };
            for (i, got) in mine.iter().zip(&out) {
                assert!((got - want(*i)).abs() <= 1e-9 * 1000.0, "{i}: {got} against {}", want(*i));
            }
            out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        })
    };
    let threaded = bits(Order::Rank, comms);
    for (name, make) in TRANSPORTS {
        assert_eq!(bits(Order::Rank, make(4)), threaded, "{name}: the same bits on any thread count");
        bits(Order::Arrival, make(4));
    }
}

#[test]
fn steady_reductions_repeat_their_bits() {
    for (name, make) in TRANSPORTS {
        on_all(make(6), |comm| {
            let mine: Vec<u64> = (0..5000).map(|k| k * 5 % 7919 + u64::from(comm.rank())).collect();
            let options = ConfigureOptions::with_n(10_000);
            let mut plan = comm.configure(&mine, &mine).options(options.clone()).run().unwrap();
            let values: Vec<f32> = mine.iter().map(|i| 1.0 / (*i as f32 + 1.0)).collect();
            let mut first = vec![0.0; mine.len()];
            comm.reduce(&mut plan, &values, &mut first).run().unwrap();
            for _ in 0..20 {
                let mut again = vec![0.0; mine.len()];
                comm.reduce(&mut plan, &values, &mut again).run().unwrap();
                assert_eq!(again, first, "{name}");
            }
        });
    }
}

#[test]
fn n_and_degrees_are_agreed_when_not_given() {
    for (_, make) in TRANSPORTS {
        let got = on_all(make(8), |comm| {
            let mine: Vec<u64> = (0..2000).map(|k| k * (1 + u64::from(comm.rank()))).collect();
            let options = ConfigureOptions { min_packet_bytes: Some(3000.0), ..ConfigureOptions::default() };
            let plan = comm.configure(&mine, &mine).options(options.clone()).run().unwrap();
            (plan.n, plan.degrees)
        });
        assert_eq!(got[0].0, 1999 * 8 + 1);
        assert_eq!(got[0].1.iter().product::<u32>(), 8);
        assert!(got[0].1.len() > 1, "2,000 rows of 8 bytes over 8 are below 3,000 bytes: {:?}", got[0].1);
        assert!(got.iter().all(|g| *g == got[0]));
    }
}

/// A rank that has raised an error may have left before the others learn of it.
#[test]
fn the_error_of_a_last_call_is_raised_on_all() {
    for (name, make, rounds) in [("local", local as MakeGroup, 300), ("tcp", tcp, 30)] {
        for _ in 0..rounds {
            on_all(make(4), |comm| {
                let bad = if comm.rank() == 1 { 100 } else { 5u64 };
                let options = ConfigureOptions::with_n(100);
                let error = comm
                    .configure(&[bad], &[5u64])
                    .options(options.clone())
                    .run()
                    .map(|_| ())
                    .unwrap_err()
                    .to_string();
                assert!(error.contains("contribute[0] = 100"), "{name}, rank {}: {error}", comm.rank());
            });
        }
    }
}

#[test]
fn an_error_on_one_rank_is_raised_on_all_and_the_group_goes_on() {
    for (name, make) in TRANSPORTS {
        on_all(make(5), |comm| {
            let options = ConfigureOptions::with_n(100);
            let text = |result: Result<skyphos::Plan, Error>| result.map(|_| ()).unwrap_err().to_string();
            // An index outside the space, on rank 3 only.
            let bad = if comm.rank() == 3 { 100 } else { 5u64 };
            let error = text(comm.configure(&[bad], &[5u64]).options(options.clone()).run());
            assert!(error.contains("contribute[0] = 100"), "{name}: {error}");
            // Degrees whose product is not the group's size.
            let wrong = ConfigureOptions { degrees: Some(vec![2, 2]), ..options.clone() };
            let error = text(comm.configure(&[5u64], &[5u64]).options(wrong.clone()).run());
            assert!(error.contains("2x2") && error.contains("size 5"), "{name}: {error}");
            // Another n on rank 1.
            let other = ConfigureOptions::with_n(100 + u64::from(comm.rank() == 1));
            let error = text(comm.configure(&[5u64], &[5u64]).options(other.clone()).run());
            assert!(
                error.contains("n=101") && error.contains("n=100") && error.contains("rank 1"),
                "{name}: {error}"
            );
            // Values that do not align, another dtype, another operation.
            let mut plan = comm.configure(&[5u64, 6], &[5u64]).options(options.clone()).run().unwrap();
            let values = vec![1.0; if comm.rank() == 4 { 3 } else { 2 }];
            let mut out = [0.0];
            let mut sum = |values: &[f64], op: ReduceOp| {
                comm.reduce(&mut plan, values, &mut out).op(op).run().map(drop)
            };
            let error = sum(&values, ReduceOp::Sum).unwrap_err().to_string();
            assert!(error.contains("values hold 3 numbers"), "{name}: {error}");
            let op = if comm.rank() == 0 { ReduceOp::Max } else { ReduceOp::Sum };
            let error = sum(&[1.0, 1.0], op).unwrap_err().to_string();
            assert!(error.contains("op=max") && error.contains("op=sum"), "{name}: {error}");
            // The group still works.
            sum(&[1.0, 1.0], ReduceOp::Sum).unwrap();
            assert_eq!(out, [5.0]);
        });
    }
}

#[test]
fn split_groups_work_concurrently() {
    for (_, make) in TRANSPORTS {
        on_all(make(7), |comm| {
            let color = (comm.rank() != 6).then_some(u64::from(comm.rank() % 2));
            let Some(group) = comm.split(color, -i64::from(comm.rank())).unwrap() else {
                assert_eq!(comm.rank(), 6);
                return comm.barrier().run().unwrap();
            };
            assert_eq!((group.size(), group.rank()), (3, 2 - comm.rank() / 2));
            let mut plan =
                group.configure(&[1u64], &[1u64]).options(ConfigureOptions::with_n(2)).run().unwrap();
            let mut out = [0i64];
            let mine = [i64::from(comm.rank())];
            group.reduce(&mut plan, &mine, &mut out).run().unwrap();
            assert_eq!(out, [if comm.rank() % 2 == 0 { 6 } else { 9 }]);
            comm.barrier().run().unwrap();
        });
    }
}

#[test]
fn calls_on_a_closed_comm_are_refused() {
    let comm = local(1).remove(0);
    comm.close().unwrap();
    assert!(comm.barrier().run().unwrap_err().to_string().contains("closed"));
}
