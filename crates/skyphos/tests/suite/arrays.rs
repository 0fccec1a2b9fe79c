//! Collectives of arrays other than allreduce, against a plain oracle.

use crate::common::{LOCAL_AND_TCP, combine, on_all, tcp};
use proptest::prelude::*;
use skyphos::{ArrayMove, Comm, DType, Element, ReduceOp, Schedule, with_element};

/// Number k of a rank's array: small, so that sums are exact in every type.
fn number<T: Element>(rank: u32, k: usize) -> T {
    (0..1 + (rank as usize + k) % 3).fold(T::ZERO, |v, _| v.add(T::ONE))
}

fn array<T: Element>(rank: u32, len: usize) -> Vec<T> {
    (0..len).map(|k| number(rank, k)).collect()
}

fn share(len: usize, size: u32, rank: u32) -> std::ops::Range<usize> {
    len * rank as usize / size as usize..len * (rank as usize + 1) / size as usize
}

fn check<T: Element>(comm: &Comm, len: usize, root: u32, schedule: Schedule, op: &ReduceOp) {
    let (me, size) = (comm.rank(), comm.size());
    let (mine, count) = (array::<T>(me, len), size as usize);
    let all: Vec<T> = (0..size).flat_map(|rank| array(rank, len)).collect();

    let mut out = vec![T::ZERO; len * count];
    comm.move_arrays(ArrayMove::Allgather(schedule), &mine, &mut out).run().unwrap();
    assert_eq!(out, all, "{schedule:?}");

    let mut out = vec![T::ZERO; if me == root { len * count } else { 0 }];
    comm.move_arrays(ArrayMove::Gather { root }, &mine, &mut out).run().unwrap();
    assert_eq!(out, if me == root { &all[..] } else { &[] });

    let blocks = |rank: u32| (0..size).flat_map(move |to| array::<T>(rank * 7 + to, len));
    let mut out = vec![T::ZERO; len * count];
    comm.move_arrays(ArrayMove::Alltoall, &blocks(me).collect::<Vec<T>>(), &mut out).run().unwrap();
    assert_eq!(out, (0..size).flat_map(|from| array(from * 7 + me, len)).collect::<Vec<T>>());

    let whole: Vec<T> = if me == root { blocks(root).collect() } else { Vec::new() };
    let mut out = vec![T::ZERO; len];
    comm.move_arrays(ArrayMove::Scatter { root }, &whole, &mut out).run().unwrap();
    assert_eq!(out, array(root * 7 + me, len));

    let mut want = array::<T>(0, len);
    for rank in 1..size {
        want.iter_mut().zip(array(rank, len)).for_each(|(a, v)| *a = combine(op, *a, v));
    }
    if matches!(op, ReduceOp::Mean | ReduceOp::MeanPresent) {
        want.iter_mut().for_each(|v| *v = v.divide(u64::from(size)));
    }
    let mut out = vec![T::ZERO; share(len, size, me).len()];
    comm.reduce_arrays(None, &mine, &mut out).op(op.clone()).run().unwrap();
    assert_eq!(out, want[share(len, size, me)]);
    let mut out = vec![T::ZERO; if me == root { len } else { 0 }];
    comm.reduce_arrays(Some(root), &mine, &mut out).op(op.clone()).run().unwrap();
    assert_eq!(out, if me == root { &want[..] } else { &[] });
}

proptest! {
    #![proptest_config(crate::common::random(150))]

    #[test]
    fn results_match_the_oracle(
        size in 1u32..=13, len in prop_oneof![3 => 0usize..40, 2 => 4_000usize..20_000], root in any::<u32>(),
        schedule in prop::sample::select(Schedule::ALL.to_vec()), op in 0..ReduceOp::NAMED.len(),
        dtype in 0..DType::ALL.len(), transport in 0..LOCAL_AND_TCP.len(),
    ) {
        let op = ReduceOp::NAMED[op].clone();
        with_element!(DType::ALL[dtype], T => {
            if op.check(T::DTYPE).is_ok() {
                on_all(LOCAL_AND_TCP[transport].1(size), |comm| check::<T>(comm, len, root % size, schedule, &op));
            }
        });
    }
}

/// Ranges of several chunks, and messages larger than the window.
#[test]
fn results_for_large_arrays_match_the_oracle() {
    for (_, make) in LOCAL_AND_TCP {
        on_all(make(3), |comm| {
            for schedule in Schedule::ALL {
                check::<f32>(comm, 400_001, 1, schedule, &ReduceOp::Sum);
            }
            check::<u8>(comm, 9 << 20, 2, Schedule::Ring, &ReduceOp::Max);
        });
    }
}

#[test]
fn mismatches_raise_on_all_ranks() {
    let got = on_all(tcp(3), |comm| {
        let mut out = [0u8; 12];
        let root = comm.move_arrays(ArrayMove::Gather { root: 5 }, &[1; 4], &mut []).run().unwrap_err();
        let count = if comm.rank() == 2 { 11 } else { 12 };
        let length = comm
            .move_arrays(ArrayMove::Allgather(Schedule::Ring), &[1; 4], &mut out[..count])
            .run()
            .unwrap_err();
        let mine = vec![1u8; 4 + comm.rank() as usize / 2];
        let mut out = vec![0; mine.len() * 3];
        let differ =
            comm.move_arrays(ArrayMove::Allgather(Schedule::Direct), &mine, &mut out).run().unwrap_err();
        let kind = match comm.rank() {
            0 => comm.move_arrays(ArrayMove::Alltoall, &[1; 3], &mut [0; 3]).run().unwrap_err(),
            _ => comm.reduce_arrays(None, &[1; 3], &mut [0]).run().unwrap_err(),
        };
        [root, length, differ, kind].map(|error| error.to_string())
    });
    for [root, length, differ, kind] in got {
        assert!(root.contains("root=5"), "{root}");
        assert!(length.contains("11 coming in"), "{length}");
        assert!(differ.contains("n=4") && differ.contains("n=5"), "{differ}");
        assert!(
            kind.contains("alltoall of arrays") && kind.contains("reduce_scatter of dense arrays"),
            "{kind}"
        );
    }
}

#[test]
fn alltoall_with_a_length_for_each_pair() {
    let len = |from: u32, to: u32| (from * 5 + to * 3) as usize % 7 * if from == 1 { 100_001 } else { 1 };
    let block = move |from: u32, to: u32| array::<u8>(from * 7 + to, len(from, to));
    for (_, make) in LOCAL_AND_TCP {
        for size in 1..=4 {
            on_all(make(size), |comm| {
                let me = comm.rank();
                let from: Vec<u8> = (0..size).flat_map(|to| block(me, to)).collect();
                let expected: Vec<u8> = (0..size).flat_map(|from| block(from, me)).collect();
                let sends = (0..size).map(|to| len(me, to)).collect();
                let receives = (0..size).map(|from| len(from, me)).collect();
                let call = comm.alltoall_uneven(from, vec![0; expected.len()], sends, receives).prepare();
                assert_eq!(call.unwrap().run().unwrap(), expected);
            });
        }
    }
    let errors = on_all(tcp(2), |comm| {
        let sends = vec![2, 2 - comm.rank() as usize];
        let from = vec![0; sends.iter().sum()];
        let call = comm.alltoall_uneven(from, vec![0; 3], sends, vec![2, 1]).prepare();
        call.unwrap().run().unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("rank 1 sends rank 0 2 bytes")), "{errors:?}");
}

/// Messages of several groups, received in another order than they were sent. Making these groups sends no message.
#[test]
fn messages_between_two_ranks() {
    for (_, make) in LOCAL_AND_TCP {
        on_all(make(3), |comm| {
            let groups = [0, 1, 2].map(|tag| match comm.rank() {
                0 => None,
                _ => Some(comm.group_of(&[2, 1], tag).unwrap()),
            });
            let send = |tag: usize, len: usize| {
                let group = groups[tag].as_ref().unwrap();
                group.move_arrays(ArrayMove::Message, &array::<u8>(tag as u32, len), &mut []).run().unwrap();
            };
            let receive = |tag: usize, len: usize| {
                let (group, mut out) = (groups[tag].as_ref().unwrap(), vec![0; len]);
                group.move_arrays(ArrayMove::Message, &[], &mut out).run().unwrap();
                assert_eq!(out, array::<u8>(tag as u32, len));
            };
            match comm.rank() {
                0 => {}
                2 => {
                    send(0, 1 << 20);
                    send(1, 0);
                    send(1, 9);
                    send(2, 20 << 20);
                }
                _ => {
                    receive(1, 0);
                    receive(1, 9);
                    receive(0, 1 << 20);
                    receive(2, 20 << 20);
                }
            }
            comm.barrier().run().unwrap();
            for ranks in [&[0, 0][..], &[7], &[(comm.rank() + 1) % 3]] {
                assert!(comm.group_of(ranks, 0).err().unwrap().to_string().contains("list distinct ranks"));
            }
        });
    }
    let wrong = on_all(tcp(2), |comm| {
        let group = comm.group_of(&[0, 1], 0).unwrap();
        match comm.rank() {
            0 => group.move_arrays(ArrayMove::Message, &[1u8; 3], vec![]).run(),
            _ => group.move_arrays(ArrayMove::Message, &[], vec![0u8; 4]).run(),
        }
    });
    assert!(wrong[1].as_ref().unwrap_err().to_string().contains("n=3"), "{wrong:?}");
}
