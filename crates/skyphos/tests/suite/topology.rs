//! A topology that rank 0 gives: all ranks have it, layers follow it, and results do not change.

use crate::common::{local, on_all, tcp};
use skyphos::{Algorithm, AllreduceOptions, SparseVec, Split, Topology};

/// Two ranks on each of three hosts, numbered in turn; the third host is in a rack of its own.
fn interleaved() -> Topology {
    Topology::new(&[0, 1, 2, 0, 1, 2], &[0, 0, 1, 0, 0, 1]).unwrap()
}

fn sum(comm: &skyphos::Comm) -> (Vec<f32>, Vec<u32>) {
    let n = 900u64;
    let indices: Vec<u32> = (0..300).map(|k| k * 3 + comm.rank() % 3).collect();
    let x = SparseVec::new(n, 1, skyphos::IndexList::Narrow(indices), vec![1f32; 300]).unwrap();
    let options = AllreduceOptions {
        algorithm: Algorithm::Butterfly,
        degrees: Some(vec![2, 3]),
        ..AllreduceOptions::default()
    };
    let done = comm.allreduce(&x).options(options.clone()).run().unwrap();
    (done.sum.to_dense(0.0), done.explanation.degrees)
}

#[test]
fn all_ranks_use_the_topology_of_rank_0() {
    for make in [local, tcp] {
        on_all(make(6), |comm| {
            let own = comm.topology().clone();
            // Topologies that other ranks pass are ignored.
            let other = Topology::flat(6);
            let mine = if comm.rank() == 0 { interleaved() } else { other };
            let regrouped = comm.with_topology(Some(&mine)).unwrap();
            assert_eq!(regrouped.topology(), &interleaved());
            assert_eq!(comm.topology(), &own, "the parent group keeps its own");
            assert_eq!(sum(&regrouped), (vec![2.0; 900], vec![2, 3]));
            assert_eq!(sum(comm), sum(&regrouped));
            let half = regrouped.split(Some(u64::from(comm.rank() < 3)), 0).unwrap().unwrap();
            assert_eq!(half.topology(), &Topology::new(&[0, 1, 2], &[0, 0, 1]).unwrap());
        });
    }
}

/// Ranks of a host with the same entries send them over the network once, and each rank still gets its own range.
#[test]
fn reduce_scatter_follows_the_topology() {
    let n = 9_000u64;
    for make in [local, tcp] {
        on_all(make(6), |comm| {
            let regrouped = comm.with_topology(Some(&interleaved())).unwrap();
            // Ranks k and k + 3 share a host and have the same indices.
            let indices: Vec<u32> = (0..3000).map(|k| k * 3 + comm.rank() % 3).collect();
            let values: Vec<f32> = indices.iter().map(|i| *i as f32).collect();
            let x = SparseVec::new(n, 1, skyphos::IndexList::Narrow(indices), values).unwrap();
            for degrees in [vec![6], vec![2, 3], vec![3, 2]] {
                let options = AllreduceOptions {
                    degrees: Some(degrees),
                    split: Split::Even,
                    ..AllreduceOptions::default()
                };
                for comm in [comm, &regrouped] {
                    let (part, owned) = comm
                        .reduce_scatter(&x)
                        .options(options.clone())
                        .run()
                        .map(|done| (done.part, done.owned))
                        .unwrap();
                    let rank = u64::from(comm.rank());
                    assert_eq!(owned, rank * 1500..(rank + 1) * 1500);
                    let want: Vec<f32> = owned.clone().map(|i| 2.0 * i as f32).collect();
                    assert_eq!(part.entries(), (owned.collect(), want), "{options:?}");
                }
            }
        });
    }
}

#[test]
fn a_group_begun_with_a_topology_closes_its_parent() {
    on_all(tcp(6), |comm| {
        let mine = (comm.rank() == 0).then(interleaved);
        let regrouped = comm.begin_with(None, true, mine.as_ref()).unwrap().unwrap();
        assert!(comm.is_closed() && regrouped.topology() == &interleaved());
        assert!(comm.barrier().run().unwrap_err().to_string().contains("closed"));
        assert_eq!(sum(&regrouped).0, vec![2.0; 900]);
        regrouped.close().unwrap();
    });
    on_all(local(3), |comm| {
        let mine = (comm.rank() == 1).then(|| Topology::flat(3));
        assert!(comm.begin_with(None, true, mine.as_ref()).unwrap().is_none(), "only rank 0's counts");
    });
}

#[test]
fn a_topology_of_another_size_is_refused_on_all_ranks() {
    on_all(local(4), |comm| {
        let error = comm.with_topology(Some(&interleaved())).err().unwrap().to_string();
        assert!(error.contains("6 ranks, and the group has 4"), "{error}");
        comm.barrier().run().unwrap();
    });
}
