//! Broadcasts and shuffles on simulated clusters: runs with lengths take as long as runs with bytes, and both are as fast as links allow.

use skyphos::Route;
use skyphos::sim::Network;
use skyphos::simulate::{Collective, Phase, Scenario, simulate};

/// Bytes on the wire per byte of a chunk: TCP, IP and Ethernet add 90 bytes to each 1448.
const FRAMING: f64 = (1448.0 + 90.0) / 1448.0;

fn scenario(ranks: u32, collective: Collective) -> Scenario {
    Scenario {
        seed: 3,
        n: 3_000_000,
        entries: 1_500_000.0,
        row_bytes: 1,
        ..Scenario::new(Network::new(ranks, 1.25e8, 50e-6), collective)
    }
}

fn run(scenario: &Scenario) -> Phase {
    simulate(scenario, |_, _, _| true).unwrap().pop().unwrap()
}

/// Messages, bytes sent and bytes received of all rounds.
fn moved(phase: &Phase) -> [u64; 3] {
    let rounds = phase.ran.record.by_round();
    let sum = |count: fn(&skyphos::sim::record::RecordedRound) -> u64| rounds.values().map(count).sum();
    [sum(|round| round.messages), sum(|round| round.sent), sum(|round| round.received)]
}

#[test]
fn runs_with_lengths_take_as_long_as_runs_with_bytes() {
    let routes = Route::ALL.into_iter().map(Some).chain([None]);
    let broadcasts = routes.map(|route| Scenario { route, ..scenario(13, Collective::Broadcast) });
    let small = Scenario { n: 20_000, ..scenario(13, Collective::Broadcast) };
    let shuffle = scenario(13, Collective::Shuffle);
    let pushed = Scenario { entries: 5000.0, row_bytes: 12, ..shuffle.clone() };
    for real in broadcasts.chain([small, shuffle, pushed]) {
        let sized = run(&Scenario { sized: true, ..real.clone() });
        let real = run(&real);
        let what = (real.name, real.route);
        assert_eq!(moved(&sized), moved(&real), "{what:?}");
        assert_eq!(sized.ran.seconds, real.ran.seconds, "{what:?}");
        assert_eq!(sized.route, real.route);
    }
}

#[test]
fn every_rank_receives_every_byte_once() {
    for ranks in [2, 3, 8, 13] {
        for route in Route::ALL {
            let scenario =
                Scenario { route: Some(route), sized: true, ..scenario(ranks, Collective::Broadcast) };
            let phase = run(&scenario);
            let [_, sent, received] = moved(&phase);
            let (least, control) = (u64::from(ranks - 1) * scenario.n, u64::from(ranks - 1) * 200);
            assert!(
                (least..=least + control).contains(&received),
                "{route:?} on {ranks}: {received}, not {least}"
            );
            assert_eq!((sent, phase.route.unwrap().route), (received, route));
        }
        // Each rank sends all its rows except those for itself. Together the ranks send as many rows as all ranks but one have.
        let shuffle = Scenario {
            entries: 1_000_003.0,
            row_bytes: 3,
            sized: true,
            ..scenario(ranks, Collective::Shuffle)
        };
        let sent_rows = 3 * u64::from(ranks - 1) * 1_000_003;
        // Each block is announced with its length.
        let announced = 8 * u64::from(ranks * (ranks - 1));
        assert_eq!(moved(&run(&shuffle))[1], sent_rows + announced, "{ranks} ranks");
    }
}

#[test]
fn a_chain_takes_the_time_of_the_message_and_a_chunk_per_rank() {
    for (ranks, chunk) in [(2, 131_072), (40, 131_072), (40, 16_384), (150, 65_536)] {
        let scenario = Scenario {
            route: Some(Route::Chain),
            chunk_bytes: Some(chunk),
            n: 50_000_000,
            sized: true,
            ..scenario(ranks, Collective::Broadcast)
        };
        let network = &scenario.network;
        let on_link = |bytes: f64| bytes * FRAMING / network.rate_out;
        let hop = on_link(chunk as f64) + network.latency_s;
        let least = on_link(scenario.n as f64) + f64::from(ranks - 2) * hop;
        let took = run(&scenario).ran.last();
        assert!(took > least && took < 1.03 * least + 2e-3, "{ranks}, {chunk}: {took} s, not {least}");
    }
}

/// The table is that of `skyphos_core::collectives::broadcast`.
#[test]
fn routes_take_the_times_of_their_table() {
    let took = |route: Route, ranks: u32| {
        let scenario = Scenario {
            route: Some(route),
            n: 20_000_000,
            sized: true,
            ..scenario(ranks, Collective::Broadcast)
        };
        run(&scenario).ran.last() / (scenario.n as f64 * FRAMING / scenario.network.rate_out)
    };
    let near = |route: Route, ranks: u32, times: f64| {
        let took = took(route, ranks);
        assert!(
            (took / times - 1.0).abs() < 0.1,
            "{route:?} on {ranks}: {took} times the message's time, not {times}"
        );
    };
    near(Route::Chain, 16, 1.1);
    near(Route::ScatterAllgather, 16, 2.0);
    near(Route::Binomial, 16, 4.0);
    near(Route::Simple, 16, 15.0);
}

#[test]
fn larger_packets_use_more_of_a_link() {
    let took = |mtu: u32| {
        let network = Network { mtu, ..Network::new(2, 1.25e8, 50e-6) };
        let scenario = Scenario { n: 500_000_000, sized: true, ..scenario(2, Collective::Broadcast) };
        run(&Scenario { network, ..scenario }).ran.last()
    };
    assert!((took(9000) / 4.04 - 1.0).abs() < 2e-3, "*Twister*, Table 8: 0.5 GB to one node in 4.04 s");
    assert!((took(1500) / took(9000) / (1538.0 / 1448.0 * 8948.0 / 9038.0) - 1.0).abs() < 1e-3);
}

/// Five racks whose uplinks have 1 / 2.5 of their hosts' total rate. Ranks are placed in random racks.
fn racks(hosts_per_rack: u32, topology_known: bool, seed: u64) -> Network {
    let rate = 1.25e8;
    Network {
        hosts_per_rack,
        uplink_rate: rate / 2.5,
        scattered: Some(seed),
        topology_known,
        ..Network::new(5 * hosts_per_rack, rate, 50e-6)
    }
}

/// The slowdown of a chain in rank order by shared uplinks: the most streams through one uplink, over its share of a link's rate.
fn slowdown(network: &Network) -> f64 {
    let rack_of: Vec<u32> = network.hosts_of_ranks().iter().map(|host| network.rack(*host)).collect();
    let crossing = |rack: u32, out: bool| {
        let leaves = |pair: &&[u32]| pair[0] != pair[1] && pair[usize::from(!out)] == rack;
        rack_of.windows(2).filter(leaves).count() as f64
    };
    let streams = (0..network.racks()).flat_map(|rack| [crossing(rack, true), crossing(rack, false)]);
    let uplink = network.uplink_rate * f64::from(network.hosts_per_rack);
    streams.fold(0.0, f64::max) * network.rate_out / uplink
}

#[test]
fn a_chain_by_racks_avoids_the_cost_of_shared_uplinks() {
    for seed in 1..4 {
        let took = |known: bool| {
            let network = racks(12, known, seed);
            let chain = Some(Route::Chain);
            let scenario = scenario(network.ranks, Collective::Broadcast);
            run(&Scenario { network, route: chain, n: 100_000_000, sized: true, seed, ..scenario }).ran.last()
        };
        let (known, unknown) = (took(true), took(false));
        let slowdown = slowdown(&racks(12, true, seed));
        assert!(slowdown > 1.5, "seed {seed}: {slowdown}");
        let ratio = unknown / known;
        assert!(
            ratio / slowdown >= 0.95,
            "seed {seed}: {unknown} and {known} s, a ratio of {ratio}, not {slowdown}"
        );
    }
}

#[test]
fn placement_depends_on_the_seed_and_fills_hosts() {
    let network = Network { ranks_per_host: 3, ..racks(10, true, 1) };
    let hosts = network.hosts_of_ranks();
    assert_eq!(hosts, network.hosts_of_ranks());
    assert_ne!(hosts, Network { scattered: Some(2), ..network.clone() }.hosts_of_ranks());
    let mut sorted = hosts.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, Network { scattered: None, ..network.clone() }.hosts_of_ranks());
    assert_eq!(network.topology().unwrap().ranks_per_host(), 1, "50 ranks do not fill hosts of three");
    let known = Network { ranks: 48, ..network.clone() };
    assert_eq!(known.topology().unwrap().ranks_per_host(), 3);
    assert_eq!(Network { topology_known: false, ..known }.topology().unwrap().ranks_per_host(), 1);
    assert!(Network { dealt: true, ..network }.check().unwrap_err().to_string().contains("not both"));
    let again = || {
        let network = racks(6, false, 9);
        run(&Scenario { network, sized: true, ..scenario(30, Collective::Broadcast) }).ran.seconds
    };
    assert_eq!(again(), again());
}

#[test]
fn impossible_scenarios_are_refused() {
    let refused = |change: &dyn Fn(&mut Scenario), collective| {
        let mut wrong = Scenario { sized: true, ..scenario(40, collective) };
        change(&mut wrong);
        simulate(&wrong, |_, _, _| true).err().expect("refused").to_string()
    };
    let (broadcast, shuffle) = (Collective::Broadcast, Collective::Shuffle);
    assert!(refused(&|s| s.chunk_bytes = Some(0), broadcast).contains("1 to 131072"));
    assert!(refused(&|s| s.chunk_bytes = Some(1 << 20), broadcast).contains("1 to 131072"));
    for row_bytes in [1 << 20, 1 << 40] {
        assert!(refused(&|s| (s.n, s.row_bytes) = (1 << 62, row_bytes), broadcast).contains("frames"));
        assert!(refused(&|s| (s.entries, s.row_bytes) = (1e18, row_bytes), shuffle).contains("frames"));
    }
    assert!(refused(&|s| (s.chunk_bytes, s.n) = (Some(1), 1 << 30), broadcast).contains("frames"));
    assert!(refused(&|s| s.repeats = 1 << 40, shuffle).contains("frames"));
    assert!(refused(&|s| s.entries = f64::NAN, shuffle).contains("entries"));
    let real = |s: &mut Scenario| (s.sized, s.n, s.entries) = (false, 1 << 30, 1e9);
    assert!(refused(&real, broadcast).contains("memory") && refused(&real, shuffle).contains("memory"));
    assert!(
        refused(&|_| {}, Collective::Gather)
            .contains("configure, reduce, broadcast, shuffle, outer_product_sum can")
    );
}
