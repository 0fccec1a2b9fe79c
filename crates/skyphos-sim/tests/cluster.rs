//! Collectives on a simulated cluster: correct results, and times that are computed by hand.

use skyphos_core::collectives::allgather::allgather_bytes;
use skyphos_core::collectives::barrier::barrier;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{Call, Endpoint, Group, Node};
use skyphos_plan::RowKernels;
use skyphos_sim::{Cluster, Costs, Distribution, Network, Ran, Stragglers};
use skyphos_types::{CommId, GroupRank, Result, Round, WorldRank};
use std::sync::Arc;

/// A cluster whose processors take no time.
fn idle_network(ranks: u32, rate: f64, latency_s: f64) -> Network {
    let mut network = Network::new(ranks, rate, latency_s);
    let rows = RowKernels { gather_s: 0.0, fold_s: 0.0, byte_s: 0.0, set_code_s: 0.0, set_join_s: 0.0 };
    network.costs = Costs { frame_s: 0.0, byte_s: 0.0, rows, ..Costs::default() };
    network
}

/// One call for each rank, which runs the body.
fn calls<R: Send + 'static, F: Future<Output = Result<R>> + Send + 'static>(
    cluster: &Cluster,
    body: impl Fn(u32, Arc<Endpoint>) -> F,
) -> Vec<Call<R>> {
    let transports = cluster.transports();
    let ranks = transports.len() as u32;
    (0..)
        .zip(transports)
        .map(|(rank, transport)| {
            let node = Node::new(transport, Cluster::settings()).unwrap();
            let group = Arc::new(Group::new(CommId(0), (0..ranks).map(WorldRank).collect(), GroupRank(rank)));
            node.open_group(group.clone());
            let sig = CallSig::plain(CallKind::Barrier);
            node.prepare(&group, sig, false, |ep| body(rank, ep))
        })
        .collect()
}

/// Runs a body on every rank.
fn run<R: Send + 'static, F: Future<Output = Result<R>> + Send + 'static>(
    network: &Network,
    seed: u64,
    body: impl Fn(u32, Arc<Endpoint>) -> F,
) -> Ran<R> {
    let mut cluster = Cluster::new(network.clone(), seed, false).unwrap();
    let calls = calls(&cluster, body);
    cluster.run(calls, &(0..network.ranks).collect::<Vec<_>>(), |_, _| true).unwrap()
}

#[test]
fn all_ranks_agree_at_every_size() {
    for ranks in [1, 2, 3, 7, 16, 100] {
        let network = Network::new(ranks, 1e9, 20e-6);
        let ran = run(&network, 1, |rank, ep| async move {
            barrier(&ep).await?;
            allgather_bytes(&ep, Round(50), &[rank as u8; 3]).await
        });
        let want: Vec<Vec<u8>> = (0..ranks).map(|rank| vec![rank as u8; 3]).collect();
        assert!(ran.results.iter().all(|got| got.as_ref().unwrap() == &want), "{ranks} ranks");
    }
}

#[test]
fn one_message_takes_latency_and_its_bytes() {
    let (rate, latency) = (1e8, 1e-3);
    for bytes in [1usize, 1000, 100_000, 3_000_000] {
        let ran = run(&idle_network(2, rate, latency), 1, move |rank, ep| async move {
            let message = vec![7u8; bytes];
            let (sends, sources) = match rank {
                0 => (vec![(GroupRank(1), ep.message_of(&message))], vec![]),
                _ => (vec![], vec![GroupRank(0)]),
            };
            ep.exchange(Round(0), sends, &sources).await.map(drop)
        });
        let frames = bytes.div_ceil(128 * 1024) as f64;
        let wire = bytes as f64 + frames * 64.0;
        let packets = (wire / 1448.0).ceil() + frames;
        let (least, most) = (latency + wire / rate, latency + (wire + packets * 90.0) / rate);
        assert!(ran.seconds[1] >= least && ran.seconds[1] <= most * 1.001, "{bytes}: {}", ran.seconds[1]);
    }
}

#[test]
fn senders_share_links_and_uplinks() {
    let bytes = 4_000_000usize;
    let all_to_one = move |rank: u32, ep: Arc<Endpoint>| async move {
        let size = ep.size();
        let message = vec![1u8; bytes];
        let (sends, sources): (_, Vec<GroupRank>) = match rank {
            0 => (vec![], (1..size).map(GroupRank).collect()),
            _ => (vec![(GroupRank(0), ep.message_of(&message))], vec![]),
        };
        ep.exchange(Round(0), sends, &sources).await.map(drop)
    };
    let mut network = idle_network(5, 1e8, 0.0);
    let four_s = 4.0 * bytes as f64 / 1e8;
    let ran = run(&network, 1, all_to_one);
    assert!((ran.last() / four_s - 1.0).abs() < 0.08, "{}, expected {four_s}", ran.last());
    network.incast = 0.1;
    let crowded = run(&network, 1, all_to_one).last();
    assert!(crowded > 1.25 * four_s && crowded < 1.45 * four_s, "{crowded}, and {four_s} without incast");
    // Two racks, whose uplinks have a tenth of the rate.
    let pairs = move |rank: u32, ep: Arc<Endpoint>| async move {
        let peer = (rank + 2) % 4;
        ep.exchange(Round(0), vec![(GroupRank(peer), ep.message_of(&vec![1u8; bytes]))], &[GroupRank(peer)])
            .await
            .map(drop)
    };
    let mut racks = idle_network(4, 1e8, 0.0);
    let one_rack = run(&racks, 1, pairs).last();
    (racks.hosts_per_rack, racks.uplink_rate) = (2, 1e7);
    let two_racks = run(&racks, 1, pairs).last();
    assert!((two_racks / one_rack - 10.0).abs() < 0.5, "{two_racks} and {one_rack}");
}

#[test]
fn no_rank_leaves_a_barrier_before_the_last_has_entered() {
    let mut network = Network::new(8, 1e9, 1e-6);
    network.start = "uniform(0, 1)".parse().unwrap();
    let ran = run(&network, 1, |_, ep| async move {
        let entered = ep.now();
        barrier(&ep).await?;
        Ok(entered.as_secs_f64())
    });
    let last = ran.results.iter().map(|entered| *entered.as_ref().unwrap()).fold(0.0, f64::max);
    assert!(last > 0.5 && ran.seconds.iter().all(|left| *left >= last), "{last}: {:?}", ran.seconds);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let mut network = Network::new(16, 1e8, 1e-4);
    network.jitter = "exponential(1e-4)".parse().unwrap();
    network.start = "uniform(0, 1e-3)".parse().unwrap();
    network.stragglers = Stragglers { share: 0.2, slowness: Distribution::Uniform(2.0, 4.0) };
    let trace = |seed| {
        let ran = run(&network, seed, |rank, ep| async move {
            allgather_bytes(&ep, Round(0), &[rank as u8; 5000]).await.map(drop)
        });
        skyphos_sim::trace::trace(&network, &ran, |round| format!("round {round}"))
    };
    let first = trace(5);
    assert_eq!(first, trace(5));
    assert_ne!(first, trace(6));
    let read: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert!(read["traceEvents"].as_array().unwrap().len() > 16 * 8);
}

#[test]
fn a_call_that_cannot_end_names_the_waiting_ranks() {
    let network = Network::new(3, 1e9, 1e-5);
    let mut cluster = Cluster::new(network, 1, false).unwrap();
    let calls: Vec<Call<()>> = cluster
        .transports()
        .into_iter()
        .enumerate()
        .map(|(rank, transport)| {
            let node = Node::new(transport, Cluster::settings()).unwrap();
            let group =
                Arc::new(Group::new(CommId(0), (0..3).map(WorldRank).collect(), GroupRank(rank as u32)));
            node.open_group(group.clone());
            node.prepare(&group, CallSig::plain(CallKind::Barrier), false, move |ep| async move {
                match rank {
                    0 => Ok(()),
                    _ => ep.exchange(Round(0), vec![], &[GroupRank(0)]).await.map(drop),
                }
            })
        })
        .collect();
    let error = cluster.run(calls, &[], |_, _| true).err().expect("it hangs").to_string();
    assert!(error.contains("ranks 1, 2 wait"), "{error}");
}

#[test]
fn impossible_networks_are_refused_by_name() {
    type Change<'a> = (&'a str, &'a dyn Fn(&mut Network));
    let changes: [Change; 8] = [
        ("latency_s of a network must be between 0 and 1e6, not 1e308", &|n| n.latency_s = 1e308),
        ("message_s", &|n| n.message_s = 1e20),
        ("rate_out of a network must be between 1 and 1e15", &|n| n.rate_out = 1.25e-8),
        ("cores", &|n| n.cores = 0.0),
        ("packet_floor", &|n| n.packet_floor = f64::NAN),
        ("jitter", &|n| n.jitter = Distribution::Pareto(1e20, 2.0)),
        ("share of stragglers", &|n| n.stragglers.share = 1.5),
        ("slowness of stragglers", &|n| n.stragglers.slowness = Distribution::Constant(1e12)),
    ];
    for (expected, change) in changes {
        let mut network = Network::new(4, 1e9, 1e-5);
        change(&mut network);
        let error = Cluster::new(network, 1, false).err().expect("refused").to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn time_does_not_wrap_around() {
    let heavy = Distribution::Pareto(1.0, 0.01);
    let slow = Stragglers { share: 1.0, slowness: heavy };
    let networks = [
        Network { stragglers: slow, ..Network::new(4, 1e9, 1e-5) },
        Network { jitter: heavy, ..Network::new(4, 1e9, 1e-5) },
        Network { start: heavy, ..Network::new(4, 1e9, 1e-5) },
        Network { packet_floor: 1e12, ..Network::new(4, 1.0, 1e-5) },
    ];
    for network in networks {
        let mut cluster = Cluster::new(network, 1, false).unwrap();
        let calls: Vec<Call<_>> =
            calls(&cluster, |rank, ep| async move { allgather_bytes(&ep, Round(0), &[rank as u8; 9]).await });
        let error = cluster.run(calls, &[], |_, _| true).err().expect("too late").to_string();
        assert!(error.contains("passes 100 years"), "{error}");
    }
}
