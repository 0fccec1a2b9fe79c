//! Calls that rely on the tuning cache: right for any change of the data, and the same on all ranks.

use crate::common::{LOCAL_AND_TCP, local, on_all, tcp};
use proptest::prelude::*;
use skyphos::{Algorithm, AllreduceOptions, Comm, Error, IndexList, SparseVec, VectorView};
use skyphos_plan::{Profile, survey_stage};
use std::collections::BTreeMap;

const N: u64 = 30_000;

/// A rank's entries in a call: `count` entries from index `from` on, `step` apart, shifted a little for each rank.
#[derive(Clone, Copy, Debug)]
struct Data {
    count: u64,
    from: u64,
    step: u64,
}

fn vector(data: Data, rank: u32) -> SparseVec<f64> {
    let index = |k: u64| data.from + k * data.step + u64::from(rank) * (data.step / 3);
    let indices: Vec<u32> = (0..data.count).map(index).filter(|i| *i < N).map(|i| i as u32).collect();
    let values = indices.iter().map(|i| f64::from(i % 7 + rank)).collect();
    SparseVec::new(N, 1, IndexList::Narrow(indices), values).unwrap()
}

fn sum(data: Data, size: u32) -> BTreeMap<u64, f64> {
    let mut all = BTreeMap::new();
    for rank in 0..size {
        let (indices, values) = vector(data, rank).entries();
        indices.iter().zip(values).for_each(|(i, v)| *all.entry(*i).or_default() += v);
    }
    all
}

/// Makes one blocking call. Returns the bytes that it sent.
fn allreduce(comm: &Comm, data: Data, algorithm: Algorithm, want: &BTreeMap<u64, f64>) -> u64 {
    let options = AllreduceOptions { algorithm, ..AllreduceOptions::default() };
    let mine = vector(data, comm.rank());
    let got = comm.allreduce(&mine).options(options.clone()).run().unwrap();
    let dense = got.sum.to_dense(0.0);
    for (index, value) in dense.iter().enumerate() {
        assert_eq!(*value, want.get(&(index as u64)).copied().unwrap_or(0.0), "{algorithm:?} {index}");
    }
    got.explanation.traffic.sent_bytes
}

fn data() -> impl Strategy<Value = Data> {
    let counts = prop_oneof![Just(0u64), 1u64..20, 100u64..3000, Just(20_000)];
    (counts, 0u64..10_000, prop_oneof![Just(1u64), 2u64..9]).prop_map(|(count, from, step)| Data {
        count,
        from,
        step,
    })
}

proptest! {
    #![proptest_config(crate::common::random(40))]

    #[test]
    fn sums_are_right_while_the_data_change(
        size in 1u32..=9, transport in 0..LOCAL_AND_TCP.len(), all in prop::collection::vec((data(), 1usize..8), 1..6),
        algorithm in prop::sample::select(vec![
            Algorithm::Auto, Algorithm::Auto, Algorithm::Butterfly, Algorithm::SplitAllgather, Algorithm::Ring,
            Algorithm::SplitAllgatherDense, Algorithm::Allgather,
        ]),
    ) {
        let sums: Vec<_> = all.iter().map(|(data, _)| sum(*data, size)).collect();
        on_all(LOCAL_AND_TCP[transport].1(size), |comm| {
            for ((data, times), want) in all.iter().zip(&sums) {
                for _ in 0..*times {
                    allreduce(comm, *data, algorithm, want);
                }
                // A non-blocking call relies on the cache too, and stores nothing.
                let options = AllreduceOptions { algorithm, ..AllreduceOptions::default() };
                let mine = vector(*data, comm.rank());
                let work = comm.allreduce(mine).options(options).start().unwrap();
                allreduce(comm, *data, algorithm, want);
                let got = work.wait().unwrap().sum;
                // Only DSAR loses which rows are entries.
                let forgets = algorithm == Algorithm::SplitAllgatherDense && got.is_dense();
                assert_eq!(got.nnz(), if forgets { N as usize } else { want.len() }, "{algorithm:?}");
            }
        });
    }
}

#[test]
fn a_second_call_takes_no_survey() {
    // So few entries that no other algorithm is tried.
    let data = Data { count: 500, from: 5, step: 7 };
    let want = sum(data, 4);
    for (_, make) in LOCAL_AND_TCP {
        on_all(make(4), |comm| {
            let sent: Vec<u64> = (0..7).map(|_| allreduce(comm, data, Algorithm::Auto, &want)).collect();
            // The planner's estimate of a survey: two rounds, and this rank's share of the numbers.
            let survey = survey_stage(4, &Profile::one_host(4, 2.0)).sent as u64;
            let [first, others @ .., again, last] = &sent[..] else { panic!("seven calls") };
            assert!(others.iter().chain([last]).all(|bytes| bytes + survey == *first), "{sent:?}");
            assert_eq!(again, first, "the sixth call takes a survey again");
        });
    }
}

#[test]
fn algorithms_of_similar_prediction_are_tried_until_one_is_chosen() {
    let data = Data { count: 2_500, from: 5, step: 7 };
    let want = sum(data, 4);
    for (_, make) in LOCAL_AND_TCP {
        let done = on_all(make(4), |comm| {
            let call = || {
                let x = vector(data, comm.rank());
                let done = comm.allreduce(&x).run();
                let done = done.unwrap();
                assert_eq!(done.sum.entries().0.len(), want.len());
                done.explanation
            };
            let mut variants = Vec::new();
            let settled = (0..40).map(|_| call()).find(|explanation| {
                let variant = (explanation.algorithm, explanation.degrees.clone());
                if !variants.contains(&variant) {
                    variants.push(variant);
                }
                // All variants but one were rejected; slow ones are rejected early.
                let rejected = explanation.choice.as_ref().unwrap().tried.len();
                rejected > 0 && rejected + 1 == variants.len()
            });
            let settled = settled.expect(
                "an algorithm is chosen after at most 4 candidates, three calls each in three rounds",
            );
            // These calls take no new survey, however long they take.
            let next: Vec<_> = (0..4).map(|_| call().algorithm).collect();
            assert!(
                next.iter().all(|algorithm| *algorithm == settled.algorithm),
                "{settled:?}, then {next:?}"
            );
            (variants, settled.algorithm, settled.choice.unwrap().tried.clone())
        });
        assert!(done.windows(2).all(|two| two[0] == two[1]), "ranks tried different algorithms: {done:?}");
    }
}

#[test]
fn a_hint_saves_the_first_survey_and_a_wrong_hint_is_dropped() {
    let data = Data { count: 500, from: 5, step: 7 };
    let want = sum(data, 4);
    on_all(tcp(4), |comm| {
        let call = |expected_nnz| {
            let (x, options) =
                (vector(data, comm.rank()), AllreduceOptions { expected_nnz, ..Default::default() });
            let done = comm.allreduce(&x).options(options.clone()).run().unwrap();
            assert_eq!(done.sum.entries().0.len(), want.len());
            done.explanation.traffic.sent_bytes
        };
        // Ranks that may start with different profiles take a survey in spite of a hint.
        let (surveyed, without_hint) = (call(Some(want.len() as u64)), call(None));
        assert_eq!(surveyed, without_hint);
        comm.agree_profile(None, true).unwrap();
        let right = call(Some(want.len() as u64 + 1));
        assert!(right < surveyed, "{right} bytes with a hint, {surveyed} without");
        assert_eq!(call(Some(want.len() as u64 + 1)), right);
        let misled = call(Some(N));
        assert!(misled > surveyed, "{misled} bytes, although nearly every index should be on some rank");
        assert_eq!([call(Some(N)), call(Some(N))], [surveyed, right], "after a wrong hint");
        let (x, expected_nnz) = (vector(data, comm.rank()), Some(N + 1));
        let options = AllreduceOptions { expected_nnz, ..AllreduceOptions::default() };
        let error = comm.allreduce(&x).options(options.clone()).run().unwrap_err();
        assert!(error.to_string().contains("expected_nnz"), "{error}");
    });
}

#[test]
fn fixed_groups_try_no_algorithm() {
    let data = Data { count: 2_500, from: 5, step: 7 };
    on_all(tcp(4), |comm| {
        comm.agree_profile(None, comm.rank() != 0).unwrap();
        assert!(!comm.adapts() && !comm.split(Some(0), 0).unwrap().unwrap().adapts());
        let calls: Vec<_> = (0..12)
            .map(|_| {
                let x = vector(data, comm.rank());
                let options = AllreduceOptions::default();
                let explanation = comm.allreduce(&x).options(options.clone()).run().unwrap().explanation;
                (explanation.algorithm, explanation.degrees, explanation.choice.unwrap().duration().0)
            })
            .collect();
        assert!(calls.windows(2).all(|two| two[0] == two[1]), "{calls:?}");
    });
}

#[test]
fn ranks_with_different_caches_notice_and_clear_them() {
    let data = Data { count: 500, from: 0, step: 5 };
    let want = sum(data, 3);
    on_all(tcp(3), |comm| {
        allreduce(comm, data, Algorithm::Auto, &want);
        // One rank's call stores nothing, as if it had been interrupted at its very end.
        let (options, mine) = (AllreduceOptions::default(), vector(data, comm.rank()));
        match comm.rank() {
            1 => drop(comm.allreduce(mine).options(options).prepare().unwrap().run().unwrap()),
            _ => drop(comm.allreduce(&mine).options(options.clone()).run().unwrap().sum),
        }
        let (options, mine) = (AllreduceOptions::default(), vector(data, comm.rank()));
        let error = comm.allreduce(&mine).options(options.clone()).run().unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        for _ in 0..3 {
            allreduce(comm, data, Algorithm::Auto, &want);
        }
    });
}

#[test]
fn an_error_of_one_rank_does_not_change_the_cache() {
    let data = Data { count: 500, from: 0, step: 5 };
    let want = sum(data, 3);
    on_all(local(3), |comm| {
        for _ in 0..3 {
            allreduce(comm, data, Algorithm::Auto, &want);
            let (indices, values) = match comm.rank() {
                1 => (vec![9u32, 4], vec![1.0, 2.0]),
                _ => (vec![4u32, 9], vec![1.0, 2.0]),
            };
            let view = skyphos::View::Sparse { indices: (&indices).into(), values: &values };
            let error = comm.allreduce(VectorView::new(N, 1, view)).run().unwrap_err();
            assert!(error.to_string().contains("ascend"), "{error}");
        }
    });
}

#[test]
fn ranks_with_few_and_with_many_entries_agree() {
    on_all(tcp(3), |comm| {
        for count in [1, 40, 63, 64, 500] {
            let mine = if comm.rank() == 1 { count } else { 3 };
            let x = vector(Data { count: mine, from: 7, step: 3 }, comm.rank());
            let got = comm.allreduce(&x).run().unwrap().sum;
            assert!(got.nnz() as u64 >= count);
        }
    });
}

/// After any mismatch all ranks clear their caches, whichever calls they made.
#[test]
fn the_group_is_usable_after_a_mismatch() {
    let data = Data { count: 500, from: 5, step: 7 };
    let want = sum(data, 4);
    for (_, make) in LOCAL_AND_TCP {
        on_all(make(4), |comm| {
            for _ in 0..3 {
                allreduce(comm, data, Algorithm::Auto, &want);
            }
            let options = AllreduceOptions::default();
            let mine = vector(data, comm.rank());
            let error = match comm.rank() {
                0 => comm.barrier().run().err(),
                _ => comm.allreduce(&mine).options(options.clone()).run().err(),
            };
            assert!(matches!(error, Some(Error::Mismatch { .. })), "{error:?}");
            for _ in 0..3 {
                allreduce(comm, data, Algorithm::Auto, &want);
            }
        });
    }
}

/// A wrong hint costs time, but not memory for as many rows as it says.
#[test]
fn a_hint_of_very_many_entries_allocates_no_array() {
    on_all(local(2), |comm| {
        let n = 1 << 40;
        let x = SparseVec::new(n, 1, IndexList::Wide(vec![u64::from(comm.rank())]), vec![1f32]).unwrap();
        let options = AllreduceOptions { expected_nnz: Some(n), ..AllreduceOptions::default() };
        for _ in 0..3 {
            let got = comm.allreduce(&x).options(options.clone()).run().unwrap().sum;
            assert_eq!(got.entries(), (vec![0, 1], vec![1.0, 1.0]));
        }
    });
}
