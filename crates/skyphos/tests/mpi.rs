//! The suite over MPI: real processes that `mpiexec` starts, each of which is this program again.
//!
//! `SKYPHOS_MPIEXEC` names the launcher; else it is that of the project's environment, or the one on the path.

mod common;

use common::programs::ALL;
use common::{cases_of, check_alone, on_all, settings};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use skyphos::{Comm, Error};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set in processes that `mpiexec` has started.
const CHILD: &str = "SKYPHOS_TEST_OVER_MPI";

/// Entries a rank.
const COUNTS: [usize; 3] = [1, 700, 20_000];

/// Random cases a group size.
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

/// The libraries beside a launcher.
fn libraries(mpiexec: &Path) -> Vec<PathBuf> {
    let folder = mpiexec.parent().unwrap().join("../lib");
    let names = ["libmpi_abi.so.1", "libmpi.so.12", "libmpi.so.40"];
    names.into_iter().map(|name| folder.join(name)).filter(|file| file.exists()).collect()
}

/// Runs a test of this program, that only such processes run, in `size` of them; their words if one of them fails.
fn run(test: &str, size: u32, library: &Path, more: &[&str]) {
    let mpiexec = mpiexec().unwrap();
    let mut command = Command::new(&mpiexec);
    command.args(["-n", &size.to_string()]).args(more).arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads", "1"]);
    command.env(CHILD, "1").env("SKYPHOS_LIBMPI", library).stdin(Stdio::null());
    let done = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(
        done.status.success(),
        "{size} processes over {}: {}\n{out}\n{err}",
        library.display(),
        done.status
    );
    assert_eq!(out.matches("test result: ok. 1 passed").count(), size as usize, "{out}\n{err}");
}

/// Each library there is; a word where there is none.
fn over_each_library(body: impl Fn(&Path)) {
    match mpiexec() {
        Some(mpiexec) => libraries(&mpiexec).iter().for_each(|library| body(library)),
        None => println!("skipped: no mpiexec (pip install mpich, or SKYPHOS_MPIEXEC=…)"),
    }
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn connect() -> Result<Comm, Error> {
    let launched = std::env::var("PMI_SIZE").or(std::env::var("OMPI_COMM_WORLD_SIZE")).ok();
    let options = skyphos::mpi::Options {
        comm: None,
        places: vec![],
        launched: launched.map(|size| size.parse().unwrap()),
        timeout: settings().timeout,
        interrupted: None,
    };
    Comm::over(Box::new(skyphos::mpi::connect(&options)?), settings())
}

#[test]
fn all_collectives_and_random_cases() {
    over_each_library(|library| {
        for size in [1, 2, 3, 4, 5, 8] {
            run("of_a_process", size, library, &[]);
        }
    });
}

/// Cases that are the same in all processes.
fn drawn(size: u32) -> Vec<common::Case> {
    let mut runner = TestRunner::deterministic();
    let strategy = cases_of(size..=size);
    (0..CASES).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

#[test]
#[ignore = "run by mpiexec"]
fn of_a_process() {
    assert!(is_child());
    let comm = connect().unwrap();
    let (rank, size) = (comm.rank(), comm.size());
    // What is learned from times would decide which algorithm `auto` takes, and so the order of additions.
    let all = |comm: &Comm| -> Vec<_> {
        comm.agree_profile(None, false).unwrap();
        let programs = COUNTS.iter().flat_map(|count| ALL.iter().map(move |program| (*count, program)));
        programs.map(|(count, (name, program))| (name, count, program(comm, count).unwrap())).collect()
    };
    let (locally, here) = (on_all(common::local(size), all), all(&comm));
    for (want, got) in locally[rank as usize].iter().zip(&here) {
        assert!(want == got, "rank {rank} of {size}: {} of {}", got.0, got.1);
    }
    for case in drawn(size) {
        check_alone(&case, &comm);
    }
    comm.close().unwrap();
    drop(comm);
    skyphos::mpi::Library::end();
}
