//! Who brings a message to whom: the order of the ranks, trees over it, and the ring.

use super::route::Route;
use crate::topology::Topology;
use skyphos_kernels::split_ranges;
use std::ops::Range;

/// Ranks as a broadcast from `root` goes through them: the root, the others of its host, of its rack, and all others, those of
/// a host and of a rack one after the other.
pub fn order(topology: &Topology, root: u32) -> Vec<u32> {
    let (hosts, racks) = (topology.hosts(), topology.racks());
    let mut ranks: Vec<u32> = (0..hosts.len() as u32).collect();
    let (host, rack) = (hosts[root as usize], racks[root as usize]);
    ranks.sort_by_key(|rank_| {
        let k = *rank_ as usize;
        (*rank_ != root, hosts[k] != host, racks[k] != rack, racks[k], hosts[k], *rank_)
    });
    ranks
}

/// Where a rank stands in a tree over an order.
pub(super) struct Place {
    pub(super) parent: Option<u32>,
    pub(super) children: Vec<u32>,
}

/// A binomial tree: who stands in place k gets it from k without its highest bit. Children with more below them first.
pub(super) fn binomial(order: &[u32], place: usize) -> Place {
    let (size, rounds) = (order.len(), order.len().next_power_of_two().ilog2());
    let parent = (place > 0).then(|| order[place - (1 << place.ilog2())]);
    let first = if place == 0 { 0 } else { place.ilog2() + 1 };
    let children = (first..rounds).map(|bit| place + (1 << bit)).filter(|child| *child < size);
    Place { parent, children: children.map(|child| order[child]).collect() }
}

fn chain(order: &[u32], place: usize) -> Place {
    let parent = place.checked_sub(1).map(|before| order[before]);
    Place { parent, children: order.get(place + 1).copied().into_iter().collect() }
}

fn simple(order: &[u32], place: usize) -> Place {
    match place {
        0 => Place { parent: None, children: order[1..].to_vec() },
        _ => Place { parent: Some(order[0]), children: Vec::new() },
    }
}

/// A part of a message on its way through one rank: bytes, the stream's number, from whom, and to whom next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Leg {
    pub(super) range: Range<usize>,
    /// Streams of one number between two ranks are one.
    pub(super) stream: u32,
    pub(super) from: Option<u32>,
    pub(super) to: Vec<u32>,
    /// The number under which it goes on.
    pub(super) onward: u32,
}

/// The parts that go through who stands in a place of the order, from which ranks, and to which.
///
/// Scatter and allgather (van de Geijn): the root sends each rank a range, and the ranges go around a ring. Who would pass a range on
/// to the root does not, and the root sends it on all the same, for it has it: so each part comes from a rank that stands earlier.
pub(super) fn legs(route: Route, order: &[u32], place: usize, total: usize) -> Vec<Leg> {
    let tree = |at: fn(&[u32], usize) -> Place| {
        let Place { parent, children } = at(order, place);
        vec![Leg { range: 0..total, stream: 0, from: parent, to: children, onward: 0 }]
    };
    match route {
        Route::Chain => tree(chain),
        Route::Binomial => tree(binomial),
        Route::Simple => tree(simple),
        Route::ScatterAllgather => around(order, place, total),
    }
}

fn around(order: &[u32], place: usize, total: usize) -> Vec<Leg> {
    let size = order.len();
    let next = order[(place + 1) % size];
    let of = |(k, range): (usize, Range<usize>)| {
        // Range k begins its way at place k, and ends it before it would come there again.
        let goes_on = place + 1 != k && place + 1 < size;
        let (stream, onward) = (if k == place { 0 } else { 1 + k as u32 }, 1 + k as u32);
        let from = match place {
            0 => None,
            _ if k == place => Some(order[0]),
            _ => Some(order[place - 1]),
        };
        Leg { range, stream, from, to: goes_on.then_some(next).into_iter().collect(), onward }
    };
    let bounds = split_ranges(0, total as u64, size as u32);
    let range = |k: usize| (k, bounds[k] as usize..bounds[k + 1] as usize);
    let all = || (0..size).map(range).filter(|(_, range)| !range.is_empty());
    let to_each = |(k, range): (usize, Range<usize>)| Leg {
        range,
        stream: 0,
        from: None,
        to: vec![order[k]],
        onward: 0,
    };
    let scatter = all().filter(|(k, _)| place == 0 && *k > 0).map(to_each);
    scatter.chain(all().map(of)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_rank_gets_each_byte_once_from_one_that_stands_before_it() {
        for size in 1..40usize {
            let order: Vec<u32> = (0..size as u32).rev().collect();
            for route in Route::ALL {
                for total in [1, 30, 1000] {
                    let all: Vec<Vec<Leg>> =
                        (0..size).map(|place| legs(route, &order, place, total)).collect();
                    let mut sent = BTreeSet::new();
                    for (place, legs) in all.iter().enumerate() {
                        for leg in legs {
                            for to in &leg.to {
                                let fresh = sent.insert((
                                    order[place],
                                    *to,
                                    leg.onward,
                                    leg.range.start,
                                    leg.range.end,
                                ));
                                assert!(fresh, "{route:?}: a stream of a pair is one");
                            }
                        }
                    }
                    for (place, legs) in all.iter().enumerate() {
                        let mut bytes = 0;
                        for leg in legs.iter().filter(|leg| leg.from.is_some()) {
                            let from = leg.from.unwrap();
                            assert!(order[..place].contains(&from));
                            let (start, end) = (leg.range.start, leg.range.end);
                            assert!(
                                sent.remove(&(from, order[place], leg.stream, start, end)),
                                "{route:?} {size}: {leg:?}"
                            );
                            bytes += leg.range.len();
                        }
                        assert_eq!(bytes, if place == 0 { 0 } else { total });
                    }
                    assert!(sent.is_empty(), "{route:?} of {size}: nobody waits for {sent:?}");
                }
            }
        }
    }

    #[test]
    fn hosts_and_racks_stand_together_after_the_roots() {
        let topology = Topology::new(&[0, 1, 2, 3, 0, 1, 2, 3], &[0, 1, 0, 1, 0, 1, 0, 1]).unwrap();
        assert_eq!(order(&topology, 6), [6, 2, 0, 4, 1, 5, 3, 7]);
        assert_eq!(order(&Topology::flat(4), 2), [2, 0, 1, 3]);
    }
}
