//! Sums of outer products by every algorithm, against sums computed pair by pair.

use proptest::prelude::*;
use skyphos::product::{Destination, Factor, Rows, multiply_pairs};
use skyphos::{
    Comm, Level, OuterAlgorithm, OuterOptions, OuterReport, OuterShape, Real, Result, Schedule, Settings,
    SparseFactors, SparsePairs, Topology, bf16, f16,
};

/// Whole numbers, small enough that all their sums are exact in float32: any order of additions gives the same bits.
fn drawn<T: Real>(count: usize, seed: usize) -> Vec<T> {
    let number = |k: usize| ((k * 7919 + seed * 104_729) % 9) as f32 - 4.0;
    (0..count).map(|k| T::from_f32(number(k))).collect()
}

fn factors<T: Real>(rank: u32, n: usize, m: usize, pairs: usize) -> (Vec<T>, Vec<T>) {
    (drawn(pairs * n, 2 * rank as usize), drawn(pairs * m, 2 * rank as usize + 1))
}

fn oracle<T: Factor>(n: usize, m: usize, pairs: &[usize]) -> Vec<T> {
    let mut sums = vec![<T::Sum as skyphos::Element>::ZERO; n * m];
    for (rank, pairs) in (0..).zip(pairs) {
        let (a, b) = factors::<T::Sum>(rank, n, m, *pairs);
        let rows = (Rows { numbers: &a, stride: n }, Rows { numbers: &b, stride: m });
        multiply_pairs((n, m, *pairs), rows, (&mut sums, m), Destination::Add);
    }
    let mut numbers = vec![T::ZERO; n * m];
    T::narrow(&sums, &mut numbers);
    numbers
}

/// All algorithms, with the options that each needs.
fn options_of(ranks: u32) -> Vec<OuterOptions> {
    use OuterAlgorithm::{Allgather, Rabenseifner};
    let plain = OuterAlgorithm::ALL.map(|algorithm| OuterOptions { algorithm, ..OuterOptions::default() });
    let exchanges = Schedule::ALL.map(|schedule| OuterOptions {
        algorithm: Allgather,
        exchange: Some(schedule),
        ..Default::default()
    });
    let levels = Level::ALL.map(|level| OuterOptions {
        algorithm: Rabenseifner,
        level: Some(level),
        ..Default::default()
    });
    let grid = Some((1, ranks));
    let across = OuterOptions { algorithm: Rabenseifner, grid, ..Default::default() };
    let scattered = [OuterAlgorithm::Auto, Allgather, Rabenseifner, OuterAlgorithm::Ring]
        .map(|algorithm| OuterOptions { algorithm, scatter: true, ..Default::default() });
    [&plain[..], &exchanges, &levels, &[across], &scattered].concat()
}

fn sum<T: Factor>(
    comm: &Comm,
    n: usize,
    m: usize,
    pairs: usize,
    options: &OuterOptions,
) -> Result<(Vec<T>, OuterReport)> {
    let (a, b) = factors::<T>(comm.rank(), n, m, pairs);
    let (me, size) = (comm.rank() as usize, comm.size() as usize);
    let rows = if options.scatter { n * (me + 1) / size - n * me / size } else { n };
    let out = vec![T::from_f32(f32::NAN); rows * m];
    let own = (&a, &b);
    let done = comm.outer_product_sum(OuterShape { n, m, pairs }, own, out).options(*options).run()?;
    Ok((done.out, done.report))
}

fn check<T: Factor>(ranks: u32, n: usize, m: usize, pairs: &[usize], threads: usize) {
    let want = oracle::<T>(n, m, pairs);
    let settings = Settings { threads, ..Settings::default() };
    let all = Comm::local(ranks, &settings).unwrap().map_ranks(|flat| {
        // Hosts of up to three ranks, numbered so that ranks of a host are apart, in racks of two hosts.
        let hosts: Vec<u32> = (0..ranks).map(|rank| rank % ranks.div_ceil(3)).collect();
        let racks: Vec<u32> = hosts.iter().map(|host| host / 2).collect();
        let topology = Topology::new(&hosts, &racks).unwrap();
        let comm = flat.with_topology(Some(&topology)).unwrap();
        let pairs = pairs[comm.rank() as usize];
        let done: Vec<_> =
            options_of(ranks).iter().map(|options| sum::<T>(&comm, n, m, pairs, options).unwrap()).collect();
        let shape = OuterShape { n, m, pairs };
        let (a, b) = factors::<T>(comm.rank(), n, m, pairs);
        let gathered = comm.gather_outer_factors(shape, (a, b)).prepare().unwrap();
        (done, gathered.run().unwrap())
    });
    for (rank, (done, gathered)) in all.iter().enumerate() {
        for ((got, report), options) in done.iter().zip(options_of(ranks)) {
            let rows = n * rank / ranks as usize..n * (rank + 1) / ranks as usize;
            let want = if options.scatter { &want[rows.start * m..rows.end * m] } else { &want[..] };
            assert_eq!(got, want, "rank {rank} of {ranks}, {n} by {m}, {pairs:?}: {options:?}, {report:?}");
            assert_ne!(report.choice.algorithm, OuterAlgorithm::Auto);
        }
        let whole = |which: usize| -> Vec<T> {
            let factor = |rank: usize| {
                let (a, b) = factors::<T>(rank as u32, n, m, pairs[rank]);
                if which == 0 { a } else { b }
            };
            (0..ranks as usize).flat_map(factor).collect()
        };
        assert_eq!((&gathered.a, &gathered.b), (&whole(0), &whole(1)));
    }
}

#[test]
fn all_algorithms_on_1_to_13_ranks() {
    for ranks in 1..=13u32 {
        let pairs: Vec<usize> = (0..ranks as usize).map(|rank| (rank * 5 + 1) % 4).collect();
        check::<f64>(ranks, 17, 29, &pairs, 1);
        check::<bf16>(ranks, 5, 3, &vec![2; ranks as usize], 1);
    }
}

/// More pairs than a group of tiles has, and messages of several chunks.
#[test]
fn thick_factors_and_large_sums_match_the_oracle() {
    check::<f32>(4, 300, 210, &[300, 0, 280, 513], 2);
    check::<f64>(3, 700, 640, &[1, 2, 1], 2);
    check::<f16>(3, 64, 48, &[1, 1, 2], 1);
}

#[test]
fn empty_sums_match_the_oracle() {
    for (n, m) in [(0, 7), (7, 0), (0, 0), (4, 4)] {
        check::<f32>(3, n, m, &[0, 0, 0], 1);
    }
    check::<f32>(3, 0, 5, &[2, 1, 0], 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn sums_of_any_shape_match_the_oracle(ranks in 1u32..8, n in 0usize..60, m in 0usize..60,
                 pairs in prop::collection::vec(0usize..9, 8)) {
        check::<f32>(ranks, n, m, &pairs[..ranks as usize], 1);
        check::<bf16>(ranks, n, m, &pairs[..ranks as usize], 1);
    }
}

/// Real numbers: the same bits on all ranks and in every run, near the result in float64.
#[test]
fn results_have_the_same_bits_on_all_ranks() {
    for options in options_of(5)
        .into_iter()
        .filter(|options| !options.scatter && options.algorithm != OuterAlgorithm::Auto)
    {
        let once = || {
            Comm::local(5, &Settings::default()).unwrap().map_ranks(|comm| {
                let (n, m, pairs) = (190, 170, 3);
                let number = |k: usize| ((k * 37 + comm.rank() as usize * 11) as f32).sin();
                let a: Vec<f32> = (0..pairs * n).map(number).collect();
                let b: Vec<f32> = (0..pairs * m).map(|k| number(k + 5)).collect();
                let mut out = vec![0f32; n * m];
                let own = (&a, &b);
                comm.outer_product_sum(OuterShape { n, m, pairs }, own, &mut out)
                    .options(options)
                    .run()
                    .unwrap();
                (out, a, b)
            })
        };
        let (first, second) = (once(), once());
        for (got, again) in first.iter().zip(&second) {
            assert!(got.0 == first[0].0 && again.0 == first[0].0, "{options:?}");
        }
        for k in [0, 171, 190 * 170 - 1] {
            let (i, j) = (k / 170, k % 170);
            let exact: f64 = first
                .iter()
                .flat_map(|(_, a, b)| {
                    (0..3).map(move |p| f64::from(a[p * 190 + i]) * f64::from(b[p * 170 + j]))
                })
                .sum();
            // 15 products of at most 1, in float32.
            assert!((f64::from(first[0].0[k]) - exact).abs() < 15.0 * 15.0 * 6e-8, "{options:?}");
        }
    }
}

#[test]
fn mismatched_shapes_are_refused_on_all_ranks() {
    let refused = |call: &(dyn Fn(&Comm) -> Result<()> + Sync), words: &str| {
        for error in Comm::local(3, &Settings::default()).unwrap().map_ranks(|comm| call(&comm).unwrap_err())
        {
            assert!(error.to_string().contains(words), "{error}");
        }
    };
    let default = OuterOptions::default();
    // Another M on one rank, another N.
    refused(&|comm| sum::<f32>(comm, 5, 6 + (comm.rank() / 2) as usize, 1, &default).map(drop), "m=");
    refused(&|comm| sum::<f32>(comm, 5 + (comm.rank() / 2) as usize, 6, 1, &default).map(drop), "n=");
    let out_of = |comm: &Comm, numbers: usize| {
        let mut out = vec![0f64; numbers];
        let own = ([1.0, 2.0], [3.0, 4.0, 5.0]);
        comm.outer_product_sum(OuterShape { n: 2, m: 3, pairs: 1 }, own, &mut out)
            .options(default)
            .run()
            .map(drop)
    };
    refused(
        &|comm| out_of(comm, if comm.rank() == 1 { 5 } else { 6 }),
        "out holds 5 numbers, not 2 rows of 3",
    );
    let uneven = |comm: &Comm| {
        let mut out = vec![0f64; 6];
        let b = if comm.rank() == 0 { &[3.0, 4.0][..] } else { &[3.0, 4.0, 5.0] };
        let own = ([1.0, 2.0], b);
        comm.outer_product_sum(OuterShape { n: 2, m: 3, pairs: 1 }, own, &mut out)
            .options(default)
            .run()
            .map(drop)
    };
    refused(&uneven, "factors of 2 and 2 numbers are not 1 rows of 2 and of 3");
    let with = |options: OuterOptions, words: &str| {
        refused(&|comm| sum::<f32>(comm, 4, 4, 1, &options).map(drop), words);
    };
    with(OuterOptions { grid: Some((2, 2)), algorithm: OuterAlgorithm::Rabenseifner, ..default }, "3 ranks");
    with(OuterOptions { grid: Some((3, 1)), ..default }, "rabenseifner");
    with(OuterOptions { exchange: Some(Schedule::Ring), ..default }, "exchange=");
    with(OuterOptions { scatter: true, algorithm: OuterAlgorithm::Butterfly, ..default }, "scatter=True");
}

/// Indices and values.
type Entries<T> = (Vec<u64>, Vec<T>);

/// Sparse factors of a rank: about a third of the entries, zeros among them.
struct Sparse<T> {
    a: Entries<T>,
    b: Entries<T>,
}

impl<T: Factor> SparseFactors<T> for Sparse<T> {
    fn pairs(&self) -> SparsePairs<'_, T> {
        SparsePairs { a: (&self.a.0, &self.a.1), b: (&self.b.0, &self.b.1) }
    }
}

fn sparse<T: Real>(rank: u32, n: usize, m: usize, pairs: usize) -> Sparse<T> {
    let (a, b) = factors::<T>(rank, n, m, pairs);
    let third = |all: Vec<T>| (0u64..).zip(all).filter(|(k, _)| (k * 31 + u64::from(rank)) % 3 == 0).unzip();
    Sparse { a: third(a), b: third(b) }
}

#[test]
fn sparse_factors_by_all_algorithms() {
    for ranks in 1..=9u32 {
        for (n, m, pairs) in [(13, 40, 2), (200, 3, 1), (1, 1, 3), (30, 30, 0), (0, 4, 1)] {
            check_sparse::<f64>(ranks, n, m, pairs);
            check_sparse::<bf16>(ranks, n, m, pairs);
        }
    }
}

fn check_sparse<T: Factor>(ranks: u32, n: usize, m: usize, pairs: usize) {
    let mut want = vec![0f32; n * m];
    let mut entries = vec![false; n * m];
    for rank in 0..ranks {
        let Sparse { a, b } = sparse::<f32>(rank, n, m, pairs);
        for (i, x) in a.0.iter().zip(&a.1) {
            for (j, y) in b.0.iter().zip(&b.1).filter(|(j, _)| **j / m as u64 == i / n as u64) {
                let at = *i as usize % n * m + *j as usize % m;
                want[at] += x * y;
                entries[at] = true;
            }
        }
    }
    let options = |algorithm, scatter| OuterOptions { algorithm, scatter, ..OuterOptions::default() };
    let mut all: Vec<_> = OuterAlgorithm::ALL.map(|algorithm| options(algorithm, false)).into();
    all.extend(
        [OuterAlgorithm::Auto, OuterAlgorithm::Allgather, OuterAlgorithm::Rabenseifner]
            .map(|a| options(a, true)),
    );
    let shape = OuterShape { n, m, pairs };
    let got = Comm::local(ranks, &Settings::default()).unwrap().map_ranks(|comm| {
        let run = |options: &OuterOptions| {
            let own = sparse::<T>(comm.rank(), n, m, pairs);
            comm.sparse_outer_product_sum(shape, own).options(*options).prepare().unwrap().run().unwrap()
        };
        let done: Vec<_> = all.iter().map(run).collect();
        let own = sparse::<T>(comm.rank(), n, m, pairs);
        let call = comm.gather_sparse_outer_factors(shape, own).prepare().unwrap();
        (done, call.run().unwrap())
    });
    for (rank, (done, gathered)) in got.into_iter().enumerate() {
        for (one, options) in done.iter().zip(&all) {
            let size = ranks as usize;
            let rows = if options.scatter { n * rank / size..n * (rank + 1) / size } else { 0..n };
            let (want, entries) =
                (&want[rows.start * m..rows.end * m], &entries[rows.start * m..rows.end * m]);
            let dense: Vec<f32> = one.sum.to_dense(T::ZERO).into_iter().map(Real::to_f32).collect();
            let plain = |all: &[f32]| -> Vec<f32> { all.iter().map(|x| x + 0.0).collect() };
            assert_eq!(plain(&dense), plain(want), "{ranks} {n} {m} {pairs} {options:?}");
            assert_eq!(one.sum.nnz(), entries.iter().filter(|is| **is).count(), "{options:?}");
        }
        let whole: Vec<Sparse<T>> = (0..ranks).map(|rank| sparse(rank, n, m, pairs)).collect();
        let joined = |width: usize, factor: &dyn Fn(&Sparse<T>) -> Entries<T>| {
            let (mut indices, mut values) = (Vec::new(), Vec::new());
            for (rank, one) in (0u64..).zip(&whole) {
                let (list, numbers) = factor(one);
                indices.extend(list.iter().map(|index| rank * (pairs * width) as u64 + index));
                values.extend(numbers);
            }
            (indices, values)
        };
        assert_eq!(gathered.a, joined(n, &|one| one.a.clone()));
        assert_eq!(gathered.b, joined(m, &|one| one.b.clone()));
    }
}
