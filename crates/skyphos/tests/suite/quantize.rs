//! Allreduce with quantised results and inputs: values against plain oracles, and bytes on the wire.

use crate::common::{LOCAL_AND_TCP, MakeGroup, layerings, local, on_all, settings};
use proptest::prelude::*;
use skyphos::{
    Algorithm, AllreduceOptions, Allreduced, Comm, DType, Form, IndexList, Quantize, QuantizeOptions, Real,
    ReduceOp, Scale, SparseVec, Split, Stage, VectorView, View,
};
use skyphos_core::Topology;
use skyphos_core::butterfly::layers;
use skyphos_core::extensions::{NativeCollectives, Replication, UnderReplicas};
use skyphos_core::frame::Frame;
use skyphos_core::local::{Local, local_group};
use skyphos_core::stream::{PART_BUCKETS, RESULT_BUCKETS};
use skyphos_core::transport::{Event, Facts, Transport, Waker};
use skyphos_kernels::{Draw, dequantise, quantise, quantised_bytes, split_ranges};
use skyphos_types::{WorldRank, with_real};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The algorithms with one owner per range.
const OWNERS: [Algorithm; 5] = [
    Algorithm::Auto,
    Algorithm::SplitAllgather,
    Algorithm::SplitAllgatherDense,
    Algorithm::Butterfly,
    Algorithm::Ring,
];

#[derive(Clone, Debug)]
struct Case {
    size: u32,
    n: u64,
    width: usize,
    dtype: DType,
    mean: bool,
    algorithm: Algorithm,
    degrees: Vec<u32>,
    quantize: QuantizeOptions,
    indices: Vec<Vec<u64>>,
}

impl Case {
    fn op(&self) -> ReduceOp {
        if self.mean { ReduceOp::Mean } else { ReduceOp::Sum }
    }

    /// Even ranges, which the oracle can compute.
    fn options(&self, quantize: Option<QuantizeOptions>) -> AllreduceOptions {
        let layered = matches!(self.algorithm, Algorithm::Butterfly | Algorithm::Auto);
        let degrees = layered.then(|| self.degrees.clone());
        let (algorithm, split) = (self.algorithm, Split::Even);
        AllreduceOptions { algorithm, degrees, split, quantize, ..AllreduceOptions::default() }
    }

    fn input<T: Real>(&self, rank: u32) -> SparseVec<T> {
        let list = &self.indices[rank as usize];
        let value =
            |index: &u64, w: usize| T::from_f32(((index * 7 + w as u64 + u64::from(rank)) as f32).sin());
        let values = list.iter().flat_map(|i| (0..self.width).map(move |w| value(i, w))).collect();
        SparseVec::new(self.n, self.width, IndexList::Wide(list.clone()), values).unwrap()
    }

    /// The range that a rank owns.
    fn part_of(&self, rank: u32) -> (u64, u64) {
        let degrees = match self.algorithm {
            Algorithm::Butterfly | Algorithm::Auto => self.degrees.clone(),
            _ => vec![self.size],
        };
        let (mut start, mut count) = (0, self.size as usize);
        for group in layers(&degrees, rank, &Topology::flat(degrees.iter().product())) {
            count /= group.members.len();
            start += group.me * count;
        }
        let bounds = split_ranges(0, self.n, self.size);
        (bounds[start], bounds[start + 1])
    }
}

fn cases(algorithms: Vec<Algorithm>, stages: Vec<Stage>) -> impl Strategy<Value = Case> {
    let sizes = prop_oneof![Just(1u64), Just(40), Just(5000), Just(100_000)];
    let params = (
        prop::sample::select(vec![2u8, 4, 8]),
        prop::sample::select(vec![1u32, 7, 512, 1024]),
        any::<bool>(),
    );
    let choice =
        (prop::sample::select(algorithms), prop::sample::select(stages), any::<prop::sample::Index>());
    let floats: Vec<DType> = DType::ALL.into_iter().filter(|d| d.is_float()).collect();
    (1u32..=13, sizes, 1usize..4, prop::sample::select(floats), any::<bool>(), params, choice).prop_flat_map(
        |(size, n, width, dtype, mean, (bits, bucket, max), (algorithm, stage, degrees))| {
            let runs = prop::collection::vec((0..n, 1..n.min(3000) + 1), 0..3);
            let lists = prop::collection::vec((runs, prop::collection::vec(0..n, 0..50)), size as usize);
            lists.prop_map(move |lists| {
                let indices = lists.into_iter().map(|(runs, singles)| {
                    let runs = runs.into_iter().flat_map(|(start, len)| start..(start + len).min(n));
                    let mut all: Vec<u64> = runs.chain(singles).collect();
                    all.sort_unstable();
                    all.dedup();
                    all
                });
                let scale = if max { Scale::Max } else { Scale::L2 };
                let params = Quantize::new(bits, bucket, scale, 11).unwrap();
                let quantize = QuantizeOptions { params, stage };
                let degrees = degrees.get(&layerings(size)).clone();
                Case { size, n, width, dtype, mean, algorithm, degrees, quantize, indices: indices.collect() }
            })
        },
    )
}

/// The values after quantisation.
fn quantise_and_back<T: Real>(values: &[T], params: &Quantize, draw: Draw) -> Vec<T> {
    let mut codes = vec![0; quantised_bytes(values.len(), params)];
    quantise(values, params, draw, &mut codes).unwrap();
    let mut out = vec![T::ZERO; values.len()];
    dequantise(&codes, params, &mut out).unwrap();
    out
}

fn rows_between(indices: &[u64], (lo, hi): (u64, u64), width: usize) -> std::ops::Range<usize> {
    let at = |bound| indices.partition_point(|i| *i < bound) * width;
    at(lo)..at(hi)
}

/// A rank's input as it is added to the sum.
fn quantised_input<T: Real>(case: &Case, rank: u32, call: u64) -> SparseVec<T> {
    let mut vector = case.input::<T>(rank);
    let bounds = match case.algorithm {
        Algorithm::RecursiveDoubling | Algorithm::Allgather => vec![0, case.n],
        _ => split_ranges(0, case.n, case.size),
    };
    if let Form::Sparse { indices, values } = &mut vector.form {
        for (range, part) in bounds.windows(2).zip(0..) {
            let rows = rows_between(&indices.to_vec(), (range[0], range[1]), case.width);
            let draw = Draw { call, rank, first_bucket: part * PART_BUCKETS };
            let quantised = quantise_and_back(&values[rows.clone()], &case.quantize.params, draw);
            values[rows].copy_from_slice(&quantised);
        }
    }
    vector
}

/// The reduced entries, quantised by each owner.
fn quantised_result<T: Real>(case: &Case, sum: &SparseVec<T>, call: u64) -> (Vec<u64>, Vec<T>) {
    let (indices, mut values) = sum.entries();
    for rank in 0..case.size {
        let rows = rows_between(&indices, case.part_of(rank), case.width);
        let draw = Draw { call, rank, first_bucket: RESULT_BUCKETS };
        let quantised = quantise_and_back(&values[rows.clone()], &case.quantize.params, draw);
        values[rows].copy_from_slice(&quantised);
    }
    (indices, values)
}

/// The number of a group's first call.
const FIRST_CALL: u64 = 0;

fn check<T: Real>(case: &Case, make: MakeGroup) {
    let stage = case.quantize.stage;
    let (quantised, plain) = (case.options(Some(case.quantize)), case.options(None));
    let got = on_all(make(case.size), |comm| {
        let op = case.op();
        let mine = case.input::<T>(comm.rank());
        let with_sent = AllreduceOptions { tell_sent: true, ..quantised.clone() };
        let Allreduced { sum: got, sent, .. } =
            comm.allreduce(&mine).op(op.clone()).options(with_sent.clone()).run().unwrap();
        let again = comm.allreduce(&mine).op(op.clone()).options(quantised.clone()).run().unwrap().sum;
        let counted = match stage {
            Stage::Result => mine,
            Stage::Input | Stage::Both => quantised_input(case, comm.rank(), FIRST_CALL),
        };
        if stage != Stage::Result {
            assert_eq!(sent, counted.entries().1, "rank {} of {case:?}", comm.rank());
        }
        let sum = comm.allreduce(&counted).op(op.clone()).options(plain.clone()).run().unwrap().sum;
        (got, again, sum)
    });
    for (rank, (result, again, sum)) in got.iter().enumerate() {
        result.view().check(case.n, case.width).unwrap();
        for (mine, first) in [(result, &got[0].0), (again, &got[0].1)] {
            assert_eq!(mine.entries(), first.entries(), "rank {rank} has other bits in {case:?}");
        }
        let want = match stage {
            Stage::Input => sum.entries(),
            Stage::Result | Stage::Both => quantised_result(case, sum, FIRST_CALL),
        };
        assert_eq!(result.entries(), want, "rank {rank} of {case:?}");
        assert_eq!(result.is_dense(), sum.is_dense());
    }
}

proptest! {
    #![proptest_config(crate::common::random(120))]

    #[test]
    fn quantised_results_match_the_oracle(
        case in cases(OWNERS[1..].to_vec(), vec![Stage::Result, Stage::Both]), transport in 0..LOCAL_AND_TCP.len(),
    ) {
        with_real!(case.dtype, T => check::<T>(&case, LOCAL_AND_TCP[transport].1), else unreachable!());
    }

    #[test]
    fn quantised_inputs_match_the_oracle(
        case in cases(Algorithm::OURS.into_iter().filter(|a| !a.is_dense() && *a != Algorithm::Auto).collect(),
                      vec![Stage::Input]),
        transport in 0..LOCAL_AND_TCP.len(),
    ) {
        with_real!(case.dtype, T => check::<T>(&case, LOCAL_AND_TCP[transport].1), else unreachable!());
    }

    #[test]
    fn the_same_bits_on_all_ranks_with_sampled_ranges_and_auto(
        case in cases(OWNERS.to_vec(), Stage::ALL.to_vec()), transport in 0..LOCAL_AND_TCP.len(),
    ) {
        let options = AllreduceOptions { split: Split::Quantiles, ..case.options(Some(case.quantize)) };
        let got = on_all(LOCAL_AND_TCP[transport].1(case.size), |comm| {
            let mine = case.input::<f32>(comm.rank());
            comm.allreduce(&mine).op(case.op()).options(options.clone()).run().unwrap().sum
        });
        prop_assert!(got.iter().all(|g| g.entries() == got[0].entries()));
    }

    #[test]
    fn dense_arrays_match_the_oracle(
        size in 1u32..=13, len in prop_oneof![0usize..50, 10_000usize..60_000], transport in 0..LOCAL_AND_TCP.len(),
        stage in prop::sample::select(Stage::ALL.to_vec()),
    ) {
        let params = Quantize::new(4, 512, Scale::L2, 3).unwrap();
        let quantize = Some(QuantizeOptions { params, stage });
        let row = |rank: u32| -> Vec<f32> { (0..len).map(|k| (k as f32 + rank as f32).cos()).collect() };
        let got = on_all(LOCAL_AND_TCP[transport].1(size), |comm| {
            let mut out = vec![0.0; len];
            let options = AllreduceOptions { quantize, ..AllreduceOptions::default() };
            comm.allreduce_dense(&row(comm.rank()), &mut out).op(ReduceOp::Mean).options(options.clone()).run().unwrap();
            out
        });
        prop_assert!(got.iter().all(|g| *g == got[0]));
        let bounds = split_ranges(0, len as u64, size);
        for (range, owner) in bounds.windows(2).zip(0..) {
            let (lo, hi) = (range[0] as usize, range[1] as usize);
            let mut sum = vec![0f32; hi - lo];
            for rank in 0..size {
                let draw = Draw { call: FIRST_CALL, rank, first_bucket: u64::from(owner) * PART_BUCKETS };
                let mine = match stage {
                    Stage::Result => row(rank)[lo..hi].to_vec(),
                    _ => quantise_and_back(&row(rank)[lo..hi], &params, draw),
                };
                sum.iter_mut().zip(mine).for_each(|(s, v)| *s += v);
            }
            sum.iter_mut().for_each(|s| *s /= size as f32);
            let draw = Draw { call: FIRST_CALL, rank: owner, first_bucket: RESULT_BUCKETS };
            let want = if stage == Stage::Input { sum } else { quantise_and_back(&sum, &params, draw) };
            prop_assert_eq!(&got[0][lo..hi], &want[..]);
        }
    }
}

/// The mean over seeds is the value, and the squared error is within QSGD's bound, for sums of quantised inputs, too.
#[test]
fn unbiased_and_within_the_variance_bound() {
    const SEEDS: u64 = 400;
    let (size, n, bucket) = (3u32, 96usize, 32);
    let row =
        |rank: u32| -> Vec<f32> { (0..n).map(|k| ((k * 7 + rank as usize * 5) as f32).sin()).collect() };
    let squares = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    let exact: Vec<f32> = (0..n).map(|k| (0..size).map(|r| row(r)[k]).sum()).collect();
    for (bits, stage) in [(2, Stage::Result), (4, Stage::Result), (4, Stage::Input), (8, Stage::Input)] {
        let results = on_all(local(size), |comm| {
            let draw = |seed| {
                let params = Quantize::new(bits, bucket, Scale::L2, seed).unwrap();
                let quantize = Some(QuantizeOptions { params, stage });
                let options = AllreduceOptions { quantize, ..AllreduceOptions::default() };
                let mut out = vec![0.0; n];
                comm.allreduce_dense(&row(comm.rank()), &mut out).options(options.clone()).run().unwrap();
                out
            };
            (0..SEEDS).map(draw).collect::<Vec<_>>()
        });
        let levels = f64::from((1 << (bits - 1)) - 1);
        let d = f64::from(bucket);
        let factor = (d / levels.powi(2)).min(d.sqrt() / levels);
        let bound = factor
            * match stage {
                Stage::Result => squares(&exact),
                _ => (0..size).map(|rank| squares(&row(rank))).sum(),
            };
        let error = |v: &Vec<f32>| squares(&v.iter().zip(&exact).map(|(a, b)| a - b).collect::<Vec<_>>());
        let mean_error = results[0].iter().map(error).sum::<f64>() / SEEDS as f64;
        assert!(mean_error <= bound * 1.02, "{bits} bits, {stage:?}: {mean_error} above {bound}");
        assert!(mean_error > bound / 40.0, "{bits} bits, {stage:?}: {mean_error} is hardly random");
        let mut bias = vec![0f64; n];
        for result in &results[0] {
            bias.iter_mut().zip(result).zip(&exact).for_each(|((b, v), e)| *b += f64::from(v - e));
        }
        let bias: f64 = bias.iter().map(|b| (b / SEEDS as f64).powi(2)).sum();
        // The mean of independent draws has 1/SEEDS of their variance. For 96 values, twice that is far beyond chance.
        assert!(bias <= 2.0 * mean_error / SEEDS as f64, "{bits} bits, {stage:?}: {bias} of {mean_error}");
    }
}

/// A transport that counts the bytes that it sends.
struct Counting(Local, Arc<AtomicU64>);

impl NativeCollectives for Counting {}

impl Replication for Counting {}

impl UnderReplicas for Counting {}

impl Transport for Counting {
    fn rank(&self) -> WorldRank {
        self.0.rank()
    }
    fn size(&self) -> u32 {
        self.0.size()
    }
    fn facts(&self) -> Facts {
        let known = self.0.facts();
        Facts::new("counting", known.addresses, known.ranks_on_host)
    }
    fn post(&mut self, to: WorldRank, frame: Frame) {
        self.1.fetch_add(64 + frame.payload.len() as u64, Ordering::Relaxed);
        self.0.post(to, frame);
    }
    fn backlog(&self, to: WorldRank) -> usize {
        self.0.backlog(to)
    }
    fn poll(&mut self, wait: Duration, events: &mut Vec<Event>) {
        self.0.poll(wait, events);
    }
    fn waker(&self) -> Waker {
        self.0.waker()
    }
    fn close(&mut self, wait: Duration) -> skyphos::Result<()> {
        self.0.close(wait)
    }
}

/// Bytes that one call sends, headers of frames included.
fn bytes_of(size: u32, body: impl Fn(&Comm) + Sync) -> u64 {
    let count = Arc::new(AtomicU64::new(0));
    let counting = |t| Comm::over(Box::new(Counting(t, count.clone())), settings()).unwrap();
    let comms: Vec<Comm> = local_group(size).into_iter().map(counting).collect();
    let all = on_all(comms, |comm| {
        body(comm);
        count.load(Ordering::Relaxed)
    });
    all.into_iter().max().unwrap()
}

#[test]
fn four_bits_take_an_eighth_of_the_bytes() {
    let n = 1 << 20;
    let values: Vec<f32> = (0..n).map(|k| (k as f32).sin()).collect();
    let dense = |quantize: Option<QuantizeOptions>| {
        let options = AllreduceOptions { quantize, ..AllreduceOptions::default() };
        bytes_of(4, |comm| {
            let mut out = vec![0.0; n];
            comm.allreduce_dense(&values, &mut out).options(options.clone()).run().unwrap();
        }) as f64
    };
    let plain = dense(None);
    let ratio = |bits, stage| {
        let params = Quantize::new(bits, 1024, Scale::L2, 0).unwrap();
        dense(Some(QuantizeOptions { params, stage })) / plain
    };
    for (bits, share) in [(2, 1.0 / 16.0), (4, 1.0 / 8.0), (8, 1.0 / 4.0)] {
        let (both, result) = (ratio(bits, Stage::Both), ratio(bits, Stage::Result));
        println!("{bits} bits: both {both:.4}, result {result:.4} of {plain} bytes");
        assert!((share..share * 1.1 + 0.002).contains(&both), "{bits} bits: {both}");
        // With quantised results only, the first half is sent in full precision.
        let want = 0.5 + share / 2.0;
        assert!((want..want * 1.03).contains(&result), "{bits} bits: {result}");
    }
    // Sparse: 1 index in 64, which takes about 9 bits.
    let indices: Vec<u32> = (0..n as u32 / 64).map(|k| k * 64 + k * k % 61).collect();
    let sparse = |quantize: Option<QuantizeOptions>| {
        let options = AllreduceOptions {
            quantize,
            algorithm: Algorithm::SplitAllgather,
            ..AllreduceOptions::default()
        };
        bytes_of(4, |comm| {
            let view = View::Sparse { indices: (&indices).into(), values: &values[..indices.len()] };
            comm.allreduce(VectorView::new(n as u64, 1, view)).options(options.clone()).run().unwrap();
        }) as f64
    };
    let params = Quantize::default();
    let share = sparse(Some(QuantizeOptions { params, stage: Stage::Both })) / sparse(None);
    println!("sparse, 4 bits: {share:.4}");
    assert!(share < 0.34, "{share}");
}

#[test]
fn invalid_values_and_options_are_refused_on_all_ranks() {
    let quantize = |stage| Some(QuantizeOptions { params: Quantize::default(), stage });
    let refused = |algorithm, op: ReduceOp, stage, value: f32| {
        let options =
            AllreduceOptions { algorithm, quantize: quantize(stage), ..AllreduceOptions::default() };
        let texts = on_all(local(3), |comm| {
            let values = [1.0, if comm.rank() == 1 { value } else { 1.0 }];
            let view = View::Sparse { indices: (&[4u64, 9]).into(), values: &values };
            let text = comm
                .allreduce(VectorView::new(10, 1, view))
                .op(op.clone())
                .options(options.clone())
                .run()
                .unwrap_err()
                .to_string();
            comm.barrier().run().unwrap();
            text
        });
        // The error of another rank begins with its number.
        let bare = |text: &String| {
            text.split_once(": ")
                .filter(|(rank, _)| rank.starts_with("rank "))
                .map_or(text.clone(), |(_, rest)| rest.to_owned())
        };
        assert!(texts.iter().all(|text| bare(text) == bare(&texts[0])), "{texts:?}");
        texts[0].clone()
    };
    use Algorithm::{Allgather, Auto, RecursiveDoubling};
    for algorithm in [RecursiveDoubling, Allgather] {
        let text = refused(algorithm, ReduceOp::Sum, Stage::Both, 1.0);
        assert!(text.contains(algorithm.name()) && text.contains("split_allgather_dense"), "{text}");
    }
    let text = refused(Auto, ReduceOp::Max, Stage::Input, 1.0);
    assert!(text.contains("op=\"max\""), "{text}");
    for stage in Stage::ALL {
        for value in [f32::NAN, f32::INFINITY] {
            let text = refused(Auto, ReduceOp::Sum, stage, value);
            assert!(text.starts_with("rank 1: the value at index 9") && text.contains("quantised"), "{text}");
        }
    }
    // Finite inputs whose sum is infinite.
    let texts = on_all(local(3), |comm| {
        let values = [f32::MAX];
        let view = View::Sparse { indices: (&[9u64]).into(), values: &values };
        let options = AllreduceOptions { quantize: quantize(Stage::Result), ..AllreduceOptions::default() };
        comm.allreduce(VectorView::new(10, 1, view)).options(options.clone()).run().unwrap_err().to_string()
    });
    assert!(texts.iter().all(|t| t.contains("the result at index 9") && t.contains("inf")), "{texts:?}");
    // Integers, and options that differ between ranks.
    let texts = on_all(local(2), |comm| {
        let view = View::Sparse { indices: (&[1u64]).into(), values: &[1i32] };
        let options = AllreduceOptions { quantize: quantize(Stage::Input), ..AllreduceOptions::default() };
        comm.allreduce(VectorView::new(10, 1, view)).options(options.clone()).run().unwrap_err().to_string()
    });
    assert!(texts.iter().all(|t| t.contains("int32")), "{texts:?}");
    for (a, b) in [(quantize(Stage::Input), None), (quantize(Stage::Input), quantize(Stage::Both))] {
        let texts = on_all(local(2), |comm| {
            let view = View::Sparse { indices: (&[1u64]).into(), values: &[1f32] };
            let quantize = if comm.rank() == 0 { a } else { b };
            let options = AllreduceOptions { quantize, ..AllreduceOptions::default() };
            comm.allreduce(VectorView::new(10, 1, view))
                .options(options.clone())
                .run()
                .unwrap_err()
                .to_string()
        });
        assert!(texts.iter().all(|t| t.contains("ranks disagree")), "{texts:?}");
    }
    // Dense rings add partial sums on the way, so there is no owner to quantise them.
    let texts = on_all(local(2), |comm| {
        let algorithm = Algorithm::DenseRing;
        let options =
            AllreduceOptions { algorithm, quantize: quantize(Stage::Result), ..AllreduceOptions::default() };
        comm.allreduce_dense(&[1f32], &mut [0.0]).options(options.clone()).run().unwrap_err().to_string()
    });
    assert!(texts.iter().all(|t| t.contains("dense_ring")), "{texts:?}");
}
