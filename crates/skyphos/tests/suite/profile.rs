//! A group begins with rank 0's profile on all ranks, and `auto` chooses by it.

use skyphos::planner::Profile;
use skyphos::{AllreduceOptions, Comm, Indices, Settings, VectorView, View};

fn on_all<R: Send>(size: u32, body: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    Comm::local(size, &Settings::default()).unwrap().map_ranks(body)
}

#[test]
fn all_ranks_and_new_groups_get_the_profile_of_rank_0() {
    let of_rank = |rank: u32| Some(Profile::network(1e6 * f64::from(rank + 1)));
    let found = on_all(5, |comm| {
        let agreed = comm.agree_profile(of_rank(comm.rank()), true).unwrap();
        let half = comm.split(Some(u64::from(comm.rank() % 2)), 0).unwrap().unwrap();
        (agreed, comm.profile(), half.profile())
    });
    assert!(found.iter().all(|all| *all == (of_rank(0), of_rank(0), of_rank(0))), "{found:?}");
    // If rank 0 has no profile, no rank has one, even if other ranks gave theirs.
    let found =
        on_all(3, |comm| comm.agree_profile(of_rank(comm.rank()).filter(|_| comm.rank() > 0), true).unwrap());
    assert_eq!(found, [None, None, None]);
}

#[test]
fn auto_uses_the_profile_of_rank_0() {
    let (n, entries) = (1u64 << 20, 40_000u64);
    let chosen = |rate: f64, latency_s: f64| {
        let done = on_all(8, |comm| {
            comm.agree_profile(Some(Profile { rate, latency_s, ..Profile::network(1e9) }), true).unwrap();
            let indices: Vec<u32> = (0..entries).map(|k| (k * 26 + u64::from(comm.rank())) as u32).collect();
            let values = vec![1f32; indices.len()];
            let view = View::Sparse { indices: Indices::U32(&indices), values: &values };
            let options = AllreduceOptions::default();
            let done = comm.allreduce(VectorView::new(n, 1, view)).options(options.clone()).run().unwrap();
            let choice = done.explanation.choice.unwrap();
            (done.explanation.algorithm, done.explanation.degrees, choice.duration().0, done.sum.nnz())
        });
        assert!(done.iter().all(|one| *one == done[0]), "{done:?}");
        done[0].clone()
    };
    let (slow, far) = (chosen(1e5, 1e-6), chosen(1e12, 1.0));
    assert!(slow.2 > 1.0 && far.2 > 1.0, "predictions follow the profile: {slow:?} {far:?}");
    assert_ne!((slow.0, &slow.1), (far.0, &far.1), "few bytes, or few rounds");
}
