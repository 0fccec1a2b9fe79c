//! Non-blocking calls: the same results as blocking ones, for any order of waiting.

use crate::common::{
    LOCAL_AND_TCP, local, local_transports, on_all, on_each, settings, shared_memory_transports, tcp,
    tcp_transports,
};
use proptest::prelude::*;
use skyphos::{
    Algorithm, AllgatherOptions, AllreduceOptions, Body, CallBuilder, Comm, ConfigureOptions, CustomOp,
    DType, Error, IndexList, ReduceOp, Result, Schedule, Settings, SharedPlan, SparseVec, Work,
};
use std::sync::Arc;
use std::time::Duration;

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

/// Makes a call, blocking or not. Returns a function that waits for it and gives the text of its result.
fn make<B: Body<Output: 'static> + 'static>(
    call: CallBuilder<'_, B>,
    blocking: bool,
    text: fn(B::Output) -> String,
) -> Box<dyn FnOnce() -> String> {
    if blocking {
        let result = call.run().map(text);
        return Box::new(move || format!("{result:?}"));
    }
    let work = call.prepare().unwrap().map(text).start();
    Box::new(move || format!("{:?}", work.wait()))
}

/// [`make`] for one of several collectives.
fn collective(
    comm: &Comm,
    which: usize,
    x: Arc<SparseVec<f64>>,
    blocking: bool,
) -> Box<dyn FnOnce() -> String> {
    let (n, options) = (x.n, AllreduceOptions::default());
    match which % 9 {
        0 => make(comm.barrier(), blocking, |done| format!("{done:?}")),
        1 => {
            let options = AllgatherOptions { schedule: Some(Schedule::Bruck) };
            make(comm.allgather(x).options(options), blocking, |done| format!("{:?}", done.vectors))
        }
        2 => {
            let call = comm.reduce_scatter(x).op(ReduceOp::Max).options(options);
            make(call, blocking, |done| format!("{:?}", (done.part, done.owned)))
        }
        3 => make(comm.reduce_to_root(x, 0).options(options), blocking, |sum| format!("{sum:?}")),
        4 => {
            let vectors = vec![x; comm.size() as usize];
            make(comm.alltoall(n, 1, vectors), blocking, |vectors| format!("{vectors:?}"))
        }
        5 => {
            let dense = x.to_dense(0.0);
            let call = comm.allreduce_dense(dense.clone(), dense).options(options);
            make(call, blocking, |done| format!("{:?}", done.out))
        }
        6 => make(comm.gather(x, comm.size() - 1), blocking, |vectors| format!("{vectors:?}")),
        k => {
            let algorithm = [Algorithm::Auto, Algorithm::SplitAllgather][k - 7];
            let options = AllreduceOptions { algorithm, ..options };
            make(comm.allreduce(x).options(options), blocking, |done| format!("{:?}", done.sum))
        }
    }
}

proptest! {
    #![proptest_config(crate::common::random(80))]

    #[test]
    fn any_order_of_waiting_gives_the_same_bits(
        size in 1u32..=8, calls in prop::collection::vec((0usize..9, any::<u64>(), 0usize..4), 1..12),
        n in prop_oneof![Just(900u64), Just(1 << 16)], order in any::<prop::sample::Index>(), fuse: bool,
        transport in 0..LOCAL_AND_TCP.len(),
    ) {
        on_all(LOCAL_AND_TCP[transport].1(size), |comm| {
            let want: Vec<String> = calls
                .iter()
                .map(|(which, salt, _)| collective(comm, *which, vector(n, comm.rank(), *salt), true)())
                .collect();
            if fuse {
                comm.hold();
            }
            let mut waits: Vec<(usize, Box<dyn FnOnce() -> String>)> = Vec::new();
            for (k, (which, salt, between)) in calls.iter().enumerate() {
                waits.push((k, collective(comm, *which, vector(n, comm.rank(), *salt), false)));
                // Sometimes a blocking call, or a wait, in between.
                match between {
                    0 => comm.barrier().run().unwrap(),
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
fn a_call_progresses_while_no_thread_waits() {
    for (_, make) in LOCAL_AND_TCP {
        on_all(make(4), |comm| {
            let x = vector(1 << 16, comm.rank(), 5);
            let work = comm.allreduce(x.clone()).start().unwrap();
            // Only the node's thread makes progress.
            let until = std::time::Instant::now() + Duration::from_secs(20);
            while !work.is_done() {
                assert!(std::time::Instant::now() < until, "the call makes no progress");
                std::thread::yield_now();
            }
            let want = comm.allreduce(&x).run().unwrap().sum;
            assert_eq!(work.wait().unwrap().sum, want);
            // A call that is never waited for.
            drop(comm.allreduce(x).start().unwrap());
            comm.barrier().run().unwrap();
        });
    }
}

#[test]
fn a_wait_with_a_time_limit_may_end_before_the_call() {
    let (gave_up, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    on_all(local(2), |comm| {
        if comm.rank() == 0 {
            let work = comm.barrier().start().unwrap();
            assert!(!work.wait_for(Some(Duration::from_millis(5))));
            assert!(work.take().is_none());
            gave_up.send(()).unwrap();
            work.wait().unwrap();
        } else {
            wait.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
            comm.barrier().run().unwrap();
        }
    });
}

#[test]
fn fused_calls_time_out_separately() {
    for transports in [local_transports, tcp_transports, shared_memory_transports] {
        let (timed_out, wait) = std::sync::mpsc::channel::<()>();
        let (timed_out, wait) = (std::sync::Mutex::new(timed_out), std::sync::Mutex::new(wait));
        on_each(transports(2), |rank, transport| {
            let limit = Settings { timeout: Duration::from_millis(400), ..settings() };
            let comm = Comm::over(transport, limit).unwrap();
            if rank == 1 {
                // This rank computes, and is in no call.
                return wait.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
            }
            comm.hold();
            let works: Vec<_> = (0..2).map(|_| comm.barrier().start().unwrap()).collect();
            comm.release();
            for work in works {
                assert!(matches!(work.wait(), Err(Error::Timeout { missing, .. }) if missing == [1]));
            }
            timed_out.lock().unwrap().send(()).unwrap();
        });
    }
}

#[test]
fn closing_a_comm_fails_its_running_call_on_all_ranks() {
    for (_, make) in LOCAL_AND_TCP {
        let got = on_all(make(3), |comm| {
            if comm.rank() == 0 {
                let x = vector(1000, 0, 1);
                let options = AllreduceOptions::default();
                let work = comm.allreduce(x).options(options).start().unwrap();
                comm.close().unwrap();
                assert!(work.is_done());
                return work.wait().unwrap_err().to_string();
            }
            let x = vector(1000, comm.rank(), 1);
            let call = comm.allreduce(x).prepare();
            call.and_then(|call| call.start().wait().map(drop)).unwrap_err().to_string()
        });
        assert!(got[0].contains("closed"), "{got:?}");
        assert!(got[1..].iter().all(|text| text.contains("rank 0")), "{got:?}");
    }
}

#[test]
fn a_different_order_of_calls_is_a_mismatch() {
    let got = on_all(local(3), |comm| {
        let x = vector(1000, comm.rank(), 3);
        let barrier = |comm: &Comm| comm.barrier().start().unwrap();
        let gather = |comm: &Comm| {
            comm.allgather(x.clone())
                .options(AllgatherOptions { schedule: Some(Schedule::Ring) })
                .start()
                .unwrap()
        };
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

#[test]
fn calls_of_one_plan_run_one_after_the_other() {
    for (_, make) in LOCAL_AND_TCP {
        on_all(make(5), |comm| {
            let rank = u64::from(comm.rank());
            let contribute: Vec<u64> = (0..500).map(|k| (k * 7 + rank) % 900).collect();
            let options = ConfigureOptions::with_n(900);
            let plan = comm
                .configure(contribute.clone(), contribute.clone())
                .options(options.clone())
                .start()
                .unwrap()
                .wait()
                .unwrap();
            let plan = SharedPlan::new(plan);
            let values = |k: usize| vec![(rank + 1) as f64 * (k + 1) as f64; 500];
            let works: Vec<Work<Vec<f64>>> = (0..6)
                .map(|k| {
                    let call = comm.reduce(plan.clone(), values(k), vec![0.0; 500]).prepare();
                    call.unwrap().start()
                })
                .collect();
            let got: Vec<Vec<f64>> = works.into_iter().rev().map(|work| work.wait().unwrap()).collect();
            for (k, got) in (0..6).rev().zip(got) {
                let mut out = vec![0.0; 500];
                comm.reduce(&mut *plan.try_lock().unwrap(), &values(k), &mut out).run().unwrap();
                assert_eq!(got, out);
            }
            let both = comm
                .configure_reduce(contribute.clone(), contribute, values(0), vec![0.0; 500])
                .options(options)
                .prepare();
            let mut out = vec![0.0; 500];
            comm.reduce(&mut *plan.try_lock().unwrap(), &values(0), &mut out).run().unwrap();
            assert_eq!(both.unwrap().start().wait().unwrap().out, out);
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
fn a_custom_operation_runs_only_on_the_waiting_thread() {
    on_all(tcp(4), |comm| {
        let op = || ReduceOp::Custom(Arc::new(OwnThread(std::thread::current().id())));
        let x = |salt: u8| SparseVec::new(300, 1, IndexList::Narrow(vec![7, 9]), vec![salt, 1u8]).unwrap();
        let start = |salt| comm.allreduce(x(salt)).op(op()).start().unwrap();
        let (a, b) = (start(1), start(2));
        // The barrier makes progress for these calls, on ranks that do not wait for them yet.
        if comm.rank() % 2 == 0 {
            assert_eq!(b.wait().unwrap().sum.entries().1, [8, 4]);
            comm.barrier().run().unwrap();
        } else {
            comm.barrier().run().unwrap();
            assert_eq!(b.wait().unwrap().sum.entries().1, [8, 4]);
        }
        assert_eq!(a.wait().unwrap().sum.entries().1, [4, 4]);
    });
}
