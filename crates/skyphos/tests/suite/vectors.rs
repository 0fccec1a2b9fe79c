//! Reduce-scatter, reduce, allgather, gather, alltoall and scatter of sparse vectors against a plain oracle.

use crate::common::{LOCAL_AND_TCP, MakeGroup, combine, layerings, local, on_all, tcp};
use proptest::prelude::*;
use skyphos::{
    AllgatherOptions, AllreduceOptions, DType, Element, Form, IndexList, ReduceOp, Schedule, SparseVec,
    Split, with_element,
};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
struct Case {
    size: u32,
    n: u64,
    width: usize,
    root: u32,
    schedule: Schedule,
    split: Split,
    op: ReduceOp,
    lists: Vec<Vec<u64>>,
}

fn cases() -> impl Strategy<Value = Case> {
    let n = prop_oneof![Just(0u64), Just(1), Just(300), Just(50_000), Just(1 << 40)];
    (1u32..=13, n, 1usize..4, any::<u32>(), 0..Schedule::ALL.len(), any::<bool>(), 0usize..4).prop_flat_map(
        |(size, n, width, root, schedule, even, op)| {
            let list = prop_oneof![
                3 => prop::collection::vec(0..n.max(1), 0..100),
                1 => (0..n.max(1)).prop_map(move |a| (a..(a + 9000).min(n)).collect()),
                1 => Just((0..n.min(300)).collect()),
            ];
            prop::collection::vec(list, size as usize).prop_map(move |mut lists| {
                for list in &mut lists {
                    list.sort_unstable();
                    list.dedup();
                    list.retain(|i| *i < n);
                }
                let split = if even { Split::Even } else { Split::Quantiles };
                let (schedule, op) = (Schedule::ALL[schedule], ReduceOp::NAMED[op].clone());
                Case { size, n, width, root: root % size, schedule, split, op, lists }
            })
        },
    )
}

fn vector<T: Element>(case: &Case, salt: u32) -> SparseVec<T> {
    let list = &case.lists[salt as usize % case.lists.len()];
    let mut values = Vec::new();
    for index in list {
        for column in 0..case.width {
            let steps = 1 + (index + u64::from(salt) + column as u64) % 2;
            values.push((0..steps).fold(T::ZERO, |v, _| v.add(T::ONE)));
        }
    }
    if list.len() as u64 == case.n && case.n > 0 {
        return SparseVec { n: case.n, width: case.width, form: Form::Dense { values, present: None } };
    }
    SparseVec::new(case.n, case.width, IndexList::Wide(list.clone()), values).unwrap()
}

/// Index → row.
fn map_of<T: Element>(vector: &SparseVec<T>) -> BTreeMap<u64, Vec<T>> {
    let (indices, values) = vector.entries();
    indices.into_iter().zip(values.chunks(vector.width).map(<[T]>::to_vec)).collect()
}

fn reduced<T: Element>(case: &Case) -> BTreeMap<u64, Vec<T>> {
    let mut all: BTreeMap<u64, Vec<T>> = BTreeMap::new();
    for rank in 0..case.size {
        for (index, row) in map_of(&vector::<T>(case, rank)) {
            let entry = all.entry(index).or_insert_with(|| vec![case.op.identity().unwrap(); case.width]);
            for (a, v) in entry.iter_mut().zip(row) {
                *a = combine(&case.op, *a, v);
            }
        }
    }
    all
}

fn check<T: Element>(case: &Case, make: MakeGroup) {
    let (n, width, all) = (case.n, case.width, reduced::<T>(case));
    let options = AllreduceOptions { split: case.split, ..AllreduceOptions::default() };
    let layers = layerings(case.size);
    let layered = layers[case.root as usize * 7 % layers.len()].clone();
    let layered = AllreduceOptions { degrees: Some(layered), ..options.clone() };
    let got = on_all(make(case.size), |comm| {
        let (me, mine) = (comm.rank(), vector::<T>(case, comm.rank()));
        let first = comm.reduce_scatter(&mine).op(case.op.clone()).options(options.clone()).run().unwrap();
        let (part, owned) = (first.part, first.owned);
        // Learned choices and given degrees change nothing.
        for options in [&options, &layered] {
            let done = comm.reduce_scatter(&mine).op(case.op.clone()).options(options.clone()).run().unwrap();
            assert_eq!((map_of(&done.part), &done.owned), (map_of(&part), &owned));
            assert_eq!(done.explanation.degrees.iter().product::<u32>(), case.size);
        }
        let on_root =
            comm.reduce_to_root(&mine, case.root).op(case.op.clone()).options(options.clone()).run().unwrap();
        assert_eq!(on_root.is_some(), me == case.root);
        if let Some(result) = on_root {
            match &result.form {
                Form::Dense { values, present: None } => {
                    let identity = vec![case.op.identity::<T>().unwrap(); width];
                    for (k, row) in values.chunks(width).enumerate() {
                        assert_eq!(row, all.get(&(k as u64)).unwrap_or(&identity));
                    }
                }
                _ => assert_eq!(map_of(&result), all),
            }
        }
        for schedule in [Some(case.schedule), None, None] {
            for (rank, theirs) in
                (0..).zip(comm.allgather(&mine).options(AllgatherOptions { schedule }).run().unwrap().vectors)
            {
                let want = map_of(&vector::<T>(case, rank));
                assert_eq!(map_of(&theirs), want, "{schedule:?} from {rank} at {me}");
                assert_eq!(theirs.is_dense(), n > 0 && theirs.nnz() as u64 == n);
            }
        }
        let gathered = comm.gather(&mine, case.root).run().unwrap();
        assert_eq!(gathered.len(), if me == case.root { case.size as usize } else { 0 });
        for (rank, theirs) in (0..).zip(&gathered) {
            assert_eq!(map_of(theirs), map_of(&vector::<T>(case, rank)));
        }
        let each: Vec<SparseVec<T>> = (0..case.size).map(|to| vector(case, me * 31 + to)).collect();
        for (rank, theirs) in (0..).zip(comm.alltoall(n, width, each.iter().collect()).run().unwrap()) {
            assert_eq!(map_of(&theirs), map_of(&vector::<T>(case, rank * 31 + me)));
        }
        let own = if me == case.root { each } else { vec![] };
        let share = comm.scatter(n, width, own, case.root).run().unwrap();
        assert_eq!(map_of(&share), map_of(&vector::<T>(case, case.root * 31 + me)));
        (part, owned)
    });
    let mut end = 0;
    let mut entries = BTreeMap::new();
    for (part, owned) in got {
        assert_eq!(owned.start, end);
        end = owned.end;
        let of_part = map_of(&part);
        assert!(of_part.keys().all(|i| owned.contains(i)));
        entries.extend(of_part);
    }
    assert_eq!((end, entries), (n, all));
}

proptest! {
    #![proptest_config(crate::common::random(200))]

    #[test]
    fn results_match_the_oracle(case in cases(), dtype in 0..DType::ALL.len(), transport in 0..LOCAL_AND_TCP.len()) {
        with_element!(DType::ALL[dtype], T => check::<T>(&case, LOCAL_AND_TCP[transport].1));
    }
}

#[test]
fn wrong_roots_and_counts_raise_on_all_ranks() {
    let got = on_all(local(3), |comm| {
        let x = SparseVec::new(5, 1, IndexList::Narrow(vec![2]), vec![1.0f32]).unwrap();
        let root = comm.gather(&x, 7).run().unwrap_err().to_string();
        let count = comm
            .alltoall(5, 1, vec![&x; if comm.rank() == 1 { 2 } else { 0 }])
            .run()
            .unwrap_err()
            .to_string();
        let differ = comm.gather(&x, comm.rank() % 2).run().unwrap_err().to_string();
        (root, count, differ)
    });
    for (root, count, differ) in got {
        assert!(root.contains("root=7"), "{root}");
        assert!(count.contains("vectors for 3 ranks"), "{count}");
        assert!(differ.contains("root=0") && differ.contains("root=1"), "{differ}");
    }
}

#[test]
fn messages_arrive_although_their_sender_makes_no_more_calls() {
    let (finished, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    on_all(tcp(2), |comm| {
        let large = SparseVec::dense(1, vec![comm.rank() as f32; 16 << 20]);
        let small = SparseVec::new(16 << 20, 1, IndexList::Narrow(vec![3]), vec![1.0]).unwrap();
        let mine = if comm.rank() == 0 { &large } else { &small };
        comm.allgather(&mine).options(AllgatherOptions { schedule: Some(Schedule::Direct) }).run().unwrap();
        match comm.rank() {
            // This rank completes its call early, and computes until the other one is done.
            0 => wait.lock().unwrap().recv_timeout(std::time::Duration::from_secs(20)).unwrap(),
            _ => finished.send(()).unwrap(),
        }
    });
}
