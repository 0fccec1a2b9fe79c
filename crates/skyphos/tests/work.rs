//! Calls that go on by themselves: the same results as blocking ones, in any order of waiting.

mod common;

use common::{
    MakeGroup, local, local_transports, near_transports, on_all, on_each, settings, tcp, tcp_transports,
};
use proptest::prelude::*;
use skyphos::{
    Algorithm, AllreduceOptions, Comm, ConfigureOptions, CustomOp, DType, Error, IndexList, IndexSets,
    Indices, Order, ReduceOp, Result, Schedule, Settings, SharedPlan, SparseVec, Work,
};
use std::sync::Arc;
use std::time::Duration;

const TRANSPORTS: [(&str, MakeGroup); 2] = [("local", local), ("tcp", tcp)];

fn vector(n: u64, rank: u32, salt: u64) -> Arc<SparseVec<f64>> {
    let mut state = salt ^ u64::from(rank) << 32 | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    let mut list: Vec<u64> = (0..next() % 400).map(|_| next() % n).collect();
    list.sort_unstable();
    list.dedup();
    let values = list.iter().map(|i| *i as f64 * 0.37 + f64::from(rank)).collect();
    Arc::new(SparseVec::new(n, 1, IndexList::Wide(list), values).unwrap())
}

/// One of several collectives, as a call under way; its result as text.
fn start(comm: &Comm, which: usize, x: Arc<SparseVec<f64>>) -> Result<Box<dyn FnOnce() -> String>> {
    fn text<R: std::fmt::Debug + Send + 'static>(work: Work<R>) -> Box<dyn FnOnce() -> String> {
        Box::new(move || format!("{:?}", work.wait()))
    }
    let n = x.n;
    let options = AllreduceOptions::default();
    Ok(match which % 9 {
        0 => text(comm.barrier_call()?.start()),
        1 => text(comm.allgather_call(n, 1, x, Some(Schedule::Bruck))?.map(|done| done.vectors).start()),
        2 => text(
            comm.reduce_scatter_call(n, 1, x, ReduceOp::Max, options)?
                .map(|done| (done.part, done.owned))
                .start(),
        ),
        3 => text(comm.reduce_to_root_call(n, 1, x, ReduceOp::Sum, 0, options)?.start()),
        4 => text(comm.alltoall_call(n, 1, vec![x; comm.size() as usize])?.start()),
        5 => {
            let dense = x.to_dense(0.0);
            text(
                comm.allreduce_dense_call(dense.clone(), dense, ReduceOp::Sum, options)?
                    .map(|(out, _)| out)
                    .start(),
            )
        }
        6 => text(comm.gather_call(n, 1, x, comm.size() - 1)?.start()),
        k => {
            let algorithm = [Algorithm::Auto, Algorithm::SplitAllgather][k - 7];
            let options = AllreduceOptions { algorithm, ..options };
            text(comm.allreduce_call(n, 1, x, ReduceOp::Sum, options)?.map(|done| done.sum).start())
        }
    })
}

/// The same, blocking.
fn blocking(comm: &Comm, which: usize, x: &SparseVec<f64>) -> String {
    let (n, v, options) = (x.n, x.view(), AllreduceOptions::default());
    match which % 9 {
        0 => format!("{:?}", comm.barrier()),
        1 => format!("{:?}", comm.allgather(n, 1, v, Some(Schedule::Bruck))),
        2 => format!("{:?}", comm.reduce_scatter(n, 1, v, &ReduceOp::Max, &options)),
        3 => format!("{:?}", comm.reduce_to_root(n, 1, v, &ReduceOp::Sum, 0, &options)),
        4 => format!("{:?}", comm.alltoall(n, 1, &vec![v; comm.size() as usize])),
        5 => {
            let dense = x.to_dense(0.0);
            let mut out = dense.clone();
            let done = comm.allreduce_dense(&dense, &mut out, &ReduceOp::Sum, &options);
            format!("{:?}", done.map(|()| out))
        }
        6 => format!("{:?}", comm.gather(n, 1, v, comm.size() - 1)),
        k => {
            let algorithm = [Algorithm::Auto, Algorithm::SplitAllgather][k - 7];
            let options = AllreduceOptions { algorithm, ..options };
            format!("{:?}", comm.allreduce(n, 1, v, &ReduceOp::Sum, &options))
        }
    }
}

proptest! {
    #![proptest_config(common::random(80))]

    #[test]
    fn any_order_of_waiting_and_the_same_bits(
        size in 1u32..=8, calls in prop::collection::vec((0usize..9, any::<u64>(), 0usize..4), 1..12),
        n in prop_oneof![Just(900u64), Just(1 << 16)], order in any::<prop::sample::Index>(), fuse: bool,
        transport in 0..TRANSPORTS.len(),
    ) {
        on_all(TRANSPORTS[transport].1(size), |comm| {
            let want: Vec<String> = calls
                .iter()
                .map(|(which, salt, _)| blocking(comm, *which, &vector(n, comm.rank(), *salt)))
                .collect();
            if fuse {
                comm.hold();
            }
            let mut waits: Vec<(usize, Box<dyn FnOnce() -> String>)> = Vec::new();
            for (k, (which, salt, between)) in calls.iter().enumerate() {
                waits.push((k, start(comm, *which, vector(n, comm.rank(), *salt)).unwrap()));
                // Now and then something blocking, or a wait in between.
                match between {
                    0 => comm.barrier().unwrap(),
                    1 => {
                        let (k, wait) = waits.swap_remove((comm.rank() as usize + k) % waits.len());
                        assert_eq!(wait(), want[k]);
                    }
                    _ => {}
                }
            }
            if fuse {
                comm.release();
            }
            // Another order on each rank.
            while !waits.is_empty() {
                let (k, wait) = waits.swap_remove((order.index(97) + comm.rank() as usize) % waits.len());
                assert_eq!(wait(), want[k]);
            }
        });
    }
}

#[test]
fn a_call_goes_on_while_nobody_waits() {
    for (_, make) in TRANSPORTS {
        on_all(make(4), |comm| {
            let x = vector(1 << 16, comm.rank(), 5);
            let options = AllreduceOptions::default();
            let work =
                comm.allreduce_call(1 << 16, 1, x.clone(), ReduceOp::Sum, options.clone()).unwrap().start();
            // Nothing here but the node's own thread moves it.
            let until = std::time::Instant::now() + Duration::from_secs(20);
            while !work.is_done() {
                assert!(std::time::Instant::now() < until, "it does not go on");
                std::thread::yield_now();
            }
            let want = comm.allreduce(1 << 16, 1, x.view(), &ReduceOp::Sum, &options).unwrap();
            assert_eq!(work.wait().unwrap().sum, want);
            // One that nobody will ever wait for.
            drop(comm.allreduce_call(1 << 16, 1, x, ReduceOp::Sum, options).unwrap().start());
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn a_wait_may_end_before_the_call() {
    let (gave_up, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    on_all(local(2), |comm| {
        if comm.rank() == 0 {
            let work = comm.barrier_call().unwrap().start();
            assert!(!work.wait_for(Some(Duration::from_millis(5))));
            assert!(work.take().is_none());
            gave_up.send(()).unwrap();
            work.wait().unwrap();
        } else {
            wait.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
            comm.barrier().unwrap();
        }
    });
}

#[test]
fn calls_that_travel_together_time_out_alone() {
    for transports in [local_transports, tcp_transports, near_transports] {
        let (over, wait) = std::sync::mpsc::channel::<()>();
        let (over, wait) = (std::sync::Mutex::new(over), std::sync::Mutex::new(wait));
        on_each(transports(2), |rank, transport| {
            let limit = Settings { timeout: Duration::from_millis(400), ..settings() };
            let comm = Comm::over(transport, limit).unwrap();
            if rank == 1 {
                // Here, and in no call.
                return wait.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
            }
            comm.hold();
            let works: Vec<_> = (0..2).map(|_| comm.barrier_call().unwrap().start()).collect();
            comm.release();
            for work in works {
                assert!(matches!(work.wait(), Err(Error::Timeout { missing, .. }) if missing == [1]));
            }
            over.lock().unwrap().send(()).unwrap();
        });
    }
}

#[test]
fn a_comm_closed_with_a_call_under_way_fails_it_on_all() {
    for (_, make) in TRANSPORTS {
        let got = on_all(make(3), |comm| {
            if comm.rank() == 0 {
                let x = vector(1000, 0, 1);
                let options = AllreduceOptions::default();
                let work = comm.allreduce_call(1000, 1, x, ReduceOp::Sum, options).unwrap().start();
                comm.close().unwrap();
                assert!(work.is_done());
                return work.wait().unwrap_err().to_string();
            }
            let x = vector(1000, comm.rank(), 1);
            let call = comm.allreduce_call(1000, 1, x, ReduceOp::Sum, AllreduceOptions::default());
            call.and_then(|call| call.start().wait().map(drop)).unwrap_err().to_string()
        });
        assert!(got[0].contains("closed"), "{got:?}");
        assert!(got[1..].iter().all(|text| text.contains("rank 0")), "{got:?}");
    }
}

#[test]
fn another_order_of_calls_is_a_mismatch() {
    let got = on_all(local(3), |comm| {
        let x = vector(1000, comm.rank(), 3);
        let barrier = |comm: &Comm| comm.barrier_call().unwrap().start();
        let gather =
            |comm: &Comm| comm.allgather_call(1000, 1, x.clone(), Some(Schedule::Ring)).unwrap().start();
        if comm.rank() == 1 {
            let (b, a) = (gather(comm), barrier(comm));
            (a.wait().unwrap_err().to_string(), b.wait().unwrap_err().to_string())
        } else {
            let (a, b) = (barrier(comm), gather(comm));
            (a.wait().unwrap_err().to_string(), b.wait().unwrap_err().to_string())
        }
    });
    for (a, b) in got {
        assert!(a.contains("barrier(") && a.contains("allgather("), "{a}");
        assert!(b.contains("barrier(") && b.contains("allgather("), "{b}");
    }
}

struct Sets(Vec<u64>, Vec<u64>);

impl IndexSets for Sets {
    fn contribute(&self) -> Indices<'_> {
        (&self.0).into()
    }
    fn want(&self) -> Indices<'_> {
        (&self.1).into()
    }
}

#[test]
fn calls_of_one_plan_follow_each_other() {
    for (_, make) in TRANSPORTS {
        on_all(make(5), |comm| {
            let rank = u64::from(comm.rank());
            let contribute: Vec<u64> = (0..500).map(|k| (k * 7 + rank) % 900).collect();
            let sets = Sets(contribute.clone(), contribute.clone());
            let options = ConfigureOptions::with_n(900);
            let plan = comm.configure_call(sets, options.clone()).unwrap().start().wait().unwrap();
            let plan = SharedPlan::new(plan);
            let values = |k: usize| vec![(rank + 1) as f64 * (k + 1) as f64; 500];
            let works: Vec<Work<Vec<f64>>> = (0..6)
                .map(|k| {
                    let call = comm.reduce_call(&plan, values(k), vec![0.0; 500], ReduceOp::Sum, Order::Rank);
                    call.unwrap().start()
                })
                .collect();
            let got: Vec<Vec<f64>> = works.into_iter().rev().map(|work| work.wait().unwrap()).collect();
            for (k, got) in (0..6).rev().zip(got) {
                let mut out = vec![0.0; 500];
                comm.reduce(&mut plan.try_lock().unwrap(), &values(k), &mut out, &ReduceOp::Sum, Order::Rank)
                    .unwrap();
                assert_eq!(got, out);
            }
            let sets = Sets(contribute.clone(), contribute);
            let both = comm.configure_reduce_call(sets, values(0), vec![0.0; 500], ReduceOp::Sum, options);
            let mut out = vec![0.0; 500];
            comm.reduce(&mut plan.try_lock().unwrap(), &values(0), &mut out, &ReduceOp::Sum, Order::Rank)
                .unwrap();
            assert_eq!(both.unwrap().start().wait().unwrap().1, out);
        });
    }
}

/// An operation that may run only on the thread that made it.
struct OwnThread(std::thread::ThreadId);

impl CustomOp for OwnThread {
    fn name(&self) -> &str {
        "own_thread"
    }
    fn identity(&self, _: DType, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        Ok(())
    }
    fn combine(&self, _: DType, acc: &mut [u8], src: &[u8]) -> Result<()> {
        if std::thread::current().id() != self.0 {
            return Err(Error::bad_input("on another thread"));
        }
        acc.iter_mut().zip(src).for_each(|(a, s)| *a = a.wrapping_add(*s));
        Ok(())
    }
}

#[test]
fn the_callers_code_runs_only_where_it_waits() {
    on_all(tcp(4), |comm| {
        let op = || ReduceOp::Custom(Arc::new(OwnThread(std::thread::current().id())));
        let x = |salt: u8| SparseVec::new(300, 1, IndexList::Narrow(vec![7, 9]), vec![salt, 1u8]).unwrap();
        let start =
            |salt| comm.allreduce_call(300, 1, x(salt), op(), AllreduceOptions::default()).unwrap().start();
        let (a, b) = (start(1), start(2));
        // A blocking call moves them on ranks that do not wait for them yet.
        if comm.rank() % 2 == 0 {
            assert_eq!(b.wait().unwrap().sum.entries().1, [8, 4]);
            comm.barrier().unwrap();
        } else {
            comm.barrier().unwrap();
            assert_eq!(b.wait().unwrap().sum.entries().1, [8, 4]);
        }
        assert_eq!(a.wait().unwrap().sum.entries().1, [4, 4]);
    });
}
