//! Test cases, their oracle, and groups on every transport.
#![allow(dead_code, reason = "each test file uses a part")]

#[path = "../../../skyphos-tcp/tests/common/certificates.rs"]
mod certificates;
pub mod crashing;
pub mod programs;

use proptest::prelude::*;
use skyphos::{
    Comm, ConfigureOptions, DType, Element, Error, Missing, Order, ReduceOp, ReduceOptions, Replication,
    Settings, Transport, with_element,
};
use skyphos_core::local::local_group;
use skyphos_tcp::TlsFiles;
use std::collections::BTreeMap;

/// Makes the Comms of a group, in rank order.
pub type MakeGroup = fn(u32) -> Vec<Comm>;

/// Groups of threads of this process: over the transport of threads, and over sockets.
pub const LOCAL_AND_TCP: [(&str, MakeGroup); 2] = [("local", local), ("tcp", tcp)];

pub fn local(size: u32) -> Vec<Comm> {
    Comm::local(size, &settings()).unwrap().into_vec()
}

/// A group over loopback sockets whose ranks are threads of this process.
pub fn tcp(size: u32) -> Vec<Comm> {
    on_each(tcp_transports(size), |_, transport| Comm::over(transport, settings()).unwrap())
}

/// A group over loopback sockets and shared memory.
pub fn shared_memory(size: u32) -> Vec<Comm> {
    on_each(shared_memory_transports(size), |_, transport| Comm::over(transport, settings()).unwrap())
}

/// A group over sockets with TLS.
pub fn tls(size: u32) -> Vec<Comm> {
    on_each(tls_transports(size), |_, transport| Comm::over(transport, settings()).unwrap())
}

/// A group of `size` ranks with two replicas each.
pub fn local_replicated(size: u32) -> Vec<Comm> {
    on_each(local_transports(2 * size), |_, transport| replicated(transport, 2))
}

pub fn tcp_replicated(size: u32) -> Vec<Comm> {
    on_each(tcp_transports(2 * size), |_, transport| replicated(transport, 2))
}

/// One process of a group of ranks with `each` replicas. Processes are threads here.
pub fn replicated(transport: Box<dyn Transport>, each: u32) -> Comm {
    let replication = Replication { each, share_hosts: true };
    Comm::replicated(transport, replication, settings(), Ok((None, None))).unwrap()
}

/// Runs a function on each item, with its number, in a thread of its own.
pub fn on_each<T: Send, R: Send>(items: Vec<T>, body: impl Fn(u32, T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let numbered = (0..).zip(items);
        let threads: Vec<_> = numbered.map(|(k, item)| scope.spawn(move || body(k, item))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Runs `body` for every rank in a thread of its own, which closes the Comm, too.
pub fn on_all<R: Send>(comms: Vec<Comm>, body: impl Fn(&Comm) -> R + Sync) -> Vec<R> {
    on_each(comms, |_, comm| body(&comm))
}

pub fn local_transports(size: u32) -> Vec<Box<dyn Transport>> {
    local_group(size).into_iter().map(|local| Box::new(local) as Box<dyn Transport>).collect()
}

pub fn tcp_transports(size: u32) -> Vec<Box<dyn Transport>> {
    connected(size, None, false)
}

pub fn shared_memory_transports(size: u32) -> Vec<Box<dyn Transport>> {
    connected(size, None, true)
}

pub fn tls_transports(size: u32) -> Vec<Box<dyn Transport>> {
    connected(size, Some(certificates::shared()), false)
}

fn connected(size: u32, tls: Option<TlsFiles>, shared_memory: bool) -> Vec<Box<dyn Transport>> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let rendezvous = listener.local_addr().unwrap().to_string();
    let listen_fd = std::os::fd::IntoRawFd::into_raw_fd(listener);
    let join = |rank| {
        let mut options = skyphos::tcp::Options::new(rank, size, rendezvous.clone());
        (options.listen_fd, options.timeout) = ((rank == 0).then_some(listen_fd), settings().timeout);
        options.token = Some("a secret".to_owned());
        options.tls.clone_from(&tls);
        options.shared_memory = shared_memory;
        Box::new(skyphos::tcp::connect(options).unwrap()) as Box<dyn Transport>
    };
    on_each((0..size).collect(), |_, rank| join(rank))
}

/// A number of random cases; PROPTEST_CASES overrides it.
pub fn random(cases: u32) -> ProptestConfig {
    let from_environment = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    ProptestConfig { cases: from_environment.unwrap_or(cases), ..ProptestConfig::default() }
}

/// Settings with a time-out after 30 s without progress.
pub fn settings() -> Settings {
    Settings { timeout: std::time::Duration::from_secs(30), ..Settings::default() }
}

/// Every ordered factorisation of `size` (into factors of at least 2; [size] alone for primes and 1).
pub fn factorisations(size: u32) -> Vec<Vec<u32>> {
    if size == 1 {
        return vec![vec![1]];
    }
    let mut all = vec![vec![size]];
    for d in 2..size {
        if size.is_multiple_of(d) {
            for rest in factorisations(size / d) {
                all.push([vec![d], rest].concat());
            }
        }
    }
    all
}

/// The factorisations, and each with an additional layer of degree 1 at each position, which changes nothing.
pub fn layerings(size: u32) -> Vec<Vec<u32>> {
    let mut all = factorisations(size);
    for degrees in all.clone() {
        all.extend((0..=degrees.len()).map(|at| [&degrees[..at], &[1], &degrees[at..]].concat()));
    }
    all
}

#[derive(Clone, Debug)]
pub struct Case {
    pub size: u32,
    pub degrees: Vec<u32>,
    pub n: u64,
    pub width: usize,
    pub dtype: DType,
    pub op: ReduceOp,
    pub missing: Missing,
    pub order: Order,
    pub contribute: Vec<Vec<u64>>,
    pub want: Vec<Vec<u64>>,
}

/// Index lists of several shapes: with repeats, ascending, Zipf, a run, empty, one index, disjoint between ranks, the same on all.
fn indices(n: u64, rank: u32, size: u32) -> impl Strategy<Value = Vec<u64>> {
    let any = prop::collection::vec(0..n, 0..40);
    let zipf = prop::collection::vec(0f64..1.0, 0..60)
        .prop_map(move |u| u.iter().map(|u| ((n as f64).powf(*u) - 1.0) as u64 % n).collect());
    let dense = (0..n).prop_map(move |start| (start..(start + 300).min(n)).collect());
    let own: Vec<u64> = (0..n.min(500)).filter(|i| i % u64::from(size) == u64::from(rank)).collect();
    prop_oneof![
        2 => any.clone(),
        2 => any.prop_map(|mut v| { v.sort_unstable(); v.dedup(); v }),
        2 => zipf,
        1 => dense,
        1 => Just(vec![]),
        1 => (0..n).prop_map(|i| vec![i]),
        1 => Just(own),
        1 => Just((0..n.min(100)).collect()),
    ]
}

pub fn cases() -> impl Strategy<Value = Case> {
    cases_of(1..=13)
}

/// Cases of groups of given sizes.
pub fn cases_of(sizes: std::ops::RangeInclusive<u32>) -> impl Strategy<Value = Case> {
    let n = prop_oneof![Just(1u64), Just(100), Just(5000), Just(1 << 24), Just(1 << 40), Just(1 << 63)];
    (
        sizes,
        n,
        0..DType::ALL.len(),
        0usize..8,
        any::<bool>(),
        any::<bool>(),
        prop_oneof![Just(1usize), Just(16)],
    )
        .prop_flat_map(|(size, n, dtype, op, identity, arrival, width)| {
            let lists = || (0..size).map(|r| indices(n, r, size)).collect::<Vec<_>>();
            let all = factorisations(size);
            (lists(), lists(), 0..all.len()).prop_map(move |(contribute, want, k)| {
                let dtype = DType::ALL[dtype];
                let op = Some(ReduceOp::NAMED[op].clone()).filter(|op| op.check(dtype).is_ok());
                Case {
                    size,
                    degrees: all[k].clone(),
                    n,
                    width,
                    dtype,
                    op: op.unwrap_or(ReduceOp::Sum),
                    missing: if identity { Missing::Identity } else { Missing::Error },
                    order: if arrival { Order::Arrival } else { Order::Rank },
                    contribute,
                    want,
                }
            })
        })
}

/// A small value, so that sums and products are exact in every type.
fn value<T: Element>(rank: u32, row: usize, column: usize, op: &ReduceOp) -> T {
    let k = rank as usize * 31 + row * 7 + column * 3;
    let mut v = T::ZERO;
    let steps = match op {
        ReduceOp::Prod => 1 + k % 5 % 2,
        // bfloat16 counts exactly to 256, and a case may add hundreds of numbers to one index.
        _ if T::DTYPE.is_float() && T::DTYPE.size() == 2 => usize::from(k.is_multiple_of(11)),
        _ => k % 5,
    };
    for _ in 0..steps {
        v = v.add(T::ONE);
    }
    v
}

/// Reduces two numbers.
pub fn combine<T: Element>(op: &ReduceOp, a: T, b: T) -> T {
    match op {
        ReduceOp::Prod => a.mul(b),
        ReduceOp::Min => a.least(b),
        ReduceOp::Max => a.greatest(b),
        ReduceOp::Or => a.or(b),
        ReduceOp::And => a.and(b),
        _ => a.add(b),
    }
}

/// The result of every rank: plain sums in a map. `Err` has the indices that no rank contributes.
fn oracle<T: Element>(case: &Case, values: &[Vec<T>]) -> Result<Vec<Vec<T>>, Vec<u64>> {
    let identity = case.op.identity::<T>().unwrap();
    let mut sums: BTreeMap<u64, (Vec<T>, Vec<usize>)> = BTreeMap::new();
    for (rank, list) in case.contribute.iter().enumerate() {
        for (position, index) in list.iter().enumerate() {
            let (row, ranks) = sums.entry(*index).or_insert((vec![identity; case.width], vec![]));
            for (w, v) in row.iter_mut().enumerate() {
                *v = combine(&case.op, *v, values[rank][position * case.width + w]);
            }
            ranks.push(rank);
        }
    }
    for (row, ranks) in sums.values_mut() {
        ranks.dedup();
        match case.op {
            ReduceOp::Mean => row.iter_mut().for_each(|v| *v = v.divide(u64::from(case.size))),
            ReduceOp::MeanPresent => row.iter_mut().for_each(|v| *v = v.divide(ranks.len() as u64)),
            _ => {}
        }
    }
    let unmet: Vec<u64> = case.want.iter().flatten().filter(|i| !sums.contains_key(i)).copied().collect();
    if case.missing == Missing::Error && !unmet.is_empty() {
        return Err(unmet);
    }
    let absent = vec![identity; case.width];
    let result = |i: &u64| sums.get(i).map_or(&absent, |(row, _)| row).clone();
    Ok(case.want.iter().map(|list| list.iter().flat_map(result).collect()).collect())
}

/// Configures, reduces twice, and does both at once; compares all with the oracle.
pub fn check(case: &Case, make: MakeGroup) {
    with_element!(case.dtype, T => check_typed::<T>(case, make))
}

fn check_typed<T: Element>(case: &Case, make: MakeGroup) {
    let values = values_of::<T>(case);
    let want = oracle(case, &values);
    let got = on_all(make(case.size), |comm| run(case, &values, comm));
    let first = got[0].0.as_ref().err().map(Error::to_string);
    for (process, (separate, both)) in got.into_iter().enumerate() {
        let rank = process % case.size as usize;
        compare(case, &want, rank, &separate, &both);
        for error in [separate.err(), both.err()].iter().flatten() {
            assert_eq!(Some(error.to_string()), first);
        }
    }
}

/// [`check`] on one rank of a group whose other ranks call it, too.
pub fn check_alone(case: &Case, comm: &Comm) {
    with_element!(case.dtype, T => {
        let values = values_of::<T>(case);
        let (separate, both) = run(case, &values, comm);
        compare(case, &oracle(case, &values), comm.rank() as usize, &separate, &both);
    })
}

fn values_of<T: Element>(case: &Case) -> Vec<Vec<T>> {
    let of_rank = |rank: u32| {
        let rows = case.contribute[rank as usize].len();
        (0..rows * case.width).map(|k| value(rank, k / case.width, k % case.width, &case.op)).collect()
    };
    (0..case.size).map(of_rank).collect()
}

/// The results of two reductions, and of configuring and reducing at once.
type Results<T> = (Result<Vec<Vec<T>>, Error>, Result<Vec<T>, Error>);

/// Runs one rank's calls of a case.
fn run<T: Element>(case: &Case, values: &[Vec<T>], comm: &Comm) -> Results<T> {
    let options = ConfigureOptions {
        n: Some(case.n),
        width: case.width,
        degrees: Some(case.degrees.clone()),
        missing: case.missing,
        ..ConfigureOptions::default()
    };
    let me = comm.rank() as usize;
    let (contribute, wanted, values) = (&case.contribute[me], &case.want[me], &values[me]);
    let separate = || -> Result<Vec<Vec<T>>, Error> {
        let mut plan = comm.configure(contribute, wanted).options(options.clone()).run()?;
        let mut results = vec![];
        for _ in 0..2 {
            let mut out = vec![T::LOWEST; wanted.len() * case.width];
            comm.reduce(&mut plan, values, &mut out)
                .op(case.op.clone())
                .options(ReduceOptions { order: case.order })
                .run()?;
            results.push(out);
        }
        Ok(results)
    };
    let separate = separate();
    let out = vec![T::LOWEST; wanted.len() * case.width];
    let both = comm
        .configure_reduce(contribute, wanted, values, out)
        .op(case.op.clone())
        .options(options.clone())
        .run()
        .map(|done| done.out);
    (separate, both)
}

/// Compares a rank's results with the oracle.
fn compare<T: Element>(
    case: &Case,
    want: &Result<Vec<Vec<T>>, Vec<u64>>,
    rank: usize,
    separate: &Result<Vec<Vec<T>>, Error>,
    both: &Result<Vec<T>, Error>,
) {
    match want {
        Ok(want) => {
            let twice = separate.as_ref().unwrap_or_else(|e| panic!("{e}: rank {rank} of {case:?}"));
            for result in twice.iter().chain([both.as_ref().unwrap()]) {
                let (got, want): (&[u8], &[u8]) = (bytes_of(result), bytes_of(&want[rank]));
                assert_eq!(got, want, "rank {rank} of {case:?}");
            }
        }
        Err(unmet) => {
            let separate = separate.as_ref().err().map(Error::to_string);
            for text in [separate, both.as_ref().err().map(Error::to_string)] {
                let text = text.unwrap_or_else(|| panic!("no error: {case:?}"));
                assert!(
                    text.starts_with(&format!("{} wanted", unmet_requests(case, unmet))),
                    "{text}\n{case:?}"
                );
                assert!(text.contains(&unmet.iter().min().unwrap().to_string()), "{text}");
            }
        }
    }
}

/// The number of unmet requests: an index counts once per rank.
fn unmet_requests(case: &Case, unmet: &[u64]) -> usize {
    let unmet: std::collections::BTreeSet<_> = unmet.iter().collect();
    case.want
        .iter()
        .map(|w| w.iter().collect::<std::collections::BTreeSet<_>>().intersection(&unmet).count())
        .sum()
}

fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}
