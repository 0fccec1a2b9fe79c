//! The suite over MPI: real processes that `mpiexec` starts, each of which runs this program again.
//!
//! `SKYPHOS_MPIEXEC` names the launcher. By default it is that of the project's environment, or the one on the path.

use crate::common::programs::ALL;
use crate::common::{cases_of, check_alone, on_all, settings};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use skyphos::{
    Algorithm, AllreduceOptions, Comm, DType, Element, Error, IndexList, ReduceOp, Result, SparseVec,
    with_element,
};
use skyphos_core::frame::{Frame, FrameKind, Header};
use skyphos_core::slab::Payload;
use skyphos_core::transport::Transport;
use skyphos_types::{CallNumber, CommId, WorldRank};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Set in processes that `mpiexec` has started: the folder in which each process writes a file named by its rank at its end. Standard
/// output cannot show the ends, because the lines of eight processes are mixed there.
const CHILD: &str = "SKYPHOS_TEST_OVER_MPI";

/// Entries per rank.
const COUNTS: [usize; 3] = [1, 700, 20_000];

/// Random cases per group size.
const CASES: usize = 40;

fn mpiexec() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("SKYPHOS_MPIEXEC") {
        return Some(PathBuf::from(named));
    }
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [own].into_iter().chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join("mpiexec")).find(|file| file.exists())
}

/// The libraries of a launcher's installation.
fn libraries(mpiexec: &Path) -> Vec<PathBuf> {
    let folder = mpiexec.parent().unwrap().join("../lib");
    let names = ["libmpi_abi.so.1", "libmpi.so.12", "libmpi.so.40"];
    names.into_iter().map(|name| folder.join(name)).filter(|file| file.exists()).collect()
}

/// Settings that make MPICH treat each process as a host of its own, and send through its network module.
const SEPARATE_HOSTS: &[(&str, &str)] = &[("MPIR_CVAR_NOLOCAL", "1")];

/// Runs a test of this program in `size` processes. Panics with their output if one of them fails.
fn run(test: &str, size: u32, library: &Path, env: &[(&str, &str)]) {
    let mpiexec = mpiexec().unwrap();
    let mut command = Command::new(&mpiexec);
    command.args(["-n", &size.to_string()]).envs(env.iter().copied()).arg(std::env::current_exe().unwrap());
    let name = format!("mpi::{test}");
    command.args(["--exact", &name, "--ignored", "--nocapture", "--test-threads", "1"]);
    let done_folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mpi-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&done_folder).unwrap();
    command.env(CHILD, &done_folder).env("SKYPHOS_LIBMPI", library).stdin(Stdio::null());
    let done = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(
        done.status.success(),
        "{size} processes over {}: {}\n{out}\n{err}",
        library.display(),
        done.status
    );
    let ended = (0..size).filter(|rank| done_folder.join(rank.to_string()).exists()).count();
    std::fs::remove_dir_all(&done_folder).unwrap();
    assert_eq!(ended, size as usize, "{out}\n{err}");
}

/// Runs a body for each installed library. Prints a line if there is none.
fn over_each_library(body: impl Fn(&Path)) {
    match mpiexec() {
        Some(mpiexec) => libraries(&mpiexec).iter().for_each(|library| body(library)),
        None => println!("skipped: no mpiexec (`pip install mpich`, or set SKYPHOS_MPIEXEC)"),
    }
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn transport() -> Result<skyphos::mpi::Mpi> {
    let launched = std::env::var("PMI_SIZE").or(std::env::var("OMPI_COMM_WORLD_SIZE")).ok();
    let options = skyphos::mpi::Options {
        comm: None,
        places: vec![],
        launched: launched.map(|size| size.parse().unwrap()),
        timeout: settings().timeout,
        interrupted: None,
    };
    skyphos::mpi::connect(&options)
}

fn connect() -> Result<Comm> {
    Comm::over(Box::new(transport()?), settings())
}

/// Marks the successful end of a process.
fn end(comm: Comm) {
    let rank = comm.rank();
    comm.close().unwrap();
    drop(comm);
    assert!(skyphos::mpi::Library::end());
    mark_end(rank);
}

fn mark_end(rank: u32) {
    std::fs::write(Path::new(&std::env::var_os(CHILD).unwrap()).join(rank.to_string()), "").unwrap();
}

#[test]
fn all_collectives_and_random_cases() {
    over_each_library(|library| {
        for size in [1, 2, 3, 4, 5, 8] {
            run("collectives_in_one_process", size, library, &[]);
        }
        run("collectives_in_one_process", 8, library, SEPARATE_HOSTS);
    });
}

/// Random cases, the same in all processes.
fn shared_cases(size: u32) -> Vec<crate::common::Case> {
    let mut runner = TestRunner::deterministic();
    let strategy = cases_of(size..=size);
    (0..CASES).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

#[test]
#[ignore = "run by mpiexec"]
fn collectives_in_one_process() {
    assert!(is_child());
    let comm = connect().unwrap();
    let (rank, size) = (comm.rank(), comm.size());
    // Learned times would decide which algorithm `auto` takes, and with it the order of additions.
    let all = |comm: &Comm| -> Vec<_> {
        comm.agree_profile(None, false).unwrap();
        let programs = COUNTS.iter().flat_map(|count| ALL.iter().map(move |program| (*count, program)));
        programs.map(|(count, (name, program))| (name, count, program(comm, count).unwrap())).collect()
    };
    let (over_local, over_mpi) = (on_all(crate::common::local(size), all), all(&comm));
    for (want, got) in over_local[rank as usize].iter().zip(&over_mpi) {
        assert!(want == got, "rank {rank} of {size}: {} of {}", got.0, got.1);
    }
    for case in shared_cases(size) {
        check_alone(&case, &comm);
    }
    end(comm);
}

#[test]
fn allreduces_of_the_library() {
    over_each_library(|library| {
        for size in [1, 2, 3, 5] {
            run("native_allreduces_in_one_process", size, library, &[]);
        }
        run("native_allreduces_in_one_process", 3, library, SEPARATE_HOSTS);
    });
}

const BY_MPI: Algorithm = Algorithm::DenseMpi;

/// Small numbers, whose sums do not depend on the order of additions.
fn numbers<T: Element>(rank: u32, len: usize) -> Vec<T> {
    let few = [T::ONE, T::ONE.add(T::ONE), T::ONE.add(T::ONE).add(T::ONE)];
    (0..len).map(|k| few[(k * 7 + rank as usize) % 3]).collect()
}

/// Reduces an array by an algorithm. Returns the result and the algorithm that ran.
fn reduced<T: Element>(comm: &Comm, len: usize, op: &ReduceOp, by: Algorithm) -> Result<(Vec<T>, Algorithm)> {
    let (options, out) =
        (AllreduceOptions { algorithm: by, ..AllreduceOptions::default() }, vec![T::ZERO; len]);
    let call = comm
        .allreduce_dense(numbers::<T>(comm.rank(), len), out)
        .op(op.clone())
        .options(options)
        .prepare()?;
    call.start().wait().map(|done| (done.out, done.explanation.algorithm))
}

fn all_lengths<T: Element>(comm: &Comm) {
    for op in &ReduceOp::NAMED {
        let float = T::DTYPE.is_float();
        if op.check(T::DTYPE).is_err() {
            continue;
        }
        if size_of::<T>() == 2 || float && matches!(op, ReduceOp::Min | ReduceOp::Max) {
            let error = reduced::<T>(comm, 5, op, BY_MPI).unwrap_err();
            assert!(error.to_string().contains("MPI has no operation equal to"), "{error}");
            continue;
        }
        // Empty, less than a chunk, several chunks, and several messages of chunks.
        for len in [0, 1, 77, 100_000, (20 << 20) / size_of::<T>()] {
            let (want, _) = reduced::<T>(comm, len, op, Algorithm::Dense).unwrap();
            let (got, by) = reduced::<T>(comm, len, op, BY_MPI).unwrap();
            assert!(want == got && by == BY_MPI, "{} of {len} {}, by {by:?}", op.name(), T::DTYPE);
        }
    }
}

#[test]
#[ignore = "run by mpiexec"]
fn native_allreduces_in_one_process() {
    assert!(is_child());
    let comm = connect().unwrap();
    let rank = comm.rank();
    for dtype in DType::ALL {
        with_element!(dtype, T => all_lengths::<T>(&comm));
    }
    // A sparse vector.
    let options = |algorithm| AllreduceOptions { algorithm, ..AllreduceOptions::default() };
    let indices: Vec<u32> = (0..4000).map(|k| k * 5 + rank % 2).collect();
    let x = SparseVec::new(30_000, 1, IndexList::Narrow(indices), numbers::<f32>(rank, 4000)).unwrap();
    let by = |algorithm| comm.allreduce(&x).options(options(algorithm)).run().unwrap().sum;
    let (want, got) = (by(Algorithm::Allgather), by(BY_MPI));
    assert_eq!((want.nnz(), want.to_dense(0.0)), (got.nnz(), got.to_dense(0.0)));
    // Two calls at once: one of them, or both, take another algorithm.
    for _ in 0..20 {
        let begin = |len: usize| {
            let (values, out) = (numbers::<i64>(rank, len), vec![0; len]);
            comm.allreduce_dense(values, out).options(options(BY_MPI)).start().unwrap()
        };
        let (small, large) = (begin(1000), begin(200_000));
        let (large, small) = (large.wait().unwrap().out, small.wait().unwrap().out);
        assert!(large[..1000] == small[..]);
        assert_eq!(large, reduced::<i64>(&comm, 200_000, &ReduceOp::Sum, BY_MPI).unwrap().0);
    }
    // A sub-group.
    let half = comm.split(Some(u64::from(rank % 2)), 0).unwrap().expect("every rank has a color");
    match half.size() == comm.size() {
        true => assert_eq!(reduced::<f32>(&half, 9, &ReduceOp::Sum, BY_MPI).unwrap().1, BY_MPI),
        false => {
            let error = reduced::<f32>(&half, 9, &ReduceOp::Sum, BY_MPI).unwrap_err();
            assert!(error.to_string().contains("runs on all"), "{error}");
        }
    }
    drop(half);
    // After a mismatch the library is not used any more, because it may still run a collective of these calls.
    if comm.size() > 1 {
        let error = reduced::<f32>(&comm, 100 + usize::from(rank == 0), &ReduceOp::Sum, BY_MPI).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        let (got, by) = reduced::<f32>(&comm, 5000, &ReduceOp::Sum, BY_MPI).unwrap();
        assert_eq!((got, by), reduced(&comm, 5000, &ReduceOp::Sum, Algorithm::Dense).unwrap());
    }
    end(comm);
}

#[test]
fn mpi_is_not_called_after_a_group_is_closed() {
    over_each_library(|library| run("poll_after_close", 2, library, &[]));
}

/// The node's thread may poll a transport that another thread has just closed while MPI is finalised. MPI aborts a process that calls
/// it then.
#[test]
#[ignore = "run by mpiexec"]
fn poll_after_close() {
    assert!(is_child());
    let mut transport = transport().unwrap();
    let (rank, other) = (transport.rank().0, WorldRank(1 - transport.rank().0));
    assert!(!skyphos::mpi::Library::end(), "the transport is open");
    transport.close(Duration::from_secs(60)).unwrap();
    assert!(skyphos::mpi::Library::end());
    let mut events = Vec::new();
    transport.post(
        other,
        Frame {
            header: Header::control(FrameKind::Probe, CommId(0), CallNumber(1)),
            payload: Payload::default(),
        },
    );
    transport.poll(Duration::from_millis(1), &mut events);
    assert!(events.is_empty() && transport.is_idle());
    drop(transport);
    mark_end(rank);
}
