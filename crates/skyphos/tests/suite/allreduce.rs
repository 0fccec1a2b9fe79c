//! Allreduce of sparse vectors and arrays: every algorithm on every transport against a plain oracle.

use crate::common::{LOCAL_AND_TCP, MakeGroup, combine, layerings, local, on_all, on_each};
use proptest::prelude::*;
use skyphos::{
    Algorithm, AllreduceOptions, Comm, DType, DenseThreshold, Element, Form, IndexList, Indices, ReduceOp,
    Result, SparseVec, Split, VectorView, View, with_element,
};
use std::collections::BTreeMap;

/// The algorithms that take arrays, besides `auto`.
fn dense() -> Vec<Algorithm> {
    Algorithm::OURS.into_iter().filter(|a| a.is_dense()).collect()
}

#[derive(Clone, Debug)]
struct Case {
    size: u32,
    n: u64,
    width: usize,
    dtype: DType,
    op: ReduceOp,
    options: AllreduceOptions,
    /// Ascending indices of each rank.
    indices: Vec<Vec<u64>>,
    /// Ranks that pass 8-byte indices, and ranks that pass a dense vector.
    wide: Vec<bool>,
    dense: Vec<bool>,
}

fn ascending(n: u64) -> impl Strategy<Value = Vec<u64>> {
    let sorted = |mut v: Vec<u64>| {
        v.sort_unstable();
        v.dedup();
        v
    };
    let zipf = prop::collection::vec(0f64..1.0, 0..90)
        .prop_map(move |u| u.iter().map(|u| ((n as f64).powf(*u) - 1.0) as u64 % n).collect::<Vec<_>>());
    let run = (0..n, 1u64..400).prop_map(move |(start, len)| (start..(start + len).min(n)).collect());
    prop_oneof![
        3 => prop::collection::vec(0..n, 0..60).prop_map(sorted),
        3 => zipf.prop_map(sorted),
        2 => run,
        1 => Just(vec![]),
        1 => Just((0..n.min(200)).collect()),
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    let n = prop_oneof![Just(1u64), Just(100), Just(5000), Just(1 << 17), Just(1 << 40), Just(1 << 63)];
    let threshold = prop_oneof![
        2 => Just(DenseThreshold::Auto),
        1 => Just(DenseThreshold::Paper),
        1 => (0u64..300).prop_map(DenseThreshold::Entries)
    ];
    let splits = prop::sample::select(vec![Split::Even, Split::Quantiles, Split::Hash]);
    let settings =
        (prop::sample::select(Algorithm::OURS.to_vec()), threshold, splits, any::<prop::sample::Index>());
    (1u32..=13, n, 0usize..DType::ALL.len(), 0usize..8, prop_oneof![Just(1usize), Just(16)], settings)
        .prop_flat_map(|(size, n, dtype, op, width, (drawn_algorithm, dense_threshold, split, degrees))| {
            let lists: Vec<_> = (0..size).map(|_| ascending(n)).collect();
            let flags = || prop::collection::vec(any::<bool>(), size as usize);
            (lists, flags(), flags()).prop_map(move |(indices, wide, dense)| {
                let dtype = DType::ALL[dtype];
                let op = ReduceOp::NAMED[op].clone();
                let op = if op.check(dtype).is_ok() { op } else { ReduceOp::Sum };
                let small = n <= 5000;
                let mut algorithm = drawn_algorithm;
                let counts_ranks =
                    matches!(algorithm, Algorithm::Auto | Algorithm::SplitAllgather | Algorithm::Allgather);
                if matches!(op, ReduceOp::MeanPresent) && !counts_ranks
                    || (algorithm.is_dense() || algorithm == Algorithm::SplitAllgatherDense) && n > 1 << 20
                {
                    algorithm = Algorithm::SplitAllgather;
                }
                let layered = matches!(algorithm, Algorithm::Auto | Algorithm::Butterfly);
                let degrees = layered.then(|| degrees.get(&layerings(size)).clone());
                let dense_threshold = match dense_threshold {
                    DenseThreshold::Entries(_) if !small => DenseThreshold::Auto,
                    threshold => threshold,
                };
                // A dense vector takes memory for all n rows.
                let dense = dense.into_iter().map(|d| d && small).collect();
                let options = AllreduceOptions {
                    algorithm,
                    degrees,
                    split,
                    dense_threshold,
                    ..AllreduceOptions::default()
                };
                Case { size, n, width, dtype, op, options, indices, wide, dense }
            })
        })
}

/// A small value, so that sums and products are exact in every type; zeros of both signs.
fn value<T: Element>(rank: usize, index: u64, column: usize, op: &ReduceOp) -> T {
    let k = (rank as u64 * 31 + index % 1000 * 7 + column as u64 * 3) % 4;
    let steps = if matches!(op, ReduceOp::Prod) { 1 + k % 2 } else { k };
    let zero = T::ABSENT.filter(|_| index.is_multiple_of(2)).unwrap_or(T::ZERO);
    (0..steps).fold(zero, |v, _| v.add(T::ONE))
}

fn input<T: Element>(case: &Case, rank: usize) -> SparseVec<T> {
    let list = &case.indices[rank];
    let row = |index: &u64| {
        let index = *index;
        (0..case.width).map(move |w| value(rank, index, w, &case.op)).collect::<Vec<T>>()
    };
    let values: Vec<T> = list.iter().flat_map(row).collect();
    if case.dense[rank] {
        let identity = case.op.identity::<T>().unwrap();
        let (n, width) = (case.n as usize, case.width);
        let (mut all, mut bits) = (vec![identity; n * width], vec![0u64; n.div_ceil(64)]);
        for (index, row) in list.iter().zip(values.chunks(width)) {
            all[*index as usize * width..][..width].copy_from_slice(row);
            bits[*index as usize / 64] |= 1 << (index % 64);
        }
        // Without a bitmap all rows are entries.
        let present = (list.len() < n).then_some(bits);
        return SparseVec { n: case.n, width, form: Form::Dense { values: all, present } };
    }
    let narrow: Option<Vec<u32>> = list.iter().map(|i| u32::try_from(*i).ok()).collect();
    let indices = match narrow.filter(|_| !case.wide[rank]) {
        Some(list) => IndexList::Narrow(list),
        None => IndexList::Wide(list.clone()),
    };
    SparseVec::new(case.n, case.width, indices, values).unwrap()
}

/// Index → reduced row.
fn oracle<T: Element>(case: &Case) -> BTreeMap<u64, Vec<T>> {
    let mut sums: BTreeMap<u64, (Vec<T>, u64)> = BTreeMap::new();
    for rank in 0..case.size as usize {
        let (indices, values) = input::<T>(case, rank).entries();
        for (index, row) in indices.iter().zip(values.chunks(case.width)) {
            match sums.get_mut(index) {
                Some((sum, count)) => {
                    sum.iter_mut().zip(row).for_each(|(s, v)| *s = combine(&case.op, *s, *v));
                    *count += 1;
                }
                None => {
                    sums.insert(*index, (row.to_vec(), 1));
                }
            }
        }
    }
    let mean = |(index, (mut row, count)): (u64, (Vec<T>, u64))| {
        match case.op {
            ReduceOp::Mean => row.iter_mut().for_each(|v| *v = v.divide(u64::from(case.size))),
            ReduceOp::MeanPresent => row.iter_mut().for_each(|v| *v = v.divide(count)),
            _ => {}
        }
        (index, row)
    };
    sums.into_iter().map(mean).collect()
}

fn check<T: Element>(case: &Case, make: MakeGroup) {
    let want = oracle::<T>(case);
    let got = on_all(make(case.size), |comm| -> Result<SparseVec<T>> {
        let mine = input::<T>(case, comm.rank() as usize);
        let first = comm.allreduce(&mine).op(case.op.clone()).options(case.options.clone()).run()?.sum;
        let again = comm.allreduce(&mine).op(case.op.clone()).options(case.options.clone()).run()?.sum;
        assert_eq!(first, again, "the same bits every time");
        Ok(first)
    });
    for (rank, result) in got.into_iter().enumerate() {
        let result = result.unwrap_or_else(|error| panic!("rank {rank}: {error} in {case:?}"));
        result.view().check(case.n, case.width).unwrap();
        match case.options.algorithm {
            Algorithm::SplitAllgather => assert!(!result.is_dense(), "SSAR stays sparse"),
            Algorithm::SplitAllgatherDense => assert!(result.is_dense(), "DSAR turns dense"),
            dense if dense.is_dense() => assert!(result.is_dense(), "a dense schedule reduces an array"),
            _ => {}
        }
        if let Form::Dense { values, present: Some(bits) } = &result.form {
            let identity = case.op.identity::<T>().unwrap();
            for (k, row) in values.chunks(case.width).enumerate() {
                let is_absent = row.iter().all(|v| *v == identity && v.is_absent() == identity.is_absent());
                assert!(bits[k / 64] >> (k % 64) & 1 == 1 || is_absent, "rank {rank}, index {k} in {case:?}");
            }
        }
        let (indices, values) = result.entries();
        let dsar = case.options.algorithm == Algorithm::SplitAllgatherDense;
        if let Form::Dense { values, present: None } = &result.form {
            assert!(dsar, "only DSAR forgets which rows are entries");
            // Absent is identity.
            let identity = vec![case.op.identity::<T>().unwrap(); case.width];
            for (k, row) in values.chunks(case.width).enumerate() {
                assert_eq!(
                    row,
                    want.get(&(k as u64)).unwrap_or(&identity),
                    "rank {rank}, index {k} in {case:?}"
                );
            }
            continue;
        }
        let found: BTreeMap<u64, Vec<T>> =
            indices.iter().copied().zip(values.chunks(case.width).map(<[T]>::to_vec)).collect();
        assert_eq!(found, want, "rank {rank} in {case:?}");
    }
}

proptest! {
    #![proptest_config(crate::common::random(300))]

    #[test]
    fn sparse_vectors_match_the_oracle(case in cases(), transport in 0..LOCAL_AND_TCP.len()) {
        with_element!(case.dtype, T => check::<T>(&case, LOCAL_AND_TCP[transport].1));
    }

    #[test]
    fn dense_arrays_match_the_oracle(
        size in 1u32..=13, len in prop_oneof![0usize..50, 10_000usize..60_000], algorithm in prop::sample::select(dense()), op in 0usize..8,
        dtype in 0usize..DType::ALL.len(), transport in 0..LOCAL_AND_TCP.len(),
    ) {
        let op = ReduceOp::NAMED[op].clone();
        let options = AllreduceOptions { algorithm, ..AllreduceOptions::default() };
        with_element!(DType::ALL[dtype], T => {
            if op.check(T::DTYPE).is_ok() {
                let row = |rank: u32| -> Vec<T> {
                    (0..len as u64).map(|k| value(rank as usize, k, 0, &op)).collect()
                };
                let mut want = row(0);
                for rank in 1..size {
                    want.iter_mut().zip(row(rank)).for_each(|(a, v)| *a = combine(&op, *a, v));
                }
                if matches!(op, ReduceOp::Mean | ReduceOp::MeanPresent) {
                    want.iter_mut().for_each(|v| *v = v.divide(u64::from(size)));
                }
                let got = on_all(LOCAL_AND_TCP[transport].1(size), |comm| {
                    let mut out = vec![T::ZERO; len];
                    comm.allreduce_dense(&row(comm.rank()), &mut out).op(op.clone()).options(options.clone()).run().unwrap();
                    let vector = SparseVec::dense(1, row(comm.rank()));
                    let sparse = AllreduceOptions { algorithm: Algorithm::SplitAllgather, ..options.clone() };
                    let sum = comm.allreduce(&vector).op(op.clone()).options(sparse.clone()).run().unwrap().sum;
                    assert_eq!(sum.to_dense(T::ZERO), out);
                    out
                });
                prop_assert!(got.iter().all(|g| *g == want));
            }
        });
    }
}

#[test]
fn vectors_of_many_segments_at_every_size_and_algorithm() {
    for (_, make) in LOCAL_AND_TCP {
        for size in [2u32, 3, 8, 13] {
            let all: Vec<Comm> = make(size);
            let list = |rank: u64| (0..40_000u64).map(|k| k * 37 + k * k % 31 + rank % 3).collect::<Vec<_>>();
            let n = 40_000 * 40;
            let mut want: BTreeMap<u64, f64> = BTreeMap::new();
            for rank in 0..u64::from(size) {
                list(rank).iter().for_each(|i| *want.entry(*i).or_default() += (rank + i) as f64);
            }
            for algorithm in Algorithm::OURS {
                let options = AllreduceOptions { algorithm, ..AllreduceOptions::default() };
                on_each(all.iter().collect(), |_, comm: &Comm| {
                    let rank = u64::from(comm.rank());
                    let mine = list(rank);
                    let values: Vec<f64> = mine.iter().map(|i| (rank + i) as f64).collect();
                    let view = View::Sparse { indices: (&mine).into(), values: &values };
                    let got = comm
                        .allreduce(VectorView::new(n, 1, view))
                        .options(options.clone())
                        .run()
                        .unwrap()
                        .sum;
                    let dense = got.to_dense(0.0);
                    for (index, value) in dense.iter().enumerate() {
                        assert_eq!(
                            *value,
                            want.get(&(index as u64)).copied().unwrap_or(0.0),
                            "{algorithm:?} {index}"
                        );
                    }
                });
            }
        }
    }
}

#[test]
fn empty_arrays_are_accepted() {
    for (_, make) in LOCAL_AND_TCP {
        on_all(make(3), |comm| {
            for algorithm in dense() {
                let options = AllreduceOptions { algorithm, ..AllreduceOptions::default() };
                comm.allreduce_dense::<f32, _, _>(&[], &mut []).options(options.clone()).run().unwrap();
            }
        });
    }
}

#[test]
fn a_mean_that_underflows_to_zero_is_still_an_entry() {
    for (_, make) in LOCAL_AND_TCP {
        let all: Vec<Comm> = make(4);
        for algorithm in dense() {
            let options = AllreduceOptions { algorithm, ..AllreduceOptions::default() };
            on_each(all.iter().collect(), |_, comm: &Comm| {
                let (index, value) = ([u64::from(comm.rank()) * 300], [-f32::from_bits(1)]);
                let view = View::Sparse { indices: Indices::U64(&index), values: &value };
                let mean = comm
                    .allreduce(VectorView::new(1000, 1, view))
                    .op(ReduceOp::Mean)
                    .options(options.clone())
                    .run()
                    .unwrap()
                    .sum;
                assert_eq!(mean.entries(), (vec![0, 300, 600, 900], vec![0.0; 4]), "{algorithm:?}");
            });
        }
    }
}

/// Arrays whose ranges take many chunks, and more bytes than the window.
#[test]
fn dense_arrays_larger_than_a_window() {
    let len = 3 * 2_500_000 + 1;
    for (_, make) in LOCAL_AND_TCP {
        let all: Vec<Comm> = make(3);
        for algorithm in dense().into_iter().chain([Algorithm::Auto]) {
            let options = AllreduceOptions { algorithm, ..AllreduceOptions::default() };
            on_each(all.iter().collect(), |_, comm: &Comm| {
                let mine: Vec<f32> = (0..len).map(|k| (k % 1009) as f32 + comm.rank() as f32).collect();
                let mut out = vec![0.0; len];
                comm.allreduce_dense(&mine, &mut out).options(options.clone()).run().unwrap();
                let wrong = (0..len).find(|k| out[*k] != (3 * (k % 1009) + 3) as f32);
                assert_eq!(wrong, None, "{algorithm:?}");
            });
        }
    }
}

#[test]
fn mismatches_and_bad_input_raise_on_all_ranks() {
    let indices = [5u64, 3];
    let got = on_all(local(3), |comm| {
        let list: &[u64] = if comm.rank() == 1 { &indices } else { &indices[..1] };
        let values = vec![1.0f32; list.len()];
        let view = View::Sparse { indices: list.into(), values: &values };
        comm.allreduce(VectorView::new(10, 1, view)).run().unwrap_err().to_string()
    });
    assert!(got.iter().all(|text| text.contains("indices must ascend")), "{got:?}");
    let got = on_all(local(3), |comm| {
        let n = 10 + u64::from(comm.rank() / 2);
        let view = View::Sparse { indices: (&[1u64]).into(), values: &[1.0f32] };
        comm.allreduce(VectorView::new(n, 1, view)).run().unwrap_err().to_string()
    });
    assert!(got.iter().all(|text| text.contains("n=10") && text.contains("n=11")), "{got:?}");
    let got = on_all(local(2), |comm| {
        let view = View::Sparse { indices: (&[1u64]).into(), values: &[1.0f32] };
        let options =
            AllreduceOptions { algorithm: Algorithm::SplitAllgatherDense, ..AllreduceOptions::default() };
        comm.allreduce(VectorView::new(1 << 62, 1, view))
            .options(options.clone())
            .run()
            .unwrap_err()
            .to_string()
    });
    assert!(got.iter().all(|text| text.contains("does not fit")), "{got:?}");
}
