//! Collectives on simulated clusters: results are those of any other transport, and runs with lengths take as long as runs with data.

use proptest::prelude::*;
use skyphos::sim::{Cluster, Distribution, Network, Stragglers};
use skyphos::simulate::{Collective, Law, Phase, Scenario, name_of, simulate};
use skyphos::{Algorithm, AllreduceOptions, Comm, Form, IndexList, SparseVec};
use skyphos_types::Round;
use std::collections::BTreeMap;

fn scenario(ranks: u32, collective: Collective) -> Scenario {
    // For a sum of outer products, n is the rows and entries the pairs.
    let (n, entries) = if collective == Collective::OuterProductSum { (300, 2.0) } else { (50_000, 1000.0) };
    Scenario {
        seed: 3,
        n,
        cols: 200,
        entries,
        law: Law::PowerLaw { alpha: 1.0 },
        ..Scenario::new(Network::new(ranks, 1.25e8, 50e-6), collective)
    }
}

fn run(scenario: &Scenario) -> Vec<Phase> {
    simulate(scenario, |_, _, _| true).unwrap()
}

/// A network with jitter, stragglers, shared links, late starts and skewed clocks.
fn irregular(ranks: u32) -> Network {
    Network {
        ranks_per_host: 2,
        hosts_per_rack: 3,
        uplink_rate: 1e7,
        incast: 0.1,
        message_s: 1e-5,
        packet_floor: 500.0,
        jitter: Distribution::Pareto(1e-5, 1.2),
        stragglers: Stragglers { share: 0.3, slowness: Distribution::Uniform(2.0, 9.0) },
        start: Distribution::Exponential(1e-3),
        clock: Distribution::Uniform(0.0, 3.0),
        ..Network::new(ranks, 1e8, 1e-4)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The sum is right however late messages and ranks are.
    #[test]
    fn every_algorithm_gives_the_sum(
        ranks in 1u32..20,
        algorithm in proptest::sample::select(&Algorithm::OURS[..]),
        lists in proptest::collection::vec(proptest::collection::btree_map(0u32..400, -50i64..50, 0..60), 20),
        seed in any::<u64>(),
    ) {
        let lists: Vec<&BTreeMap<u32, i64>> = lists.iter().take(ranks as usize).collect();
        let mut want = vec![0i64; 400];
        lists.iter().flat_map(|list| list.iter()).for_each(|(index, value)| want[*index as usize] += value);
        let mut cluster = Cluster::new(irregular(ranks), seed, false).unwrap();
        let comms: Vec<Comm> = cluster
            .transports()
            .into_iter()
            .map(|transport| Comm::over(transport, Cluster::settings()).unwrap())
            .collect();
        let calls = comms.iter().zip(&lists).map(|(comm, list)| {
            let indices = IndexList::Narrow(list.keys().copied().collect());
            let form = Form::Sparse { indices, values: list.values().copied().collect() };
            let options = AllreduceOptions { algorithm, ..AllreduceOptions::default() };
            comm.allreduce(SparseVec { n: 400, width: 1, form }).options(options).prepare().unwrap()
        });
        let ran = cluster.run(calls.collect(), &[], |_, _| true).unwrap();
        for got in ran.results {
            prop_assert_eq!(&got.unwrap().sum.to_dense(0), &want);
        }
    }
}

#[test]
fn all_collectives_run_at_odd_sizes() {
    for collective in Collective::ALL {
        for ranks in [1, 5, 12] {
            let phases =
                run(&Scenario { network: irregular(ranks), repeats: 2, ..scenario(ranks, collective) });
            assert_eq!(phases.last().unwrap().name, collective.name());
            assert_eq!(phases.len(), if collective == Collective::Reduce { 3 } else { 2 });
            assert!(phases.iter().all(|phase| phase.ran.seconds.len() == ranks as usize));
        }
    }
}

#[test]
fn runs_with_lengths_take_as_long_as_runs_with_data() {
    for degrees in [vec![64], vec![8, 8], vec![16, 4], vec![4, 4, 4]] {
        let real = Scenario {
            n: 2_000_000,
            entries: 60_000.0,
            degrees: Some(degrees.clone()),
            ..scenario(64, Collective::Reduce)
        };
        let sized = Scenario { sized: true, ..real.clone() };
        for (real, sized) in run(&real).iter().zip(&run(&sized)) {
            let (a, b) = (real.ran.last(), sized.ran.last());
            // Messages of real data differ in size, and ranks wait for the largest one.
            assert!(b / a > 0.85 && b / a < 1.05, "{} {degrees:?}: {a} with data, {b} without", real.name);
            let bytes =
                |phase: &Phase| phase.ran.record.by_round().values().map(|r| r.sent).sum::<u64>() as f64;
            let messages =
                |phase: &Phase| phase.ran.record.by_round().values().map(|r| r.messages).sum::<u64>();
            assert!(
                (bytes(sized) / bytes(real) - 1.0).abs() < 0.03,
                "{}: {} {}",
                real.name,
                bytes(sized),
                bytes(real)
            );
            assert_eq!(messages(sized), messages(real));
        }
    }
}

#[test]
fn bytes_by_layer_are_those_of_proposition_4_1() {
    let scenario = Scenario {
        n: 60_000_000,
        entries: 0.21 * 60e6,
        law: Law::PowerLaw { alpha: 1.1 },
        degrees: Some(vec![8, 4, 2]),
        sized: true,
        ..scenario(64, Collective::Reduce)
    };
    let phases = run(&scenario);
    let reduce = phases.last().unwrap();
    let union = scenario.law.union(scenario.n, scenario.entries);
    let rounds = reduce.ran.record.by_round();
    for (number, joined, degree) in [(0x100, 1.0, 8.0), (0x101, 8.0, 4.0), (0x102, 32.0, 2.0)] {
        let number = Round(number);
        let want = union.entries(joined) / joined * (degree - 1.0) / degree * 4.0 * 64.0;
        let got = rounds[&number].sent as f64;
        assert!(
            (got / want - 1.0).abs() < 1e-4,
            "{}: {got}, not {want}",
            name_of("reduce", Algorithm::Auto, number)
        );
    }
}

#[test]
fn irregular_networks_take_longer() {
    let plain = scenario(24, Collective::Allreduce);
    let regular_s = run(&plain)[0].ran.last();
    let with = |network: Network| run(&Scenario { network, ..plain.clone() })[0].ran.last();
    let base = plain.network.clone();
    let slower = [
        with(Network { jitter: Distribution::Exponential(2e-3), ..base.clone() }),
        with(Network { message_s: 2e-3, ..base.clone() }),
        with(Network { start: Distribution::Uniform(0.0, 0.02), ..base.clone() }),
        with(Network {
            stragglers: Stragglers { share: 0.5, slowness: Distribution::Constant(100.0) },
            ..base.clone()
        }),
        with(Network { hosts_per_rack: 4, uplink_rate: 1e6, ..base.clone() }),
        with(Network { ranks_per_host: 12, cores: 1.0, ..base.clone() }),
    ];
    assert!(slower.iter().all(|seconds| *seconds > 1.1 * regular_s), "{regular_s}: {slower:?}");
    // Skewed clocks change nothing.
    assert_eq!(with(Network { clock: Distribution::Uniform(0.0, 9.0), ..base }), regular_s);
}

/// Where the ranks of a host are neighbours in the butterfly, the host sends its reduced entries over the network once.
#[test]
fn layers_join_ranks_of_one_host_first() {
    let between_hosts = |degrees: &[u32], dealt: bool| {
        let network = Network { ranks_per_host: 4, dealt, ..Network::new(16, 1e8, 5e-5) };
        let watched = (0..16).collect();
        let degrees = Some(degrees.to_vec());
        let scenario = Scenario {
            network: network.clone(),
            degrees,
            watched,
            entries: 2e4,
            ..scenario(16, Collective::Reduce)
        };
        let phases = run(&scenario);
        let ran = &phases.last().unwrap().ran;
        let hosts = network.hosts_of_ranks();
        let far =
            |flight: &&skyphos::sim::record::Flight| hosts[flight.from as usize] != hosts[flight.to as usize];
        let bytes: u64 = ran.record.flights.iter().filter(far).map(|flight| u64::from(flight.bytes)).sum();
        (bytes as f64, ran.last())
    };
    let (aligned, fast) = between_hosts(&[4, 4], false);
    let (direct, slow) = between_hosts(&[16], false);
    assert!(aligned < 0.6 * direct && fast < slow, "{aligned} and {direct} bytes, {fast} and {slow} s");
    // The numbering of ranks does not matter, because layers follow the topology.
    let (dealt, as_fast) = between_hosts(&[4, 4], true);
    assert!((dealt / aligned - 1.0).abs() < 0.02 && (as_fast / fast - 1.0).abs() < 0.05, "{dealt} {as_fast}");
}

#[test]
fn impossible_scenarios_are_refused() {
    let refused = |change: &dyn Fn(&mut Scenario)| {
        let mut wrong = scenario(4, Collective::Allreduce);
        change(&mut wrong);
        simulate(&wrong, |_, _, _| true).err().expect("refused").to_string()
    };
    assert!(refused(&|s| s.network.ranks = 5000).contains("1 to 4096"));
    assert!(refused(&|s| s.network.rate_out = 0.0).contains("rate_out"));
    assert!(refused(&|s| s.network.latency_s = f64::NAN).contains("latency_s"));
    assert!(refused(&|s| s.entries = 1e9).contains("at most n"));
    for alpha in [-1.0, f64::NAN, f64::INFINITY, 1000.0] {
        assert!(refused(&|s| s.law = Law::PowerLaw { alpha }).contains("between 0 and 10"));
    }
    assert!(refused(&|s| s.n = 0).contains("n = 0"));
    assert!(refused(&|s| s.sized = true).contains("lengths"));
    assert!(refused(&|s| s.row_bytes = 6).contains("6 bytes"));
    assert!(refused(&|s| (s.n, s.entries) = (1 << 40, 2e9)).contains("memory"));
    assert!(
        refused(&|s| (s.algorithm, s.degrees) = (Algorithm::Butterfly, Some(vec![3, 2]))).contains("size 4")
    );
}

#[test]
fn runs_of_too_many_frames_are_refused() {
    let sized = Scenario {
        n: 1 << 62,
        entries: 4e18,
        law: Law::Uniform,
        sized: true,
        ..scenario(3, Collective::Reduce)
    };
    let refused =
        |scenario: &Scenario| simulate(scenario, |_, _, _| true).err().expect("refused").to_string();
    assert!(refused(&sized).contains("e14 frames"), "{}", refused(&sized));
    assert!(refused(&Scenario { collective: Collective::Configure, ..sized.clone() }).contains("frames"));
    assert!(refused(&Scenario { n: 1 << 20, entries: 1e5, repeats: 1 << 40, ..sized }).contains("frames"));
}

/// On a host of several ranks, a rank that waits until its own messages have left is woken when they have.
#[test]
fn hosts_of_several_ranks_are_probed_too() {
    for (collective, dealt) in [(Collective::Allreduce, false), (Collective::ReduceScatter, true)] {
        let network = Network { ranks_per_host: 4, dealt, ..Network::new(8, 1e8, 5e-5) };
        let phases = run(&Scenario { network, n: 1_000_000, entries: 5e4, ..scenario(8, collective) });
        assert!(phases.last().unwrap().ran.last() > 0.0);
    }
}

/// The rounds of recursive doubling do not collide with those of its extra ranks.
#[test]
fn recursive_doubling_on_hundreds_of_ranks() {
    for ranks in [512, 600] {
        let algorithm = Algorithm::RecursiveDoubling;
        let phases = run(&Scenario { algorithm, entries: 3.0, ..scenario(ranks, Collective::Allreduce) });
        assert!(phases.last().unwrap().ran.last() > 0.0);
    }
}
