//! All collectives on a simulated group in which one rank sends changed frames: tests the other ranks' mailboxes, streams, folds,
//! assemblers, index sets, surveys and choices. A call may fail on some or all ranks, and may give other numbers. It must end,
//! and its results must be valid vectors.

use crate::allocation::{Limits, on_small_machine, within};
use crate::liar::{Edit, Liar};
use arbitrary::{Arbitrary, Result, Unstructured};
use skyphos::sim::{Cluster, Network};
use skyphos::{
    Algorithm, AllgatherOptions, AllreduceOptions, ArrayMove, BlockLimits, BroadcastOptions, Call, Comm,
    ConfigureOptions, DenseThreshold, Error, Form, HostCopy, IndexList, Magnitude, MessageBuffer, Missing,
    Quantize, QuantizeOptions, Real, ReceiveBuffer, ReduceOp, Route, Scale, Schedule, SharedPlan, SparseVec,
    Split, Stage,
};
use skyphos_core::frame::WINDOW_BYTES;
use std::sync::Arc;

/// A receiver allocates the announced length of a message up to a window; all ranks together have some buffers.
const LIMITS: Limits = Limits { one: WINDOW_BYTES as usize + (64 << 10), all: 64 << 20 };

/// Reports of the simulator after which a call counts as endless.
const MAX_REPORTS: usize = 40;

/// Largest index space for which dense arrays are tested.
const MAX_DENSE_ROWS: u64 = 3000;

const THRESHOLDS: [DenseThreshold; 3] =
    [DenseThreshold::Auto, DenseThreshold::Paper, DenseThreshold::Entries(20)];

/// Algorithms that keep vectors sparse.
const SPARSE: [Algorithm; 6] = [
    Algorithm::Auto,
    Algorithm::RecursiveDoubling,
    Algorithm::SplitAllgather,
    Algorithm::Butterfly,
    Algorithm::Ring,
    Algorithm::Allgather,
];

/// The call, with the arguments that only it has.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Collective {
    Allreduce { algorithm: u8, quantize: Option<(u8, u8)> },
    AllreduceDense { algorithm: u8 },
    ReduceScatter,
    ReduceToRoot,
    Allgather { schedule: Option<u8> },
    Gather,
    Alltoall,
    Scatter,
    TopkAllreduce { k: u8 },
    Configure { missing_is_error: bool, same_sets: bool, n_given: bool, reduce: bool },
    ConfigureReduce { missing_is_error: bool, same_sets: bool, n_given: bool },
    Arrays { how: u8 },
    ReduceArrays { to_root: bool },
    Barrier,
    Broadcast { route: u8, long: bool, chunk_bytes: u16 },
    ExchangeBlocks { push_bytes: u8, lens: [u8; 4] },
}

/// The arguments that are the same on all ranks.
struct Shared {
    collective: Collective,
    n: u64,
    width: usize,
    op: ReduceOp,
    split: Split,
    threshold: DenseThreshold,
    degrees: Option<Vec<u32>>,
    root: u32,
}

/// The input has the group, the call, the ranks' data, and the edits to the frames of one rank.
pub fn run(data: &[u8]) {
    let _ = play(&mut Unstructured::new(data));
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let size = u.int_in_range(2..=4u32)?;
    let collective = u.arbitrary()?;
    let large = u.ratio(1, 5)?;
    let n = if large { 1 << u.int_in_range(24..=62)? } else { u.int_in_range(1..=MAX_DENSE_ROWS)? };
    let shared = Shared {
        collective,
        n,
        width: u.int_in_range(1..=2)?,
        op: u.choose(&[ReduceOp::Sum, ReduceOp::Mean, ReduceOp::MeanPresent, ReduceOp::Max])?.clone(),
        split: *u.choose(&[Split::Even, Split::Hash, Split::Quantiles])?,
        // A caller with a large index space does not ask for dense arrays.
        threshold: *u.choose(&THRESHOLDS[..if large { 2 } else { 3 }])?,
        degrees: (size == 4 && u.arbitrary()?).then(|| vec![2, 2]),
        root: u.int_in_range(0..=size - 1)?,
    };
    let lists: Vec<Vec<u64>> = (0..size).map(|_| entries(u, n)).collect::<Result<_>>()?;
    let (liar, twice, is_f64) = (u.int_in_range(0..=size - 1)?, u.arbitrary()?, u.arbitrary()?);
    let edits: Vec<(u8, Edit)> = u.arbitrary_iter()?.take(6).collect::<Result<_>>()?;
    let play = || match is_f64 {
        true => group::<f64>(&shared, &lists, liar, edits, twice),
        false => group::<f32>(&shared, &lists, liar, edits, twice),
    };
    match large {
        true => on_small_machine(LIMITS, play),
        false => within(LIMITS, play),
    }
    Ok(())
}

/// Ascending indices below n: runs and gaps.
fn entries(u: &mut Unstructured<'_>, n: u64) -> Result<Vec<u64>> {
    let (runs, scale) = (u.int_in_range(0..=6)?, (n / 64).max(1));
    let (mut all, mut at) = (Vec::new(), 0u64);
    for _ in 0..runs {
        let (gap, count, step): (u8, u8, u8) = u.arbitrary()?;
        at = at.saturating_add(scale / 4 * u64::from(gap % 16));
        for _ in 0..count {
            if at >= n {
                return Ok(all);
            }
            all.push(at);
            at += 1 + u64::from(step % 4) * scale.min(70);
        }
    }
    Ok(all)
}

fn group<T: Real + Magnitude>(
    shared: &Shared,
    lists: &[Vec<u64>],
    liar: u32,
    edits: Vec<(u8, Edit)>,
    twice: bool,
) {
    let size = lists.len() as u32;
    let mut cluster = Cluster::new(Network::new(size, 1e9, 1e-5), 1, false).expect("a cluster");
    let (mut comms, mut edits) = (Vec::new(), Some(edits));
    for (rank, transport) in (0..).zip(cluster.transports()) {
        let transport = match rank == liar {
            true => Liar::boxed(transport, edits.take().expect("one liar")),
            false => transport,
        };
        comms.push(Comm::over(transport, Cluster::settings()).expect("a group"));
    }
    for _ in 0..1 + usize::from(twice) {
        let calls = comms.iter().zip(lists).map(|(comm, list)| call::<T>(comm, shared, list));
        let Ok(calls) = calls.collect::<skyphos::Result<Vec<_>>>() else { return };
        let Some(plans) = run_all(&mut cluster, calls) else { return };
        let Collective::Configure { reduce: true, .. } = shared.collective else { continue };
        let both = comms.iter().zip(lists).zip(plans);
        let calls = both.map(|((comm, list), plan)| {
            let Some(Some(plan)) = plan.ok() else { return comm.barrier().prepare() };
            let (values, out) =
                (ones::<T>(list.len(), shared.width), ones::<T>(want_len(list, shared), shared.width));
            let call = comm.reduce(SharedPlan::new(plan), values, out).op(shared.op.clone()).prepare()?;
            Ok(call.map(drop))
        });
        let Ok(calls) = calls.collect::<skyphos::Result<Vec<_>>>() else { return };
        run_all(&mut cluster, calls);
    }
}

/// Runs a call on every rank. `None` if some ranks wait for frames that never arrive.
fn run_all<R: Send + 'static>(cluster: &mut Cluster, calls: Vec<Call<R>>) -> Option<Vec<skyphos::Result<R>>> {
    let mut reports = 0;
    let ran = cluster.run(calls, &[], |_, _| {
        reports += 1;
        assert!(reports < MAX_REPORTS, "the call does not end");
        true
    });
    let results = ran.ok()?.results;
    results.iter().filter_map(|result| result.as_ref().err()).for_each(|error| drop(error.to_string()));
    Some(results)
}

fn ones<T: Real>(rows: usize, width: usize) -> Vec<T> {
    vec![T::ONE; rows * width]
}

fn vector<T: Real>(list: &[u64], n: u64, width: usize) -> SparseVec<T> {
    let indices = match n > 1 << 32 {
        true => IndexList::Wide(list.to_vec()),
        false => IndexList::Narrow(list.iter().map(|i| *i as u32).collect()),
    };
    SparseVec { n, width, form: Form::Sparse { indices, values: ones(list.len(), width) } }
}

/// A rank's out-set and its in-set: the same list, or all but the first.
fn sets(list: &[u64], same_sets: bool) -> (Arc<Vec<u64>>, Arc<Vec<u64>>) {
    let contribute = Arc::new(list.to_vec());
    let want = if same_sets { contribute.clone() } else { Arc::new(list.iter().copied().skip(1).collect()) };
    (contribute, want)
}

/// The length of a rank's in-set; 0 in calls without one.
fn want_len(list: &[u64], shared: &Shared) -> usize {
    let (Collective::Configure { same_sets, .. } | Collective::ConfigureReduce { same_sets, .. }) =
        shared.collective
    else {
        return 0;
    };
    list.len() - usize::from(!same_sets && !list.is_empty())
}

/// Memory for a message of limited length. The length comes from the root, which may lie.
#[derive(Default)]
struct LimitedBuffer(MessageBuffer);

impl ReceiveBuffer for LimitedBuffer {
    fn allocate(&mut self, lengths: &[usize]) -> skyphos::Result<()> {
        match lengths.iter().sum::<usize>() <= 200_000 && lengths.len() < 1000 {
            true => self.0.allocate(lengths),
            false => Err(Error::bad_input("too long")),
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.0.write(at, bytes);
    }

    fn read(&self, at: usize, bytes: &mut [u8]) {
        self.0.read(at, bytes);
    }

    fn set_shared(&mut self, _: HostCopy, _: Vec<std::ops::Range<usize>>) {}
}

fn check<T: Real>(vector: &SparseVec<T>) {
    vector.view().check(vector.n, vector.width).expect("a vector");
}

/// One rank's call. Its result is the plan of a configuration; other results are checked and dropped.
fn call<T: Real + Magnitude>(
    comm: &Comm,
    shared: &Shared,
    list: &[u64],
) -> skyphos::Result<Call<Option<skyphos::Plan>>> {
    let Shared { n, width, root, .. } = *shared;
    let (size, op) = (comm.size() as usize, shared.op.clone());
    let x = || vector::<T>(list, n, width);
    let options = |algorithm: u8, quantize: Option<(u8, u8)>| {
        let quantize = quantize.map(|(how, stage)| QuantizeOptions {
            params: Quantize::new([2, 4, 8][usize::from(how % 3)], 1 + u32::from(how), Scale::Max, 1)
                .expect("settings"),
            stage: Stage::ALL[usize::from(stage % 3)],
        });
        AllreduceOptions {
            algorithm: match n > MAX_DENSE_ROWS {
                true => SPARSE[usize::from(algorithm) % SPARSE.len()],
                false => Algorithm::OURS[usize::from(algorithm) % Algorithm::OURS.len()],
            },
            degrees: shared.degrees.clone(),
            split: shared.split,
            dense_threshold: shared.threshold,
            quantize,
            expected_nnz: None,
            tell_sent: quantize.is_some(),
            shape: None,
        }
    };
    let configure = |missing_is_error: bool, n_given: bool| ConfigureOptions {
        n: n_given.then_some(n),
        width,
        degrees: shared.degrees.clone(),
        missing: if missing_is_error { Missing::Error } else { Missing::Identity },
        ..ConfigureOptions::default()
    };
    Ok(match shared.collective {
        Collective::Allreduce { algorithm, quantize } => {
            let call = comm.allreduce(x()).op(op).options(options(algorithm, quantize)).prepare()?;
            call.map(move |done| {
                check(&done.sum);
                None
            })
        }
        Collective::AllreduceDense { algorithm } => {
            let values = ones::<T>(1, 3000);
            comm.allreduce_dense(values.clone(), values)
                .op(op)
                .options(options(algorithm, None))
                .prepare()?
                .map(|_| None)
        }
        Collective::ReduceScatter => {
            comm.reduce_scatter(x()).op(op).options(options(0, None)).prepare()?.map(|_| None)
        }
        Collective::ReduceToRoot => {
            comm.reduce_to_root(x(), root).op(op).options(options(0, None)).prepare()?.map(|done| {
                done.iter().for_each(check);
                None
            })
        }
        Collective::Allgather { schedule } => {
            let all = [Schedule::Direct, Schedule::RecursiveDoubling, Schedule::Bruck, Schedule::Ring];
            let schedule = schedule.map(|k| all[usize::from(k) % if size == 3 { 1 } else { 4 }]);
            comm.allgather(x()).options(AllgatherOptions { schedule }).prepare()?.map(|done| {
                done.vectors.iter().for_each(check);
                None
            })
        }
        Collective::Gather => comm.gather(x(), root).prepare()?.map(|done| {
            done.iter().for_each(check);
            None
        }),
        Collective::Alltoall => {
            comm.alltoall(n, width, (0..size).map(|_| x()).collect::<Vec<_>>()).prepare()?.map(|done| {
                done.iter().for_each(check);
                None
            })
        }
        Collective::Scatter => {
            let mine = if comm.rank() == root { (0..size).map(|_| x()).collect() } else { Vec::new() };
            comm.scatter(n, width, mine, root).prepare()?.map(|done| {
                check(&done);
                None
            })
        }
        Collective::TopkAllreduce { k } => {
            comm.topk_allreduce(vector::<T>(list, n, 1), u64::from(k).min(n).max(1)).prepare()?.map(|_| None)
        }
        Collective::Configure { missing_is_error, same_sets, n_given, .. } => {
            let (contribute, want) = sets(list, same_sets);
            comm.configure(contribute, want)
                .options(configure(missing_is_error, n_given))
                .prepare()?
                .map(Some)
        }
        Collective::ConfigureReduce { missing_is_error, same_sets, n_given } => {
            let (values, out) = (ones::<T>(list.len(), width), ones::<T>(want_len(list, shared), width));
            let (contribute, want) = sets(list, same_sets);
            let call = comm.configure_reduce(contribute, want, values, out).op(op);
            call.options(configure(missing_is_error, n_given)).prepare()?.map(|_| None)
        }
        Collective::Arrays { how } => {
            let (block, at_root) = (ones::<T>(50, 1), comm.rank() == root);
            let all = ones::<T>(50 * size, 1);
            let none = Vec::new;
            let (what, values, out) = match how % 4 {
                0 => (ArrayMove::Allgather(Schedule::Direct), block, all),
                1 => (ArrayMove::Gather { root }, block, if at_root { all } else { none() }),
                2 => (ArrayMove::Alltoall, all.clone(), all),
                _ => (ArrayMove::Scatter { root }, if at_root { all } else { none() }, block),
            };
            comm.move_arrays(what, values, out).prepare()?.map(|_| None)
        }
        Collective::ReduceArrays { to_root } => {
            let values = ones::<T>(100, 1);
            let bounds = skyphos_kernels::split_ranges(0, 100, size as u32);
            let me = comm.rank() as usize;
            let len = match to_root {
                true if me == root as usize => 100,
                true => 0,
                false => (bounds[me + 1] - bounds[me]) as usize,
            };
            comm.reduce_arrays(to_root.then_some(root), values, ones::<T>(len, 1))
                .op(op)
                .prepare()?
                .map(|_| None)
        }
        Collective::Barrier => comm.barrier().prepare()?.map(|()| None),
        Collective::Broadcast { route, long, chunk_bytes } => {
            let parts = vec![vec![1; 50], Vec::new(), vec![2; if long { 100_000 } else { 500 }]];
            let options = BroadcastOptions {
                route: Route::ALL.get(usize::from(route % 5)).copied(),
                chunk_bytes: Some(1000 + usize::from(chunk_bytes)),
                ack_timeout: None,
            };
            let parts = (comm.rank() == root).then_some(parts);
            comm.broadcast(root, parts, LimitedBuffer::default()).options(options).prepare()?.map(|_| None)
        }
        Collective::ExchangeBlocks { push_bytes, lens } => {
            let len = |to: u32| 1500 * usize::from(lens[to as usize] % 32) * (1 + comm.rank() as usize);
            let blocks: Vec<_> = (0..comm.size()).map(|to| vec![3; len(to)]).collect();
            let limits = BlockLimits { push_bytes: 200 * usize::from(push_bytes), fetches: size };
            let (call, mut blocks) = comm.exchange_blocks(blocks, limits)?.into_call();
            call.map(move |_| {
                while blocks.take().is_some() {}
                assert_eq!(blocks.remaining(), 0, "a block is missing");
                None
            })
        }
    })
}
