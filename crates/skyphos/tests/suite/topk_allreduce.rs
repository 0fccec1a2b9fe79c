//! Ok-Topk against a plain oracle, and the bound on its words.

use crate::common::{LOCAL_AND_TCP, MakeGroup, local, on_all};
use proptest::prelude::*;
use skyphos::{DType, Form, IndexList, Magnitude, ReduceOp, SparseVec, VectorView, View, bf16};
use std::collections::BTreeMap;

/// The k largest entries by magnitude, among equal ones those of lower index; ascending by index.
fn largest(entries: impl IntoIterator<Item = (u64, f64)>, k: usize) -> Vec<(u64, f64)> {
    let mut all: Vec<(u64, f64)> = entries.into_iter().collect();
    all.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()).then(a.0.cmp(&b.0)));
    all.truncate(k);
    all.sort_by_key(|e| e.0);
    all
}

#[derive(Clone, Debug)]
struct Case {
    n: u64,
    k: u64,
    mean: bool,
    /// Entries of each rank: small whole numbers, so that sums are exact and ties frequent.
    lists: Vec<BTreeMap<u64, i8>>,
    dense: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let n = prop_oneof![Just(1u64), Just(64), Just(3000), Just(1 << 20), Just(1 << 40)];
    (1usize..=13, n, any::<bool>(), any::<bool>(), 1u32..5).prop_flat_map(|(size, n, mean, dense, skew)| {
        // With a large `skew` most entries have low indices.
        let index = (0f64..1.0).prop_map(move |u| (u.powi(skew as i32) * n as f64) as u64 % n);
        let value = prop_oneof![Just(1i8), Just(-1), -20i8..20];
        let list = prop_oneof![
            4 => prop::collection::btree_map(index, value, 0..200),
            1 => Just(BTreeMap::new()),
        ];
        (prop::collection::vec(list, size), 1u64..150).prop_map(move |(lists, k)| Case {
            n,
            k,
            mean,
            lists,
            dense: dense && n <= 3000,
        })
    })
}

fn check<T: Magnitude>(case: &Case, make: MakeGroup) {
    let size = case.lists.len();
    let value = |v: i8| T::from_f32(f32::from(v));
    let offered: Vec<Vec<(u64, f64)>> = case
        .lists
        .iter()
        .map(|list| {
            let all: Vec<(u64, f64)> = match case.dense {
                true => (0..case.n).map(|i| (i, list.get(&i).copied().unwrap_or(0).into())).collect(),
                false => list.iter().map(|(i, v)| (*i, f64::from(*v))).collect(),
            };
            largest(all, case.k as usize)
        })
        .collect();
    let mut sums: BTreeMap<u64, f64> = BTreeMap::new();
    offered.iter().flatten().for_each(|(i, v)| *sums.entry(*i).or_default() += v);
    let want = largest(sums, case.k as usize);
    let op = if case.mean { ReduceOp::Mean } else { ReduceOp::Sum };
    let got = on_all(make(size as u32), |comm| {
        let list = &case.lists[comm.rank() as usize];
        let values: Vec<T> = list.values().map(|v| value(*v)).collect();
        let x = match case.dense {
            true => {
                let row = |i| value(list.get(&i).copied().unwrap_or(0));
                SparseVec::dense(1, (0..case.n).map(row).collect())
            }
            false => {
                SparseVec::new(case.n, 1, IndexList::Wide(list.keys().copied().collect()), values).unwrap()
            }
        };
        let first = comm.topk_allreduce(&x, case.k).op(op.clone()).run().unwrap();
        let again = comm.topk_allreduce(x, case.k).op(op.clone()).start().unwrap().wait().unwrap();
        assert_eq!(first, again);
        first
    });
    for (rank, got) in got.iter().enumerate() {
        assert!(matches!(got.sum.form, Form::Sparse { .. }));
        let (indices, values) = got.sum.entries();
        assert_eq!(indices, want.iter().map(|(i, _)| *i).collect::<Vec<_>>(), "rank {rank}");
        let rows = want.iter().map(|(_, v)| {
            let sum = T::from_f32(*v as f32);
            if case.mean { sum.divide(size as u64) } else { sum }
        });
        assert_eq!(values, rows.collect::<Vec<_>>());
        let own: Vec<u64> = offered[rank].iter().map(|(i, _)| *i).collect();
        assert_eq!(got.offered.to_vec(), own);
        // The P entries of one index may all go to one rank.
        let bound = 6 * case.k.max(size as u64);
        assert!(got.sent_words <= bound && got.received_words <= bound, "rank {rank}: {got:?} in {case:?}");
    }
}

proptest! {
    #![proptest_config(crate::common::random(200))]

    #[test]
    fn results_match_the_oracle_within_the_bound(case in cases(), dtype in 0usize..3, transport in 0..LOCAL_AND_TCP.len()) {
        let make = LOCAL_AND_TCP[transport].1;
        match dtype {
            0 => check::<f32>(&case, make),
            1 => check::<f64>(&case, make),
            // bfloat16 has 8 significant bits, which sums of many ranks could exceed: few ranks.
            _ if case.lists.len() <= 6 => check::<bf16>(&case, make),
            _ => {}
        }
    }
}

#[test]
fn the_bound_holds_where_all_large_sums_are_on_one_rank() {
    let (n, k, size) = (1u64 << 20, 4000u64, 8u32);
    let got = on_all(local(size), |comm| {
        // All ranks' entries are spread evenly, but those of the first eighth are large, and different on each rank.
        let list: Vec<u64> = (0..k).map(|j| j * (n / k) + u64::from(comm.rank())).collect();
        let values: Vec<f32> = list.iter().map(|i| if *i < n / 8 { 100.0 } else { 1.0 }).collect();
        let view = View::Sparse { indices: (&list).into(), values: &values };
        comm.topk_allreduce(VectorView::new(n, 1, view), k).run().unwrap()
    });
    for got in &got {
        assert_eq!(got.sum.nnz() as u64, k);
        assert!(
            got.sent_words <= 6 * k && got.received_words <= 6 * k,
            "{} {}",
            got.sent_words,
            got.received_words
        );
    }
}

#[test]
fn bad_arguments_raise_on_all_ranks() {
    let x = |dtype: DType| {
        on_all(local(3), move |comm| {
            let view = View::Sparse { indices: (&[1u64]).into(), values: &[1.0f32] };
            let k = 2 + u64::from(comm.rank() == 1 && dtype == DType::F32);
            let op = if dtype == DType::F64 { ReduceOp::Max } else { ReduceOp::Sum };
            comm.topk_allreduce(VectorView::new(9, 1, view), k).op(op.clone()).run().unwrap_err().to_string()
        })
    };
    assert!(x(DType::F32).iter().all(|text| text.contains("topk_allreduce")), "another k");
    assert!(x(DType::F64).iter().all(|text| text.contains("\"sum\" or \"mean\"")), "another op");
}
