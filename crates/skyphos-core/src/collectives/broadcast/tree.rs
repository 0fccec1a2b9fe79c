//! Topologies of a broadcast: the order of the ranks, trees over that order, and a ring.

use super::route::Route;
use crate::topology::Topology;
use skyphos_kernels::split_ranges;
use std::ops::Range;

/// The ranks in the order of a broadcast from `root`: the root, the others of its host, then of its rack, then all others.
/// Ranks of one host follow each other, and so do hosts of one rack. A rank's index in this order is its virtual rank.
pub fn order(topology: &Topology, root: u32) -> Vec<u32> {
    let (hosts, racks) = (topology.hosts(), topology.racks());
    let mut ranks: Vec<u32> = (0..hosts.len() as u32).collect();
    let (host, rack) = (hosts[root as usize], racks[root as usize]);
    ranks.sort_by_key(|rank| {
        let k = *rank as usize;
        (*rank != root, hosts[k] != host, racks[k] != rack, racks[k], hosts[k], *rank)
    });
    ranks
}

/// The parent and the children of a rank in a tree.
pub(super) struct Links {
    pub(super) parent: Option<u32>,
    pub(super) children: Vec<u32>,
}

/// A binomial tree: the parent of virtual rank v is v without its highest bit. The child with the largest subtree is first.
pub(super) fn binomial(order: &[u32], vrank: usize) -> Links {
    let (size, rounds) = (order.len(), order.len().next_power_of_two().ilog2());
    let parent = (vrank > 0).then(|| order[vrank - (1 << vrank.ilog2())]);
    let first = if vrank == 0 { 0 } else { vrank.ilog2() + 1 };
    let children = (first..rounds).map(|bit| vrank + (1 << bit)).filter(|child| *child < size);
    Links { parent, children: children.map(|child| order[child]).collect() }
}

fn chain(order: &[u32], vrank: usize) -> Links {
    let parent = vrank.checked_sub(1).map(|before| order[before]);
    Links { parent, children: order.get(vrank + 1).copied().into_iter().collect() }
}

fn simple(order: &[u32], vrank: usize) -> Links {
    match vrank {
        0 => Links { parent: None, children: order[1..].to_vec() },
        _ => Links { parent: Some(order[0]), children: Vec::new() },
    }
}

/// A range of the message that passes through one rank.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Relay {
    pub(super) range: Range<usize>,
    /// The number of the stream it arrives in. From one rank to another there is at most one stream of each number.
    pub(super) stream: u32,
    /// The sender; `None` if the rank has the range already.
    pub(super) from: Option<u32>,
    pub(super) to: Vec<u32>,
    /// The number of the stream in which it is forwarded.
    pub(super) onward: u32,
}

/// The ranges that pass through a virtual rank on a route.
///
/// Scatter and allgather (van de Geijn): the root sends each rank a range, and the ranges travel around a ring. The last rank
/// of the ring forwards nothing to the root. The root still forwards every range, since it has them all, so each range comes
/// from an earlier rank in the order.
pub(super) fn relays(route: Route, order: &[u32], vrank: usize, total: usize) -> Vec<Relay> {
    let tree = |links: fn(&[u32], usize) -> Links| {
        let Links { parent, children } = links(order, vrank);
        vec![Relay { range: 0..total, stream: 0, from: parent, to: children, onward: 0 }]
    };
    match route {
        Route::Chain => tree(chain),
        Route::Binomial => tree(binomial),
        Route::Simple => tree(simple),
        Route::ScatterAllgather => scatter_allgather(order, vrank, total),
    }
}

fn scatter_allgather(order: &[u32], vrank: usize, total: usize) -> Vec<Relay> {
    let size = order.len();
    let next = order[(vrank + 1) % size];
    let around = |(k, range): (usize, Range<usize>)| {
        // Range k travels from virtual rank k to the last rank, and from the root to the rank before k.
        let goes_on = vrank + 1 != k && vrank + 1 < size;
        let (stream, onward) = (if k == vrank { 0 } else { 1 + k as u32 }, 1 + k as u32);
        let from = match vrank {
            0 => None,
            _ if k == vrank => Some(order[0]),
            _ => Some(order[vrank - 1]),
        };
        Relay { range, stream, from, to: goes_on.then_some(next).into_iter().collect(), onward }
    };
    let bounds = split_ranges(0, total as u64, size as u32);
    let range = |k: usize| (k, bounds[k] as usize..bounds[k + 1] as usize);
    let all = || (0..size).map(range).filter(|(_, range)| !range.is_empty());
    let scattered = |(k, range): (usize, Range<usize>)| Relay {
        range,
        stream: 0,
        from: None,
        to: vec![order[k]],
        onward: 0,
    };
    let scatter = all().filter(|(k, _)| vrank == 0 && *k > 0).map(scattered);
    scatter.chain(all().map(around)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_rank_gets_each_byte_once_from_an_earlier_rank_of_the_order() {
        for size in 1..40usize {
            let order: Vec<u32> = (0..size as u32).rev().collect();
            for route in Route::ALL {
                for total in [1, 30, 1000] {
                    let all: Vec<Vec<Relay>> =
                        (0..size).map(|vrank| relays(route, &order, vrank, total)).collect();
                    let mut sent = BTreeSet::new();
                    for (vrank, relays) in all.iter().enumerate() {
                        for relay in relays {
                            for to in &relay.to {
                                let fresh = sent.insert((
                                    order[vrank],
                                    *to,
                                    relay.onward,
                                    relay.range.start,
                                    relay.range.end,
                                ));
                                assert!(fresh, "{route:?}: two streams of one number between two ranks");
                            }
                        }
                    }
                    for (vrank, relays) in all.iter().enumerate() {
                        let mut bytes = 0;
                        for relay in relays.iter().filter(|relay| relay.from.is_some()) {
                            let from = relay.from.unwrap();
                            assert!(order[..vrank].contains(&from));
                            let (start, end) = (relay.range.start, relay.range.end);
                            assert!(
                                sent.remove(&(from, order[vrank], relay.stream, start, end)),
                                "{route:?} {size}: {relay:?}"
                            );
                            bytes += relay.range.len();
                        }
                        assert_eq!(bytes, if vrank == 0 { 0 } else { total });
                    }
                    assert!(sent.is_empty(), "{route:?} of {size}: no rank receives {sent:?}");
                }
            }
        }
    }

    #[test]
    fn the_order_keeps_hosts_and_racks_together_and_begins_with_the_roots() {
        let topology = Topology::new(&[0, 1, 2, 3, 0, 1, 2, 3], &[0, 1, 0, 1, 0, 1, 0, 1]).unwrap();
        assert_eq!(order(&topology, 6), [6, 2, 0, 4, 1, 5, 3, 7]);
        assert_eq!(order(&Topology::flat(4), 2), [2, 0, 1, 3]);
    }
}
