//! Replay for continuous integration: feeds the corpus, and mutations of it that are the same each time, to every target. It
//! needs no sanitizer and no second compiler (`docs/decisions/0017-fuzzing.md`); `make fuzz` has both.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use skyphos_fuzz::TARGETS;
use std::cell::RefCell;
use std::io::Write;
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

/// Mutations of each target's corpus, unless `SKYPHOS_FUZZ_MUTATIONS` is set.
const MUTATIONS: usize = 2000;

/// Limit on the time of an input; ample on a busy machine.
const INPUT_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit on the length of a mutation.
const MAX_BYTES: usize = 1 << 16;

thread_local! {
    static CURRENT: RefCell<(&'static str, Vec<u8>)> = const { RefCell::new(("", Vec::new())) };
}

/// Makes a panic save the input and abort the process, since it may come from the allocator.
fn abort_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            usual(panic);
            let (target, input) = CURRENT.take();
            let folder = root().join("artifacts");
            let path = folder.join(format!("{target}-by-replay"));
            let saved = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, input));
            // Not by `eprintln`, whose text the test harness captures until the test ends.
            let _ = writeln!(
                std::io::stderr(),
                "{panic}\n{target}: the input is in {} ({saved:?})",
                path.display()
            );
            std::process::abort();
        }));
    });
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The inputs of a target's packed file (`fuzz/corpus.py`): a header, then one input a line in hexadecimal digits.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let path = root().join("corpus").join(target).with_extension("txt");
    let packed = std::fs::read_to_string(path).expect("a packed corpus");
    packed.lines().skip(1).map(bytes_of_hex).collect()
}

fn bytes_of_hex(line: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hexadecimal digit") as u8;
    line.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Applies some changes of the kinds that libFuzzer makes.
fn mutate(mut data: Vec<u8>, others: &[Vec<u8>], random: &mut Pcg64) -> Vec<u8> {
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..=data.len());
        let to = (at + random.random_range(0..=16)).min(data.len());
        match random.random_range(0..6) {
            0 if at < data.len() => data[at] ^= 1 << random.random_range(0..8),
            1 if at < data.len() => data[at] = random.random(),
            2 => drop(data.drain(at..to)),
            3 => drop(data.splice(at..at, random.random::<[u8; 8]>())),
            4 => drop(data.splice(at..to, data[at..to].to_vec().repeat(2))),
            _ if !others.is_empty() => {
                let other = &others[random.random_range(0..others.len())];
                data.splice(at.., other[at.min(other.len())..].iter().copied());
            }
            _ => {}
        }
    }
    data.truncate(MAX_BYTES);
    data
}

fn replay(name: &str) {
    abort_on_panic();
    let (target, run) = *TARGETS.iter().find(|(target, _)| *target == name).expect("a target");
    let feed = |input: &[u8]| {
        CURRENT.set((target, input.to_vec()));
        let begin = Instant::now();
        run(input);
        assert!(begin.elapsed() < INPUT_TIMEOUT, "took {:?}", begin.elapsed());
    };
    let corpus = corpus(target);
    corpus.iter().for_each(|input| feed(input));
    let seed = target.bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let mut random = Pcg64::seed_from_u64(seed);
    let count =
        std::env::var("SKYPHOS_FUZZ_MUTATIONS").map_or(MUTATIONS, |count| count.parse().expect("a number"));
    for _ in 0..count {
        let data =
            if corpus.is_empty() { Vec::new() } else { corpus[random.random_range(0..corpus.len())].clone() };
        feed(&mutate(data, &corpus, &mut random));
    }
}

macro_rules! replay_tests {
    ($($target:ident)*) => {
        $(#[test]
        fn $target() {
            replay(stringify!($target));
        })*

        #[test]
        fn every_target_is_replayed() {
            assert_eq!(TARGETS.map(|(target, _)| target), [$(stringify!($target)),*]);
        }
    };
}

replay_tests!(bringup calls collectives frame index_set keyed pem quantised receive replicated segment small_messages);
